"""Rows of a transform in memory: how batch axes collapse, and the arguments that tell a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pygpukit.fft.plan import Shape
from pygpukit.ops.launch import Argument, KernelLaunch, Number, Pointer, Unit, blocks_for, i32, i64
from pygpukit.ops.problem import Tensor
from pygpukit.ops.size import hint, product

INVERSE, CONJUGATE, MIRROR, ALIGNED, PLAIN, LAST_STEP, LAST_OF_THREE = 1, 2, 4, 8, 16, 32, 64
"""Flags of the kernels."""

_LEVELS = 3


class Batch(NamedTuple):
    """Rows of input and output.

    Attributes
    ----------
    sizes
        Rows along each of three levels, outermost first.
    x, out
        Element strides of the levels, then that of the transformed axis.
    """

    sizes: tuple[Any, Any, Any]
    x: tuple[Any, Any, Any, Any]
    out: tuple[Any, Any, Any, Any]

    @property
    def rows(self) -> Any:
        """Number of rows."""
        return product(self.sizes)

    @property
    def columns(self) -> tuple[bool, bool]:
        """Are neighbouring rows neighbours in memory, while elements of a row are not: in the input, in the output?"""
        if self.sizes[2] == 1:
            return False, False
        return tuple(bool(s[2] == 1 and s[3] != 1) for s in (self.x, self.out))  # type: ignore[return-value]


def batch_of(shape: Sequence[Any], x: Sequence[Any], out: Sequence[Any], axis: int) -> Batch | None:
    """Return the rows along ``axis`` of arrays with these batch sizes and strides; None for more than three levels.

    Examples
    --------
    >>> batch_of((2, 3, 8), (24, 8, 1), (24, 8, 1), 2).sizes
    (1, 1, 6)
    """
    levels: list[tuple[Any, Any, Any]] = []
    for i, size in enumerate(shape):
        if i == axis or size == 1:
            continue
        if levels:
            above = levels[-1]
            if above[1] == size * x[i] and above[2] == size * out[i]:
                levels[-1] = (above[0] * size, x[i], out[i])
                continue
        levels.append((size, x[i], out[i]))
    if len(levels) > _LEVELS:
        return None
    levels = [(1, 0, 0)] * (_LEVELS - len(levels)) + levels
    sizes, xs, outs = zip(*levels, strict=True)
    return Batch(sizes, (*xs, x[axis]), (*outs, out[axis]))


def launch(made: tuple[Unit, Shape], batch: Batch, out: Pointer, x: Pointer, window: Pointer | None, given: Any,
           scale: Number | bytes, flags: int) -> KernelLaunch:  # fmt: skip
    """Return the launch that transforms the rows of a batch."""
    unit, shape = made
    blocks = blocks_for(batch.rows, shape.rows, f"a transform of {hint(batch.rows)} rows")
    arguments: tuple[Argument, ...] = (
        out, x, i64(0) if window is None else window,
        *map(i64, (batch.rows, batch.sizes[1], batch.sizes[2], given, *batch.x, *batch.out)), scale, i32(flags),
    )  # fmt: skip
    return KernelLaunch(unit, unit.entries[0], (blocks,), (shape.lanes * shape.rows,), arguments, shape.shared)


def frames_of(x: Tensor, n: int, hop: int) -> Tensor:
    """Return the last axis of an array as overlapping frames of ``n`` elements, ``hop`` apart."""
    count = (x.shape[-1] - n) // hop + 1
    step = x.strides[-1]
    return x.view((*x.shape[:-1], count, n), (*x.strides[:-1], hop * step, step))
