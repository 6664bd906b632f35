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

NORMS = (
    (256, 16, 1), (1024, 32, 2), (4096, 32, 8), (6144, 128, 3), (8192, 256, 2), (12288, 256, 3), (16384, 256, 4),
    (24576, 512, 3), (32768, 512, 4), (65536, 512, 8),
)  # fmt: skip
"""The same for norms, which take as long for one row as the steps of one thread."""

_NORM_SINGLES = (
    (256, 16, 1), (1024, 32, 2), (4096, 32, 8), (6144, 128, 3), (16384, 256, 4), (65536, 512, 8),
)  # fmt: skip

NORM_BLOCKS = 4096
"""Blocks of norms at most: with more rows a block goes on to further ones, and has the weights already."""

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
_most_blocks = NORM_BLOCKS


def force(shape: tuple[int, int] | None = None, blocks: int = NORM_BLOCKS) -> None:
    """Take these threads and vectors of each for every row of norms, and so many blocks at most; for tuning."""
    global _forced, _most_blocks
    _forced, _most_blocks = shape, blocks
    _native.clear_plans()


def norm_shape_of(n: Any, x: DataType, vec: bool) -> Shape:
    """Return the kernel for norms of rows of ``n`` elements.

    Examples
    --------
    >>> from pygpukit.dtypes import bfloat16
    >>> norm_shape_of(3584, bfloat16, True).name
    '256x2'
    """
    if _forced is not None:
        return Shape(*_forced, vec)
    return _find(n, x, vec, NORMS if vec else _NORM_SINGLES)


def norm_blocks(shape: Shape, rows: Any, what: str) -> Any:
    """Return the grid of a norm of so many rows."""
    blocks = shape.blocks(rows, what)
    return minimum(blocks, _most_blocks) if shape.chunks else blocks


def norm_shapes() -> Iterator[Shape]:
    """Return all kernels of norms, as bundles hold them."""
    for vec in (True, False):
        yield from (Shape(group, chunks, vec) for _, group, chunks in (NORMS if vec else _NORM_SINGLES))
        yield Shape(LONG, 0, vec)


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


def shapes() -> Iterator[Shape]:
    """Return all of them, as bundles hold them."""
    for vec in (True, False):
        yield from (Shape(group, chunks, vec) for _, group, chunks in (LADDER if vec else _SINGLES))
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
