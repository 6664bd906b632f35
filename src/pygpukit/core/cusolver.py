"""Factorisations by cuSOLVER: the library is opened when the first is planned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from pygpukit import _pygpukit_rust as _native
from pygpukit.core.libraries import cusolver_candidates
from pygpukit.errors import DriverError

if TYPE_CHECKING:
    from pygpukit._pygpukit_rust import DataType, GPUArray, _SolverPlan

__all__ = ["missing", "plan"]


def plan(
    name: str, dtype: DataType, sizes: tuple[int, int, int], flags: str, arrays: Sequence[GPUArray]
) -> _SolverPlan:
    """Plan a function of cuSOLVER for one column-major matrix without gaps.

    ``plan.run(arrays, info, workspace)`` puts it on the current stream; ``plan.workspace`` is what it needs, in bytes.

    Parameters
    ----------
    name : str
        ``"potrf"``, ``"getrf"``, ``"getrs"``, ``"geqrf"``, ``"orgqr"``, ``"syevd"``, ``"gesvd"`` or ``"geev"``.
    dtype : DataType
        Of the matrix: float32, float64, complex64 or complex128.
    sizes : tuple of int
        m, n and k, as LAPACK names them; of getrs n, the number of right sides, and 0.
    flags : str
        LAPACK's letters in their order, such as ``"L"`` of potrf, ``"VL"`` of syevd and ``"SS"`` of gesvd.
    arrays : sequence of GPUArray
        Those of the first call, in LAPACK's order: the library is asked about them.

    Raises
    ------
    DriverError
        If cuSOLVER is not found, or lacks the function; the text lists what was searched.
    ValueError
        If arrays, sizes and flags do not fit together.
    """
    _open()
    return _native.cusolver_plan(name, dtype, sizes, flags, list(arrays))


@cache
def missing() -> str | None:
    """Return None if cuSOLVER is there, else what is missing and how it is installed."""
    try:
        _open()
    except DriverError as error:
        return " ".join(line.strip() for line in str(error).splitlines())
    return None


@cache
def _open() -> None:
    version = _native.driver_version()
    _native.cusolver_open(cusolver_candidates(version // 1000 if version is not None else None))
