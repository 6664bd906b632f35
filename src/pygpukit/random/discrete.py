"""Integers, counts and bytes."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import DataType, Device, GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.array.creation import empty
from pygpukit.dtypes import DTypeLike, dtype, float64, int64, to_numpy_dtype, uint64
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.random.draws import Draws, Size, Value, assign, common_shape, parameter, size_of

# Many standard deviations below what int64 holds.
_LARGEST_MEAN = 9.2e18

_dtype = dtype


@cache
def _limits(kind: DataType) -> tuple[int, int]:
    if kind.kind == "b":
        return 0, 1
    info = np.iinfo(to_numpy_dtype(kind))
    return int(info.min), int(info.max)


def _bound(value: Any) -> Any:
    """Return a bound of integers: an int, an array of Python's, or a GPUArray."""
    if type(value) is int:
        return value
    if isinstance(value, GPUArray):
        if value.dtype.kind not in "iub":
            raise DTypeError(f"a bound of integers() must be an integer, not {value.dtype.name}")
        return value
    host = np.asarray(value)
    if host.ndim == 0:
        return int(value)
    # Integers over 64 bits are objects.
    objects = host.astype(object)
    if host.dtype.kind not in "iubO" or not all(isinstance(x, int) for x in objects.flat):
        raise DTypeError(f"bounds of integers() must be integers, not {host.dtype}")
    return objects


def _check(low: Any, last: Any, kind: DataType, text: str) -> None:
    smallest, largest = _limits(kind)
    some = bool if isinstance(low, int) and isinstance(last, int) else np.any
    if some(low < smallest):
        raise ValueError(f"low is out of bounds for {kind.name}")
    if some(last > largest):
        raise ValueError(f"high is out of bounds for {kind.name}")
    if some(low > last):
        raise ValueError(text)


def _extremes(values: Any) -> tuple[float, float]:
    """Return the smallest and the largest of some numbers; NaN if one is."""
    host = np.asarray(values, np.float64)
    return (float(host.min()), float(host.max())) if host.size else (1.0, 1.0)


def _chance(p: Any, name: str, device: Device, positive: bool = False) -> Value:
    """Return a probability, or an array of them."""
    if not isinstance(p, GPUArray):
        least, most = (p, p) if isinstance(p, int | float) else _extremes(p)
        if not ((least > 0 if positive else least >= 0) and most <= 1):
            raise ValueError(f"{name} {'<=' if positive else '<'} 0, {name} > 1 or {name} is NaN")
    return parameter(p, name, "", float64, device)


def _trials(n: Any, device: Device) -> Value:
    """Return a number of trials, or an array of them."""
    if not isinstance(n, GPUArray):
        host = np.asarray(n)
        if host.dtype.kind not in "iub" and not np.all(host == np.floor(host)):
            raise TypeError("n must be an integer")
        if np.any(host > 2**53):
            raise ValueError("n value too large: at most 2**53")
    return parameter(n, "n", "< 0", float64, device)


