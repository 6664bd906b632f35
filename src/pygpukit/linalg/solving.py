"""Equations and inverses: solve, inv, pinv, lstsq, det, slogdet, tensorsolve, tensorinv, cholesky, qr."""

from __future__ import annotations

import operator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.linalg import LinAlgError

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.array.creation import empty, zeros
from pygpukit.dtypes import to_numpy_dtype
from pygpukit.errors import ShapeError
from pygpukit.linalg import rows
from pygpukit.linalg.arrays import call, cast, check, matrices, require, require_both, transpose_conj
from pygpukit.linalg.spectra import svd
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.gemm.rows import matmul
from pygpukit.ops.operands import as_array
from pygpukit.ops.reduce import rows as r

__all__ = [
    "QRResult",
    "SlogdetResult",
    "cholesky",
    "det",
    "inv",
    "lstsq",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "tensorinv",
    "tensorsolve",
]


class QRResult(NamedTuple):
    """Orthogonal and upper triangular factors."""

    Q: GPUArray
    R: GPUArray


class SlogdetResult(NamedTuple):
    """Sign of a determinant, and the logarithm of its magnitude."""

    sign: GPUArray
    logabsdet: GPUArray


def solve(a: Any, b: Any) -> GPUArray:
    """Solutions of ``a @ x = b``.

    Parameters
    ----------
    a : GPUArray
        Square matrices along the last two axes.
    b : GPUArray
        One vector, or matrices of right sides; leading axes broadcast.

    Raises
    ------
    LinAlgError
        If a matrix is singular or not square.

    Examples
    --------
    >>> gp.linalg.solve(gp.asarray([[2.0, 0.0], [0.0, 4.0]]), gp.asarray([2.0, 8.0])).tolist()
    [1.0, 2.0]
    """
    a, b = require_both("solve", a, b)
    shape, sides = a.shape, b.shape
    check("solve", shape, True)
    if not sides or sides[-2 if len(sides) > 1 else 0] != shape[-1]:
        raise ShapeError(f"solve(): right sides of shape {sides} do not fit matrices of shape {shape}")
    return call(rows.solve, *cast(a, b))  # type: ignore[no-any-return]


