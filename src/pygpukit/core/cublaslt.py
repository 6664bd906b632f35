"""Matrix products by cuBLASLt: the library is opened when the first is planned."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.core.libraries import cublaslt_candidates
from pygpukit.errors import DriverError

if TYPE_CHECKING:
    from pathlib import Path

    from pygpukit._pygpukit_rust import DataType, _GemmPlan

__all__ = ["load_algorithms", "missing", "plan_product", "save_algorithms"]

_WHAT = "a file of saved algorithms"


def plan_product(m: int, n: int, k: int, dtype: DataType, out_dtype: DataType | None = None, **how: Any) -> _GemmPlan:
    """Plan ``out[m, n] = a[m, k] @ b[k, n]`` on a GPU, for arrays of these types.

    Without a workspace every element of the result is one sum over k in ascending order: no algorithm that splits it is
    considered. ``plan.run(out, a, b)`` computes the product on the current stream.

    Parameters
    ----------
    m, n, k : int
    dtype : DataType
        Of a and b: bfloat16, float16, float32, float64, int8 or float8_e4m3fn.
    out_dtype : DataType, optional
        The same by default; float32 for 16-bit types, int32 for int8, a wider float for float8.
    how
        ``batch``, ``transpose_a``, ``transpose_b``, ``ld`` and ``batch_strides`` of a, b and out in elements,
        ``compute`` (``"f32"``; ``"tf32"`` rounds float32 operands), ``accumulate`` (add to out), ``workspace`` in
        bytes, ``alignment`` of a, b and out in bytes, ``saved`` (what ``plan.save()`` gave) and ``device``.

    Raises
    ------
    DriverError
        If cuBLASLt is not found; the text lists what was searched.
    DeviceError
        If the device is no GPU, or the library has no algorithm for the product.
    ValueError
        If sizes, strides and alignments do not fit together, or `saved` was chosen for something else.
    """
    _open()
    return _native.cublaslt_plan(m, n, k, dtype, out_dtype, **how)


@cache
def missing() -> str | None:
    """Return None if cuBLASLt is there, else what is missing."""
    try:
        _open()
    except DriverError as error:
        return str(error).partition("\n")[0]
    return None


def save_algorithms(path: str | Path) -> int:
    """Save the algorithms that cuBLASLt has chosen in this process, as JSON, and return how many they are.

    An algorithm belongs to a product's sizes, types and layouts, to the version of the library, and to the GPU's
    compute capability and number of SMs. Each is chosen once per process; a file makes the choice the same in the next
    one.

    Parameters
    ----------
    path : str or Path
        File to write.

    Raises
    ------
    DriverError
        If cuBLASLt is not found.
    OSError
        If the file cannot be written.
    """
    from pygpukit.core.saved import write_object

    _open()
    lines = _native.cublaslt_pinned()
    write_object({"cublaslt": lines}, path, indent=1)
    return len(lines)


def load_algorithms(path: str | Path) -> int:
    """Use the algorithms of a file that `save_algorithms` wrote, and return how many it holds.

    Products are planned anew. Algorithms for other GPUs stay unused.

    Parameters
    ----------
    path : str or Path
        File to read.

    Raises
    ------
    LoadError
        If the file is not what it should be, or was written with another version of the library.
    DriverError
        If cuBLASLt is not found.
    """
    from pygpukit.core.saved import read_object

    _open()

    def parse(content: dict[str, Any]) -> int:
        lines = content["cublaslt"]
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise ValueError("'cublaslt' is no list of texts")
        _native.cublaslt_pin(lines)
        return len(lines)

    count = read_object(path, _WHAT, parse)
    _native.clear_plans()
    return count


@cache
def _open() -> None:
    version = _native.driver_version()
    _native.cublaslt_open(cublaslt_candidates(version // 1000 if version is not None else None))
