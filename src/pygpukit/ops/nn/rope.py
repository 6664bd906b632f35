"""Rotary embedding of queries and keys, alone and with the norm before it and the write to a cache behind it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache as once
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray, Stream
from pygpukit.array.creation import empty
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.attention.arguments import CODES
from pygpukit.ops.attention.cache import kv_cache_write_paged
from pygpukit.ops.launch import (
    Argument,
    KernelLaunch,
    Launch,
    Number,
    Struct,
    Unit,
    blocks_for,
    constant,
    i64,
    read,
    update,
    write,
)
from pygpukit.ops.nn import reference
from pygpukit.ops.nn.layout import VECTOR, Shape, accumulator, float_input, float_types, form_of, shape_of, shapes
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Operator, Parameter, Variant, export, register
from pygpukit.ops.shape.ranges import arange
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance

_THREADS = 128
_LARGEST = 4096
"""Bytes of a head: longer ones are shared by more than a warp."""


def _shown(x: Tensor) -> str:
    return str(tuple(hint(n) for n in x.shape))


def _check_heads(p: Problem, name: str, like: Tensor | None = None) -> Tensor:
    x = float_input(p, name)
    if x.ndim != 3:
        raise ShapeError(f"{p.name}: {name} has shape {_shown(x)}; it must be [tokens, heads, dim]")
    if like is not None:
        if x.shape[0] != like.shape[0] or x.shape[2] != like.shape[2]:
            raise ShapeError(f"{p.name}: q {_shown(like)} and {name} {_shown(x)} differ in tokens or dim")
        if x.dtype is not like.dtype:
            raise DTypeError(f"{p.name}: {name} is {x.dtype.name}, q {like.dtype.name}: use one type")
    return x


def _check_index(p: Problem, name: str, tokens: Any) -> None:
    x = p.arrays.get(name)
    if x is None:
        return
    if x.dtype.name not in ("int32", "int64"):
        raise DTypeError(f"{p.name}: {name} are {x.dtype.name}; use int32 or int64")
    if x.ndim != 1 or x.shape[0] != tokens:
        raise ShapeError(f"{p.name}: {name} have shape {_shown(x)}; {hint(tokens)} tokens need ({hint(tokens)},)")


def rotary_of(p: Problem) -> Any:
    """Return how many elements of a head turn, after checking the tables.

    Raises
    ------
    ShapeError, DTypeError
        If the tables do not fit the heads.
    """
    cos, sin, dim = p["cos"], p["sin"], p["q"].shape[2]
    if cos.ndim != 2 or sin.ndim != 2 or any(a != b for a, b in zip(cos.shape, sin.shape, strict=True)):
        raise ShapeError(f"{p.name}: cos {_shown(cos)} and sin {_shown(sin)} must both be [positions, width]")
    if cos.dtype is not sin.dtype or cos.dtype.name not in (p["q"].dtype.name, "float32"):
        raise DTypeError(
            f"{p.name}: cos is {cos.dtype.name} and sin {sin.dtype.name}; use float32, or both of {p['q'].dtype.name}"
        )
    width = cos.shape[1]
    if width == dim and dim % 2 == 0:
        return dim
    if width * 2 > dim:
        raise ShapeError(
            f"{p.name}: tables of width {hint(width)} do not fit heads of {hint(dim)}: one column per pair that turns, "
            f"at most {hint(dim) // 2}, or {hint(dim)} of which the first half is used"
        )
    return width * 2


def _check(p: Problem) -> None:
    q = _check_heads(p, "q")
    if p.arrays.get("k") is not None:
        _check_heads(p, "k", q)
    rotary_of(p)
    _check_index(p, "positions", q.shape[0])
    if p.arrays.get("positions") is None and q.shape[0] > p["cos"].shape[0]:
        raise ShapeError(
            f"{p.name}: {hint(q.shape[0])} tokens, but tables of {hint(p['cos'].shape[0])} positions: make longer ones"
        )


def _infer_rope(p: Problem) -> list[Result]:
    _check(p)
    return []


def _accepts(p: Problem) -> str | None:
    for name in ("q", "k", "v", "k_cache", "v_cache", "cos", "sin"):
        x = p.arrays.get(name)
        if x is not None and x.shape[-1] != 1 and x.strides[-1] != 1:
            return f"the elements of a row of '{name}' do not lie side by side"
    for name in ("positions", "slots", "q_norm", "k_norm"):
        x = p.arrays.get(name)
        if x is not None and not x.is_contiguous():
            return f"'{name}' is not contiguous"
    if p.outputs and p.out.strides[2] != 1 and p.out.shape[2] != 1:
        return "the elements of a row of out do not lie side by side"
    if p["cos"].strides[0] != p["sin"].strides[0]:
        return "cos and sin have different strides"
    return None if p["q"].shape[2] * p["q"].dtype.itemsize <= _LARGEST else f"heads of more than {_LARGEST} bytes"


def _vectors(p: Problem, rotary: Any) -> bool:
    q = p["q"]
    each = VECTOR // q.dtype.itemsize
    if q.shape[2] % each != 0 or rotary % (2 * each) != 0:
        return False
    for tensor in (*p.inputs.values(), *p.outputs):
        if tensor.ndim == 1:
            if tensor.dtype.kind == "f" and not tensor.is_aligned(VECTOR):
                return False
            continue
        step = VECTOR // tensor.dtype.itemsize
        if not tensor.is_aligned(VECTOR) or any(s % step != 0 for s in tensor.strides[:-1]):
            return False
    return True


class _Places:
    """Where k and v go: strides of pages, of tokens in a page and of heads."""

    def __init__(self, k: Tensor | None, v: Tensor | None, page_tokens: Any, places: Any, strides: Sequence[Any]):
        self.k, self.v, self.page_tokens, self.places, self.strides = k, v, page_tokens, places, strides


def _launch(p: Problem, q_to: Argument, q_strides: Sequence[Any], to: _Places) -> Launch:
    q, k, v = p["q"], p.arrays.get("k"), p.arrays.get("v")
    tokens, heads, dim = q.shape
    kv_heads: Any = 0 if k is None else k.shape[1]
    rotary, cos = rotary_of(p), p["cos"]
    norms = [p.arrays.get("q_norm"), p.arrays.get("k_norm")]
    weights = next((w.dtype for w in norms if w is not None), None)
    vec = _vectors(p, rotary)
    shape = shape_of(dim, q.dtype, vec)
    every = heads + kv_heads * (1 if v is None else 2)
    together = 0
    if vec and dim * q.dtype.itemsize <= 32 * VECTOR:
        # A vector per thread; a token's heads share its tables, once there are threads enough.
        shape = Shape(min(shape.group, 32), 1, True)
        together = _together(tokens, heads, kv_heads)
    unit = rope_unit(q.dtype, weights, cos.dtype, shape, bool(p.options["interleaved"]), together)

    def steps(x: Tensor | None) -> tuple[Any, Any]:
        return (0, 0) if x is None else (x.strides[0], x.strides[1])

    def wide(name: str) -> int:
        x = p.arrays.get(name)
        return int(x is not None and x.dtype.itemsize == 8)

    def optional(x: Tensor | None, access: Callable[[Tensor], Argument] = read) -> Argument:
        return i64(0) if x is None else access(x)

    members = (
        tokens, heads, kv_heads, dim, rotary, cos.shape[0], cos.strides[0], wide("positions"), wide("slots"),
        to.page_tokens, to.places, form_of(p), *steps(q), *steps(k), *steps(v), *q_strides, *to.strides,
    )  # fmt: skip
    arguments: tuple[Argument, ...] = (
        q_to, optional(to.k, update), optional(to.v, update), read(q), optional(k), optional(v), read(cos),
        read(p["sin"]), optional(p.arrays.get("positions")), optional(p.arrays.get("slots")),
        *(optional(w, constant) for w in norms), Struct(tuple(map(i64, members))),
        *((Number("eps", dtype("float64" if q.dtype.itemsize == 8 else "float32")),) if "eps" in p.options else
          (bytes(8 if q.dtype.itemsize == 8 else 4),)),
    )  # fmt: skip
    rows = tokens * (every // together if together else every)
    blocks = blocks_for(rows, _THREADS // shape.group, f"{p.name} of {hint(rows)} heads")
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


_SHARING = (1, 2, 4)
"""Heads of a token that threads take together."""

_FEW = 1024
"""Heads of all tokens up to which every one has threads of its own."""

_forced: int | None = None


def force(heads: int | None) -> None:
    """Let threads take so many heads of a token together, where they divide them; None for as many as usual."""
    global _forced
    _forced = heads
    _native.clear_plans()


def _together(tokens: Any, heads: Any, kv_heads: Any) -> int:
    if _forced is None and tokens * (heads + 2 * kv_heads) <= _FEW:
        return 1
    return next(n for n in (4, 2, 1) if n <= (_forced or 4) and heads % n == 0 and kv_heads % n == 0)


@once
def rope_unit(
    x: DataType, weights: DataType | None, tables: DataType, shape: Shape, pairs: bool, together: int = 0
) -> Unit:
    """Return the source for element types, one class of lengths of heads, how pairs lie, and heads at a time."""
    if together:
        norm = "" if weights is None else f"_norm_{weights.tag}"
        entry = f"pgk_rope_{x.tag}_{tables.tag}_{shape.group}_heads{together}" + "_pairs" * pairs + norm
        flags = ", ".join("true" if flag else "false" for flag in (pairs, weights is not None))
        types = f"{x.tag}, {(weights or x).tag}, {tables.tag}, {accumulator(x)}"
        line = f"PGK_ROPE_HEADS({entry}, {types}, {shape.group}, {together}, {flags})"
        return instance("nn/rope.cu", [line], (entry,))
    norm = "" if weights is None else f"_norm_{weights.tag}"
    entry = f"pgk_rope_{x.tag}_{tables.tag}_{shape.name}" + "_pairs" * pairs + norm
    flags = ", ".join("true" if flag else "false" for flag in (pairs, weights is not None))
    line = (
        f"PGK_ROPE({entry}, {x.tag}, {(weights or x).tag}, {tables.tag}, {accumulator(x)}, {shape.arguments}, {flags})"
    )
    return instance("nn/rope.cu", [line], (entry,))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    usual = [shape for shape in shapes() if 0 < shape.chunks <= 2]
    for x in float_types(types):
        for pairs, weights in itertools.product((False, True), (None, x)):
            for shape in usual:
                if not (shape.vec and shape.chunks == 1):
                    yield rope_unit(x, weights, dtype("float32"), shape, pairs)
            for group, together in itertools.product((16, 32), _SHARING):
                yield rope_unit(x, weights, dtype("float32"), Shape(group, 1, True), pairs, together)


def _launch_rope(p: Problem) -> Launch:
    q, k = p["q"], p.arrays.get("k")
    into = (0, 0, 0) if k is None else (k.strides[0], 0, k.strides[1])
    return _launch(p, update(q), q.strides[:2], _Places(k, None, 1, q.shape[0], (*into, 0, 0, 0)))


def _host_rope(p: Problem) -> Callable[..., None]:
    pairs = bool(p.options["interleaved"])

    def run(q: Any, k: Any, cos: Any, sin: Any, positions: Any) -> None:
        at = np.arange(q.shape[0]) if positions is None else positions
        _check_positions(p.name, at, cos)
        for x in (q, k):
            if x is not None:
                x[...] = reference.rope(x, cos, sin, at, pairs)

    return run


def _check_positions(name: str, at: Any, cos: Any) -> None:
    if at.size and at.max() >= cos.shape[0]:
        raise IndexError(f"{name}(): position {at.max()}, but the tables have {cos.shape[0]}: make longer ones")


def _copy_rope(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        q, k, cos, sin, positions, interleaved = given
        turned = [None if x is None else x.copy() for x in (q, k)]
        at = None if positions is None else positions.contiguous()
        rope_inplace(turned[0], turned[1], cos.contiguous(), sin.contiguous(), at, interleaved=interleaved)
        for x, value in zip((q, k), turned, strict=True):
            if x is not None:
                x[...] = value

    return run


_TABLES = (
    Parameter("cos", doc="``[positions, rotary / 2]`` as `rope_tables` makes them, or ``[positions, dim]``."),
    Parameter("sin", doc="Of the same shape."),
)
_INTERLEAVED = Parameter(
    "interleaved", "choice", False, keyword_only=True,
    doc="Pairs are neighbours, as in DeepSeek and GGUF's llama; else the two halves of what turns.",
)  # fmt: skip
rope_inplace = register(
    Operator(
        name="rope_inplace",
        parameters=(
            Parameter("q", doc="``[tokens, heads, dim]``, updated."),
            Parameter("k", "optional", doc="``[tokens, kv_heads, dim]``, updated; None for none."),
            *_TABLES,
            Parameter("positions", "optional", None, doc="int32 or int64, one per token; 0, 1, 2, ... by default."),
            _INTERLEAVED,
        ),
        infer=_infer_rope,
        reference=lambda *arrays, **options: None,
        variants=(
            Variant("a warp or less per head", "batch_invariant", _accepts, launch=_launch_rope, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_rope),
            Variant("contiguous copies", "batch_invariant", lambda p: None, compose=_copy_rope),
        ),
        doc="""Turn queries and keys by their positions, in place.

