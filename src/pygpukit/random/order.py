"""Random orders and choices: permutations by sorting random keys."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import Device, GPUArray
from pygpukit.array.bridge import asarray, from_numpy
from pygpukit.dtypes import float64, int64, uint64
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.index.gather import gathered, take_along
from pygpukit.ops.operands import axis_of
from pygpukit.ops.reduce import scan
from pygpukit.ops.sort.order import argsort
from pygpukit.ops.sort.search import searchsorted
from pygpukit.random.draws import Draws, Size, assign, size_of


def _weights(p: Any, population: int, count: int, replace: bool, device: Device) -> GPUArray:
    """Return probabilities as float64 on the device; with `replace` their sums up to each, which end with 1."""
    if isinstance(p, GPUArray):
        if p.shape != (population,):
            raise ShapeError(f"a and p must have same size: {population} elements and p of shape {tuple(p.shape)}")
        weights = p.astype("float64", copy=False).contiguous()
        if not replace:
            return weights
        sums: GPUArray = scan.cumulative_sum(weights)
        if population:
            e.div(sums, sums._select(0, population - 1).copy(), out=sums)
        return sums
    host = np.asarray(p, np.float64)
    if host.ndim != 1:
        raise ShapeError("p must be 1-dimensional")
    if host.size != population:
        raise ShapeError(f"a and p must have same size: {population} and {host.size}")
    if not np.all(np.isfinite(host)):
        raise ValueError("Probabilities contain NaN or infinity")
    if np.any(host < 0):
        raise ValueError("Probabilities are not non-negative")
    if abs(math.fsum(host) - 1) > 1e-8:
        raise ValueError(f"Probabilities do not sum to 1, but to {math.fsum(host)}")
    if not replace and np.count_nonzero(host) < count:
        raise ValueError("Fewer non-zero entries in p than size")
    if replace:
        host = np.cumsum(host)
        host /= host[-1]
    return from_numpy(host, device=device)


class Order(Draws):
    """Permutations and choices of a generator."""

    def _keys(self, shape: tuple[int, ...], device: Device) -> GPUArray:
        # Elements with equal keys, of which 2^64 exist, stay in their order.
        return self._integers(0, 2**64 - 1, shape, uint64, device)

    def _order(self, n: int, device: Device) -> GPUArray:
        made: GPUArray = argsort(self._keys((n,), device))
        return made

    def permutation(self, x: Any, axis: int = 0) -> GPUArray:
        """The integers below ``x`` in random order, or an array with the slices along an axis in random order.

        Examples
        --------
        >>> sorted(gp.random.default_rng(1).permutation(4).tolist())
        [0, 1, 2, 3]
        """
        if isinstance(x, int | np.integer):
            return self._order(max(int(x), 0), self._device(None))
        values = asarray(x)
        at = axis_of(axis, values.ndim)
        return gathered(values, [self._order(values.shape[at], values.device)], at)

    def shuffle(self, x: GPUArray, axis: int = 0) -> None:
        """Bring the slices of an array along an axis into random order, in place.

        Examples
        --------
        >>> x = gp.asarray([1, 2, 3])
        >>> gp.random.default_rng(1).shuffle(x)
        >>> sorted(x.tolist())
        [1, 2, 3]
        """
        if not isinstance(x, GPUArray):
            raise TypeError(f"shuffle() takes a GPUArray, not {type(x).__name__}; convert it with asarray")
        if x.ndim == 0:
            raise TypeError("shuffle() needs an array of at least one dimension")
        at = axis_of(axis, x.ndim)
        assign(x, gathered(x, [self._order(x.shape[at], x.device)], at))

    def permuted(self, x: Any, axis: int | None = None, out: GPUArray | None = None) -> GPUArray:
        """An array with the elements of each vector along an axis in a random order of its own.

        Parameters
        ----------
        x : GPUArray
        axis : int, optional
            All elements are one vector by default.
        out : GPUArray, optional
            Where the result is written; may be ``x``.

        Examples
        --------
        >>> x = gp.asarray([[1, 2, 3], [4, 5, 6]])
        >>> gp.sort(gp.random.default_rng(1).permuted(x, axis=1)).tolist()
        [[1, 2, 3], [4, 5, 6]]
        """
        values = asarray(x)
        if out is not None:
            if not isinstance(out, GPUArray):
                raise TypeError(f"out must be a GPUArray, not {type(out).__name__}")
            if out.shape != values.shape:
                raise ShapeError(f"out must have the same shape as x, {tuple(values.shape)}, not {tuple(out.shape)}")
        if axis is None:
            made = gathered(values.reshape(-1), [self._order(values.size, values.device)]).reshape(values.shape)
        else:
            at = axis_of(axis, values.ndim)
            order: GPUArray = argsort(self._keys(values.shape, values.device), at)
            made = take_along(values, order, at)
        return made if out is None else assign(out, made)

    def choice(
        self, a: Any, size: Size = None, replace: bool = True, p: Any = None, axis: int = 0, shuffle: bool = True
    ) -> GPUArray:
        """Elements of an array along an axis, or integers below ``a``, at random.

        Parameters
        ----------
        a : int or GPUArray
        size : int or tuple of int, optional
            How many; one by default.
        replace : bool, optional
            May an element be chosen more than once?
        p : array_like, optional
            Probability of each element; a GPUArray is not checked, but divided by its sum.
        axis : int, optional
            Along which elements are chosen.
        shuffle : bool, optional
            Accepted for NumPy's sake: elements without replacement are always in random order.

        Examples
        --------
        >>> gp.random.default_rng(1).choice(5, 3, replace=False).shape
        (3,)
        """
        values: GPUArray | None = None
        at = 0
        if isinstance(a, int | np.integer):
            population, device = int(a), self._device(p if isinstance(p, GPUArray) else None)
        elif isinstance(a, float | str):
            raise ValueError(f"a must be a sequence or an integer, not {type(a)}")
        else:
            values = asarray(a)
            if values.ndim == 0:
                return self.choice(int(values.item()), size, replace, p, axis, shuffle)
            at = axis_of(axis, values.ndim)
            population, device = values.shape[at], values.device
        shape = size_of(size)
        count = math.prod(shape)
        if population <= 0 and count:
            what = "a cannot be empty" if values is not None else "a must be a positive integer"
            raise ValueError(f"{what} unless no samples are taken")
        if not replace and count > population:
            raise ValueError(
                f"Cannot take a larger sample than population when replace is False: {count} of {population}"
            )
        index = self._places(population, count, replace, p, device).reshape(shape)
        return index if values is None else gathered(values, [index], at)

    def _places(self, population: int, count: int, replace: bool, p: Any, device: Device) -> GPUArray:
        """Return positions of chosen elements."""
        if p is None:
            if replace:
                return self._integers(0, max(population - 1, 0), (count,), int64, device)
            return self._order(population, device)._slice(0, 0, count, 1)
        weights = _weights(p, population, count, replace, device)
        if replace:
            found: GPUArray = searchsorted(weights, self._fill("uniform", (count,), float64, device), "right")
            return found
        # Elements in the order of exponential numbers divided by their weights: those without weight come last.
        order: GPUArray = argsort(e.div(self._fill("exponential", (population,), float64, device), weights))
        return order._slice(0, 0, count, 1)
