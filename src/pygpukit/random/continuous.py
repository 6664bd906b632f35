"""Continuous distributions: kernels for most, formulas of their numbers for the others."""

from __future__ import annotations

from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import DTypeLike, float64
from pygpukit.ops.elementwise import rows as e
from pygpukit.random.draws import Draws, Rule, Size, Source, Value, float_type, parameter, placed, size_of, wide_enough


def _same(x: GPUArray, function: Any, *others: Any) -> GPUArray:
    """Apply an operator in place."""
    made: GPUArray = function(x, *others, out=x)
    return made


def _lognormal(draw: Source, mean: Value, sigma: Value) -> GPUArray:
    return _same(placed(draw("normal"), mean, sigma), e.exp)


def _weibull(draw: Source, a: Value) -> GPUArray:
    # A shape of 0 gives 0, as in NumPy.
    x = draw("exponential")
    if not isinstance(a, GPUArray) and a == 0:
        return _same(x, e.mul, 0.0)
    return _same(x, e.pow, e.reciprocal(a) if isinstance(a, GPUArray) else 1.0 / a)


def _pareto(draw: Source, a: Value) -> GPUArray:
    return _same(_same(draw("exponential"), e.div, a), e.expm1)


def _power(draw: Source, a: Value) -> GPUArray:
    return _same(_same(_same(draw("exponential"), e.div, a), e.neg), e.exp)


def _triangular(draw: Source, left: Value, mode: Value, right: Value) -> GPUArray:
    u = draw("uniform")
    span, rise, fall = right - left, mode - left, right - mode
    up = e.add(e.sqrt(e.mul(u, span * rise)), left)
    down = e.sub(right, e.sqrt(e.mul(e.sub(1.0, u), span * fall)))
    made: GPUArray = e.where(e.less(e.mul(u, span), rise), up, down)
    return made


def _wald(draw: Source, mean: Value, scale: Value) -> GPUArray:
    # The roots of Michael, Schucany and Haas are r and 1 / r times the mean; r is found without a difference here.
    t = _same(draw("normal"), e.square)
    t = _same(t, e.mul, mean / scale * 0.5)
    r = e.reciprocal(e.add(e.add(t, 1.0), e.sqrt(e.mul(t, e.add(t, 2.0)))))
    u = draw("uniform")
    first = e.less_equal(e.mul(u, e.add(r, 1.0), out=u), 1.0)
    made: GPUArray = e.mul(e.where(first, r, e.reciprocal(r)), mean)
    return made


