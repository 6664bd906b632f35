"""Integers and bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, GPUArray
from pygpukit.dtypes import DTypeLike, dtype, int64, to_numpy_dtype, uint64
from pygpukit.errors import DTypeError
from pygpukit.random.draws import Draws, Size, size_of

_dtype = dtype


def _limits(kind: DataType) -> tuple[int, int]:
    if kind.kind == "b":
        return 0, 1
    info = np.iinfo(to_numpy_dtype(kind))
    return int(info.min), int(info.max)


class Discrete(Draws):
    """Distributions of integers of a generator."""

    def integers(
        self,
        low: Any,
        high: Any = None,
        size: Size = None,
        dtype: DTypeLike = int64,
        endpoint: bool = False,
    ) -> GPUArray:
        """Integers of equal probability from ``low`` (0 if only that is given) to below ``high``.

        Parameters
        ----------
        low, high : int
            With one of them only, from 0 to below it.
        size : int or tuple of int, optional
            Shape of the result; an array without dimensions by default.
        dtype : DataType, optional
            Any integer type, or bool.
        endpoint : bool, optional
            ``high`` is among them.

        Examples
        --------
        >>> gp.random.default_rng(1).integers(6, size=3, dtype="uint8").dtype
        pygpukit.uint8
        """
        kind = _dtype(dtype)
        if kind.kind not in "iub":
            raise DTypeError(f"Unsupported dtype {kind.name} for integers: it gives integers and bool")
        only_high = high is None
        first, stop = (0, int(low)) if only_high else (int(low), int(high))
        last = stop if endpoint else stop - 1
        smallest, largest = _limits(kind)
        if first < smallest:
            raise ValueError(f"low is out of bounds for {kind.name}")
        if last > largest:
            raise ValueError(f"high is out of bounds for {kind.name}")
        if first > last:
            if only_high:
                raise ValueError("high < 0" if endpoint else "high <= 0")
            raise ValueError("low > high" if endpoint else "low >= high")
        return self._integers(first, last - first, size_of(size), kind, self._device(None))

    def bytes(self, length: int) -> bytes:
        """Random bytes, on the host.

        Examples
        --------
        >>> len(gp.random.default_rng(1).bytes(10))
        10
        """
        count = -(-length // 8)
        words = self._integers(0, 2**64 - 1, size_of(count), uint64, self._device(None))
        return bytes(words.to_numpy().tobytes()[:length])
