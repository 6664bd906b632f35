"""Convolution and correlation of vectors, computed directly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from pygpukit.dtypes import DataType, dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import accumulator, matmul_type, wide_type
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i64, read, write
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.products.dot import NO_STREAM, dot_rows, require_both
from pygpukit.ops.promotion import promote
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import hint, maximum
from pygpukit.ops.source import instance

__all__ = ["FUNCTIONS", "convolve", "correlate"]

TILE = 1792
"""Outputs of a block."""

_FILE = "products/convolve.cu"
_THREADS = 256
_MODES = ("valid", "same", "full")


def _part(n: Any, m: Any, mode: str) -> tuple[Any, Any]:
    """Return the first element and the number of elements of the whole convolution that a mode takes; m <= n.

    ``"end"`` is ``"same"`` where the halves that are left out are exchanged.
    """
    if mode == "full":
        return 0, n + m - 1
    if mode == "valid":
        return m - 1, n - m + 1
    return (m - 1 if mode == "same" else m) // 2, n


def _infer(p: Problem) -> list[Result]:
    x, v = p["x"], p["v"]
    if x.dtype is not v.dtype:
        raise DTypeError(f"a convolution takes arrays of one type, not {x.dtype.name} and {v.dtype.name}")
    kind = matmul_type(x.dtype, v.dtype)
    if x.ndim != 1 or v.ndim != 1:
        raise ShapeError(f"a convolution takes vectors, not arrays of {x.ndim} and {v.ndim} dimensions")
    # The number of elements is that of the mode for operands in this order.
    return [Result((maximum(_part(x.shape[0], v.shape[0], p.options["mode"])[1], 0),), kind)]


def _reference(x: Any, v: Any, *, mode: str = "full") -> Any:
    kind = dtype(x.dtype)
    wide = to_numpy_dtype(wide_type(kind, kind))
    with np.errstate(all="ignore"):
        whole = np.convolve(x.astype(wide, copy=False), v.astype(wide, copy=False))
    start, count = _part(x.size, v.size, mode)
    return whole[start : start + count].astype(to_numpy_dtype(kind), copy=False)


def _host(p: Problem) -> Callable[..., None]:
    mode, kind = p.options["mode"], p["x"].dtype
    if wide_type(kind, kind) is kind and mode != "end":
        return partial(_by_numpy, mode)
    return partial(_rounded, mode)


def _by_numpy(mode: Any, x: Any, v: Any, out: Any) -> None:
    out[...] = np.convolve(x, v, mode)


def _rounded(mode: str, x: Any, v: Any, out: Any) -> None:
    out[...] = _reference(x, v, mode=mode)


@cache
def convolve_unit(kind: DataType) -> Unit:
    """Return the source of convolutions of a type."""
    entry = f"pgk_convolve_{kind.tag}"
    partial_type = accumulator(kind)
    rounded = kind if kind.kind in "iu" else partial_type
    logical = "true" if kind.kind == "b" else "false"
    line = f"PGK_CONVOLVE({entry}, {kind.tag}, {partial_type.tag}, {rounded.tag}, {logical})"
    return instance(_FILE, [line], (entry,))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for name in types:
        yield convolve_unit(dtype(name))


def _launch(p: Problem) -> Launch:
    x, v, out = p["x"], p["v"], p.out
    unit = convolve_unit(x.dtype)
    start, _ = _part(x.shape[0], v.shape[0], p.options["mode"])
    count = out.shape[0]
    sizes = (count, start, x.shape[0], x.strides[0], v.shape[0], v.strides[0], out.strides[0])
    arguments: tuple[Argument, ...] = (write(out), read(x), read(v), *map(i64, sizes))
    blocks = blocks_for(count, TILE, "a convolution")
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


convolve_part = register(
    Operator(
        name="convolve_part",
        parameters=(
            Parameter("x", doc="A vector."),
            Parameter("v", doc="A vector that is no longer."),
            Parameter("mode", "choice", "full", keyword_only=True, doc="``full``, ``same``, ``valid`` or ``end``."),
        ),
        infer=_infer,
        reference=_reference,
        variants=(
            Variant("taps in shared memory", "batch_invariant", lambda p: None, launch=_launch, units=_units),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host),
        ),
        doc="The part of a convolution that a mode takes.",
        tolerance={"float32": 1e-5, "bfloat16": 2**-6},
        flops=lambda p: 2 * hint(p.out.size) * hint(p["v"].size),
        public=False,
    )
)


def _vectors(what: str, a: Any, v: Any, mode: str) -> tuple[Any, Any]:
    a, v = require_both(what, a, v)
    if not isinstance(mode, str):
        raise TypeError(f"mode must be 'valid', 'same' or 'full', not {mode!r}")
    if mode not in _MODES:
        raise ValueError(f"mode must be one of 'valid', 'same', or 'full' (got {mode!r})")
    if a.ndim > 1 or v.ndim > 1:
        raise ShapeError(f"{what} takes vectors, not arrays of shapes {a.shape} and {v.shape}")
    if a.size == 0 or v.size == 0:
        raise ShapeError(f"{what} of arrays of {a.size} and {v.size} elements: neither may be empty")
    if a.dtype is v.dtype:
        return a, v
    kind = promote((a.dtype, v.dtype))
    return a.astype(kind, copy=False), v.astype(kind, copy=False)


def convolve(a: Any, v: Any, mode: str = "full", *, stream: Any = None) -> Any:
    """Convolution of two vectors: ``sum over j of a[i - j] * v[j]``.

    It is computed directly, each element as one sum in the order of the shorter vector; the time is that of the product
    of both lengths. Where both are long `pygpukit.fft` is faster and less accurate.

    Parameters
    ----------
    a, v : GPUArray
        Vectors.
    mode : str, optional
        ``"full"``: all elements; ``"same"``: as many as the longer vector has, from the middle; ``"valid"``: where the
        vectors overlap completely.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.convolve(gp.asarray([1, 2, 3]), gp.asarray([1, 1])).tolist()
    [1, 3, 5, 3]
    """
    with stream or NO_STREAM:
        a, v = _vectors("convolve", a, v, mode)
        a, v = (x.reshape(1) if x.ndim == 0 else x for x in (a, v))
        return convolve_part(a, v, mode=mode) if a.size >= v.size else convolve_part(v, a, mode=mode)


def correlate(a: Any, v: Any, mode: str = "valid", *, stream: Any = None) -> Any:
    """Correlation of two vectors: ``sum over j of a[i + j] * conj(v[j])``; see `convolve`.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.correlate(gp.asarray([1, 2, 3]), gp.asarray([0, 1]), "same").tolist()
    [1, 2, 3]
    """
    with stream or NO_STREAM:
        a, v = _vectors("correlate", a, v, mode)
        if a.ndim == 0 or v.ndim == 0:
            raise ShapeError(f"correlate takes vectors, not arrays of shapes {a.shape} and {v.shape}")
        turned = v[::-1] if v.dtype.kind != "c" else e.conj(v)[::-1]
        if mode == "valid" and a.size == v.size:
            return dot_rows(a, turned[::-1]).reshape(1)
        if a.size >= v.size:
            return convolve_part(a, turned, mode=mode)
        return convolve_part(turned, a, mode="end" if mode == "same" else mode)


FUNCTIONS = (convolve, correlate)
"""The public functions of this module."""