class Continuous(Draws):
    """Continuous distributions of a generator."""

    def _scaled(
        self, distribution: str, loc: Any, scale: Any, size: Size, dtype: DTypeLike, out: GPUArray | None
    ) -> GPUArray:
        """Return ``loc + scale * x`` for numbers of a distribution that has a kernel."""
        kind = float_type(dtype, distribution)
        size, device = self._target(out, size, kind), self._device(out, (loc, scale))
        middle = parameter(loc, "loc", "", wide_enough(kind), device)
        width = parameter(scale, "scale", "< 0", wide_enough(kind), device)
        return self._located(distribution, middle, width, size, kind, device, out)

    def random(self, size: Size = None, dtype: DTypeLike = float64, out: GPUArray | None = None) -> GPUArray:
        """Numbers of equal probability in [0, 1).

        Parameters
        ----------
        size : int or tuple of int, optional
            Shape of the result; an array without dimensions by default.
        dtype : DataType, optional
            float64, float32, float16 or bfloat16: as many random bits as the type has for numbers in [0.5, 1).
        out : GPUArray, optional
            Where they are written.

        Examples
        --------
        >>> rng = gp.random.default_rng(1)
        >>> rng.random((2, 3), "float32").shape
        (2, 3)
        """
        kind = float_type(dtype, "random")
        size = self._target(out, size, kind)
        return self._fill("uniform", size_of(size), kind, self._device(out), out)

    def uniform(
        self,
        low: Any = 0.0,
        high: Any = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:
        """Numbers of equal probability in [low, high): ``low + (high - low) * random()``; rounding may give ``high``.

        Examples
        --------
        >>> gp.random.default_rng(1).uniform(-1, 1, 5).shape
        (5,)
        """
        kind = float_type(dtype, "uniform")
        size, device = self._target(out, size, kind), self._device(out, (low, high))
        if not isinstance(low, GPUArray) and not isinstance(high, GPUArray):
            start = parameter(low, "low", "", wide_enough(kind), device)
            with np.errstate(over="ignore"):
                span = np.subtract(high, low, dtype=np.float64)
            if not np.all(np.isfinite(span)):
                raise OverflowError("high - low range exceeds valid bounds")
            width = parameter(span if span.ndim else float(span), "high - low", "< 0", wide_enough(kind), device)
        else:
            start, stop = (parameter(x, "low", "", wide_enough(kind), device) for x in (low, high))
            width = e.sub(stop, start)
        return self._located("uniform", start, width, size, kind, device, out)

    def standard_normal(self, size: Size = None, dtype: DTypeLike = float64, out: GPUArray | None = None) -> GPUArray:
        """Numbers of the normal distribution with mean 0 and standard deviation 1.

        Examples
        --------
        >>> gp.random.default_rng(1).standard_normal(3, "float32").dtype
        pygpukit.float32
        """
        return self.normal(0.0, 1.0, size, dtype=dtype, out=out)

    def normal(
        self,
        loc: Any = 0.0,
        scale: Any = 1.0,
        size: Size = None,
        *,
        dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:
        """Numbers of the normal distribution with mean ``loc`` and standard deviation ``scale``.

        Examples
        --------
        >>> gp.random.default_rng(1).normal(10.0, 2.0, 4).shape
        (4,)
        """
        return self._scaled("normal", loc, scale, size, dtype, out)

    def standard_exponential(
        self, size: Size = None, dtype: DTypeLike = float64, method: str = "zig", out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the exponential distribution with mean 1; ``method`` is accepted for NumPy's sake.

        Examples
        --------
        >>> gp.random.default_rng(1).standard_exponential(3).shape
        (3,)
        """
        return self.exponential(1.0, size, dtype=dtype, out=out)

    def exponential(
        self, scale: Any = 1.0, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the exponential distribution with mean ``scale``.

        Examples
        --------
        >>> gp.random.default_rng(1).exponential(2.0, 3).shape
        (3,)
        """
        return self._scaled("exponential", 0.0, scale, size, dtype, out)

    def lognormal(
        self, mean: Any = 0.0, sigma: Any = 1.0, size: Size = None, *, dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:  # fmt: skip
        """Numbers whose logarithm has a normal distribution with this mean and standard deviation.

        Examples
        --------
        >>> gp.random.default_rng(1).lognormal(0.0, 0.5, 3).shape
        (3,)
        """
        given = ((mean, "mean", ""), (sigma, "sigma", "< 0"))
        return self._formula("lognormal", _lognormal, given, size, dtype, out)  # type: ignore[arg-type]

    def laplace(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None, *, dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:  # fmt: skip
        """Numbers of the Laplace distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).laplace(0.0, 2.0, 3).shape
        (3,)
        """
        return self._scaled("laplace", loc, scale, size, dtype, out)

    def logistic(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None, *, dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:  # fmt: skip
        """Numbers of the logistic distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).logistic(size=3).shape
        (3,)
        """
        return self._scaled("logistic", loc, scale, size, dtype, out)

    def gumbel(
        self, loc: Any = 0.0, scale: Any = 1.0, size: Size = None, *, dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:  # fmt: skip
        """Numbers of the Gumbel distribution: ``argmax(logits + gumbel())`` draws from a softmax.

        Examples
        --------
        >>> gp.random.default_rng(1).gumbel(size=3, dtype="float32").shape
        (3,)
        """
        return self._scaled("gumbel", loc, scale, size, dtype, out)

    def rayleigh(
        self, scale: Any = 1.0, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the Rayleigh distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).rayleigh(2.0, 3).shape
        (3,)
        """
        return self._scaled("rayleigh", 0.0, scale, size, dtype, out)

    def weibull(
        self, a: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the Weibull distribution of shape ``a``.

        Examples
        --------
        >>> gp.random.default_rng(1).weibull(1.5, 3).shape
        (3,)
        """
        return self._formula("weibull", _weibull, [(a, "a", "< 0")], size, dtype, out)

    def pareto(self, a: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None) -> GPUArray:
        """Numbers of the Pareto distribution of the second kind (Lomax) of shape ``a``.

        Examples
        --------
        >>> gp.random.default_rng(1).pareto(3.0, 3).shape
        (3,)
        """
        return self._formula("pareto", _pareto, [(a, "a", "<= 0")], size, dtype, out)

    def power(self, a: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None) -> GPUArray:
        """Numbers in [0, 1] with the density ``a * x**(a - 1)``.

        Examples
        --------
        >>> gp.random.default_rng(1).power(2.0, 3).shape
        (3,)
        """
        return self._formula("power", _power, [(a, "a", "<= 0")], size, dtype, out)

    def standard_cauchy(
        self, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the Cauchy distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).standard_cauchy(3).shape
        (3,)
        """
        return self._scaled("cauchy", 0.0, 1.0, size, dtype, out)

    def triangular(
        self, left: Any, mode: Any, right: Any, size: Size = None, *, dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:  # fmt: skip
        """Numbers between ``left`` and ``right`` whose density rises up to ``mode`` and falls behind it.

        Examples
        --------
        >>> gp.random.default_rng(1).triangular(0, 1, 3, 4).shape
        (4,)
        """
        if not any(isinstance(x, GPUArray) for x in (left, mode, right)):
            if np.any(np.greater(left, mode)):
                raise ValueError("left > mode")
            if np.any(np.greater(mode, right)):
                raise ValueError("mode > right")
            if np.any(np.equal(left, right)):
                raise ValueError("left == right")
        given = ((left, "left", ""), (mode, "mode", ""), (right, "right", ""))
        return self._formula("triangular", _triangular, given, size, dtype, out)  # type: ignore[arg-type]

    def wald(
        self, mean: Any, scale: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the Wald, or inverse Gaussian, distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).wald(2.0, 3.0, 4).shape
        (4,)
        """
        given: list[tuple[Any, str, Rule]] = [(mean, "mean", "<= 0"), (scale, "scale", "<= 0")]
        return self._formula("wald", _wald, given, size, dtype, out)
