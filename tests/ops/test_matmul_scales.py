"""Scales of float8 products: by row, by column and for all, on the CPU device and through wgmma on the emulator."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.registry import OPERATORS, load, register

E4M3, BF16 = gp.to_numpy_dtype("float8_e4m3fn"), gp.to_numpy_dtype("bfloat16")


@pytest.fixture(
    params=[pytest.param("cuda", marks=pytest.mark.cuda), pytest.param("emulated", marks=pytest.mark.nvrtc), "cpu"]
)
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    if request.param == "emulated":
        emulator = native.open_cpu(1 << 26, emulated=True, capability=(9, 0), check=True, sm_count=2)
        with gp.device(emulator) as current:
            yield current
        return
    with gp.device(request.param) as current:
        if request.param == "cuda" and current.capability < (8, 9):
            pytest.skip("tensor cores of this GPU have no float8")
        yield current


def integers(shape: tuple[int, ...], seed: int = 0) -> Any:
    """Of few bits, so that every sum is exact in float32 and in the way of the tensor cores."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(E4M3)


def powers(n: int, seed: int) -> Any:
    return np.random.default_rng(seed).random(n).astype(np.float32)


def scaled(total: Any, rows: Any, columns: Any) -> Any:
    total = total if rows is None else total * rows
    return total if columns is None else total * columns


@pytest.mark.parametrize(
    ("rows", "columns"),
    [((21,), (40,)), ((21, 1), (1, 40)), ((), None), (None, (40,)), ((1,), (1,)), ((1, 1), (40,))],
    ids=str,
)
def test_scales_of_rows_and_columns(rows: Any, columns: Any, device: gp.Device) -> None:
    a, b = integers((21, 48)), integers((40, 48), 1)
    total = a.astype(np.float32) @ b.astype(np.float32).T
    by_row = None if rows is None else powers(int(np.prod(rows)), 2).reshape(rows)
    by_column = None if columns is None else powers(int(np.prod(columns)), 3).reshape(columns)
    x, w = gp.from_numpy(a), gp.from_numpy(b)
    scales = {name: gp.from_numpy(s) for name, s in (("scale_a", by_row), ("scale_b", by_column)) if s is not None}
    wide = None if by_row is None else by_row.reshape(-1, 1)
    want = scaled(total, wide, by_column)
    got = gp.matmul(x, w.T, precision="fp8", **scales)
    assert got.dtype == gp.bfloat16
    np.testing.assert_array_equal(got.to_numpy().view(np.uint16), want.astype(BF16).view(np.uint16))
    single = gp.matmul(x, w.T, precision="fp8", out=gp.empty((21, 40), "float32"), **scales)
    np.testing.assert_array_equal(single.to_numpy(), want)


def test_scales_come_before_all_else(device: gp.Device) -> None:
    a, b, bias = integers((9, 32)), integers((24, 32), 1), powers(24, 4).astype(BF16)
    residual = powers(9 * 24, 5).reshape(9, 24).astype(BF16)
    rows, columns = powers(9, 2), powers(24, 3)
    x, w, c, r, by_row, by_column = map(gp.from_numpy, (a, b, bias, residual, rows, columns))
    total = scaled(a.astype(np.float32) @ b.astype(np.float32).T, rows[:, None], columns)
    want = (np.maximum(total + bias.astype(np.float32), 0) + residual.astype(np.float32)).astype(BF16)
    options = {"precision": "fp8", "bias": c, "activation": "relu", "residual": r}
    got = gp.matmul(x, w.T, scale_a=by_row, scale_b=by_column, **options)
    np.testing.assert_array_equal(got.to_numpy().view(np.uint16), want.view(np.uint16))
    # Scales at any distances, and operands whose lines lie across k.
    spread = gp.zeros((9, 3))
    spread[:, 1] = by_row
    across = gp.from_numpy(np.ascontiguousarray(b.T))
    got = gp.matmul(x, across, scale_a=spread[:, 1], scale_b=by_column, **options)
    np.testing.assert_array_equal(got.to_numpy().view(np.uint16), want.view(np.uint16))


