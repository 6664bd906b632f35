"""``mgrid``, ``ogrid``, ``r_`` and ``c_``: ranges written as slices."""

from __future__ import annotations

from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.ops.math.types import result_type
from pygpukit.ops.operands import as_array, common_device
from pygpukit.ops.shape.arrays import axes_of
from pygpukit.ops.shape.joining import concatenate, stack
from pygpukit.ops.shape.ranges import arange, linspace

__all__ = ["Grid", "Joined", "c_", "mgrid", "ogrid", "r_"]


def _range(key: slice, device: Any = None) -> GPUArray:
    """The numbers of a slice; an imaginary step is how many there are, the last one among them."""
    start, step = 0 if key.start is None else key.start, 1 if key.step is None else key.step
    if key.stop is None:
        raise ValueError("a range needs an end: write start:stop or start:stop:step")
    if isinstance(step, complex):
        points: GPUArray = linspace(start, key.stop, int(abs(step)), device=device)
        return points
    return arange(start, key.stop, step, device=device)


class Grid:
    """Coordinates of a grid, written as slices; an imaginary step is a number of points.

    Examples
    --------
    >>> import pygpukit as gp
    >>> y, x = gp.mgrid[0:2, 0:3]
    >>> x.tolist()
    [[0, 1, 2], [0, 1, 2]]
    >>> gp.ogrid[0:1:3j].tolist()
    [0.0, 0.5, 1.0]
    """

    def __init__(self, sparse: bool) -> None:
        self.sparse = sparse

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Any:
        if isinstance(key, slice):
            return _range(key)
        vectors = [_range(k) for k in key]
        kind = result_type(*(v.dtype for v in vectors))
        n = len(vectors)
        open_ = [
            v.astype(kind, copy=False).reshape([v.size if j == i else 1 for j in range(n)])
            for i, v in enumerate(vectors)
        ]
        if self.sparse:
            return tuple(open_)
        shape = [v.size for v in vectors]
        return stack([v._broadcast_to(shape) for v in open_])

    def __repr__(self) -> str:
        return "ogrid" if self.sparse else "mgrid"


class Joined:
    """Slices, numbers and arrays joined along an axis: ``r_[0:3, 7]``; with ``c_`` vectors are columns.

    Examples
    --------
    >>> import pygpukit as gp
    >>> gp.r_[1:4, 0, gp.asarray([9])].tolist()
    [1, 2, 3, 0, 9]
    >>> gp.c_[gp.asarray([1, 2]), gp.asarray([3, 4])].tolist()
    [[1, 3], [2, 4]]
    """

    def __init__(self, columns: bool) -> None:
        self.columns = columns

    def __getitem__(self, key: Any) -> GPUArray:
        parts = key if isinstance(key, tuple) else (key,)
        if any(isinstance(p, str) for p in parts):
            raise TypeError(f"{self!r} takes slices, numbers and arrays; join along another axis with concatenate()")
        device = common_device(parts)
        kinds: list[Any] = []
        arrays = []
        for part in parts:
            x = _range(part, device) if isinstance(part, slice) else as_array(part, f"{self!r}[]", device)
            # The kind of a number counts, not its type.
            kinds.append(part if isinstance(part, bool | int | float | complex) else x.dtype)
            if self.columns:
                arrays.append(x if x.ndim > 1 else x.reshape(-1, 1))
            else:
                arrays.append(x if x.ndim else x.reshape(1))
        if all(isinstance(k, bool | int | float | complex) for k in kinds):
            kinds = [x.dtype for x in arrays]
        kind = result_type(*kinds)
        axis = axes_of(-1, arrays[0].ndim)[0] if self.columns else 0
        whole: GPUArray = concatenate([x.astype(kind, copy=False) for x in arrays], axis)
        return whole

    def __repr__(self) -> str:
        return "c_" if self.columns else "r_"


mgrid = Grid(sparse=False)
ogrid = Grid(sparse=True)
r_ = Joined(columns=False)
c_ = Joined(columns=True)
