"""Every registered operator, by its own cases: values on all devices, plans for many shapes, bundles."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops import planner
from pygpukit.ops.problem import Result
from pygpukit.ops.registry import OPERATORS, Case, Operator, Parameter, Variant, load, register
from pygpukit.ops.units import ALL_TYPES, builtin_units

CASES = [pytest.param(op, case, id=f"{op.name}-{i}") for op in load().values() for i, case in enumerate(op.cases)]
DEVICES = [pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"]


def arrays_of(case: Case) -> dict[str, op_cases.Array]:
    rng = np.random.default_rng(7)
    made = {}
    for name, (kind, shape) in case.arrays.items():
        to = gp.to_numpy_dtype(kind)
        values = rng.standard_normal(shape)
        made[name] = (values * 50).astype(to) if gp.dtype(kind).kind in "iu" else values.astype(to)
    return made


def results_of(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize(("op", "case"), CASES)
def test_values_are_those_of_the_reference(op: Operator, case: Case, kind: str) -> None:
    hosts = arrays_of(case)
    wanted = results_of(op.reference(**hosts, **case.options))
    function = getattr(gp, op.name)
    with gp.device(kind):
        arrays = {name: gp.from_numpy(x) for name, x in hosts.items()}
        got = results_of(function(**arrays, **case.options))
        into = results_of(function(**arrays, **case.options, out=gp.empty_like(got[0]))) if len(got) == 1 else got
        for ours, want, written in zip(got, wanted, into, strict=True):
            assert ours.dtype == gp.dtype(np.asarray(want).dtype)
            assert ours.shape == np.shape(want)
            assert written.to_numpy().tobytes() == ours.to_numpy().tobytes()
            limit = op.tolerance.get(ours.dtype.name, 0)
            wide = np.float64 if np.asarray(want).dtype.kind != "c" else np.complex128
            a, b = ours.to_numpy().astype(wide), np.asarray(want).astype(wide)
            assert np.all(np.abs(a - b) <= limit * max(1.0, float(np.abs(b).max(initial=0)))), op.name


def scalars(x: gp.GPUArray) -> gp.GPUArray:
    return x.ravel()[0]


def reversed_rows(x: gp.GPUArray) -> gp.GPUArray:
    return x[..., ::-1].contiguous()[..., ::-1] if x.ndim else x


def columns_first(x: gp.GPUArray) -> gp.GPUArray:
    return x.T.contiguous().T


def outcome(function: Any, arrays: dict[str, gp.GPUArray], case: Case) -> list[Any] | str:
    try:
        return [x.to_numpy() for x in results_of(function(**arrays, **case.options))]
    except (ValueError, TypeError, gp.ShapeError) as error:
        return type(error).__name__


@pytest.mark.nvrtc
@pytest.mark.parametrize("layout", [scalars, reversed_rows, columns_first])
@pytest.mark.parametrize("op", [pytest.param(op, id=op.name) for op in load().values() if op.cases])
def test_kernels_take_the_layouts_and_dimensions_that_numpy_does(op: Operator, layout: Any) -> None:
    # Ways that make copies first are taken by few layouts, so that no case may reach them.
    case, got = op.cases[0], []
    for kind in ("cpu", "emulated"):
        with gp.device(kind):
            arrays = {name: layout(gp.from_numpy(x)) for name, x in arrays_of(case).items()}
            got.append(outcome(getattr(gp, op.name), arrays, case))
    ours, wanted = got[1], got[0]
    assert type(ours) is type(wanted), (ours, wanted)
    if isinstance(wanted, str):
        assert ours == wanted
        return
    for a, b in zip(ours, wanted, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a.astype(np.complex128), b.astype(np.complex128), rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("axis", [(), None, (0, 2), (2, 0), (1, 2), [0, 1], -2])
def test_probabilities_over_any_axes(axis: Any, kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 5)).astype(np.float32)
    where = tuple(axis) if isinstance(axis, list) else axis
    wanted = np.exp(x) / np.exp(x).sum(where, keepdims=True)
    with gp.device(kind):
        np.testing.assert_allclose(gp.softmax(gp.from_numpy(x), axis=axis).to_numpy(), wanted, rtol=1e-5)
        logs = gp.logsoftmax(gp.from_numpy(x), axis=axis)
        np.testing.assert_allclose(logs.to_numpy(), np.log(wanted), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", DEVICES)
@pytest.mark.parametrize("name", ["sum", "argmax", "argsort", "cumsum", "softmax", "median"])
def test_a_truth_value_is_no_axis(name: str, kind: str) -> None:
    # `gp.sum(x, True)` for keepdims=True would sum over axis 1.
    with gp.device(kind), pytest.raises(TypeError, match="axis is True"):
        getattr(gp, name)(gp.ones((2, 2)), axis=True)


@pytest.mark.parametrize(("op", "case"), CASES)
def test_explain_names_a_variant(op: Operator, case: Case) -> None:
    arrays = {name: gp.from_numpy(x) for name, x in arrays_of(case).items()}
    walk = gp.explain(getattr(gp, op.name), **arrays, **case.options)
    assert walk.variant in [v.name for v in op.variants]
    assert walk.bytes > 0
    assert f"runs {walk.variant}" in str(walk)


def test_a_new_shape_does_not_ask_python(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    native.clear_plans()
    with gp.device("emulated"):
        monkeypatch.setattr(planner, "choose", lambda *a, real=planner.choose: asked.append(1) or real(*a))
        for shape in ((3, 7), (5, 41), (2, 3), (9, 62)):
            x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            got = gp.softmax(gp.from_numpy(x)).to_numpy()
            np.testing.assert_allclose(got, load()["softmax"].reference(x), rtol=1e-5)
    assert len(asked) == 1


@pytest.mark.nvrtc
def test_devices_of_one_kind_have_kernels_of_their_own() -> None:
    x = np.linspace(-3, 3, 10, dtype=np.float32).reshape(2, 5)
    for capability in ((8, 0), (9, 0), (8, 6)):
        with gp.device(native.open_cpu(1 << 24, emulated=True, capability=capability)) as device:
            assert device.capability == capability
            np.testing.assert_allclose(gp.softmax(gp.from_numpy(x)).sum(axis=1).to_numpy(), 1, rtol=1e-6)
            np.testing.assert_array_equal(gp.add(gp.from_numpy(x), 1).to_numpy(), x + 1)


def test_plans_are_bounded() -> None:
    native.clear_plans()
    x = gp.ones((2, 3))
    for limit in range(3000):
        gp.sum(x, axis=(limit % 2,), dtype="float32", keepdims=limit)
    assert native.plan_classes() <= 2048


def test_every_unit_of_the_registry_is_in_bundles() -> None:
    names = {unit.name for unit in builtin_units()}
    for op in load().values():
        assert {unit.name for unit in op.units(ALL_TYPES)} <= names


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register(load()["sum"])


RUNS = Variant("runs", "run_to_run", lambda p: None, host=lambda p: lambda x, out: None)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"variants": ()}, "has no variants"),
        ({"variants": (dataclasses.replace(RUNS, determinism="bitwise"),)}, "not 'bitwise'"),
        ({"variants": (dataclasses.replace(RUNS, host=None),)}, "it has none"),
        ({"variants": (dataclasses.replace(RUNS, compose=lambda p: None),)}, r"it has \['host', 'compose'\]"),
        # What a host function writes and nobody knows of would be evicted as unchanged.
        ({"updates": ("X",)}, r"updates 'X', which is none of its arrays: \['x'\]"),
    ],
)
def test_an_operator_that_contradicts_itself_is_refused(change: dict[str, Any], told: str) -> None:
    op = dataclasses.replace(load()["softmax"], name="test_contradiction", variants=(RUNS,), public=False)
    with pytest.raises(ValueError, match=told):
        register(dataclasses.replace(op, **change))
    assert op.name not in load()


def test_a_number_in_place_of_an_array_has_the_parameters_type() -> None:
    parameters = (Parameter("x"), Parameter("by", "optional", None, number_type="float16"))
    seen = Variant("seen", "run_to_run", lambda p: f"{p['by'].dtype.name}", host=lambda p: lambda x, by, out: None)
    op = dataclasses.replace(
        load()["softmax"], name="test_number", parameters=parameters, variants=(seen,), cases=(), public=False,
        infer=lambda p: [Result(p["x"].shape, p["x"].dtype)],
    )  # fmt: skip
    function = register(op)
    try:
        for number in (2, 2.5, np.float64(2.5)):
            with pytest.raises(gp.errors.DeviceError, match="seen: float16"):
                function(gp.ones(3), number)
    finally:
        del OPERATORS[op.name]


def test_arguments_are_bound_as_pythons() -> None:
    x = gp.ones((2, 3))
    cases: list[tuple[dict[str, Any], tuple[Any, ...], str]] = [
        ({}, (), "missing required argument 'x'"),
        ({"x": x}, (x,), "multiple values"),
        ({}, (x, 0, None, False, 1), "takes 4 positional arguments but 5"),
        ({"y": x}, (x,), "unexpected keyword argument 'y'"),
        ({"out": 3}, (x,), "out must be a GPUArray, not int"),
        ({"axis": object()}, (x,), "must not be of type object"),
        ({}, (np.ones(3),), "from_numpy"),
    ]
    for named, positional, text in cases:
        with pytest.raises(TypeError, match=text):
            gp.sum(*positional, **named)
    assert gp.sum(x, axis=np.int32(1)).tolist() == [3.0, 3.0]
    assert gp.sum(x, axis=[0, 1]).item() == 6.0
    assert gp.sum(x, dtype=np.float64).dtype is gp.float64


def test_an_operator_that_no_variant_runs_says_why() -> None:
    never = Variant("never", "run_to_run", lambda p: "it is Tuesday", host=lambda p: lambda x, out: None)
    op = dataclasses.replace(load()["softmax"], name="test_refused", variants=(never,), cases=(), public=False)
    function = register(op)
    try:
        with pytest.raises(gp.errors.DeviceError, match="never: it is Tuesday"):
            function(gp.ones(3))
    finally:
        del OPERATORS[op.name]
