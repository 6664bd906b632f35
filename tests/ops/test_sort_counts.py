"""histogram, histogram_bin_edges and bincount against NumPy."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import pygpukit as gp


def numbers(kind: str, shape: Any) -> np.ndarray[Any, Any]:
    x = np.random.default_rng(len(kind)).standard_normal(shape) * 20
    return x > 0 if kind == "bool" else abs(x).astype(kind) if kind.startswith("u") else x.astype(kind)


def test_histograms(device: str) -> None:
    weights = np.random.default_rng(1).random((3, 700)).astype(np.float32)
    for kind in ("float32", "float64", "int8", "int64", "uint16", "float16", "bool"):
        x = numbers(kind, (3, 700))
        calls: list[dict[str, Any]] = [
            {},
            {"bins": 5, "range": (-3, 8)},
            {"bins": [-5, -1, 0.0, 2, 2, 9]},
            {"bins": np.array([-3, 0, 4])},
            {"bins": 4, "density": True},
            {"bins": 5, "weights": weights},
            {"bins": [0, 1, 5], "weights": weights.astype(np.int32)},
            {"bins": 1, "range": (2, 2)},
        ]
        for options in calls if kind in ("float32", "int64") else calls[:3]:
            given = dict(options)
            if "weights" in given:
                given["weights"] = gp.from_numpy(given["weights"])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                want, edges = np.histogram(x, **options)
            got, limits = gp.histogram(gp.from_numpy(x), **given)
            context = f"{kind} {options}"
            assert got.to_numpy().dtype == want.dtype, context
            assert limits.to_numpy().dtype == edges.dtype, context
            np.testing.assert_array_equal(limits.to_numpy(), edges, err_msg=context)
            np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-6, err_msg=context)
    x = numbers("float32", 3000)
    np.testing.assert_array_equal(
        gp.histogram(gp.from_numpy(x), 3000, (-60, 60))[0].to_numpy(), np.histogram(x, 3000, (-60, 60))[0]
    )
    limits = np.sort(numbers("float32", 40))
    np.testing.assert_array_equal(
        gp.histogram(gp.from_numpy(x)[::3], gp.from_numpy(limits))[0].to_numpy(), np.histogram(x[::3], limits)[0]
    )
    x[5] = np.nan
    np.testing.assert_array_equal(
        gp.histogram(gp.from_numpy(x), 4, (-9, 9))[0].to_numpy(), np.histogram(x, 4, (-9, 9))[0]
    )
    counts, edges = gp.histogram(gp.from_numpy(x))
    assert not counts.to_numpy().any()
    assert np.isnan(edges.to_numpy()).all()
    for data in (np.zeros(0, np.float32), np.full(3, 2.5), np.array([7], np.int32)):
        want, edges = np.histogram(data, 3)
        got, limits = gp.histogram(gp.from_numpy(data), 3)
        np.testing.assert_array_equal(got.to_numpy(), want)
        np.testing.assert_array_equal(limits.to_numpy(), edges)
        np.testing.assert_array_equal(gp.histogram_bin_edges(gp.from_numpy(data), 3).to_numpy(), edges)


def test_bincount(device: str) -> None:
    rng = np.random.default_rng(2)
    x, weights = rng.integers(0, 40, 5000), rng.standard_normal(5000)
    given = gp.from_numpy(weights)
    for data in (x, x.astype(np.uint8), x.astype(np.int8), x[::3], x[:0]):
        ours = gp.from_numpy(x)[::3] if data.base is x and data.size else gp.from_numpy(data)
        for least in (0, 60):
            got, want = gp.bincount(ours, minlength=least), np.bincount(data, minlength=least)
            assert got.dtype is gp.int64
            np.testing.assert_array_equal(got.to_numpy(), want)
    np.testing.assert_array_equal(gp.bincount(gp.from_numpy(x > 3)).to_numpy(), np.bincount((x > 3).astype(int)))
    np.testing.assert_array_equal(
        gp.bincount(gp.from_numpy(x), minlength=2500).to_numpy(), np.bincount(x, minlength=2500)
    )
    sums = gp.bincount(gp.from_numpy(x), given, 45)
    np.testing.assert_allclose(sums.to_numpy(), np.bincount(x, weights, 45), rtol=1e-12, atol=1e-12)
    assert gp.bincount(gp.from_numpy(x), given, 45).to_numpy().tobytes() == sums.to_numpy().tobytes()
    floats = gp.from_numpy(weights.astype(np.float32))
    assert gp.bincount(gp.from_numpy(x), floats).dtype is gp.float64


def test_grids(device: str) -> None:
    rng = np.random.default_rng(4)
    weights = rng.random(600)
    for kind in ("float32", "int16"):
        sample = (rng.standard_normal((600, 3)) * 9).astype(kind)
        ours = gp.from_numpy(sample)
        calls: list[dict[str, Any]] = [
            {"bins": 4},
            {"bins": [2, 3, [-5, 0, 1, 7]], "density": True},
            {"bins": 3, "range": [(-5, 5), None, (0, 3)], "weights": weights},
        ]
        for options in calls:
            given = {k: gp.from_numpy(v) if k == "weights" else v for k, v in options.items()}
            want, limits = np.histogramdd(sample, **options)
            got, edges = gp.histogramdd(ours, **given)
            np.testing.assert_allclose(got.to_numpy(), want, rtol=1e-6, err_msg=f"{kind} {options}")
            for one, expected in zip(edges, limits, strict=True):
                assert one.to_numpy().dtype == expected.dtype
                np.testing.assert_array_equal(one.to_numpy(), expected)
        x, y = sample[:, 0], sample[:, 1]
        for bins in (5, [2, 3], np.array([-3.0, 0, 1, 5]), [np.array([-3.0, 0, 9]), 4]):
            expected, *_ = np.histogram2d(x, y, bins)
            np.testing.assert_array_equal(gp.histogram2d(ours[:, 0], ours[:, 1], bins)[0].to_numpy(), expected)
    with pytest.raises(ValueError, match="3"):
        gp.histogramdd(ours, bins=[1, 2])
    with pytest.raises(gp.ShapeError, match="one length"):
        gp.histogram2d(ours[:, 0], ours[:5, 0])


def raised(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


def test_errors_are_numpys() -> None:
    hosts = np.arange(6).reshape(2, 3), np.arange(3)
    ours = tuple(gp.from_numpy(x) for x in hosts)
    for number, call in enumerate(
        (
            lambda m, x, i: m.bincount(x),
            lambda m, x, i: m.bincount(i - 1),
            lambda m, x, i: m.bincount(i, minlength=-1),
            lambda m, x, i: m.bincount(i, minlength=None),
            lambda m, x, i: m.bincount(i, weights=i[:2]),
            lambda m, x, i: m.bincount(i, weights=i * 1j),
            lambda m, x, i: m.histogram(x, 0),
            lambda m, x, i: m.histogram(x, 2.5),
            lambda m, x, i: m.histogram(x, [1, 3, 2]),
            lambda m, x, i: m.histogram(x, [[1, 2]]),
            lambda m, x, i: m.histogram(x, range=(3, 1)),
            lambda m, x, i: m.histogram(x, range=(0, np.inf)),
            lambda m, x, i: m.histogram(x, weights=i),
            lambda m, x, i: m.histogram_bin_edges(x, "bogus"),
        )
    ):
        want, got = raised(lambda call=call: call(np, *hosts)), raised(lambda call=call: call(gp, *ours))
        assert want is not None, number
        assert got is not None, number
        assert issubclass(got, want), (number, want, got)
    for call_ours, error in (
        (lambda: gp.bincount(ours[1] * 1.5), gp.DTypeError),
        (lambda: gp.bincount(hosts[1]), TypeError),
        (lambda: gp.histogram(ours[1] * 1j), gp.DTypeError),
        (lambda: gp.histogram(hosts[1]), TypeError),
        (lambda: gp.histogram(ours[1], weights=hosts[1]), TypeError),
    ):
        with pytest.raises(error):
            call_ours()