A table with fewer columns than half a head turns the first elements only (partial rotary). A negative position turns
nothing. One behind the tables is an error on the CPU device, and gives NaN on a GPU, where positions are not read back.

Products and sums are rounded one by one in float32, and the result once: the CPU device and kernels give the same bits.

Examples
--------
>>> import pygpukit as gp
>>> cos, sin = gp.rope_tables(8, 4)
>>> q = gp.ones((2, 1, 4))
>>> gp.rope_inplace(q, None, cos, sin)
>>> q[0].tolist()
[[1.0, 1.0, 1.0, 1.0]]
""",
        flops=lambda p: 3 * hint(p["q"].size),
        updates=("q", "k"),
    )
)

export(rope_inplace, "rope_inplace_f32table")


def _infer_fused(p: Problem) -> list[Result]:
    _check(p)
    q, k = p["q"], p["k"]
    v = _check_heads(p, "v", q)
    if v.shape[1] != k.shape[1]:
        raise ShapeError(f"{p.name}: k {_shown(k)} and v {_shown(v)} differ in heads")
    _check_index(p, "slots", q.shape[0])
    for name in ("k_cache", "v_cache"):
        c = p[name]
        if c.ndim != 4 or c.shape[2] != k.shape[1] or c.shape[3] != k.shape[2]:
            raise ShapeError(
                f"{p.name}: {name} has shape {_shown(c)}; keys {_shown(k)} need [pages, page_tokens, "
                f"{hint(k.shape[1])}, {hint(k.shape[2])}]"
            )
        if c.dtype is not q.dtype:
            raise DTypeError(f"{p.name}: {name} is {c.dtype.name}, q {q.dtype.name}: use one type")
    if any(a != b for a, b in zip(p["k_cache"].shape, p["v_cache"].shape, strict=True)):
        raise ShapeError(f"{p.name}: k_cache {_shown(p['k_cache'])} and v_cache {_shown(p['v_cache'])} differ")
    norms = [(name, w) for name in ("q_norm", "k_norm") if (w := p.arrays.get(name)) is not None]
    for name, w in norms:
        if w.ndim != 1 or w.shape[0] != q.shape[2]:
            raise ShapeError(f"{p.name}: {name} has shape {_shown(w)}; heads need ({hint(q.shape[2])},)")
        if w.dtype is not norms[0][1].dtype or w.dtype.name not in (q.dtype.name, "float32"):
            raise DTypeError(f"{p.name}: {name} is {w.dtype.name}; use {q.dtype.name} as q, or float32, for both")
    if p.requested and p.requested[0] is not q.dtype:
        raise DTypeError(f"{p.name}: out is {p.requested[0].name}; use {q.dtype.name} as q")
    return [Result(q.shape, q.dtype)]


def _launch_fused(p: Problem) -> Launch:
    k, v = p["k_cache"], p["v_cache"]
    strides = [x.strides[axis] for x in (k, v) for axis in (0, 1, 2)]
    return _launch(p, write(p.out), p.out.strides[:2], _Places(k, v, k.shape[1], k.shape[0] * k.shape[1], strides))


def _host_fused(p: Problem) -> Callable[..., None]:
    pairs = bool(p.options["interleaved"])
    form = {"plus_one": p.options["plus_one"], "cast": p.options["cast"]}
    name = p.name

    def run(q: Any, k: Any, v: Any, cos: Any, sin: Any, k_cache: Any, v_cache: Any, slots: Any, positions: Any,
            q_norm: Any, k_norm: Any, eps: float, out: Any) -> None:  # fmt: skip
        at = np.arange(q.shape[0]) if positions is None else positions
        _check_positions(name, at, cos)
        pages, page_tokens = k_cache.shape[:2]
        if slots.size and slots.max() >= pages * page_tokens:
            raise IndexError(f"{name}(): slot {slots.max()} in a cache of {pages} pages of {page_tokens} tokens")
        kept = slots >= 0
        where = np.divmod(slots[kept], page_tokens)
        if k_norm is not None:
            k = reference.rmsnorm(k, k_norm, eps, **form)
        k_cache[where] = reference.rope(k, cos, sin, at, pairs)[kept]
        v_cache[where] = v[kept]
        if q_norm is not None:
            q = reference.rmsnorm(q, q_norm, eps, **form)
        out[...] = reference.rope(q, cos, sin, at, pairs)

    return run


def _copy_fused(p: Problem) -> Callable[..., None]:
    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        dense = [x.contiguous() if isinstance(x, GPUArray) and i not in (5, 6) else x for i, x in enumerate(given)]
        form = dict(zip(("interleaved", "plus_one", "cast"), dense[12:], strict=True))
        results[0][...] = _fused(*dense[:12], **form)

    return run


_fused = register(
    Operator(
        name="qk_norm_rope_cache",
        parameters=(
            Parameter("q"),
            Parameter("k"),
            Parameter("v"),
            *_TABLES,
            Parameter("k_cache"),
            Parameter("v_cache"),
            Parameter("slots"),
            Parameter("positions", "optional", None),
            Parameter("q_norm", "optional", None),
            Parameter("k_norm", "optional", None),
            Parameter("eps", "number", 1e-6),
            _INTERLEAVED,
            Parameter("plus_one", "choice", False),
            Parameter("cast", "choice", "before"),
        ),
        infer=_infer_fused,
        reference=lambda *arrays, **options: None,
        variants=(
            Variant("a warp or less per head", "batch_invariant", _accepts, launch=_launch_fused, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_fused),
            Variant("contiguous copies", "batch_invariant", lambda p: None, compose=_copy_fused),
        ),
        doc="Norms of the heads, rotary embedding, and the write of keys and values to a cache.",
        public=False,
        updates=("k_cache", "v_cache"),
    )
)


@export
def qk_norm_rope_cache(
    q: GPUArray,
    k: GPUArray,
    v: GPUArray,
    cos: GPUArray,
    sin: GPUArray,
    cache: GPUArray | tuple[GPUArray, GPUArray],
    slots: GPUArray,
    positions: GPUArray | None = None,
    q_norm: GPUArray | None = None,
    k_norm: GPUArray | None = None,
    eps: float = 1e-6,
    *,
    interleaved: bool = False,
    plus_one: bool = False,
    cast: str = "before",
    kv_scales: GPUArray | None = None,
    out: GPUArray | None = None,
    stream: Stream | None = None,
) -> GPUArray:
    """Norms of the heads, rotary embedding, and the write of keys and values to a cache, in one launch.

    The bits are those of `rmsnorm`, `rope_inplace` and the write one after the other.

    Parameters
    ----------
    q, k, v : GPUArray
        ``[tokens, heads, dim]`` and ``[tokens, kv_heads, dim]``: any strides over tokens and heads, so views of one
        joined product do.
    cos, sin : GPUArray
        As `rope_inplace` takes them.
    cache : GPUArray or tuple
        One layer of a paged cache, ``[pages, 2, page_tokens, kv_heads, dim]``; or a pair for keys and values of
        ``[kv_heads, max_tokens, dim]`` each, or of ``[pages, page_tokens, kv_heads, dim]``. A paged one may hold codes,
        float8_e4m3fn or int8, which takes a second launch.
    slots : GPUArray
        int32 or int64, one per token: ``page * page_tokens + place``. A negative one is not written. One behind the
        cache is an error on the CPU device, and is not written by kernels.
    positions : GPUArray, optional
        As `rope_inplace` takes them.
    q_norm, k_norm : GPUArray, optional
        Weights ``[dim]`` of the heads' RMS norm; None for none.
    eps : float
        Of the norm.
    interleaved, plus_one, cast
        As `rope_inplace` and `rmsnorm` take them.
    kv_scales : GPUArray, optional
        Of a cache of codes, as `kv_cache_write_paged` takes them.
    out : GPUArray, optional
        Where the turned queries are written; may be ``q``.
    stream : Stream, optional
        The current one by default.

    Returns
    -------
    GPUArray
        The turned queries.

    Examples
    --------
    >>> import pygpukit as gp
    >>> cos, sin = gp.rope_tables(8, 4)
    >>> x, cache = gp.ones((1, 1, 4)), gp.zeros((2, 2, 4, 1, 4))
    >>> q = gp.qk_norm_rope_cache(x, x, x, cos, sin, cache, gp.asarray([5], "int64"))
    >>> cache[1, :, 1, 0, 0].tolist()
    [1.0, 1.0]
    """
    if isinstance(cache, GPUArray):
        if cache.ndim != 5 or cache.shape[1] != 2:
            raise ShapeError(
                f"qk_norm_rope_cache(): cache has shape {cache.shape}; it must be [pages, 2, page_tokens, kv_heads, "
                "dim], or a pair of arrays for keys and values"
            )
        pair = cache[:, 0], cache[:, 1]
        if kv_scales is not None or (cache.dtype is not q.dtype and cache.dtype.name in CODES):
            turned = empty((2, 1, *k.shape), q.dtype, device=q.device)
            places = arange(k.shape[0], dtype="int64", device=q.device)
            made = _fused(
                q, k, v, cos, sin, turned[0], turned[1], places, positions, q_norm, k_norm, eps,
                interleaved=interleaved, plus_one=plus_one, cast=cast, out=out, stream=stream,
            )  # fmt: skip
            at = slots.astype("int32", copy=False)
            kv_cache_write_paged(turned[0, 0], v, cache, at, kv_scales=kv_scales, stream=stream)
            return made  # type: ignore[no-any-return]
    else:
        pair = tuple(x.transpose((1, 0, 2))[None] if x.ndim == 3 else x for x in cache)  # type: ignore[assignment]
    return _fused(  # type: ignore[no-any-return]
        q, k, v, cos, sin, *pair, slots, positions, q_norm, k_norm, eps,
        interleaved=interleaved, plus_one=plus_one, cast=cast, out=out, stream=stream,
    )  # fmt: skip
