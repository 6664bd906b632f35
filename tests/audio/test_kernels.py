"""The audio kernels against their references, on the emulator and on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.audio.filtering import cascade_of
from pygpukit.ops.audio import reference, rows

KINDS = [pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]


def values(shape: tuple[int, ...], kind: str = "float32", seed: int = 1) -> Any:
    rng = np.random.default_rng(seed)
    made = rng.standard_normal(shape)
    return (made + 1j * rng.standard_normal(shape) if kind.startswith("c") else made).astype(kind)


def check(kind: str, function: Any, host: Any, arrays: tuple[Any, ...], limit: float, **options: Any) -> None:
    wanted = host(*arrays, **options)
    with gp.device(kind):
        got = function(*[gp.from_numpy(x) if isinstance(x, np.ndarray) else x for x in arrays], **options)
        got = got if isinstance(got, tuple) else (got,)
        for ours, want in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            assert ours.shape == want.shape
            assert ours.dtype == gp.dtype(want.dtype)
            np.testing.assert_allclose(ours.to_numpy(), want, rtol=0, atol=limit * np.abs(want).max(initial=1e-30))


@pytest.mark.parametrize("kind", KINDS)
def test_overlap_add(kind: str) -> None:
    for shape, options in (((2, 9, 16), {"hop": 4, "start": 8, "end": 8}), ((5, 10), {"hop": 3}),
                           ((3, 2, 4, 7), {"hop": 9, "end": 2})):  # fmt: skip
        for real, limit in (("float32", 2e-6), ("float64", 1e-14)):
            arrays = (values(shape, real), np.abs(values(shape[-1:], real, 2)) + real_type(real, 0.1))
            check(kind, rows.overlap_add, reference.overlap_add, arrays, limit, **options)


def real_type(kind: str, value: float) -> Any:
    return np.dtype(kind).type(value)


@pytest.mark.parametrize("kind", KINDS)
def test_bands(kind: str) -> None:
    # One band has no bin, one more bins than a warp has lanes.
    places = np.array([[0, 5, 3, 60], [0, 50, 58, 58], [50, 8, 0, 7]], np.int64)
    for x, powers in (("float32", (0, 1, 2)), ("float64", (2,)), ("complex64", (1, 2)), ("complex128", (1,))):
        real = "float64" if x in ("float64", "complex128") else "float32"
        for power in powers:
            arrays = (values((2, 3, 67), x), values((65,), real, 2), places)
            check(kind, rows.bands, reference.bands, arrays, 1e-14 if real == "float64" else 2e-6, power=power)


@pytest.mark.parametrize("kind", KINDS)
def test_bands_of_spectra_that_shared_memory_does_not_hold(kind: str) -> None:
    places = np.array([[24000, 3], [0, 40], [40, 2]], np.int64)
    x, weights = values((2, 24700), "complex64"), values((42,))
    check(kind, rows.bands, reference.bands, (x, weights, places), 2e-6, power=2)
    with gp.device(kind):
        walk = gp.explain(rows.bands, *map(gp.from_numpy, (x, weights, places)), power=2)
        assert walk.variant == "a warp per band, spectra in global memory"


@pytest.mark.parametrize("kind", KINDS)
def test_median(kind: str) -> None:
    for shape, options in (
        ((3, 20), {"size": 7}),
        ((2, 9, 5), {"size": 4, "axis": 1}),
        ((4, 3), {"size": 9, "axis": 0}),
        # More than a block along the axis, and across it.
        ((2, 300), {"size": 5}),
        ((2, 40, 35), {"size": 4, "axis": 1}),
    ):
        check(kind, rows.median, reference.median, (np.round(values(shape), 1),), 0.0, **options)
    check(kind, rows.median, reference.median, (values((2, 7), "float64"),), 0.0, size=3)
    with gp.device(kind):
        x = gp.from_numpy(values((5, 4)))
        np.testing.assert_array_equal(rows.median(x.T, size=3).to_numpy(), reference.median(x.to_numpy().T, size=3))
        nan = gp.asarray([1.0, float("nan"), 2.0, 3.0], "float32")
        np.testing.assert_array_equal(rows.median(nan, size=3).to_numpy(), [1.0, 2.0, 3.0, 3.0])
        ends = gp.asarray([float("inf"), float("-inf"), float("nan"), float("nan"), -0.0], "float64")
        np.testing.assert_array_equal(rows.median(ends, size=3).to_numpy(), [np.inf, np.inf, np.nan, np.nan, 0.0])
        few = gp.from_numpy(values((3, 2)))
        assert gp.explain(rows.median, few, size=30_000).variant == "bits by counting, elements in global memory"


@pytest.mark.parametrize("kind", KINDS)
def test_a_median_that_shared_memory_does_not_hold(kind: str) -> None:
    check(kind, rows.median, reference.median, (np.round(values((1, 4)), 1),), 0.0, size=25_000)


@pytest.mark.parametrize("kind", KINDS)
def test_resample(kind: str) -> None:
    for n, taps, real, options in (
        (50, 5, "float32", {"up": 3, "down": 2, "center": 7, "length": 75}),
        (41, 9, "float64", {"up": 1, "down": 2, "center": 4, "length": 21}),
        (7, 6, "float32", {"up": 4, "down": 1, "center": 0, "length": 60}),
        (6, 3, "float32", {"up": 2, "down": 1, "center": 40, "length": 5}),
        (300, 4, "float32", {"up": 2, "down": 3, "center": 3, "length": 190}),
    ):
        arrays = (values((3, n), real), values((options["up"], taps), real, 2))
        check(kind, rows.resample, reference.resample, arrays, 2e-6 if real == "float32" else 1e-14, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_follow(kind: str) -> None:
    for real in ("float32", "float64"):
        check(kind, rows.follow, reference.follow, (values((3, 40), real), values((3,), "float64"), 0.5, 0.9), 1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_recurrence(kind: str) -> None:
    for sections, shape, real in (
        ([[0.2, 0.1, 0.3, -1.2, 0.5], [1.0, -0.4, 0.1, 0.3, 0.2]], (2, 150), "float32"),
        ([[0.5, 0.0, -0.9]], (3, 128), "float64"),
        ([[1.0, 0.5, 0.2, 0.1, -0.5, 0.3, -0.1]], (1, 20), "float32"),
    ):
        cascade = cascade_of(sections)
        arrays = (values(shape, real), *cascade, values((shape[0], cascade.states), "float64", 3))
        check(kind, rows.recurrence, reference.recurrence, arrays, 1e-6 if real == "float32" else 1e-12)


@pytest.mark.nvrtc
def test_wrong_arguments_are_refused() -> None:
    x = gp.ones((4, 8), "float32")
    with pytest.raises(gp.ShapeError, match="window of 8"):
        rows.overlap_add(x, gp.ones(7, "float32"), hop=2)
    with pytest.raises(gp.DTypeError, match="convert with astype"):
        rows.overlap_add(gp.ones((4, 8), "int32"), gp.ones(8, "float32"), hop=2)
    with pytest.raises(gp.ShapeError, match="hop 0"):
        rows.overlap_add(x, gp.ones(8, "float32"), hop=0)
    with pytest.raises(ValueError, match="power 3"):
        rows.bands(x, gp.ones(3, "float32"), gp.zeros((3, 1), "int64"), power=3)
    with pytest.raises(gp.ShapeError, match="median over 0"):
        rows.median(x, size=0)
    with pytest.raises(gp.ShapeError, match=r"\(up, taps\)"):
        rows.resample(x, gp.ones((2, 3), "float32"), up=3, down=1, center=0, length=4)


def test_both_ways_of_the_reference_to_resample_have_the_same_bits() -> None:
    x, filters = values((2, 900)), values((3, 7), seed=2)
    long = reference.resample(x, filters, up=3, down=2, center=10, length=1300)
    short = reference.resample(x, filters, up=3, down=2, center=10, length=150)
    assert long[:, :150].tobytes() == short.tobytes()
