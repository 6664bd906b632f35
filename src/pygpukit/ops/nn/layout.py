"""How rows are dealt to threads: by their bytes alone, so that the order of every sum is fixed by the row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from pygpukit import _pygpukit_rust as _native
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.launch import blocks_for
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.size import ceil_div, hint, minimum

VECTOR = 16
"""Bytes a thread reads at once."""

LADDER = (
    (256, 16, 1), (1024, 32, 2), (4096, 32, 8), (6144, 32, 12), (8192, 64, 8), (12288, 64, 12), (16384, 128, 8),
    (32768, 256, 8), (65536, 512, 8),
)  # fmt: skip
"""Largest bytes of a row, threads that share it, vectors of each thread."""

_SINGLES = (
    (256, 16, 1), (1024, 32, 2), (6144, 32, 12), (12288, 64, 12), (16384, 128, 8), (32768, 256, 8), (65536, 512, 8),
)  # fmt: skip
# The same threads, with fewer kernels, where elements are moved one by one.

RMS = (
    (256, 16, 1), (1024, 32, 2), (4096, 32, 8), (6144, 128, 3), (8192, 128, 4), (12288, 256, 3), (16384, 256, 4),
    (24576, 512, 3), (32768, 512, 4), (65536, 512, 8),
)  # fmt: skip
"""The same for RMS norms, which take as long for one row as the steps of one thread."""

_RMS_SINGLES = (
    (256, 16, 1), (1024, 32, 2), (4096, 32, 8), (8192, 128, 4), (16384, 256, 4), (65536, 512, 8),
)  # fmt: skip

LONG = 1024
"""Threads of a row that is longer."""

HELD = 96 << 10
"""Bytes of a longer row that shared memory holds: what every architecture has."""


class Shape(NamedTuple):
    """The kernel for rows of one length.

    Attributes
    ----------
    group, chunks
        Threads of a row, and vectors of each; 0 where shared memory holds them.
    vec
        Whether rows are read by vectors.
    """

    group: int
    chunks: int
    vec: bool

    @property
    def name(self) -> str:
        """Part of the entry's name."""
        return f"{self.group}x{self.chunks}{'' if self.vec else '_any'}"

    @property
    def block(self) -> int:
        """Threads per block."""
        return max(self.group, 128)

    @property
    def arguments(self) -> str:
        """Template arguments."""
        return f"{self.group}, {self.chunks}, {'true' if self.vec else 'false'}"

    def blocks(self, rows: Any, what: str) -> Any:
        """Return the grid for so many rows."""
        return blocks_for(rows, self.block // self.group, f"{what} of {hint(rows)} rows")

    def cached(self, n: Any, x: DataType) -> Any:
        """Return how many vectors of a row shared memory holds."""
        return 0 if self.chunks else minimum(ceil_div(n * x.itemsize, VECTOR), HELD // VECTOR)


_forced: tuple[int, int] | None = None


def force(shape: tuple[int, int] | None = None) -> None:
    """Take these threads and vectors of each for rows of RMS norms that fit them; for tuning."""
    global _forced
    _forced = shape
    _native.clear_plans()


def rms_shape_of(n: Any, x: DataType, vec: bool) -> Shape:
    """Return the kernel for RMS norms of rows of ``n`` elements.

    Examples
    --------
    >>> from pygpukit.dtypes import bfloat16
    >>> rms_shape_of(3584, bfloat16, True).name
    '128x4'
    """
    if _forced is not None and n <= _forced[0] * _forced[1] * VECTOR // x.itemsize:
        return Shape(*_forced, vec)
    return _find(n, x, vec, RMS if vec else _RMS_SINGLES)


def shape_of(n: Any, x: DataType, vec: bool) -> Shape:
    """Return the kernel for rows of ``n`` elements.

    Examples
    --------
    >>> from pygpukit.dtypes import bfloat16
    >>> shape_of(8192, bfloat16, True).name
    '128x8'
    """
    return _find(n, x, vec, LADDER if vec else _SINGLES)


def _find(n: Any, x: DataType, vec: bool, ladder: Sequence[tuple[int, int, int]]) -> Shape:
    for limit, group, chunks in ladder:
        if n <= limit // x.itemsize:
            return Shape(group, chunks, vec)
    return Shape(LONG, 0, vec)


def shapes(rms: bool = False) -> Iterator[Shape]:
    """Return all of them, or those of RMS norms, as bundles hold them."""
    for vec in (True, False):
        ladder = (RMS if vec else _RMS_SINGLES) if rms else (LADDER if vec else _SINGLES)
        yield from (Shape(group, chunks, vec) for _, group, chunks in ladder)
        yield Shape(LONG, 0, vec)


def is_vectorised(n: Any, tensors: Sequence[tuple[Tensor, Any]]) -> bool:
    """Can rows of these arrays, each with the stride of its rows, be read by vectors of 16 bytes?"""
    for tensor, stride in tensors:
        each = max(1, VECTOR // tensor.dtype.itemsize)
        if n % each != 0 or stride % each != 0 or not tensor.is_aligned(min(VECTOR, each * tensor.dtype.itemsize)):
            return False
    return True


def form_of(p: Problem) -> int:
    """Return the form of an RMS norm, as kernels take it."""
    return int(bool(p.options.get("plus_one"))) | 2 * int(p.options.get("cast", "after") == "before")


def rows_of(tensor: Tensor) -> tuple[Any, Any] | None:
    """Return number and stride of the rows along the last axis, or None where they are not evenly spaced."""
    from pygpukit.ops.reduce.layout import collapse

    found = collapse(tensor.shape, tensor.strides, (tensor.ndim - 1,))
    if found is None:
        return None
    (outer, n, _), (stride, step, _) = found
    return (outer, stride) if n == 1 or step == 1 else None


def float_input(p: Problem, name: str, small: Sequence[str] = ()) -> Tensor:
    """Return an array that must be of floats.

    Raises
    ------
    DTypeError
        If it is not.
    """
    x = p[name]
    if x.dtype.kind != "f" or (x.dtype.itemsize == 1 and x.dtype.name not in small):
        raise DTypeError(
            f"{p.name} is not defined for '{name}' of {x.dtype.name}; it takes float16, bfloat16, float32 and float64: "
            "convert with astype"
        )
    return x


def accumulator(x: DataType) -> str:
    """Return the tag of the type that sums are in."""
    return "f64" if x.itemsize == 8 else "f32"


def float_types(types: Sequence[str], least: int = 2) -> Iterator[DataType]:
    """Return the floats among element types, of at least so many bytes."""
    return (kind for kind in map(dtype, types) if kind.kind == "f" and kind.itemsize >= least)


def contiguous(*names: str) -> Callable[[Problem], str | None]:
    """Return a variant's question whether arrays are contiguous, and the results."""

    def accepts(p: Problem) -> str | None:
        for name in names:
            tensor = p.arrays.get(name)
            if tensor is not None and not tensor.is_contiguous():
                return f"'{name}' is not contiguous"
        return None if all(t.is_contiguous() for t in p.outputs) else "an out is not contiguous"

    return accepts
