"""Casts between all element types on the device, as NumPy and ml_dtypes do them."""

from __future__ import annotations

import numpy as np
import op_cases
import pytest

import pygpukit as gp
from pygpukit.ops.units import ALL_TYPES

SMALL = ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
# On the emulator, where each pair is a kernel to compile, these meet each other, and every other type meets float32: a
# conversion depends on whether a type is a bool, signed, real or complex, and on its float format. A GPU converts all
# pairs, and test_every_cast_is_valid has them at the compiler's front end.
KINDS = ["bool", "int8", "uint64", "float16", "bfloat16", "float8_e4m3fn", "float32", "float64", "complex64"]


def every_value(name: str) -> op_cases.Array:
    """All bit patterns of a type of one or two bytes."""
    kind = gp.to_numpy_dtype(name)
    return np.arange(2 ** (8 * kind.itemsize), dtype=f"u{kind.itemsize}").view(kind)


def near_rounding_boundaries(name: str) -> op_cases.Array:
    """Values of a wide float type halfway between neighbours of each small type, a step beside, and random bits."""
    kind = gp.to_numpy_dtype(name)
    rng = np.random.default_rng(7)
    parts = [rng.integers(0, 2 ** (8 * kind.itemsize), 50_000, dtype=f"u{kind.itemsize}").view(kind)]
    for small in SMALL:
        with np.errstate(all="ignore"):
            grid = np.unique(every_value(small).astype(np.float64))
            grid = grid[np.isfinite(grid)]
            middle = ((grid[1:] + grid[:-1]) / 2).astype(kind)
        parts += [middle, np.nextafter(middle, kind.type(np.inf)), np.nextafter(middle, kind.type(-np.inf))]
    parts.append(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 448, 464, 480, 57344, 61440, 65504, 65520], kind))
    return np.concatenate(parts)


def assert_same(got: op_cases.Array, want: op_cases.Array, context: str) -> None:
    """The same values and signs; NaN equals NaN, whatever its bits."""
    with np.errstate(all="ignore"):
        same = (got == want) | ((got != got) & (want != want))
    if got.dtype.kind not in "biuc":
        same &= np.signbit(got) == np.signbit(want)
    where = np.flatnonzero(~same)[:4]
    assert where.size == 0, f"{context}: got {got[where]}, want {want[where]}"


def expected(x: op_cases.Array, name: str) -> op_cases.Array:
    kind = gp.to_numpy_dtype(name)
    real = x.real if x.dtype.kind == "c" and kind.kind not in "cb" else x
    with np.errstate(all="ignore"):
        return real.astype(kind)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_to_every_type(name: str, device: gp.Device) -> None:
    x = op_cases.values(name, 1237, 3)
    for target in ALL_TYPES:
        if device.kind == "emulated" and "float32" not in (name, target) and not {name, target} <= {*KINDS}:
            continue
        host = x
        if gp.dtype(target).kind in "iu" and gp.dtype(name).kind in "fc":
            # What a float outside an integer's range becomes is unspecified: keep what every integer type holds.
            host = x[np.abs(x.real.astype(np.float64)) < 100]
            host = np.abs(host.real.astype(np.float64)).astype(x.dtype)
        ours = gp.from_numpy(host)
        want = expected(host, target)
        assert_same(ours.astype(target).to_numpy(), want, f"{name} to {target}")
        assert_same(ours[::-1].astype(target).to_numpy(), want[::-1], f"reversed {name} to {target}")


@pytest.mark.parametrize("name", SMALL)
def test_all_values_of_small_floats(name: str, device: gp.Device) -> None:
    x = every_value(name)
    for target in [*SMALL, "float32", "float64", "bool", "complex64"]:
        assert_same(gp.from_numpy(x).astype(target).to_numpy(), expected(x, target), f"{name} to {target}")


@pytest.mark.parametrize("target", SMALL)
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_rounding_to_small_floats(name: str, target: str, device: gp.Device) -> None:
    x = near_rounding_boundaries(name)
    assert_same(gp.from_numpy(x).astype(target).to_numpy(), expected(x, target), f"{name} to {target}")


@pytest.mark.parametrize("name", ALL_TYPES)
def test_a_copy_keeps_every_bit(name: str, device: gp.Device) -> None:
    kind = gp.to_numpy_dtype(name)
    raw = np.random.default_rng(5).integers(0, 2 if name == "bool" else 256, 4099 * kind.itemsize, dtype=np.uint8)
    if name == "bool":
        raw = raw[:4099]
    x = raw.view(kind)
    ours = gp.from_numpy(x)
    assert ours.to_numpy().tobytes() == x.tobytes()
    assert ours.copy().to_numpy().tobytes() == x.tobytes()
    assert ours[::-1].copy().to_numpy().tobytes() == x[::-1].tobytes()
    assert ours[1:].astype(name).to_numpy().tobytes() == x[1:].tobytes()


def test_large_integers_do_not_pass_through_float(device: gp.Device) -> None:
    x = np.array([2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)], np.int64)
    for target in ("uint64", "float64", "int32", "complex128"):
        np.testing.assert_array_equal(gp.from_numpy(x).astype(target).to_numpy(), expected(x, target))
    u = np.array([2**64 - 1, 2**63, 2**53 + 1], np.uint64)
    for target in ("int64", "float64", "float32"):
        np.testing.assert_array_equal(gp.from_numpy(u).astype(target).to_numpy(), expected(u, target))


def test_assignment_casts_and_broadcasts(device: gp.Device) -> None:
    x = gp.zeros((5, 6), "bfloat16")
    x[1:4, ::2] = gp.arange(3, dtype="int64")
    x[:, -1] = 2.75
    x[0, 0] = np.float64(-1.5)
    want = np.zeros((5, 6))
    want[1:4, ::2] = np.arange(3)
    want[:, -1] = 2.75
    want[0, 0] = -1.5
    np.testing.assert_array_equal(x.to_numpy().astype(np.float64), want)


@pytest.mark.parametrize("name", ALL_TYPES)
def test_fills(name: str, device: gp.Device) -> None:
    kind = gp.to_numpy_dtype(name)
    for value in (0, 1, True) if name == "bool" else (0, 1, 3):
        np.testing.assert_array_equal(gp.full((3, 5), value, name).to_numpy(), np.full((3, 5), value, kind))
    room = gp.zeros(11, name)
    room[::3].fill(1)
    np.testing.assert_array_equal(room.to_numpy(), (np.arange(11) % 3 == 0).astype(kind))
