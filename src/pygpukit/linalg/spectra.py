"""Eigenvalues and singular values, and what is told from them: cond, matrix_rank."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import to_numpy_dtype
from pygpukit.linalg import rows
from pygpukit.linalg.arrays import call, matrices, require, transpose_conj
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.reduce import rows as r
from pygpukit.ops.sort.gather import take_last
from pygpukit.ops.sort.order import argsort, sort

__all__ = [
    "EigResult",
    "EighResult",
    "SVDResult",
    "cond",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "matrix_rank",
    "svd",
    "svdvals",
]


class EigResult(NamedTuple):
    """Eigenvalues, and the right eigenvectors as columns."""

    eigenvalues: GPUArray
    eigenvectors: GPUArray


class EighResult(NamedTuple):
    """Ascending eigenvalues, and the eigenvectors as columns."""

    eigenvalues: GPUArray
    eigenvectors: GPUArray


class SVDResult(NamedTuple):
    """Singular value decompositions ``U @ diag(S) @ Vh``."""

    U: GPUArray
    S: GPUArray
    Vh: GPUArray


def _triangle(UPLO: str) -> str:
    side = UPLO.upper()
    if side not in ("L", "U"):
        raise ValueError(f"UPLO argument must be 'L' or 'U', not {UPLO!r}")
    return side


def eigh(a: Any, UPLO: str = "L") -> EighResult:
    """Eigenvalues and eigenvectors of Hermitian matrices, of which one triangle is read.

    Returns
    -------
    EighResult
        With the names ``eigenvalues``, ascending, and ``eigenvectors``, as columns.

    Examples
    --------
    >>> gp.linalg.eigh(gp.asarray([[2.0, 0.0], [0.0, 1.0]])).eigenvalues.tolist()
    [1.0, 2.0]
    """
    side = _triangle(UPLO)
    return EighResult(*call(rows.eigh, matrices("eigh", a, square=True), UPLO=side))


def eigvalsh(a: Any, UPLO: str = "L") -> GPUArray:
    """Eigenvalues of Hermitian matrices, ascending.

    Examples
    --------
    >>> gp.linalg.eigvalsh(gp.asarray([[2.0, 0.0], [0.0, 1.0]])).tolist()
    [1.0, 2.0]
    """
    side = _triangle(UPLO)
    return call(rows.eigvalsh, matrices("eigvalsh", a, square=True), UPLO=side)  # type: ignore[no-any-return]


def _are_real(a: GPUArray, w: GPUArray) -> bool:
    """Are the eigenvalues of real matrices all real? NumPy's result is real then, so this is read."""
    return a.dtype.kind != "c" and not bool(r.FUNCTIONS["any"](e.imag(w)).item())


def eig(a: Any) -> EigResult:
    """Eigenvalues and right eigenvectors of square matrices.

    Real where all eigenvalues are, as in NumPy: one number is read from the device.

    Returns
    -------
    EigResult
        With the names ``eigenvalues`` and ``eigenvectors``, as columns.

    Raises
    ------
    LinAlgError
        If a matrix has infinities or NaN, or the iteration does not converge.

    Examples
    --------
    >>> gp.linalg.eig(gp.asarray([[2.0, 0.0], [0.0, 3.0]])).eigenvalues.tolist()
    [2.0, 3.0]
    """
    x = matrices("eig", a, square=True)
    w, v = call(rows.eig, x)
    return EigResult(e.real(w), e.real(v)) if _are_real(x, w) else EigResult(w, v)


def eigvals(a: Any) -> GPUArray:
    """Eigenvalues of square matrices; see `eig`.

    Examples
    --------
    >>> gp.linalg.eigvals(gp.asarray([[0.0, 1.0], [-1.0, 0.0]])).dtype
    pygpukit.complex128
    """
    x = matrices("eigvals", a, square=True)
    w = call(rows.eigvals, x)
    return e.real(w) if _are_real(x, w) else w


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True, hermitian: bool = False) -> Any:
    """Singular value decompositions.

    Parameters
    ----------
    a : GPUArray
        Matrices.
    full_matrices : bool, optional
        U and Vh are square; else they have as many columns and rows as there are singular values.
    compute_uv : bool, optional
        False for the singular values alone.
    hermitian : bool, optional
        The matrices are Hermitian, which is faster.

    Returns
    -------
    SVDResult
        With the names ``U``, ``S`` (the largest first) and ``Vh``.

    Examples
    --------
    >>> gp.linalg.svd(gp.asarray([[3.0, 0.0], [0.0, 4.0]])).S.tolist()
    [4.0, 3.0]
    """
    x = matrices("svd", a, square=bool(hermitian))
    if hermitian:
        return _hermitian_svd(x, compute_uv)
    if compute_uv:
        return SVDResult(*call(rows.svd, x, full=bool(full_matrices)))
    return call(rows.svdvals, x)


