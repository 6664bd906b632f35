"""Elements that a mask names: where it is set, what lies there, and assignment to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.array.indexing import elements_for, spread
from pygpukit.dtypes import dtype
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.index.gather import gathered
from pygpukit.ops.index.layout import code_of
from pygpukit.ops.index.scatter import scattered
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Struct, Unit, blocks_for, i32, i64, read, update, write
from pygpukit.ops.operands import as_array
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Operator, Parameter, Variant, export, register
from pygpukit.ops.size import ceil_div
from pygpukit.ops.source import instance

if TYPE_CHECKING:
    from pygpukit.ops.index.keys import Masked

TILE = 8192
_BOOL = dtype("bool")
_ENTRIES = ("pgk_mask_bits", "pgk_mask_scan", "pgk_mask_nonzero", "pgk_mask_take", "pgk_mask_put", "pgk_mask_repeat")


@cache
def unit() -> Unit:
    """Return the source of the kernels of masks."""
    return instance("index/mask.cu", (), _ENTRIES)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield unit()


def _dense(p: Problem) -> str | None:
    arrays = (*p.inputs.values(), *p.outputs)
    return None if all(t.is_contiguous() or t.size == 0 for t in arrays) else "an array is not contiguous"


def _significant(kind: DataType) -> tuple[int, int]:
    """Return which bits of an element make it other than zero: all but the signs of floats."""
    if kind.kind == "c":
        part = 0x7FFFFFFF_7FFFFFFF if kind.itemsize == 8 else 0x7FFFFFFF_FFFFFFFF
        return part, part
    bits = 8 * kind.itemsize
    used = (1 << (bits - 1)) - 1 if kind.kind == "f" else (1 << bits) - 1
    return used - (1 << 64 if used >= 1 << 63 else 0), 0


def _bits_infer(p: Problem) -> list[Result]:
    n = p["x"].size
    return [Result((ceil_div(n, 32),), dtype("uint32")), Result((ceil_div(n, TILE) + 1,), dtype("int64"))]


def _bits_launch(p: Problem) -> Launch:
    x, (bits, before) = p["x"], p.outputs
    n, made = x.size, unit()
    tiles = blocks_for(n, TILE, "a mask")
    vec = x.dtype.name == "bool" and x.is_aligned(16)
    arguments: tuple[Argument, ...] = (write(bits), write(before), read(x), i64(n), *map(i64, _significant(x.dtype)),
                 i32(x.dtype.itemsize), i32(vec))  # fmt: skip
    return Launch((
        KernelLaunch(made, made.entries[0], (tiles,), (256,), arguments),
        KernelLaunch(made, made.entries[1], (1,), (1024,), (update(before), i64(tiles))),
    ))  # fmt: skip


_bits = register(
    Operator(
        name="index_mask_bits",
        parameters=(Parameter("x"),),
        infer=_bits_infer,
        reference=np.packbits,
        variants=(Variant("words of ballots", "batch_invariant", _dense, launch=_bits_launch, units=_units),),
        doc="Which elements are not zero, as bits, and how many there are before each tile and altogether.",
        public=False,
    )
)


class Bits(NamedTuple):
    """A mask as it is read: a contiguous array, and for kernels its bits and their number before each tile.

    The CPU device reads the array alone, which is of bool there.
    """

    mask: GPUArray
    bits: GPUArray | None
    before: GPUArray | None


def bits_of(mask: GPUArray) -> Bits:
    """Return a mask of any type as it is read."""
    x = mask.contiguous()
    if x.device.kind == "cpu":
        return Bits(x if x.dtype is _BOOL else e.not_equal(x, 0), None, None)
    return Bits(x, *_bits(x))


def count_of(bits: Bits) -> int:
    """Read how many elements are not zero."""
    before = bits.before
    if before is None:
        return _native.count_chosen(bits.mask)
    return int(before._select(0, before.size - 1).item())


def _nonzero_launch(p: Problem) -> Launch:
    mask, made = p["mask"], unit()
    shape = Struct(tuple(i64(n) for n in (*mask.shape, *(1,) * (8 - mask.ndim))))
    arguments = (write(p.out), read(p["bits"]), read(p["before"]), i64(mask.size), i64(p.integers["count"]), shape,
                 i32(mask.ndim))  # fmt: skip
    return Launch((KernelLaunch(made, made.entries[2], (blocks_for(mask.size, TILE, "a mask"),), (256,), arguments),))


_MASK = (Parameter("mask"), Parameter("bits", "optional"), Parameter("before", "optional"))

_nonzero = register(
    Operator(
        name="index_nonzero",
        parameters=(*_MASK, Parameter("count", "number")),
        infer=lambda p: [Result((p["mask"].ndim, p.integers["count"]), dtype("int64"))],
        reference=lambda mask, bits, before, count: np.stack(np.nonzero(mask)),
        variants=(
            Variant("a tile per block", "batch_invariant", _dense, launch=_nonzero_launch, units=_units),
            Variant("the core", "batch_invariant", _dense, host=lambda p: _native.host_places()),
        ),
        doc="The positions of the elements of a mask, a row per axis.",
        public=False,
    )
)


def _take_launch(p: Problem) -> Launch:
    x, made = p["x"], unit()
    code = code_of(x.dtype.itemsize, (p.out, x))
    arguments = (write(p.out), read(x), read(p["bits"]), read(p["before"]), i64(x.size), i32(code))
    return Launch((KernelLaunch(made, made.entries[3], (blocks_for(x.size, TILE, "a mask"),), (256,), arguments),))


def _take_host(p: Problem) -> Callable[..., None]:
    def run(x: Any, mask: Any, bits: Any, before: Any, count: int, out: Any) -> None:
        out[...] = x[mask]

    return run


_take = register(
    Operator(
        name="index_mask_take",
        parameters=(Parameter("x"), *_MASK, Parameter("count", "number")),
        infer=lambda p: [Result((p.integers["count"],), p["x"].dtype)],
        reference=lambda x, mask, bits, before, count: x[mask],
        variants=(
            Variant("a tile per block", "batch_invariant", _dense, launch=_take_launch, units=_units),
            Variant("the core", "batch_invariant", _dense, host=lambda p: _native.host_take()),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_take_host),
        ),
        doc="The elements that a mask of the same shape names.",
        public=False,
    )
)


def _put_launch(p: Problem) -> Launch:
    x, value, made, how = p["x"], p["value"], unit(), p.options["how"]
    m = value.size if how != "put" else 0
    arguments = (write(x), read(value), read(p["bits"]), read(p["before"]), i64(x.size), i64(m),
                 i32(code_of(x.dtype.itemsize, (x, value))))  # fmt: skip
    entry = made.entries[5 if how == "putmask" else 4]
    return Launch((KernelLaunch(made, entry, (blocks_for(x.size, TILE, "a mask"),), (256,), arguments),))


def _put_host(p: Problem) -> Callable[..., None]:
    how = p.options["how"]

    def run(x: Any, value: Any, mask: Any, bits: Any, before: Any) -> None:
        if how == "put":
            x[mask] = value
        else:
            (np.place if how == "place" else np.putmask)(x, mask, value)

    return run


_put = register(
    Operator(
        name="index_mask_put",
        parameters=(Parameter("x"), Parameter("value"), *_MASK, Parameter("how", "choice", "put")),
        infer=lambda p: [],
        reference=lambda *arguments: None,
        variants=(
            Variant("a tile per block", "batch_invariant", _dense, launch=_put_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_put_host),
        ),
        doc="Write to the elements that a mask of the same shape names: values in order ('put'), in order and repeated "
        "('place'), or of the same position, repeated ('putmask').",
        public=False,
        updates=("x",),
    )
)


def _fill_host(p: Problem) -> Callable[..., None]:
    def run(x: Any, mask: Any, value: Any) -> None:
        np.copyto(x, value, where=mask)

    return run


def _fill_compose(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        x, mask, value = given
        e.where(mask, value, x, out=x)

    return run


_fill = register(
    Operator(
        name="index_mask_fill",
        parameters=(Parameter("x"), Parameter("mask"), Parameter("value")),
        infer=lambda p: [],
        reference=lambda *arguments: None,
        variants=(
            Variant("NumPy", "batch_invariant", lambda p: None, host=_fill_host),
            Variant("where", "batch_invariant", lambda p: None, compose=_fill_compose),
        ),
        doc="Write what broadcasts to ``x`` where a mask is True.",
        public=False,
        updates=("x",),
    )
)


def put_where(x: GPUArray, value: GPUArray, bits: Bits, how: str = "put") -> None:
    """Write values to the elements of an array that a mask of its shape names; see the operator for ``how``."""
    if value._shares_memory(x):
        value = value.copy()
    if bits.mask._shares_memory(x):
        bits = Bits(bits.mask.copy(), bits.bits, bits.before)
    if x.device.kind == "cpu" or x.is_contiguous:
        _put(x, value.contiguous(), *bits, how)
        return
    dense = x.contiguous()
    _put(dense, value.contiguous(), *bits, how)
    x[...] = dense


def merged(x: GPUArray, before: int, count: int) -> GPUArray | None:
    """Return a view with ``count`` axes from ``before`` on as one, or None where strides do not allow it."""
    shape = x.shape
    size = 1
    for n in shape[before : before + count]:
        size *= n
    return x._reshape([*shape[:before], size, *shape[before + count :]])


def selected(key: Masked) -> GPUArray:
    """Return the elements of a key with one mask."""
    view, before, mask, count = key
    if mask.ndim == view.ndim:
        bits = bits_of(mask)
        x = view if view.device.kind == "cpu" else view.contiguous()
        result: GPUArray = _take(x, *bits, count_of(bits) if count is None else count)
        return result
    positions = _positions(mask, count)
    one = merged(view, before, mask.ndim)
    if one is None:
        one = merged(view.contiguous(), before, mask.ndim)
        assert one is not None
    return gathered(one, [positions], before)


def _positions(mask: GPUArray, count: int | None) -> GPUArray:
    """Return the positions of a mask's elements as a vector."""
    bits = bits_of(mask.reshape(-1))
    found: GPUArray = _nonzero(*bits, count_of(bits) if count is None else count)
    return found[0]


