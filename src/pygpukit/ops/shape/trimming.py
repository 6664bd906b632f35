"""Where the elements that are not zero begin and end along axes."""

from __future__ import annotations

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.reduce.rows import FUNCTIONS


def limits(x: GPUArray, axes: list[int]) -> list[tuple[int, int]]:
    """Return the first and the last index along each axis at which an element is not zero, in one read.

    Where all are zero the last is before the first.

    Examples
    --------
    >>> import pygpukit as gp
    >>> limits(gp.asarray([0, 3, 4, 0]), [0])
    [(1, 2)]
    """
    if not x.size:
        return [(0, -1)] * len(axes)
    flags = e.not_equal(x, 0)
    found = empty((len(axes), 3), "int64", device=x.device)
    for row, axis in enumerate(axes):
        others = tuple(i for i in range(x.ndim) if i != axis)
        line = FUNCTIONS["any"](flags, others) if others else flags
        backwards = line._slice(0, line.size - 1, line.size, -1)
        steps = (FUNCTIONS["argmax"](line), FUNCTIONS["argmax"](backwards), FUNCTIONS["any"](line))
        for column, value in enumerate(steps):
            _native.apply("copy", (value,), found._select(0, row)._select(0, column))
    return [(a, x.shape[i] - 1 - b) if some else (0, -1) for i, (a, b, some) in zip(axes, found.tolist(), strict=True)]