def test_vectors_and_stacks(device: gp.Device) -> None:
    a, b, rows, columns = integers((2, 5, 32)), integers((16, 32), 1), powers(5, 2), powers(16, 3)
    x, w, by_row, by_column = map(gp.from_numpy, (a, b, rows, columns))
    total = a.astype(np.float32) @ b.astype(np.float32).T

    def check(got: gp.GPUArray, want: Any) -> None:
        np.testing.assert_array_equal(got.to_numpy().view(np.uint16), np.asarray(want).astype(BF16).view(np.uint16))

    # Rows of a stack: every matrix has the same scales.
    scales = {"scale_a": by_row, "scale_b": by_column}
    check(gp.matmul(x, w.T, precision="fp8", **scales), scaled(total, rows[:, None], columns))
    check(gp.matmul(x[0, 0], w.T, precision="fp8", scale_b=by_column), scaled(total[0, 0], None, columns))
    check(gp.matmul(x[0], w[0], precision="fp8", scale_a=by_row), total[0, :, 0] * rows)
    one = gp.matmul(x[0, 0], w[0], precision="fp8", scale_a=by_row[:1], scale_b=by_column[:1])
    assert one.shape == ()
    check(one, total[0, 0, 0] * rows[0] * columns[0])


def test_by_parts(device: gp.Device) -> None:
    """What a bundle without the kernel's epilogue computes."""
    matmul = load()["matmul"]
    parts = next(v for v in matmul.variants if v.name == "the product, then its parts")
    run = register(dataclasses.replace(matmul, name="test_parts", variants=(parts,), cases=(), public=False))
    try:
        x, w = gp.from_numpy(integers((5, 32))), gp.from_numpy(integers((16, 32), 1))
        options = {"precision": "fp8", "scale_a": gp.from_numpy(powers(5, 2)), "scale_b": gp.from_numpy(powers(16, 3))}
        for a, b, more in (
            (x, w.T, {"bias": gp.ones(16, "bfloat16"), "activation": "relu"}),
            (x, w[0], {"scale_b": None}),
            (x[0], w.T, {"scale_a": None}),
            (x[0], w[0], {"scale_a": gp.full(1, 0.3, "float32"), "scale_b": gp.full((1, 1), 0.7, "float32")}),
        ):
            wanted = gp.matmul(a, b, **{**options, **more}).to_numpy()
            made = run(a, b, **{**options, **more}).to_numpy()
            np.testing.assert_array_equal(made.view(np.uint16), wanted.view(np.uint16))
    finally:
        del OPERATORS["test_parts"]


def test_a_number_is_a_scale(device: gp.Device) -> None:
    x, w = gp.ones((2, 32)).astype("float8_e4m3fn"), gp.ones((16, 32)).astype("float8_e4m3fn")
    made = gp.matmul(x, w.T, precision="fp8", scale_a=0.5, scale_b=3)
    np.testing.assert_array_equal(made.to_numpy(), np.full((2, 16), 48, BF16))
    with pytest.raises(DTypeError, match="scale_a is bool, and must be float32"):
        gp.matmul(x, w.T, precision="fp8", scale_a=True)


def test_what_does_not_fit_is_said(device: gp.Device) -> None:
    x, w = gp.zeros((5, 32), "float8_e4m3fn"), gp.zeros((16, 32), "float8_e4m3fn")
    with pytest.raises(
        ShapeError, match=r"scale_a has shape \(16,\); it is one number, or one per row of a, \(5,\) or \(5, 1\)"
    ):
        gp.matmul(x, w.T, precision="fp8", scale_a=gp.ones(16))
    with pytest.raises(ShapeError, match=r"scale_b has shape \(16, 1\); .*one per column of b, \(16,\) or \(1, 16\)"):
        gp.matmul(x, w.T, precision="fp8", scale_b=gp.ones((16, 1)))
    with pytest.raises(DTypeError, match="scale_b is bfloat16, and must be float32"):
        gp.matmul(x, w.T, precision="fp8", scale_b=gp.ones(16, "bfloat16"))
    with pytest.raises(ValueError, match="scale_a and scale_b are for precision='fp8'"):
        gp.matmul(gp.ones((2, 4)), gp.ones((4, 2)), scale_a=gp.ones(1))
    q = gp.quant.quantize(gp.ones((32, 16)), "int8")
    with pytest.raises(ValueError, match="a quantised weight has scales of its own"):
        gp.matmul(gp.ones((1, 32), "bfloat16"), q, scale_b=gp.ones(16))