def inv(a: Any) -> GPUArray:
    """Inverses of square matrices.

    Raises
    ------
    LinAlgError
        If a matrix is singular or not square.

    Examples
    --------
    >>> gp.linalg.inv(gp.asarray([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    return call(rows.inv, matrices("inv", a, square=True))  # type: ignore[no-any-return]


def det(a: Any) -> GPUArray:
    """Determinants of square matrices.

    Examples
    --------
    >>> round(gp.linalg.det(gp.asarray([[1.0, 2.0], [3.0, 4.0]])).item(), 6)
    -2.0
    """
    return rows.det(matrices("det", a, square=True))  # type: ignore[no-any-return]


def slogdet(a: Any) -> SlogdetResult:
    """Sign and logarithm of determinants; of singular matrices 0 and minus infinity.

    Examples
    --------
    >>> gp.linalg.slogdet(gp.asarray([[1.0, 0.0], [0.0, -1.0]])).sign.item()
    -1.0
    """
    return SlogdetResult(*rows.slogdet(matrices("slogdet", a, square=True)))


def cholesky(a: Any, /, *, upper: bool = False) -> GPUArray:
    """Lower triangular factors L of Hermitian positive definite matrices ``L @ L.conj().T``, or upper ones.

    Only one triangle of a matrix is read, the one that is given.

    Raises
    ------
    LinAlgError
        If a matrix is not positive definite.

    Examples
    --------
    >>> gp.linalg.cholesky(gp.asarray([[4.0, 2.0], [2.0, 2.0]])).tolist()
    [[2.0, 0.0], [1.0, 1.0]]
    """
    return call(rows.cholesky, matrices("cholesky", a, square=True), upper=bool(upper))  # type: ignore[no-any-return]


def qr(a: Any, mode: str = "reduced") -> Any:
    """Orthogonal (unitary) and upper triangular factors.

    Parameters
    ----------
    a : GPUArray
        Matrices.
    mode : str, optional
        ``"reduced"``: Q has as many columns as the smaller side; ``"complete"``: Q is square; ``"r"``: only R;
        ``"raw"``: LAPACK's reflectors and their factors.

    Returns
    -------
    QRResult
        With the names ``Q`` and ``R``; R alone for ``"r"``, a tuple for ``"raw"``.

    Examples
    --------
    >>> q, r = gp.linalg.qr(gp.asarray([[3.0, 1.0], [4.0, 2.0]]))
    >>> round(abs(r[0, 0].item()), 6)
    5.0
    """
    if mode not in ("reduced", "complete", "r", "raw"):
        raise ValueError(f"Unrecognized mode '{mode}'; use 'reduced', 'complete', 'r' or 'raw'")
    made = call(rows.qr, matrices("qr", a), mode=mode)
    return QRResult(*made) if mode in ("reduced", "complete") else made


def _invert_large(s: GPUArray, cutoff: Any) -> GPUArray:
    """The reciprocals of the singular values above a limit; 0 of the others."""
    large = e.greater(s, cutoff)
    return e.where(large, e.div(1, e.where(large, s, 1)), 0)


def _limit(limit: Any) -> Any:
    """A relative limit, one for all matrices or one for each."""
    if isinstance(limit, list | tuple):
        limit = as_array(limit, "pinv(): rcond")
    return limit.reshape((*limit.shape, 1)) if isinstance(limit, GPUArray) and limit.ndim else limit


_UNSET: Any = object()


def pinv(a: Any, rcond: Any = None, hermitian: bool = False, *, rtol: Any = _UNSET) -> GPUArray:
    """Pseudo-inverses, by singular values above ``rcond`` times the largest.

    Parameters
    ----------
    a : GPUArray
        Matrices.
    rcond, rtol : float or GPUArray, optional
        The limit, under one of the names; 1e-15 by default. With ``rtol=None`` the larger side times the type's eps.
    hermitian : bool, optional
        The matrices are Hermitian, which is faster.

    Examples
    --------
    >>> gp.linalg.pinv(gp.asarray([[2.0], [0.0]])).tolist()
    [[0.5, 0.0]]
    """
    if rcond is not None and rtol is not _UNSET:
        raise ValueError("pinv(): rtol and rcond are the same; give one of them")
    x = matrices("pinv", a)
    if rcond is None:
        rcond = 1e-15 if rtol is _UNSET else rtol
        if rtol is None:
            rcond = max(x.shape[-2:]) * float(np.finfo(to_numpy_dtype(x.dtype)).eps)
    if x.shape[-1] == 0 or x.shape[-2] == 0:
        return empty((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype, device=x.device)
    u, s, vh = svd(x, full_matrices=False, hermitian=hermitian)
    largest = r.FUNCTIONS["max"](s, -1, keepdims=True)
    inverted = _invert_large(s, e.mul(largest, _limit(rcond)))
    scaled = e.mul(inverted.reshape((*inverted.shape, 1)), transpose_conj(u))
    return matmul(transpose_conj(vh), scaled)  # type: ignore[no-any-return]


def lstsq(a: Any, b: Any, rcond: float | None = None) -> tuple[GPUArray, GPUArray, int, GPUArray]:
    """Least-squares solution of ``a @ x = b``, of least norm where there are several.

    The rank decides what is returned, as in NumPy, so one number is read from the device.

    Parameters
    ----------
    a : GPUArray
        A matrix of m rows and n columns.
    b : GPUArray
        A vector of m elements, or m rows of right sides.
    rcond : float, optional
        Singular values up to this part of the largest count as zero; eps times the larger side by default.

    Returns
    -------
    tuple
        The solution; the sums of squared residuals, none where the rank is below n or m is not above n; the rank; the
        singular values.

    Examples
    --------
    >>> x, residuals, rank, s = gp.linalg.lstsq(gp.asarray([[1.0], [1.0]]), gp.asarray([1.0, 3.0]))
    >>> round(x.item(), 6), rank
    (2.0, 1)
    """
    a, b = require_both("lstsq", a, b)
    x, y = cast(a, b)
    if x.ndim != 2 or y.ndim not in (1, 2):
        raise LinAlgError(f"{x.ndim if x.ndim != 2 else y.ndim}-dimensional array given. Array must be two-dimensional")
    vector = y.ndim == 1
    if x.shape[0] != y.shape[0]:
        raise LinAlgError(f"lstsq(): a has {x.shape[0]} rows and b {y.shape[0]}")
    y = y.reshape(y.shape[0], 1) if vector else y
    (m, n), count = x.shape, y.shape[1]
    if rcond is None:
        rcond = max(m, n) * float(np.finfo(to_numpy_dtype(x.dtype)).eps)
    u, s, vh = svd(x, full_matrices=False)
    if s.size:
        limit = e.mul(
            r.FUNCTIONS["max"](s), float(rcond) if rcond >= 0 else float(np.finfo(to_numpy_dtype(x.dtype)).eps)
        )
        inverted = _invert_large(s, limit)
        rank = int(r.FUNCTIONS["count_nonzero"](inverted).item())
        made = matmul(transpose_conj(vh), e.mul(inverted.reshape(s.size, 1), matmul(transpose_conj(u), y)))
    else:
        rank, made = 0, zeros((n, count), x.dtype, device=x.device)
    if rank == n and m > n:
        apart = e.abs(e.sub(matmul(x, made), y))
        residuals = r.sum(e.square(apart), 0)
    else:
        residuals = empty((0,), s.dtype, device=x.device)
    return made.reshape(n) if vector else made, residuals, rank, s


def tensorsolve(a: Any, b: Any, axes: Any = None) -> GPUArray:
    """Solution of ``tensordot(a, x, x.ndim) = b``.

    Examples
    --------
    >>> gp.linalg.tensorsolve(gp.eye(4, dtype="float64").reshape(2, 2, 2, 2), gp.ones((2, 2), "float64")).shape
    (2, 2)
    """
    a, b = require_both("tensorsolve", a, b)
    if axes is not None:
        order = list(range(a.ndim))
        for k in axes:
            order.remove(k)
            order.append(k)
        a = a._permute(order)
    shape = a.shape[-(a.ndim - b.ndim) :]
    n = prod(shape)
    if a.size != n * n:
        raise LinAlgError(
            f"tensorsolve(): the axes of shape {a.shape} that b of shape {b.shape} names and the others must have as "
            "many elements"
        )
    return solve(a.reshape(n, n), b.reshape(b.size)).reshape(shape)


def tensorinv(a: Any, ind: int = 2) -> GPUArray:
    """Inverse for `tensordot` over the first ``ind`` axes.

    Examples
    --------
    >>> gp.linalg.tensorinv(gp.eye(6, dtype="float64").reshape(2, 3, 6), ind=2).shape
    (6, 2, 3)
    """
    a = require("tensorinv", a)
    count = operator.index(ind)
    if count <= 0:
        raise ValueError(f"tensorinv(): ind must be positive, not {ind}")
    rows_of = prod(a.shape[count:])
    if rows_of == 0 or a.size % rows_of:
        raise LinAlgError(f"tensorinv(): an array of shape {a.shape} is no square matrix for ind={ind}")
    made = inv(a.reshape(rows_of, a.size // rows_of))
    return made.reshape((*a.shape[count:], *a.shape[:count]))
