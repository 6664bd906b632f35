"""Operators of linear algebra: shapes and types of factorisations, LAPACK by way of NumPy, and cuSOLVER.

They take float32, float64, complex64 and complex128 only; the functions beside this module cast, as NumPy does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.linalg import LinAlgError
from numpy.linalg import _umath_linalg as _lapack

from pygpukit import _pygpukit_rust as _native
from pygpukit.array.bridge import from_numpy, to_numpy
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError
from pygpukit.linalg import solver
from pygpukit.ops.problem import Problem, Result, broadcast
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import hint, minimum

__all__ = [
    "cholesky",
    "det",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
]

_REAL = {"complex64": "float32", "complex128": "float64"}
_COMPLEX = {"float32": "complex64", "float64": "complex128"}


def real_of(kind: DataType) -> DataType:
    """Return the type of singular values of matrices of a type."""
    return dtype(_REAL.get(kind.name, kind.name))


def complex_of(kind: DataType) -> DataType:
    """Return the type of eigenvalues of matrices of a type."""
    return dtype(_COMPLEX.get(kind.name, kind.name))


def _check(p: Problem) -> tuple[tuple[Any, ...], Any, Any, DataType]:
    """Return the axes of the stack, rows, columns and the type; square where the operator is about square matrices."""
    a = p["a"]
    if a.dtype.name not in _REAL and a.dtype.name not in _COMPLEX:
        raise DTypeError(f"array type {a.dtype.name} is unsupported in linalg; convert it to float32 or float64 first")
    if a.ndim < 2:
        raise LinAlgError(f"{a.ndim}-dimensional array given. Array must be at least two-dimensional")
    rows, columns = a.shape[-2:]
    if p.name not in _ANY_SHAPE and rows != columns:
        raise LinAlgError(f"Last 2 dimensions of the array must be square, and are {hint(rows)} and {hint(columns)}")
    return a.shape[:-2], rows, columns, a.dtype


_ANY_SHAPE = frozenset({"linalg_qr", "linalg_svd", "linalg_svdvals"})


def _infer_same(p: Problem) -> list[Result]:
    stack, n, _, kind = _check(p)
    return [Result((*stack, n, n), kind)]


def _infer_det(p: Problem) -> list[Result]:
    stack, _, _, kind = _check(p)
    return [Result(stack, kind)]


def _infer_slogdet(p: Problem) -> list[Result]:
    stack, _, _, kind = _check(p)
    return [Result(stack, kind), Result(stack, real_of(kind))]


def _infer_solve(p: Problem) -> list[Result]:
    stack, n, _, kind = _check(p)
    b = p["b"]
    if b.dtype is not kind or b.ndim == 0:
        raise DTypeError(f"solve takes matrices of one type, not of {kind.name} and {b.dtype.name}")
    if b.ndim == 1:
        if b.shape[0] != n:
            raise ValueError(f"solve: the right side has {hint(b.shape[0])} elements, and the matrices {hint(n)} rows")
        return [Result((*stack, n), kind)]
    if b.shape[-2] != n:
        raise ValueError(f"solve: the right sides have {hint(b.shape[-2])} rows, and the matrices {hint(n)}")
    both = broadcast(stack, b.shape[:-2])
    if both is None:
        raise ValueError("solve: the leading axes of matrices and right sides do not broadcast")
    return [Result((*both, n, b.shape[-1]), kind)]


def _infer_eigh(p: Problem) -> list[Result]:
    stack, n, _, kind = _check(p)
    return [Result((*stack, n), real_of(kind)), Result((*stack, n, n), kind)]


def _infer_eigvalsh(p: Problem) -> list[Result]:
    return _infer_eigh(p)[:1]


def _infer_eig(p: Problem) -> list[Result]:
    stack, n, _, kind = _check(p)
    return [Result((*stack, n), complex_of(kind)), Result((*stack, n, n), complex_of(kind))]


def _infer_eigvals(p: Problem) -> list[Result]:
    return _infer_eig(p)[:1]


def _infer_svd(p: Problem) -> list[Result]:
    stack, m, n, kind = _check(p)
    k = minimum(m, n)
    full = p.options["full"]
    left, right = (m, n) if full else (k, k)
    return [
        Result((*stack, m, left), kind),
        Result((*stack, k), real_of(kind)),
        Result((*stack, right, n), kind),
    ]


def _infer_svdvals(p: Problem) -> list[Result]:
    stack, m, n, kind = _check(p)
    return [Result((*stack, minimum(m, n)), real_of(kind))]


def _infer_qr(p: Problem) -> list[Result]:
    stack, m, n, kind = _check(p)
    k, mode = minimum(m, n), p.options["mode"]
    if mode == "raw":
        return [Result((*stack, n, m), kind), Result((*stack, k), kind)]
    if mode == "r":
        return [Result((*stack, k, n), kind)]
    size = m if mode == "complete" else k
    return [Result((*stack, m, size), kind), Result((*stack, size, n), kind)]


def _inverse(a: Any, *, check: bool = True) -> Any:
    """The inverses; without ``check`` those of singular matrices are NaN."""
    try:
        return np.linalg.inv(a)
    except LinAlgError:
        if check:
            raise
        if a.ndim == 2:
            return np.full_like(a, np.nan)
        return np.stack([_inverse(x, check=False) for x in a])


def _qr(a: Any, *, mode: str = "reduced") -> Any:
    return np.linalg.qr(a, mode)  # type: ignore[call-overload]


def _svd(a: Any, *, full: bool = True) -> Any:
    return np.linalg.svd(a, full_matrices=full)


def _singular(error: str, flag: int) -> None:
    raise LinAlgError("Singular matrix")


def _indefinite(error: str, flag: int) -> None:
    raise LinAlgError("Matrix is not positive definite")


def _by_gufunc(
    function: Callable[..., Any], signature: str, refusal: Callable[[str, int], None]
) -> Callable[..., None]:
    """What `numpy.linalg` does around LAPACK once the types are known: LAPACK's failure is NumPy's invalid value."""

    def run(*views: Any) -> None:
        with np.errstate(call=refusal, invalid="call"):
            function(*views, signature=signature)

    return run


_GUFUNCS: dict[str, tuple[str, Callable[[str, int], None]]] = {
    "linalg_solve": ("solve", _singular),
    "linalg_inv": ("inv", _singular),
    "linalg_cholesky": ("cholesky_lo", _indefinite),
}


def _gufunc(p: Problem) -> Callable[..., None] | None:
    """Return the call of LAPACK in NumPy that an operator is; None where NumPy does more, or has none of that name."""
    if p.name not in _GUFUNCS:
        return None
    name, refusal = _GUFUNCS[p.name]
    if p.options.get("upper") or not p.options.get("check", True):
        return None
    if name == "solve" and p["b"].ndim == 1:
        name = "solve1"
    function = getattr(_lapack, name, None)
    letter = "D" if p.out.dtype.kind == "c" else "d"
    return None if function is None else _by_gufunc(function, f"{letter * len(p.inputs)}->{letter}", refusal)


def _host(function: Callable[..., Any], names: Sequence[str], p: Problem) -> Callable[..., None]:
    direct = _gufunc(p)
    if direct is not None:
        return direct
    options = {name: p.options[name] for name in names}
    count = len(p.inputs)

    def run_one(a: Any, out: Any) -> None:
        out[...] = function(a, **options)

    if count == len(p.outputs) == 1:
        return run_one

    def run(*views: Any) -> None:
        made = function(*views[:count], **options)
        for out, one in zip(views[count:], made if isinstance(made, tuple) else (made,), strict=True):
            out[...] = one

    return run


def _by_lapack(function: Callable[..., Any], names: Sequence[str], p: Problem) -> Callable[..., None]:
    """The same where the arrays are those of the emulator: copied to the host, and the results back."""
    options = {name: p.options[name] for name in names}
    count = len(p.inputs)

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        made = function(*(to_numpy(x) for x in given[:count]), **options)
        for out, one in zip(results, made if isinstance(made, tuple) else (made,), strict=True):
            _native.apply("copy", (from_numpy(np.asarray(one), device=out.device),), out)

    return run


def _accepts_cusolver(p: Problem) -> str | None:
    return solver.refuses(p.kind)


def _accepts_lapack(p: Problem) -> str | None:
    return None if p.kind == "emulated" else "LAPACK runs on the host"


def _by_cusolver(name: str, names: Sequence[str], p: Problem) -> Callable[..., None]:
    return partial(solver.COMPOSITIONS[name], {one: p.options[one] for one in names})


def _made(
    name: str,
    infer: Callable[[Problem], Sequence[Result]],
    function: Callable[..., Any],
    doc: str,
    *choices: Parameter,
    arrays: tuple[str, ...] = ("a",),
) -> Callable[..., Any]:
    names = [p.name for p in choices]
    return register(
        Operator(
            name=f"linalg_{name}",
            parameters=(*map(Parameter, arrays), *choices),
            infer=infer,
            reference=function,
            variants=(
                Variant("cuSOLVER", "run_to_run", _accepts_cusolver, compose=partial(_by_cusolver, name, names)),
                Variant("NumPy", "run_to_run", lambda p: None, host=partial(_host, function, names)),
                Variant("LAPACK", "run_to_run", _accepts_lapack, compose=partial(_by_lapack, function, names)),
            ),
            doc=doc,
            tolerance={"float32": 1e-4, "float64": 1e-12},
            public=False,
        )
    )


def _choice(name: str, default: Any, doc: str) -> Parameter:
    return Parameter(name, "choice", default, keyword_only=True, doc=doc)


cholesky = _made(
    "cholesky",
    _infer_same,
    np.linalg.cholesky,
    "Cholesky factors of Hermitian positive definite matrices.",
    _choice("upper", False, "Give the upper factor."),
)
inv = _made("inv", _infer_same, _inverse, "Inverses.", _choice("check", True, "Refuse singular matrices."))
solve = _made(
    "solve", _infer_solve, np.linalg.solve, "Solutions of ``a @ x = b`` for stacks of matrices.", arrays=("a", "b")
)
det = _made("det", _infer_det, np.linalg.det, "Determinants.")
slogdet = _made("slogdet", _infer_slogdet, lambda a: tuple(np.linalg.slogdet(a)), "Determinants by sign and logarithm.")
qr = _made(
    "qr", _infer_qr, lambda a, mode="reduced": _plain(_qr(a, mode=mode)), "Orthogonal and upper triangular factors.",
    _choice("mode", "reduced", "``reduced``, ``complete``, ``r`` or ``raw``."),
)  # fmt: skip
_UPLO = _choice("UPLO", "L", "Which triangle is read.")
eigh = _made("eigh", _infer_eigh, lambda a, UPLO="L": tuple(np.linalg.eigh(a, UPLO)), "Of Hermitian matrices.", _UPLO)
eigvalsh = _made("eigvalsh", _infer_eigvalsh, np.linalg.eigvalsh, "Eigenvalues of Hermitian matrices.", _UPLO)
eig = _made("eig", _infer_eig, lambda a: tuple(np.linalg.eig(a)), "Eigenvalues and eigenvectors, always complex.")
eigvals = _made("eigvals", _infer_eigvals, np.linalg.eigvals, "Eigenvalues, always complex.")
svd = _made(
    "svd", _infer_svd, lambda a, full=True: tuple(_svd(a, full=full)), "Singular value decompositions.",
    _choice("full", True, "Give square orthogonal factors."),
)  # fmt: skip
svdvals = _made("svdvals", _infer_svdvals, np.linalg.svdvals, "Singular values, the largest first.")


def _plain(made: Any) -> Any:
    return tuple(made) if isinstance(made, tuple) else made
