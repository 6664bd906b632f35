"""Names, NumPy dtypes and Python types all lead to one `DataType` per element type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pygpukit import dtypes
from pygpukit.errors import DTypeError

NUMPY = {
    "bool": np.bool_,
    "int8": np.int8,
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "uint8": np.uint8,
    "uint16": np.uint16,
    "uint32": np.uint32,
    "uint64": np.uint64,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "float32": np.float32,
    "float64": np.float64,
    "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "float8_e5m2": ml_dtypes.float8_e5m2,
    "complex64": np.complex64,
    "complex128": np.complex128,
}


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_names_tags_and_numpy_types_agree(name: str) -> None:
    found = dtypes.dtype(name)
    exported = getattr(dtypes, "bool_" if name == "bool" else name)
    described = np.dtype(NUMPY[name])
    assert found is exported
    assert found.name == name
    assert dtypes.dtype(found) is found
    for same in (found.tag, NUMPY[name], described):
        assert dtypes.dtype(same) is found
    assert dtypes.to_numpy_dtype(found) == described
    assert found.itemsize == described.itemsize
    assert found.kind == ("f" if described.kind == "V" else described.kind)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        (bool, "bool"),
        (int, "int64"),
        (float, "float64"),
        (complex, "complex128"),
        ("half", "float16"),
        ("single", "float32"),
        ("float", "float64"),
        ("double", "float64"),
        ("bf16", "bfloat16"),
        ("float8_e4m3", "float8_e4m3fn"),
        ("i8", "int8"),
        (np.intp, "int64"),
        (np.longlong, "int64"),
    ],
)
def test_aliases(alias: str | type, name: str) -> None:
    assert dtypes.dtype(alias).name == name


@pytest.mark.parametrize(
    "wrong",
    [
        "float31",
        "f4",
        "",
        "Float32",
        None,
        3,
        [1],
        object,
        str,
        np.dtype("O"),
        np.dtype("datetime64[s]"),
        np.dtype([("x", np.int8)]),
        np.longdouble,
        # ml_dtypes has an IEEE-like e4m3 beside the finite-only one: the same name as our alias, other bits.
        ml_dtypes.float8_e4m3,
        ml_dtypes.int4,
    ],
)
def test_what_is_no_element_type_is_refused_with_the_accepted_names(wrong: object) -> None:
    with pytest.raises(DTypeError, match=r"is not an element type.*float32.*complex128"):
        dtypes.dtype(wrong)  # type: ignore[arg-type]


def test_a_foreign_byte_order_is_refused_with_the_remedy() -> None:
    with pytest.raises(DTypeError, match="newbyteorder"):
        dtypes.dtype(np.dtype(np.float32).newbyteorder())


def test_every_exported_name_exists() -> None:
    assert all(hasattr(dtypes, name) for name in dtypes.__all__)