class Discrete(Draws):
    """Distributions of integers of a generator."""

    def integers(
        self, low: Any, high: Any = None, size: Size = None, dtype: DTypeLike = int64, endpoint: bool = False
    ) -> GPUArray:
        """Integers of equal probability from ``low`` (0 if only that is given) to below ``high``.

        Parameters
        ----------
        low, high : int or array_like of int
            With one of them only, from 0 to below it. Those in a GPUArray are not checked.
        size : int or tuple of int, optional
            Shape of the result; by default that of the arrays, or none.
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
        text = "low > high" if endpoint else "low >= high"
        if high is None:
            low, high, text = 0, low, "high < 0" if endpoint else "high <= 0"
        low, high = _bound(low), _bound(high)
        if isinstance(low, int) and isinstance(high, int):
            last = high if endpoint else high - 1
            _check(low, last, kind, text)
            return self._integers(low, last - low, size_of(size), kind, self._device(None))
        device = self._device(None, (low, high))
        real = uint64 if kind is uint64 else int64
        if isinstance(low, GPUArray) or isinstance(high, GPUArray):
            low, high = (self._words(x, real, device) for x in (low, high))
            first = low
            width = e.sub(high, low)
            if not endpoint:
                width = e.sub(width, 1)
        else:
            last = high if endpoint else high - 1
            _check(low, last, kind, text)
            shape = np.broadcast_shapes(np.shape(low), np.shape(last))
            first, width = (
                from_numpy(np.broadcast_to(np.asarray(x, object) % 2**64, shape).astype(np.uint64), device=device)
                for x in (low, last - low)
            )
        made = self._reject("ranges", common_shape(size, (first, width)), real, device, first, width)
        return made.astype(kind, copy=False)

    def _words(self, bound: Any, kind: DataType, device: Device) -> GPUArray:
        if isinstance(bound, GPUArray):
            return bound.astype(kind, copy=False)
        return from_numpy(np.asarray(bound, to_numpy_dtype(kind)), device=device)

    def bytes(self, length: int) -> bytes:
        """Random bytes, on the host.

        Examples
        --------
        >>> len(gp.random.default_rng(1).bytes(10))
        10
        """
        words = self._integers(0, 2**64 - 1, size_of(-(-length // 8)), uint64, self._device(None))
        return bytes(words.to_numpy().tobytes()[:length])

    def poisson(self, lam: Any = 1.0, size: Size = None) -> GPUArray:
        """Counts of events of which ``lam`` are expected, int64.

        Examples
        --------
        >>> gp.random.default_rng(1).poisson(3.5, 4).shape
        (4,)
        """
        device = self._device(None, (lam,))
        if not isinstance(lam, GPUArray):
            least, most = (lam, lam) if isinstance(lam, int | float) else _extremes(lam)
            if not least >= 0:
                raise ValueError("lam < 0 or lam is NaN")
            if most >= _LARGEST_MEAN:
                raise ValueError("lam value too large")
        mean = parameter(lam, "lam", "", float64, device)
        return self._reject("poisson", common_shape(size, (mean,)), int64, device, mean)

    def binomial(self, n: Any, p: Any, size: Size = None) -> GPUArray:
        """How many of ``n`` trials succeed, each with probability ``p``; int64.

        Examples
        --------
        >>> gp.random.default_rng(1).binomial(10, 0.5, 4).shape
        (4,)
        """
        device = self._device(None, (n, p))
        trials, chance = _trials(n, device), _chance(p, "p", device)
        return self._reject("binomial", common_shape(size, (trials, chance)), int64, device, trials, chance)

    def negative_binomial(self, n: Any, p: Any, size: Size = None) -> GPUArray:
        """How many trials fail before ``n`` succeed, each with probability ``p``; int64.

        Examples
        --------
        >>> gp.random.default_rng(1).negative_binomial(3, 0.5, 4).shape
        (4,)
        """
        device = self._device(None, (n, p))
        if not isinstance(n, GPUArray) and np.any(np.isnan(np.asarray(n, np.float64))):
            raise ValueError("n is NaN")
        successes, chance = parameter(n, "n", "<= 0", float64, device), _chance(p, "p", device, positive=True)
        if not isinstance(n, GPUArray) and not isinstance(p, GPUArray):
            trials, odds = np.asarray(n, np.float64), (1.0 - np.asarray(p)) / np.asarray(p)
            if np.any(odds * (trials + 10 * np.sqrt(trials)) >= _LARGEST_MEAN):
                raise ValueError("n too large or p too small")
        shape = common_shape(size, (successes, chance))
        with self._bit_generator.lock:
            mean = self._reject("gamma", shape, float64, device, successes)
            e.mul(mean, (1.0 - chance) / chance, out=mean)
            return self._reject("poisson", shape, int64, device, mean)

    def geometric(self, p: Any, size: Size = None) -> GPUArray:
        """How many trials it takes until one succeeds, each with probability ``p``; int64.

        Examples
        --------
        >>> gp.random.default_rng(1).geometric(0.5, 4).shape
        (4,)
        """
        device = self._device(None, (p,))
        chance = _chance(p, "p", device, positive=True)
        x = self._fill("exponential", common_shape(size, (chance,)), float64, device)
        rate = e.neg(e.log1p(-chance)) if isinstance(chance, GPUArray) else float(-np.log1p(-min(chance, 1 - 2**-53)))
        x = e.floor(e.div(x, rate, out=x), out=x)
        made: GPUArray = e.add(e.minimum(x, 9.2e18).astype(int64), 1)
        return made

    def multinomial(self, n: Any, pvals: Any, size: Size = None) -> GPUArray:
        """How ``n`` trials are distributed over outcomes of these probabilities; int64, an axis of outcomes last.

        Parameters
        ----------
        n : int or array_like of int
        pvals : array_like
            Probabilities along the last axis; the last one is what the others leave.
        size : int or tuple of int, optional
            How many experiments; by default as ``n`` and ``pvals`` broadcast.

        Examples
        --------
        >>> gp.random.default_rng(1).multinomial(20, [0.2, 0.3, 0.5], 4).shape
        (4, 3)
        """
        if isinstance(pvals, GPUArray):
            pvals = pvals.to_numpy()
        chances = np.asarray(pvals, np.float64)
        if chances.ndim == 0:
            raise ShapeError("pvals must have at least 1 dimension, and its last one must have outcomes")
        if not np.all((chances >= 0) & (chances <= 1)):
            raise ValueError("pvals < 0, pvals > 1 or pvals contains NaNs")
        if np.any(chances[..., :-1].sum(-1) > 1 + 1e-12):
            raise ValueError("sum(pvals[:-1]) > 1.0")
        device = self._device(None, (n,))
        left = _trials(n, device)
        if not isinstance(left, GPUArray):
            left = from_numpy(np.float64(left), device=device)
        count = chances.shape[-1]
        rest = np.maximum(1.0 - (np.cumsum(chances, -1) - chances), 0.0)
        with np.errstate(all="ignore"):
            shares = np.where(rest > 0, np.minimum(chances / rest, 1.0), 0.0)
        columns = [from_numpy(np.asarray(shares[..., i]), device=device) for i in range(count)]
        shape = common_shape(size, (left, columns[0]) if columns else (left,))
        out = empty((*shape, count), int64, device=device)
        if not columns:
            return out
        with self._bit_generator.lock:
            for i, share in enumerate(columns[:-1]):
                made = self._reject("binomial", shape, int64, device, left, share)
                assign(out._select(len(shape), i), made)
                left = e.sub(left, made.astype(float64))
        assign(out._select(len(shape), count - 1), left._broadcast_to(shape).astype(int64))
        return out
