"""``x.flat``: the elements of an array in row-major order, for reading and writing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array import indexing

__all__ = ["Flat"]


class Flat:
    """The elements of an array in row-major order, whatever its strides.

    Examples
    --------
    >>> x = gp.asarray([[1, 2], [3, 4]])
    >>> x.flat[2].item(), [int(v) for v in x.T.flat]
    (3, [1, 3, 2, 4])
    >>> x.T.flat[:2] = 0
    >>> x.tolist()
    [[0, 2], [0, 4]]
    """

    def __init__(self, base: GPUArray) -> None:
        self.base = base

    def copy(self) -> GPUArray:
        """The elements as a vector of its own."""
        return self.base.copy().reshape(-1)

    def __len__(self) -> int:
        return self.base.size

    def __iter__(self) -> Iterator[GPUArray]:
        return iter(self.base.reshape(-1))

    def __getitem__(self, key: Any) -> GPUArray:
        return self.base.reshape(-1)[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        view = self.base._reshape([self.base.size])
        if view is not None:
            indexing.setitem(view, key, value)
            return
        changed = self.copy()
        indexing.setitem(changed, key, value)
        indexing.setitem(self.base, ..., changed.reshape(self.base.shape))

    def __repr__(self) -> str:
        return f"<flat of {self.base!r}>"
