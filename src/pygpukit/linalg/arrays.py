"""What all functions of linear algebra ask of their arguments, and when what they raise arrives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.linalg import LinAlgError

from pygpukit._pygpukit_rust import GPUArray, current_stream
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, GraphError
from pygpukit.ops.elementwise import rows as e
from pygpukit.ops.products.dot import require, require_both

__all__ = ["call", "cast", "check", "common_type", "matrices", "require", "require_both", "swap", "transpose_conj"]


_COMPUTED = frozenset(map(dtype, ("float32", "float64", "complex64", "complex128")))


def common_type(*arrays: GPUArray) -> DataType:
    """Return the type that is computed in: integers and bool in float64, others in the widest of them.

    Raises
    ------
    DTypeError
        If one is a float of fewer than 32 bits.
    """
    kind = arrays[0].dtype
    if kind in _COMPUTED and all(x.dtype is kind for x in arrays):
        return kind
    wide = is_complex = False
    for x in arrays:
        kind = x.dtype
        if kind.kind == "f" and kind.itemsize < 4:
            raise DTypeError(f"array type {kind.name} is unsupported in linalg; convert it with astype('float32')")
        is_complex |= kind.kind == "c"
        wide |= kind.name not in ("float32", "complex64")
    return dtype(("complex128" if wide else "complex64") if is_complex else ("float64" if wide else "float32"))


def cast(*arrays: GPUArray) -> Any:
    """Return the arrays in their common type; one array as itself."""
    kind = common_type(*arrays)
    if len(arrays) == 1:
        return arrays[0] if arrays[0].dtype is kind else arrays[0].astype(kind)
    return tuple([x if x.dtype is kind else x.astype(kind) for x in arrays])


def matrices(what: str, a: Any, *, square: bool = False) -> GPUArray:
    """Return an array of matrices in a type that is computed in.

    Raises
    ------
    LinAlgError
        If it has fewer than two axes, or must be square and is not.
    """
    a = require(what, a)
    check(what, a.shape, square)
    return cast(a)  # type: ignore[no-any-return]


def check(what: str, shape: tuple[int, ...], square: bool) -> None:
    """Refuse what are no matrices, or not square ones.

    Raises
    ------
    LinAlgError
        If the array has fewer than two axes, or must be square and is not.
    """
    if len(shape) < 2:
        raise LinAlgError(f"{len(shape)}-dimensional array given. {what}() takes arrays of at least two dimensions")
    if square and shape[-1] != shape[-2]:
        raise LinAlgError(f"{what}() takes square matrices, and the last two axes of shape {shape} differ")


def call(function: Callable[..., Any], *arrays: GPUArray, **options: Any) -> Any:
    """Call an operator that may find a matrix singular, and let it raise that here.

    The CPU device may have put the work behind other work of the stream; what a graph records raises at its replay.
    """
    made = function(*arrays, **options)
    if arrays[0].device.kind == "cpu":
        try:  # noqa: SIM105 (as a context manager it takes as long as a small factorisation)
            current_stream().synchronize()
        except GraphError:
            pass
    return made


def swap(x: GPUArray) -> GPUArray:
    """The last two axes exchanged; a view."""
    return x._permute([*range(x.ndim - 2), x.ndim - 1, x.ndim - 2])


def transpose_conj(x: GPUArray) -> GPUArray:
    """The adjoints of matrices; of real ones a view."""
    return swap(x if x.dtype.kind != "c" else e.conj(x))
