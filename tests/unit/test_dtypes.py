"""Names, NumPy dtypes and Python types all lead to one `DataType` per element type."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import pygpukit as gp
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


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_a_dtype_equals_what_names_it(name: str) -> None:
    ours = dtypes.dtype(name)
    described = np.dtype(NUMPY[name])
    for same in (name, described, NUMPY[name], ours):
        assert ours == same
        assert same == ours
        assert (ours != same) is False
    others = [x for x in sorted(NUMPY) if x != name]
    for other in others:
        assert ours != other
        assert ours != dtypes.dtype(other)
        assert ours != np.dtype(NUMPY[other])
        assert np.dtype(NUMPY[other]) != ours
    for other in (None, 3, object(), "no type", object, str, np.floating, np.dtype("datetime64[s]")):
        assert ours != other
    if described.itemsize > 1 and described.kind != "V":
        assert ours != described.newbyteorder()
    assert hash(ours) == hash(name)
    assert {name: 1}[ours] == {ours: 1}[name] == 1
    assert ours in (name,)
    with pytest.raises(TypeError):
        _ = ours < name


def test_python_types_and_codes_are_compared_as_in_numpy() -> None:
    for ours, theirs in (
        (dtypes.float64, float),
        (dtypes.int64, int),
        (dtypes.bool_, bool),
        (dtypes.complex128, complex),
    ):
        assert ours == theirs
        assert dtypes.float32 != theirs
    assert dtypes.float32 == "f4"
    # Tags win over NumPy's codes, as in dtype().
    assert dtypes.int8 == "i8"


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_numpy_takes_our_dtypes(name: str) -> None:
    ours = dtypes.dtype(name)
    assert np.dtype(ours) == np.dtype(NUMPY[name])
    assert np.zeros(2, dtype=ours).dtype == np.dtype(NUMPY[name])
    assert np.ones(3).astype(ours).dtype == np.dtype(NUMPY[name])
    assert ours.dtype == np.dtype(NUMPY[name])


def test_what_is_asked_about_types() -> None:
    import pygpukit as gp

    names = [name for name in sorted(NUMPY) if name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]
    for a in names:
        for b in names:
            x, y = np.dtype(a), np.dtype(b)
            assert gp.promote_types(a, b) == np.promote_types(x, y)
            assert gp.result_type(gp.zeros(1, a), dtypes.dtype(b)) == np.result_type(x, y)
            for rule in ("no", "equiv", "safe", "same_kind", "unsafe"):
                assert gp.can_cast(a, dtypes.dtype(b), rule) is bool(np.can_cast(x, y, rule)), (a, b, rule)
        for number in (True, 3, 1.5, 2j):
            assert gp.result_type(a, number) == np.result_type(np.dtype(a), number)
        for kind in (np.floating, np.integer, np.inexact, np.number, np.generic, np.float32, "int8"):
            assert gp.issubdtype(a, kind) is np.issubdtype(a, kind)
        for kind in (
            "bool",
            "signed integer",
            "unsigned integer",
            "integral",
            "real floating",
            "complex floating",
            "numeric",
        ):
            assert gp.isdtype(dtypes.dtype(a), kind) is np.isdtype(np.dtype(a), kind)
    assert gp.promote_types("bfloat16", "float16") is gp.float32
    assert gp.result_type(1, 2.5) is gp.float64
    assert gp.issubdtype("float8_e5m2", np.floating)
    assert not gp.issubdtype("bfloat16", np.float16)
    assert gp.isdtype("bfloat16", ("integral", "real floating"))
    assert gp.isdtype("int8", gp.int8)
    with pytest.raises(ValueError, match="is no kind"):
        gp.isdtype("int8", "number")
    with pytest.raises(ValueError, match="at least one"):
        gp.result_type()
    with pytest.raises(TypeError, match="result_type"):
        gp.can_cast(3, "int8")


def test_limits_of_types() -> None:
    import pygpukit as gp

    for name in ("float16", "float32", "float64", "complex64"):
        assert gp.finfo(name).eps == np.finfo(np.dtype(name)).eps
    assert gp.finfo(gp.zeros(1, "bfloat16")).bits == 16
    assert float(gp.finfo("float8_e4m3fn").max) == 448
    for name in ("int8", "uint64"):
        assert gp.iinfo(name).max == np.iinfo(np.dtype(name)).max
    assert gp.finfo("float32").dtype == gp.float32
    with pytest.raises(ValueError, match="inexact"):
        gp.finfo("int32")
    with pytest.raises(ValueError, match="integer"):
        gp.iinfo("float32")


def test_constants() -> None:
    import pygpukit as gp

    for name in ("pi", "e", "inf", "euler_gamma"):
        assert getattr(gp, name) == getattr(np, name)
    assert gp.nan != gp.nan
    assert gp.newaxis is None
    assert gp.ones(3)[:, gp.newaxis].shape == (3, 1)


@pytest.mark.parametrize("name", sorted(NUMPY))
def test_a_type_called_makes_numbers_of_it(name: str) -> None:
    kind = getattr(dtypes, "bool_" if name == "bool" else name)
    made = kind(1)
    assert type(made) is NUMPY[name]
    assert made == 1
    assert kind() == 0
    cast = kind(gp.ones(2))
    assert (cast.dtype, cast.tolist()) == (kind, [1, 1])


def test_a_type_called_with_more_than_a_number_names_asarray() -> None:
    for wrong in ([1, 2], (1,), np.ones(2)):
        with pytest.raises(TypeError, match=r"write asarray\(x, dtype='float32'\)"):
            dtypes.float32(wrong)
    with pytest.raises(OverflowError):
        dtypes.int8(300)
