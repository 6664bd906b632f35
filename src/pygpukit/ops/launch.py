"""What a variant does: kernel launches as data, with expressions over sizes.

Arguments stand in the order of the kernel's parameters. Each array says what the kernel does to it, because eviction,
graphs and the race checker depend on that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from pygpukit.dtypes import DataType
from pygpukit.ops.problem import Tensor
from pygpukit.ops.size import SizeLike, hint, product

MAX_DIMENSIONS = 8
MAX_GRID = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """One source text and the kernels in it.

    Attributes
    ----------
    name, source, entries
        Its name, its text, and the names of its kernels.
    architectures
        What it compiles for, as `Variant.architectures` says it.
    """

    name: str
    source: str
    entries: tuple[str, ...]
    architectures: str = "80"


class Pointer(NamedTuple):
    """The address of an array, and what the kernel does to it: `read`, `write`, `update` (both) or `constant`."""

    tensor: Tensor
    access: str


class Integer(NamedTuple):
    """An integer of 32 or 64 bits."""

    value: SizeLike
    bits: int


class Number(NamedTuple):
    """A number of the call, by parameter, as an element of a type."""

    parameter: str
    dtype: DataType


class Struct(NamedTuple):
    """A struct passed by value: its members, each at its natural alignment, beginning at a multiple of 8."""

    members: tuple[Integer | Number, ...]


class TensorMapOf(NamedTuple):
    """A tensor map of an array of the call (``CUtensorMap``), as `tensor_map` makes it."""

    tensor: Tensor
    access: str
    box: tuple[int, ...]
    swizzle: str
    l2: str


Argument: TypeAlias = Pointer | Integer | Number | Struct | TensorMapOf | bytes


def read(tensor: Tensor) -> Pointer:
    """The kernel reads the array."""
    return Pointer(tensor, "read")


def write(tensor: Tensor) -> Pointer:
    """The kernel writes the array: every byte it changes gets a value that does not depend on what was there."""
    return Pointer(tensor, "write")


def update(tensor: Tensor) -> Pointer:
    """The kernel reads and writes the array."""
    return Pointer(tensor, "update")


def constant(tensor: Tensor) -> Pointer:
    """The kernel reads the array, and no work in flight writes it: it may be read before the predecessor has ended."""
    return Pointer(tensor, "constant")


def i64(value: SizeLike) -> Integer:
    """A 64-bit integer."""
    return Integer(value, 64)


def i32(value: SizeLike) -> Integer:
    """A 32-bit integer; a call with a value it cannot hold is refused."""
    return Integer(value, 32)


def tensor_map(
    tensor: Tensor, box: Sequence[int], *, access: str = "read", swizzle: str = "none", l2: str = "256B"
) -> TensorMapOf:
    """Return the tensor map of an array: the device encodes it for the address and the sizes of each call.

    The variant's `accepts` has to ask for what hardware wants: the last axis contiguous, address and other strides at
    multiples of 16 bytes, no empty axis.

    Parameters
    ----------
    tensor
        An array, a view of it, or workspace, of one to five dimensions.
    box
        Elements one copy moves along each axis.
    access
        ``"read"``, ``"write"``, ``"update"`` or ``"constant"``, as for pointers.
    swizzle, l2
        As `pygpukit.TensorMap` takes them.

    Raises
    ------
    ValueError
        If the box has another number of dimensions than the array.
    """
    if len(box) != tensor.ndim:
        raise ValueError(f"a box of {len(box)} dimensions for an array of {tensor.ndim}; give one number per axis")
    return TensorMapOf(tensor, access, tuple(box), swizzle, l2)


def nd(shape: Sequence[SizeLike], strides: Sequence[Sequence[SizeLike]]) -> Struct:
    """Return ``Nd<K>``: the shape and, per operand (output first), its element strides.

    Raises
    ------
    ValueError
        If there are more than eight dimensions or a stride list has another length.
    """
    if len(shape) > MAX_DIMENSIONS or any(len(s) != len(shape) for s in strides):
        lengths = ", ".join(str(len(s)) for s in strides)
        raise ValueError(
            f"cannot pack {len(shape)} dimensions with stride lists of {lengths}: at most {MAX_DIMENSIONS} dimensions, "
            "and one stride for each; collapse axes first"
        )
    rows = [(*row, *(0,) * (MAX_DIMENSIONS - len(row))) for row in (shape, *strides)]
    return Struct((i32(len(shape)), i32(0), *(i64(value) for row in rows for value in row)))


class KernelLaunch(NamedTuple):
    """One launch.

    Attributes
    ----------
    unit, entry
        Source and the kernel in it.
    grid, block
        Up to three dimensions each. A grid with a 0 launches nothing.
    arguments
        In the kernel's order.
    shared
        Bytes of dynamic shared memory.
    cluster
        Blocks per cluster, three dimensions; none by default.
    cooperative
        All blocks run at the same time.
    programmatic
        May start before its predecessor has ended, since it waits for it on the device. Graphs do that with all
        built-in kernels; this asks for it outside of graphs.
    """

    unit: Unit
    entry: str
    grid: tuple[SizeLike, ...]
    block: tuple[SizeLike, ...]
    arguments: tuple[Argument, ...]
    shared: SizeLike = 0
    cluster: tuple[int, int, int] = (0, 0, 0)
    cooperative: bool = False
    programmatic: bool = False


class Product(NamedTuple):
    """A matrix product by cuBLASLt: ``out = a @ b`` for stacks of matrices.

    Attributes
    ----------
    out, a, b
        The result or workspace, and two inputs.
    sizes
        m, n, k and the number of matrices.
    ld, batch_strides
        Elements from one row to the next and from one matrix to the next, of a, b and out as they are stored.
    transposed
        Whether a and b are stored as their transposes.
    tf32
        float32 operands are rounded to tf32.
    workspace
        What the library may split sums in; by default it has none, and splits none.
    """

    out: Tensor
    a: Tensor
    b: Tensor
    sizes: tuple[SizeLike, SizeLike, SizeLike, SizeLike]
    ld: tuple[SizeLike, SizeLike, SizeLike]
    batch_strides: tuple[SizeLike, SizeLike, SizeLike]
    transposed: tuple[bool, bool]
    tf32: bool = False
    workspace: Tensor | None = None

    def describe(self) -> str:
        """Return a line that says what is multiplied, and by which algorithm: the one a call would choose."""
        from pygpukit.core.cublaslt import plan_product

        m, n, k, batch = (hint(x) for x in self.sizes)
        room = 0 if self.workspace is None else hint(self.workspace.nbytes)
        tensors = (self.a, self.b, self.out)
        plan = plan_product(
            m, n, k, self.a.dtype, self.out.dtype, batch=batch, transpose_a=self.transposed[0],
            transpose_b=self.transposed[1], ld=tuple(map(hint, self.ld)),
            batch_strides=tuple(map(hint, self.batch_strides)), compute="tf32" if self.tf32 else "f32", workspace=room,
            alignment=tuple(hint(t.alignment) for t in tensors),
        )  # fmt: skip
        told = plan.describe()
        turned = "".join("t" if x else "n" for x in self.transposed)
        sums = f"{told['workspace']} bytes of workspace, sums in {told['split_k']} parts" if told["workspace"] else (
            "no workspace, no split sum")  # fmt: skip
        return (
            f"cublasLtMatmul {turned} m={m} n={n} k={k} batch={batch}, {sums}, algorithm {told['id']} "
            f"tile {told['tile']} stages {told['stages']} cluster {told['cluster_shape']}"
        )


class Scratch(NamedTuple):
    """Workspace of a call.

    Attributes
    ----------
    tensor
        What launches name among their arguments.
    counters
        False: not initialised, for this call. True: zero when a launch begins, one per stream or graph, and made zero
        again by the kernel before it ends.
    """

    tensor: Tensor
    counters: bool = False


class Launch(NamedTuple):
    """All that a variant does on a device, in order."""

    launches: tuple[KernelLaunch | Product, ...]
    scratch: tuple[Scratch, ...] = ()

    def describe(self) -> list[str]:
        """Return a line per launch and per piece of workspace."""
        lines = []
        for step in self.launches:
            if isinstance(step, Product):
                lines.append(step.describe())
                continue
            grid, block = ([hint(x) for x in sizes] for sizes in (step.grid, step.block))
            text = f"{step.entry}: grid {grid}, block {block}, {hint(step.shared)} bytes of dynamic shared memory"
            if any(step.cluster):
                text += f", clusters of {list(step.cluster)}"
            lines.append(text + ", cooperative" * step.cooperative)
        for one in self.scratch:
            kind = "counters" if one.counters else "workspace"
            lines.append(f"{kind}: {hint(one.tensor.nbytes)} bytes")
        return lines


class Workspace:
    """Collects the workspace of a launch.

    Examples
    --------
    >>> from pygpukit.dtypes import float32
    >>> work = Workspace()
    >>> work.buffer(float32, 128).nbytes
    512
    """

    def __init__(self) -> None:
        self.pieces: list[Scratch] = []

    def buffer(self, dtype: DataType, *shape: SizeLike) -> Tensor:
        """Memory for this call, not initialised."""
        return self._add(dtype, shape, False)

    def counters(self, dtype: DataType, *shape: SizeLike) -> Tensor:
        """Zeros that the kernel leaves as zeros, one per stream or graph; every piece of a call has its own."""
        return self._add(dtype, shape, True)

    def _add(self, dtype: DataType, shape: Sequence[SizeLike], counters: bool) -> Tensor:
        tensor = Tensor("scratch", len(self.pieces), dtype, shape)
        self.pieces.append(Scratch(tensor, counters))
        return tensor


Host: TypeAlias = Callable[..., Any]
"""A function over NumPy views: arrays (None for one not given) and numbers in the operator's order, then results; or a
kernel of the core (`_native.host_fill`), which takes the same without NumPy."""

Compose: TypeAlias = Callable[..., Any]
"""A function of the results and the arguments that calls other operators."""


def blocks_for(count: SizeLike, per_block: int, what: str) -> Any:
    """Return how many blocks cover ``count``; refused over the largest grid.

    Raises
    ------
    ShapeError
        If the grid would be too large.
    """
    from pygpukit.errors import ShapeError

    blocks = -(-count // per_block)
    if blocks > MAX_GRID:
        raise ShapeError(f"{what} needs {hint(blocks)} blocks, over {MAX_GRID}: split it")
    return blocks


def elements(tensors: Sequence[Tensor]) -> int:
    """Return how many elements arrays have together, for models of cost."""
    return sum(hint(product(t.shape)) for t in tensors)
