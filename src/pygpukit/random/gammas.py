"""Distributions made of gamma numbers: gamma, chi-square, beta, t, F, Dirichlet; and several normal numbers at once."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.bridge import from_numpy
from pygpukit.dtypes import DTypeLike, float64, to_numpy_dtype
from pygpukit.errors import ShapeError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.nn.rows import softmax
from pygpukit.random.draws import Draws, Size, Source, Value, float_type, parameter, placed, size_of, wide_enough


def _gamma(draw: Source, shape: Value, scale: Value) -> GPUArray:
    return placed(draw.gamma(shape), 0.0, scale)


def _chisquare(draw: Source, df: Value) -> GPUArray:
    return placed(draw.gamma(df * 0.5), 0.0, 2.0)


def _noncentral(draw: Source, df: Value, nonc: Value) -> GPUArray:
    # A Poisson number of further pairs of degrees of freedom.
    more = draw.poisson(nonc * 0.5).astype(draw.kind)
    return placed(draw.gamma(e.add(more, df * 0.5)), 0.0, 2.0)


def _t(draw: Source, df: Value) -> GPUArray:
    x = draw("normal")
    spread = e.div(draw.gamma(df * 0.5), df * 0.5)
    made: GPUArray = e.div(x, e.sqrt(spread, out=spread), out=x)
    return made


def _f(draw: Source, dfnum: Value, dfden: Value) -> GPUArray:
    x = e.div(draw.gamma(dfnum * 0.5), dfnum * 0.5)
    made: GPUArray = e.div(x, e.div(draw.gamma(dfden * 0.5), dfden * 0.5), out=x)
    return made


def _noncentral_f(draw: Source, dfnum: Value, dfden: Value, nonc: Value) -> GPUArray:
    x = e.div(_noncentral(draw, dfnum, nonc), dfnum)
    made: GPUArray = e.div(x, e.div(draw.gamma(dfden * 0.5), dfden * 0.5), out=x)
    return made


def _beta(draw: Source, a: Value, b: Value) -> GPUArray:
    # By logarithms: for small parameters both gamma numbers may be too small for a quotient.
    x = draw.gamma(a, "log_gamma")
    x = e.sub(x, draw.gamma(b, "log_gamma"), out=x)
    made: GPUArray = e.sigmoid(x, out=x)
    return made


def _dirichlet(draw: Source, alpha: Value) -> GPUArray:
    x = draw.gamma(alpha, "log_gamma")
    made: GPUArray = softmax(x, out=x)
    return made


class Gammas(Draws):
    """Distributions made of gamma numbers."""

    def standard_gamma(
        self, shape: Any, size: Size = None, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the gamma distribution of this shape.

        Examples
        --------
        >>> gp.random.default_rng(1).standard_gamma(2.5, 3).shape
        (3,)
        """
        return self.gamma(shape, 1.0, size, dtype=dtype, out=out)

    def gamma(
        self, shape: Any, scale: Any = 1.0, size: Size = None, *, dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:  # fmt: skip
        """Numbers of the gamma distribution of this shape and scale.

        Examples
        --------
        >>> gp.random.default_rng(1).gamma([1.0, 5.0], 2.0).shape
        (2,)
        """
        return self._formula("gamma", _gamma, [(shape, "shape", "< 0"), (scale, "scale", "< 0")], size, dtype, out)

    def chisquare(
        self, df: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Sums of the squares of ``df`` standard normal numbers.

        Examples
        --------
        >>> gp.random.default_rng(1).chisquare(4, 3).shape
        (3,)
        """
        return self._formula("chisquare", _chisquare, [(df, "df", "<= 0")], size, dtype, out)

    def noncentral_chisquare(
        self, df: Any, nonc: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the noncentral chi-square distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).noncentral_chisquare(4, 1.5, 3).shape
        (3,)
        """
        given = [(df, "df", "<= 0"), (nonc, "nonc", "< 0")]
        return self._formula("noncentral_chisquare", _noncentral, given, size, dtype, out)  # type: ignore[arg-type]

    def standard_t(
        self, df: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of Student's t distribution with ``df`` degrees of freedom.

        Examples
        --------
        >>> gp.random.default_rng(1).standard_t(5, 3).shape
        (3,)
        """
        return self._formula("standard_t", _t, [(df, "df", "<= 0")], size, dtype, out)

    def f(
        self, dfnum: Any, dfden: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the F distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).f(4, 9, 3).shape
        (3,)
        """
        return self._formula("f", _f, [(dfnum, "dfnum", "<= 0"), (dfden, "dfden", "<= 0")], size, dtype, out)

    def noncentral_f(
        self, dfnum: Any, dfden: Any, nonc: Any, size: Size = None, *, dtype: DTypeLike = float64,
        out: GPUArray | None = None,
    ) -> GPUArray:  # fmt: skip
        """Numbers of the noncentral F distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).noncentral_f(4, 9, 1.0, 3).shape
        (3,)
        """
        given = [(dfnum, "dfnum", "<= 0"), (dfden, "dfden", "<= 0"), (nonc, "nonc", "< 0")]
        return self._formula("noncentral_f", _noncentral_f, given, size, dtype, out)  # type: ignore[arg-type]

    def beta(
        self, a: Any, b: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Numbers of the beta distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).beta(2, 5, 3).shape
        (3,)
        """
        # In float64: the difference of logarithms loses digits where the parameters are large.
        return self._formula("beta", _beta, [(a, "a", "<= 0"), (b, "b", "<= 0")], size, dtype, out, float64)

    def dirichlet(
        self, alpha: Any, size: Size = None, *, dtype: DTypeLike = float64, out: GPUArray | None = None
    ) -> GPUArray:
        """Vectors of numbers that add up to 1, of the Dirichlet distribution.

        Examples
        --------
        >>> gp.random.default_rng(1).dirichlet([1.0, 2.0, 3.0], 4).shape
        (4, 3)
        """
        kind = float_type(dtype, "dirichlet")
        device = self._device(out, (alpha,))
        values = parameter(alpha, "alpha", "< 0", float64, device)
        if not isinstance(values, GPUArray):
            raise TypeError(f"alpha must be a vector, not {alpha!r}")
        if values.ndim != 1:
            raise ShapeError("alpha must be a vector, of one number per component")
        shape = (*size_of(size), values.shape[0])
        if out is not None:
            self._target(out, None if size is None else shape, kind)
            shape = out.shape
        return self._formula("dirichlet", _dirichlet, [(values, "alpha", "")], shape, dtype, out, float64)

    def multivariate_normal(
        self,
        mean: Any,
        cov: Any,
        size: Size = None,
        check_valid: str = "warn",
        tol: float = 1e-8,
        *,
        method: str = "svd",
        dtype: DTypeLike = float64,
    ) -> GPUArray:
        """Vectors of the normal distribution with this mean vector and covariance matrix.

        Parameters
        ----------
        mean : array_like
            A vector.
        cov : array_like
            A matrix; decomposed on the host, to which a GPUArray is copied.
        size : int or tuple of int, optional
            How many vectors.
        check_valid : {"warn", "raise", "ignore"}
            What to do where ``cov`` is not positive semidefinite.
        tol : float
            For that check.
        method : {"svd", "eigh", "cholesky"}
            How ``cov`` is decomposed.
        dtype : DataType, optional
            Element type of the result.

        Examples
        --------
        >>> gp.random.default_rng(1).multivariate_normal([0, 0], [[2, 1], [1, 2]], 3).shape
        (3, 2)
        """
        kind = float_type(dtype, "multivariate_normal")
        real = wide_enough(kind)
        if method not in ("svd", "eigh", "cholesky"):
            raise ValueError("method must be one of {'eigh', 'svd', 'cholesky'}")
        if check_valid not in ("warn", "raise", "ignore"):
            raise ValueError("check_valid must equal 'warn', 'raise', or 'ignore'")
        device = self._device(None, (mean, cov))
        center, matrix = (np.asarray(x.to_numpy() if isinstance(x, GPUArray) else x, np.float64) for x in (mean, cov))
        if center.ndim != 1:
            raise ShapeError("mean must be 1 dimensional")
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ShapeError("cov must be 2 dimensional and square")
        if center.shape[0] != matrix.shape[0]:
            raise ShapeError("mean and cov must have same length")
        factor = from_numpy(
            np.ascontiguousarray(_factor(matrix, check_valid, tol, method).T).astype(to_numpy_dtype(real)),
            device=device,
        )
        shape = size_of(size)
        n = center.size
        z = self._fill("normal", (int(np.prod(shape)), n), real, device)
        made: GPUArray = matmul(z, factor)
        made = e.add(made, from_numpy(center.astype(to_numpy_dtype(real)), device=device), out=made)
        return made.reshape((*shape, n)).astype(kind, copy=False)


def _factor(cov: Any, check_valid: str, tol: float, method: str) -> Any:
    """Return a matrix whose product with its transpose is `cov`."""
    if method == "cholesky":
        return np.linalg.cholesky(cov)
    if method == "eigh":
        values, vectors = np.linalg.eigh(cov)
        valid = bool(np.all(values >= -tol))
        factor = vectors * np.sqrt(np.maximum(values, 0.0))
    else:
        u, values, vh = np.linalg.svd(cov)
        valid = bool(np.allclose((vh.T * values) @ vh, cov, rtol=tol, atol=tol))
        factor = u * np.sqrt(values)
    if not valid and check_valid != "ignore":
        text = "covariance is not symmetric positive-semidefinite."
        if check_valid == "raise":
            raise ValueError(text)
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return factor
