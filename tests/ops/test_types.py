"""Type promotion: NumPy is the oracle for its own types, the documented rules for the small floats."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import op_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError
from pygpukit.ops.elementwise.plan import THREADS, plan
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.promotion import promote
from pygpukit.ops.units import ALL_TYPES

NUMPY_TYPES = [name for name in ALL_TYPES if name not in ("bfloat16", "float8_e4m3fn", "float8_e5m2")]
SMALL = ["bfloat16", "float8_e4m3fn", "float8_e5m2"]
SCALARS: dict[str, Any] = {"bool": True, "int": 1, "float": 1.0, "complex": 1j}
UFUNCS = [row for row in TABLE.values() if isinstance(row.rule, np.ufunc) and row.rule is row.numpy]


def numpy_answer(function: np.ufunc, values: list[Any]) -> np.dtype[Any] | None:
    with np.errstate(all="ignore"):
        try:
            return np.asarray(function(*values)).dtype
        except TypeError:
            return None


@pytest.mark.parametrize("row", UFUNCS, ids=lambda row: row.name)
def test_result_types_are_numpys(row: Any) -> None:
    for names in itertools.product(NUMPY_TYPES, repeat=row.arity):
        want = numpy_answer(row.rule, [np.ones(1, to_numpy_dtype(dtype(n))) for n in names])
        inputs = tuple(dtype(n) for n in names)
        if want is None:
            with pytest.raises(DTypeError, match=row.name):
                plan(row.name, inputs)
        elif want.kind == "c" and "c" not in row.kinds:
            with pytest.raises(DTypeError, match="astype"):
                plan(row.name, inputs)
        else:
            assert to_numpy_dtype(plan(row.name, inputs).out) == want, names


@pytest.mark.parametrize("row", [r for r in UFUNCS if r.arity == 2], ids=lambda row: row.name)
def test_python_scalars_are_weak_as_in_numpy(row: Any) -> None:
    for name, (weak, value) in itertools.product(NUMPY_TYPES, SCALARS.items()):
        array = np.ones(1, to_numpy_dtype(dtype(name)))
        for inputs, values in (((dtype(name), weak), [array, value]), ((weak, dtype(name)), [value, array])):
            want = numpy_answer(row.rule, values)
            if want is None or (want.kind == "c" and "c" not in row.kinds):
                with pytest.raises(DTypeError):
                    plan(row.name, inputs)
            else:
                assert to_numpy_dtype(plan(row.name, inputs).out) == want, (row.name, inputs)


@pytest.mark.parametrize(
    ("a", "b", "want"),
    [
        ("bfloat16", "float32", "float32"), ("bfloat16", "float64", "float64"), ("bfloat16", "float16", "float32"),
        ("bfloat16", "int8", "bfloat16"), ("bfloat16", "uint8", "bfloat16"), ("bfloat16", "bool", "bfloat16"),
        ("bfloat16", "int16", "float32"), ("bfloat16", "int32", "float64"), ("bfloat16", "uint64", "float64"),
        ("bfloat16", "complex64", "complex64"), ("bfloat16", "float8_e4m3fn", "bfloat16"),
        ("float8_e5m2", "bfloat16", "bfloat16"), ("float8_e4m3fn", "float16", "float16"),
        ("float8_e5m2", "float16", "float16"), ("float8_e4m3fn", "int8", "float8_e4m3fn"),
        ("float8_e4m3fn", "float32", "float32"), ("float8_e5m2", "complex128", "complex128"),
    ],
)  # fmt: skip
def test_small_floats(a: str, b: str, want: str) -> None:
    for pair in ((a, b), (b, a)):
        inputs = tuple(dtype(x) for x in pair)
        assert promote(inputs).name == want
        assert plan("add", inputs).out.name == want
        assert plan("less", inputs).out.name == "bool"


@pytest.mark.parametrize("name", SMALL)
def test_small_floats_keep_their_type_beside_python_scalars_and_in_functions(name: str) -> None:
    for weak in ("bool", "int", "float"):
        assert plan("mul", (dtype(name), weak)).out.name == name
    assert plan("mul", (dtype(name), "complex")).out.name == "complex64"
    for op in ("exp", "gelu", "rsqrt", "floor", "abs", "neg"):
        assert plan(op, (dtype(name),)).out.name == name
        assert plan(op, (dtype(name),)).compute.name == "float32"


def test_float8_kinds_do_not_mix() -> None:
    with pytest.raises(DTypeError, match="no common type"):
        plan("add", (dtype("float8_e4m3fn"), dtype("float8_e5m2")))


@pytest.mark.parametrize(
    ("op", "inputs", "want"),
    [
        ("exp", ("int32",), "float64"), ("exp", ("int8",), "float16"), ("sigmoid", ("uint16",), "float32"),
        ("div", ("int32", "int32"), "float64"), ("abs", ("complex64",), "float32"),
        ("real", ("complex128",), "float64"),
        ("floor", ("int32",), "int32"), ("round", ("bool",), "bool"), ("where", ("bool", "int8", "float32"), "float32"),
        ("where", ("float64", "int8", "int8"), "int8"), ("clamp", ("int8", "int8", "int16"), "int16"),
        ("conj", ("int8",), "int8"), ("relu", ("uint8",), "uint8"), ("isnan", ("int8",), "bool"),
    ],
)  # fmt: skip
def test_named_results(op: str, inputs: tuple[str, ...], want: str) -> None:
    assert plan(op, tuple(dtype(x) for x in inputs)).out.name == want


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        ("sub", ("bool", "bool")), ("neg", ("bool",)), ("invert", ("float32",)), ("floor", ("complex64",)),
        ("left_shift", ("bfloat16", "int8")), ("left_shift", ("int64", "uint64")), ("gelu", ("complex64",)),
        ("clamp", ("bool", "bool", "bool")), ("add", ("float32",)),
        ("exp", ("float32", "float32")),
    ],
)  # fmt: skip
def test_refusals_name_operator_and_types(op: str, inputs: tuple[str, ...]) -> None:
    with pytest.raises(DTypeError) as error:
        plan(op, tuple(dtype(x) for x in inputs))
    assert op in str(error.value)
    assert all(x in str(error.value) for x in inputs)


def test_unknown_operator_and_scalar_kind() -> None:
    with pytest.raises(DTypeError, match="'frobnicate'"):
        plan("frobnicate", (dtype("float32"),))
    with pytest.raises(DTypeError, match="'decimal'"):
        plan("add", (dtype("float32"), "decimal"))  # type: ignore[arg-type]


def test_output_type_must_keep_the_kind() -> None:
    pair = (dtype("float32"), dtype("float32"))
    assert plan("add", pair, dtype("bfloat16")).out.name == "bfloat16"
    assert plan("add", pair, dtype("complex64")).out.name == "complex64"
    assert plan("less", pair, dtype("float16")).out.name == "float16"
    for bad in ("int32", "bool"):
        with pytest.raises(DTypeError, match="float32 .4 bytes.*" + bad):
            plan("add", pair, dtype(bad))
    for source, target in itertools.product(NUMPY_TYPES, repeat=2):
        allowed = np.can_cast(to_numpy_dtype(dtype(source)), to_numpy_dtype(dtype(target)), "same_kind")
        try:
            plan("maximum", (dtype(source), dtype(source)), dtype(target))
        except DTypeError:
            assert not allowed, (source, target)
        else:
            assert allowed, (source, target)


def test_casts_are_free() -> None:
    for source, target in itertools.product(ALL_TYPES, repeat=2):
        made = plan("copy", (dtype(source),), dtype(target))
        assert (made.out.name, made.common.name) == (target, source)


def test_plans_share_kernels_and_differ_where_they_must() -> None:
    seen: dict[str, str] = {}
    for row in TABLE.values():
        for name in ALL_TYPES:
            for weak in ("int", "float"):
                inputs: tuple[Any, ...] = (*op_cases.same_inputs(row, name)[:-1], weak)
                try:
                    made = plan(row.name, inputs)
                except DTypeError:
                    continue
                assert seen.setdefault(made.entry, made.source) == made.source, made.entry
                assert made.per_block % (THREADS * made.vector) == 0


@given(st.lists(st.sampled_from([*NUMPY_TYPES, "int", "float", "complex"]), min_size=2, max_size=3))
def test_promotion_does_not_depend_on_order(names: list[str]) -> None:
    def common(order: list[str]) -> str:
        return promote([n if n in SCALARS and n != "bool" else dtype(n) for n in order]).name  # type: ignore[misc]

    assert len({common(list(order)) for order in itertools.permutations(names)}) == 1


def test_a_python_bool_and_an_array_of_bool_have_plans_of_their_own() -> None:
    array = plan("copy", (dtype("bool"),), dtype("int16"))
    number = plan("copy", ("bool",), dtype("int16"))
    assert array.entry == "pgk_copy_b1_to_i16"
    assert (number.entry, number.common.name) == ("pgk_copy_i16", "int16")
