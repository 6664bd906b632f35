"""Linear algebra on a GPU: cuSOLVER's functions, a matrix after the other, between transposed copies.

The library is column-major: a stack of its matrices of m rows and n columns is a contiguous array ``[count, n, m]``.
Where a transpose changes nothing (determinants, ``getrs`` of the transpose, the singular values of ``a.T``) the rows of
an array are taken as columns as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from numpy.linalg import LinAlgError

from pygpukit import _pygpukit_rust as _native
from pygpukit._pygpukit_rust import DataType, GPUArray, current_stream
from pygpukit.array.bridge import to_numpy
from pygpukit.array.creation import empty, zeros
from pygpukit.core import cusolver
from pygpukit.dtypes import dtype
from pygpukit.errors import DeviceError
from pygpukit.linalg.arrays import swap
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.products.contract import diagonal_of
from pygpukit.ops.reduce import rows as r
from pygpukit.ops.shape.ranges import arange
from pygpukit.ops.shape.triangles import eye

__all__ = ["COMPOSITIONS", "refuses"]

_REAL = {"complex64": "float32", "complex128": "float64"}
_COMPLEX = {"float32": "complex64", "float64": "complex128"}


# They wait for the stream while it is locked for submission: what a host function on it would wait for in turn.
_WAITING = frozenset({"syevd", "gesvd", "geev"})


def refuses(kind: str) -> str | None:
    """Return why cuSOLVER does not run on a kind of device; None if it does."""
    return cusolver.missing() if kind == "cuda" else "cuSOLVER needs a GPU"


def _assign(out: GPUArray, value: Any) -> None:
    _native.apply("copy", (value,), out)


def _as_columns(x: GPUArray) -> GPUArray:
    """A copy of a stack as the library stores it."""
    return swap(x).copy().reshape(math.prod(x.shape[:-2]), x.shape[-1], x.shape[-2])


def _as_rows(x: GPUArray) -> GPUArray:
    """A copy of a stack, whose transposes are what the library sees."""
    return x.copy().reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def _unstacked(x: GPUArray, stack: Sequence[int]) -> GPUArray:
    """The first axis as those of the stack; a view."""
    return x.reshape((*stack, *x.shape[1:]))


def _run(name: str, kind: DataType, sizes: tuple[int, int, int], flags: str, buffers: Sequence[GPUArray]) -> GPUArray:
    """Run a function for each matrix of a stack; return what it says of each."""
    count = buffers[0].shape[0]
    info = zeros((count,), "int32", device=buffers[0].device)
    plan = cusolver.plan(name, kind, sizes, flags, [x[0] for x in buffers])
    if name in _WAITING:
        current_stream().synchronize()
    work = empty((plan.workspace,), "uint8", device=info.device) if plan.workspace else None
    for i in range(count):
        plan.run([x[i] for x in buffers], info[i : i + 1], work)
    return info


def _check(info: GPUArray, text: str) -> None:
    """Read what a function said, and raise where it failed."""
    told = to_numpy(info)
    if (told > 0).any():
        raise LinAlgError(text)
    if (told < 0).any():
        raise DeviceError(f"cuSOLVER refused its argument {-int(told.min())}; this is an error of PyGPUkit")


def _lower(rows: int, columns: int, like: GPUArray) -> GPUArray:
    """True on and below the diagonal."""
    down, across = (arange(n, device=like.device) for n in (rows, columns))
    return e.greater_equal(down.reshape(rows, 1), across)


def _cholesky(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a, (out,) = given[0], results
    n, upper = a.shape[-1], options["upper"]
    if out.size == 0:
        return
    x = _as_columns(a)
    _check(_run("potrf", a.dtype, (n, n, 0), "U" if upper else "L", [x]), "Matrix is not positive definite")
    lower = _lower(n, n, a)
    _assign(out, e.where(swap(lower) if upper else lower, swap(_unstacked(x, a.shape[:-2])), 0))


def _lu(a: GPUArray) -> tuple[GPUArray, GPUArray, GPUArray]:
    """The factors of the transposes, the rows that were exchanged, and what was said."""
    x, n = _as_rows(a), a.shape[-1]
    pivots = empty((x.shape[0], n), "int64", device=a.device)
    return x, pivots, _run("getrf", a.dtype, (n, n, 0), "", [x, pivots])


def _with_factors(a: GPUArray, sides: GPUArray) -> GPUArray:
    """Solve for right sides ``[count, k, n]`` in place; return what was said of the factors."""
    x, pivots, info = _lu(a)
    _run("getrs", a.dtype, (a.shape[-1], sides.shape[1], 0), "T", [x, pivots, sides])
    return info


def _solve(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a, b, (out,) = given[0], given[1], results
    if b.ndim == 1:
        b, out = b._expand(1), out._expand(out.ndim)
    n, k, stack = a.shape[-1], b.shape[-1], out.shape[:-2]
    if out.size == 0:
        return
    sides = _as_columns(b if b.shape[:-2] == stack else b._broadcast_to(out.shape))
    if a.ndim == 2:
        # One matrix for all right sides: they are columns side by side.
        info = _with_factors(a, sides.reshape(1, -1, n))
    else:
        info = _with_factors(a if a.shape[:-2] == stack else a._broadcast_to((*stack, n, n)), sides)
    _check(info, "Singular matrix")
    _assign(out, swap(_unstacked(sides.reshape(-1, k, n), stack)))


def _inv(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a, (out,) = given[0], results
    n = a.shape[-1]
    if out.size == 0:
        return
    count = math.prod(a.shape[:-2])
    sides = eye(n, dtype=a.dtype, device=a.device)._broadcast_to((count, n, n)).copy()
    info = _with_factors(a, sides)
    if options["check"]:
        _check(info, "Singular matrix")
    else:
        sides = e.where(e.greater(info, 0).reshape(count, 1, 1), math.nan, sides)
    _assign(out, swap(_unstacked(sides, a.shape[:-2])))


def _diagonal_and_sign(a: GPUArray) -> tuple[GPUArray, GPUArray]:
    """The diagonals of the factors, and the sign of the exchanges."""
    x, pivots, _ = _lu(a)
    moved = e.not_equal(pivots, arange(1, a.shape[-1] + 1, device=a.device))
    odd = e.bitwise_and(r.FUNCTIONS["count_nonzero"](moved, -1), 1)
    sign = e.sub(1, e.mul(odd, 2)).astype(a.dtype)
    return diagonal_of(x, 0, -2, -1), sign


def _det(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a, (out,) = given[0], results
    if a.size == 0:
        out.fill(1)
        return
    values, sign = _diagonal_and_sign(a)
    _assign(out, _unstacked(e.mul(r.FUNCTIONS["prod"](values, -1), sign), out.shape))


def _slogdet(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a, (out, logarithm) = given[0], results
    if a.size == 0:
        out.fill(1)
        logarithm.fill(0)
        return
    values, sign = _diagonal_and_sign(a)
    _assign(out, _unstacked(e.mul(r.FUNCTIONS["prod"](e.sign(values), -1), sign), out.shape))
    _assign(logarithm, _unstacked(r.sum(e.log(e.abs(values)), -1), out.shape))


def _qr(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a, mode = given[0], options["mode"]
    m, n = a.shape[-2:]
    k, stack = min(m, n), a.shape[:-2]
    if a.size == 0:
        _empty_qr(mode, results)
        return
    x = _as_columns(a)
    tau = empty((x.shape[0], k), a.dtype, device=a.device)
    _check(_run("geqrf", a.dtype, (m, n, 0), "", [x, tau]), "Incorrect argument found in QR factorization")
    if mode == "raw":
        _assign(results[0], _unstacked(x, stack))
        _assign(results[1], _unstacked(tau, stack))
        return
    size = results[-1].shape[-2]
    upper = swap(_lower(n, size, a))
    factor = swap(_unstacked(x[:, :, : min(size, m)], stack))
    _assign(results[-1], e.where(upper, factor, 0))
    if mode == "r":
        return
    columns = results[0].shape[-1]
    q = x[:, :k].copy() if columns == k else zeros((x.shape[0], columns, m), a.dtype, device=a.device)
    if columns != k:
        q[:, :k] = x[:, :k]
    _check(_run("orgqr", a.dtype, (m, columns, k), "", [q, tau]), "Incorrect argument found in QR factorization")
    _assign(results[0], swap(_unstacked(q, stack)))


def _empty_qr(mode: str, results: tuple[Any, ...]) -> None:
    if mode == "raw":
        results[1].fill(0)
    elif mode != "r":
        _assign(results[0], _identity(results[0]))


def _identity(like: GPUArray) -> GPUArray:
    rows, columns = like.shape[-2:]
    return eye(rows, columns, dtype=like.dtype, device=like.device)._broadcast_to(like.shape)


_NOT_CONVERGED = "Eigenvalues did not converge"


def _eigh(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a = given[0]
    if a.size == 0:
        return
    n, stack, job = a.shape[-1], a.shape[:-2], "V" if len(results) > 1 else "N"
    x = _as_columns(a)
    w = empty((x.shape[0], n), results[0].dtype, device=a.device)
    _check(_run("syevd", a.dtype, (n, n, 0), job + options["UPLO"], [x, w]), _NOT_CONVERGED)
    _assign(results[0], _unstacked(w, stack))
    if job == "V":
        _assign(results[1], swap(_unstacked(x, stack)))


def _svd(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a = given[0]
    m, n = a.shape[-2:]
    if a.size == 0:
        for x in results[::2] if len(results) > 1 else ():
            _assign(x, _identity(x))
        return
    k, stack = min(m, n), a.shape[:-2]
    # The library takes matrices of at least as many rows as columns; of the others the transposes, as they lie there.
    tall = m >= n
    x = _as_columns(a) if tall else _as_rows(a)
    rows, columns = (m, n) if tall else (n, m)
    job = "N" if len(results) == 1 else "A" if options["full"] else "S"
    wide = rows if job == "A" else k
    s = empty((x.shape[0], k), dtype(_REAL.get(a.dtype.name, a.dtype.name)), device=a.device)
    u = empty((x.shape[0], wide, rows) if job != "N" else (x.shape[0], 0, 0), a.dtype, device=a.device)
    v = empty((x.shape[0], columns, columns) if job != "N" else (x.shape[0], 0, 0), a.dtype, device=a.device)
    _check(_run("gesvd", a.dtype, (rows, columns, 0), job + job, [x, s, u, v]), "SVD did not converge")
    if job == "N":
        _assign(results[0], _unstacked(s, stack))
        return
    left, right = (_unstacked(y, stack) for y in ((u, v) if tall else (v, u)))
    _assign(results[0], swap(left) if tall else left)
    _assign(results[1], _unstacked(s, stack))
    _assign(results[2], swap(right) if tall else right)


def _eig(options: dict[str, Any], results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
    a = given[0]
    if not bool(r.FUNCTIONS["all"](e.isfinite(a)).item()):
        raise LinAlgError("Array must not contain infs or NaNs")
    if a.size == 0:
        return
    n, stack, job = a.shape[-1], a.shape[:-2], "V" if len(results) > 1 else "N"
    x = _as_columns(a)
    count = x.shape[0]
    w = empty((count, n), results[0].dtype, device=a.device)
    v = empty((count, n, n) if job == "V" else (count, 0, 0), a.dtype, device=a.device)
    _check(_run("geev", a.dtype, (n, n, 0), "N" + job, [x, w, v]), _NOT_CONVERGED)
    _assign(results[0], _unstacked(w, stack))
    if job == "V":
        found = v if a.dtype.kind == "c" else _unpacked(w, v)
        _assign(results[1], swap(_unstacked(found, stack)))


def _unpacked(w: GPUArray, v: GPUArray) -> GPUArray:
    """Complex eigenvectors of real matrices: a pair lies as its real and its imaginary part, one after the other."""
    sign = e.sign(e.imag(w)).reshape((*w.shape, 1))
    before, after = zeros(v.shape, v.dtype, device=v.device), zeros(v.shape, v.dtype, device=v.device)
    before[:, 1:], after[:, :-1] = v[:, :-1], v[:, 1:]
    real = e.where(e.less(sign, 0), before, v)
    imaginary = e.where(e.less(sign, 0), e.neg(v), e.where(e.greater(sign, 0), after, 0))
    kind = dtype(_COMPLEX[v.dtype.name])
    return e.add(real.astype(kind), e.mul(imaginary.astype(kind), 1j))


COMPOSITIONS: dict[str, Callable[..., None]] = {
    "cholesky": _cholesky,
    "inv": _inv,
    "solve": _solve,
    "det": _det,
    "slogdet": _slogdet,
    "qr": _qr,
    "eigh": _eigh,
    "eigvalsh": _eigh,
    "eig": _eig,
    "eigvals": _eig,
    "svd": _svd,
    "svdvals": _svd,
}
"""A function of options, results and arguments per operator."""