def assign(key: Masked, value: Any) -> None:
    """Write a number or an array that broadcasts to the elements of a key with one mask."""
    view, before, mask, count = key
    source = elements_for(view, value)
    shape, axes = tuple(view.shape), mask.ndim
    behind = view.ndim - before - axes
    if source.ndim <= behind or source.shape[source.ndim - 1 - behind] == 1:
        # Every element that the mask names gets the same: their number is not needed.
        source = spread(source, (*shape[:before], 1, *shape[before + axes :]))
        source = source.reshape((*source.shape[:before], *(1,) * axes, *shape[before + axes :]))
        _fill(view, mask.reshape((*mask.shape, *(1,) * behind)) if behind else mask, source)
        return
    if axes == view.ndim:
        bits = bits_of(mask)
        count = count_of(bits) if count is None else count
        source = spread(source, (count,))
        if count:
            put_where(view, source, bits)
        return
    one = merged(view, before, axes)
    indices = list(nonzero(mask)) if one is None else [_positions(mask, count)]
    source = spread(source, (*shape[:before], *indices[0].shape, *shape[before + axes :]))
    if source.size:
        scattered(view if one is None else one, source, indices, before, unique=True)


def assign_where(x: GPUArray, mask: GPUArray, value: GPUArray) -> None:
    """Write what broadcasts to an array where a mask that broadcasts to it is True."""
    _fill(x, mask, value)


