"""A problem: what an operator was called with, as its planner sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pygpukit.dtypes import DataType
from pygpukit.ops.size import Size, SizeLike, Trace, hint, product

if TYPE_CHECKING:
    from pygpukit.ops.launch import Unit
    from pygpukit.ops.registry import Determinism

Role: TypeAlias = str
"""``"input"``, ``"output"`` or ``"scratch"``."""

ALIGNMENT = 256
"""Bytes that the address of a new array is a multiple of."""


class Tensor:
    """An array of a problem.

    Attributes
    ----------
    role, index
        Whether it is an input, an output or workspace, and which.
    dtype
        Element type.
    shape, strides
        Sizes; strides count elements.
    alignment
        Largest power of two, up to 256, that divides the address.
    """

    __slots__ = ("alignment", "dtype", "index", "role", "shape", "strides")

    def __init__(
        self,
        role: Role,
        index: int,
        dtype: DataType,
        shape: Sequence[SizeLike],
        strides: Sequence[SizeLike] | None = None,
        alignment: SizeLike = ALIGNMENT,
    ) -> None:
        self.role, self.index, self.dtype = role, index, dtype
        self.shape: tuple[Any, ...] = tuple(shape)
        self.strides: tuple[Any, ...] = tuple(dense_strides(shape) if strides is None else strides)
        self.alignment = alignment

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """Number of elements."""
        return product(self.shape)

    @property
    def nbytes(self) -> Any:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    def is_contiguous(self) -> bool:
        """Are the elements in row-major order without gaps? The stride of an axis of one element does not count."""
        expected: Any = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if stride != expected and size != 1:
                # Of no elements the strides do not count.
                return any(n == 0 for n in self.shape)
            expected = size * expected
        return True

    def is_aligned(self, nbytes: int) -> bool:
        """Is the address a multiple of ``nbytes``, a power of two up to 256?"""
        return bool(self.alignment >= nbytes)

    def view(self, shape: Sequence[SizeLike], strides: Sequence[SizeLike]) -> Tensor:
        """The same memory in another shape."""
        return Tensor(self.role, self.index, self.dtype, shape, strides, self.alignment)

    def __repr__(self) -> str:
        return f"{self.dtype.name}{[hint(n) for n in self.shape]}"


class Result(NamedTuple):
    """Shape and element type of a result, as `Operator.infer` gives it."""

    shape: tuple[SizeLike, ...]
    dtype: DataType


class Problem:
    """Arguments of a call: arrays as `Tensor`, options as they are, and the device.

    Attributes
    ----------
    name
        Of the operator.
    arrays
        By parameter; None for one that was not given.
    options
        Choices and numbers by parameter; a number is what kernels get at each call, so decide nothing by it.
    integers
        Numbers by parameter as variables of the plan, 0 for a float: what sizes and arguments may be computed with.
    outputs
        Results, once they are inferred.
    requested
        Element types of the arrays given as ``out=``; empty without.
    kind
        ``"cuda"``, ``"emulated"`` or ``"cpu"``.
    arch
        Architecture kernels are compiled for, such as ``"90a"``; empty on the CPU device.
    sm_count
        SMs of the stream's lane.
    determinism
        What a variant must promise, where one that does accepts.
    missing
        What is missing to have the kernels of a source; None if nothing is. Asked where other kernels would do: without
        NVRTC a bundle holds those of operands of one type.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        arch: str,
        trace: Trace,
        missing: Callable[[Unit], str | None] = lambda unit: None,
    ) -> None:
        self.name, self.kind, self.arch, self.trace, self.missing = name, kind, arch, trace, missing
        self.arrays: dict[str, Tensor | None] = {}
        self.options: dict[str, Any] = {}
        self.integers: dict[str, Size] = {}
        self.outputs: tuple[Tensor, ...] = ()
        self.requested: tuple[DataType, ...] = ()
        self.sm_count: SizeLike = 1
        self.determinism: Determinism = "batch_invariant"

    @property
    def compute_capability(self) -> int:
        """``90`` of ``"90a"``."""
        return int("".join(c for c in self.arch if c.isdigit()) or 0)

    def __getitem__(self, name: str) -> Tensor:
        """An array that was given."""
        tensor = self.arrays[name]
        if tensor is None:
            raise KeyError(f"{self.name}() was called without '{name}'")
        return tensor

    @property
    def out(self) -> Tensor:
        """The only result."""
        (tensor,) = self.outputs
        return tensor

    @property
    def inputs(self) -> Mapping[str, Tensor]:
        """The arrays that were given."""
        return {name: tensor for name, tensor in self.arrays.items() if tensor is not None}


def dense_strides(shape: Sequence[SizeLike]) -> tuple[Any, ...]:
    """Return the element strides of a row-major array."""
    strides: list[Any] = []
    step: Any = 1
    for size in reversed(shape):
        strides.append(step)
        step = size * step
    return tuple(reversed(strides))


def broadcast(a: Sequence[Any], b: Sequence[Any]) -> tuple[Any, ...] | None:
    """Return the shape two shapes broadcast to, or None."""
    length = max(len(a), len(b))
    shape: list[Any] = []
    for x, y in zip((1,) * (length - len(a)) + tuple(a), (1,) * (length - len(b)) + tuple(b), strict=True):
        if x == y or y == 1:
            shape.append(x)
        elif x == 1:
            shape.append(y)
        else:
            return None
    return tuple(shape)