def _hermitian_svd(x: GPUArray, compute_uv: bool) -> Any:
    """By eigenvalues: their magnitudes, the largest first."""
    if not compute_uv:
        return sort(e.abs(eigvalsh(x)), descending=True)
    w, u = eigh(x)
    size = e.abs(w)
    order = argsort(size, descending=True)
    signs = e.sign(w)
    s, signs = (take_last(y, order) for y in (size, signs))
    columns = order._expand(order.ndim - 1)._broadcast_to(u.shape)
    u = take_last(u, columns)
    return SVDResult(u, s, transpose_conj(e.mul(u, signs._expand(signs.ndim - 1))))


def svdvals(x: Any, /) -> GPUArray:
    """Singular values, the largest first.

    Examples
    --------
    >>> gp.linalg.svdvals(gp.asarray([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [4.0, 3.0]
    """
    return call(rows.svdvals, matrices("svdvals", x))  # type: ignore[no-any-return]


def cond(x: Any, p: Any = None) -> GPUArray:
    """Condition numbers: the norm times that of the inverse; infinite for singular matrices.

    ``p`` is an order of matrices as in `norm`; None means 2.

    Examples
    --------
    >>> gp.linalg.cond(gp.asarray([[2.0, 0.0], [0.0, 1.0]])).item()
    2.0
    """
    from pygpukit.linalg.norms import norm

    x = require("cond", x)
    if x.ndim >= 2 and (x.shape[-1] == 0 or x.shape[-2] == 0):
        raise LinAlgError("cond is not defined on empty arrays")
    if p is None or p in (2, -2):
        a = matrices("cond", x)
        s = svdvals(a)
        first, last = s[..., 0], s[..., -1]
        result = e.div(last, first) if p == -2 else e.div(first, last)
    else:
        a = matrices("cond", x, square=True)
        result = e.mul(norm(a, p, axis=(-2, -1)), norm(rows.inv(a, check=False), p, axis=(-2, -1)))
    own = r.FUNCTIONS["any"](e.isnan(a), (-2, -1))
    return e.where(e.logical_and(e.isnan(result), e.logical_not(own)), math.inf, result)


def matrix_rank(A: Any, tol: Any = None, hermitian: bool = False, *, rtol: Any = None) -> GPUArray:
    """Number of singular values above a limit; of a vector whether it has an element that is not 0.

    Parameters
    ----------
    A : GPUArray
        Matrices, or a vector.
    tol : float or GPUArray, optional
        The limit; the largest singular value times ``rtol`` by default.
    hermitian : bool, optional
        The matrices are Hermitian, which is faster.
    rtol : float or GPUArray, optional
        The larger side times the type's eps by default.

    Returns
    -------
    GPUArray
        int64, on the device also where NumPy returns an int.

    Examples
    --------
    >>> gp.linalg.matrix_rank(gp.ones((3, 3))).item()
    1
    """
    from pygpukit.linalg.solving import _limit

    A = require("matrix_rank", A)
    if rtol is not None and tol is not None:
        raise ValueError("matrix_rank(): give tol or rtol, not both")
    if A.ndim < 2:
        return r.FUNCTIONS["any"](A).astype("int64")  # type: ignore[no-any-return]
    s = svd(A, compute_uv=False, hermitian=hermitian)
    if tol is None:
        if rtol is None:
            rtol = max(A.shape[-2:]) * float(np.finfo(to_numpy_dtype(s.dtype)).eps)
        limit = e.mul(r.FUNCTIONS["max"](s, -1, keepdims=True, initial=0), _limit(rtol))
    else:
        limit = _limit(tol)
    return r.FUNCTIONS["count_nonzero"](e.greater(s, limit), -1)  # type: ignore[no-any-return]