def taken_where(x: GPUArray, mask: GPUArray) -> GPUArray:
    """Return the elements of an array that a mask of the same shape and any type names."""
    bits = bits_of(mask)
    result: GPUArray = _take(x if x.device.kind == "cpu" else x.contiguous(), *bits, count_of(bits))
    return result


def vector_of(x: GPUArray) -> GPUArray:
    """Return the elements as a contiguous vector."""
    return x.contiguous().reshape(-1)


def places_of_count(mask: GPUArray, count: int) -> tuple[GPUArray, ...]:
    """Return the positions of a mask of which it is known how many elements are True: nothing is read."""
    found: GPUArray = _nonzero(*bits_of(mask), count)
    return tuple(found[d] for d in range(mask.ndim))


def _array(x: Any, what: str) -> GPUArray:
    return x if isinstance(x, GPUArray) else as_array(x, what)


def _found(a: GPUArray) -> GPUArray:
    bits = bits_of(a)
    found: GPUArray = _nonzero(*bits, count_of(bits))
    return found


def nonzero(a: GPUArray) -> tuple[GPUArray, ...]:
    """The positions of the elements that are not zero, an int64 vector per axis. Waits to read their number.

    Parameters
    ----------
    a : GPUArray

    Returns
    -------
    tuple of GPUArray

    Examples
    --------
    >>> import pygpukit as gp
    >>> [i.tolist() for i in gp.nonzero(gp.asarray([[0, 3], [4, 0]]))]
    [[0, 1], [1, 0]]
    """
    a = _array(a, "nonzero()")
    if a.ndim == 0:
        raise ValueError("nonzero() of an array of no dimensions: reshape it to one element first")
    found = _found(a)
    return tuple(found._select(0, d) for d in range(a.ndim))


@export
def flatnonzero(a: GPUArray) -> GPUArray:
    """The positions in row-major order of the elements that are not zero. Waits for the device to read their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.flatnonzero(gp.asarray([[0, 3], [4, 0]])).tolist()
    [1, 2]
    """
    return _found(_array(a, "flatnonzero()").reshape(-1))[0]


@export
def argwhere(a: GPUArray) -> GPUArray:
    """The positions of the elements that are not zero, a row each. Waits for the device to read their number.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.argwhere(gp.asarray([[0, 3], [4, 0]])).tolist()
    [[0, 1], [1, 0]]
    """
    a = _array(a, "argwhere()")
    if a.ndim == 0:
        return _found(a.reshape(1)).T[:, :0]
    return _found(a).T


export(nonzero, method=True)
