"""What the operators of a program would move if each were a kernel of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.ops.fuse.program import Operand, Program


def eager(program: Program, arrays: Sequence[GPUArray]) -> tuple[int, int]:
    """Return how many operators a program has, and the bytes that they read and write one after the other."""

    def nbytes(operand: Operand) -> int:
        if operand.role == "number":
            return 0
        shape = np.broadcast_shapes(*(arrays[i].shape for i in program.leaves(operand)))
        return math.prod(shape) * program.dtype(operand).itemsize

    moved = sum(
        nbytes(Operand("step", i)) + sum(map(nbytes, step.operands)) for i, step in enumerate(program.steps)
    )  # fmt: skip
    if program.reduction is not None:
        moved += nbytes(program.outputs[0])
    return len(program.steps) + (program.reduction is not None), moved
