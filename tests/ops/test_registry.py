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
