"""Distributions by their functions, probabilities and moments; with fixed seeds, limits of five sigma always hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp

N = 40_000


@pytest.fixture(autouse=True)
def on_cpu() -> Any:
    with gp.device("cpu") as device:
        yield device


def erf(x: np.ndarray) -> np.ndarray:
    return np.array([math.erf(v) for v in x])


CDF: dict[str, tuple[tuple[float, ...], Callable[[np.ndarray], np.ndarray]]] = {
    "random": ((), lambda x: x),
    "uniform": ((-2.0, 3.0), lambda x: (x + 2) / 5),
    "normal": ((1.0, 2.0), lambda x: 0.5 * (1 + erf((x - 1) / 8**0.5))),
    "exponential": ((3.0,), lambda x: -np.expm1(-x / 3)),
    "lognormal": ((0.5, 0.7), lambda x: 0.5 * (1 + erf((np.log(x) - 0.5) / 0.7 / 2**0.5))),
    "laplace": ((1.0, 2.0), lambda x: np.where(x < 1, 0.5 * np.exp((x - 1) / 2), 1 - 0.5 * np.exp((1 - x) / 2))),
    "logistic": ((1.0, 2.0), lambda x: 1 / (1 + np.exp((1 - x) / 2))),
    "gumbel": ((1.0, 2.0), lambda x: np.exp(-np.exp((1 - x) / 2))),
    "rayleigh": ((2.0,), lambda x: -np.expm1(-(x**2) / 8)),
    "weibull": ((1.5,), lambda x: -np.expm1(-(x**1.5))),
    "pareto": ((3.0,), lambda x: 1 - (1 + x) ** -3.0),
    "power": ((2.5,), lambda x: x**2.5),
    "standard_cauchy": ((), lambda x: 0.5 + np.arctan(x) / np.pi),
    "triangular": ((0.0, 1.0, 3.0), lambda x: np.where(x < 1, x**2 / 3, 1 - (3 - x) ** 2 / 6)),
    "chisquare": ((2.0,), lambda x: -np.expm1(-x / 2)),
    "gamma": ((2.0, 1.5), lambda x: 1 - np.exp(-x / 1.5) * (1 + x / 1.5)),
    "standard_gamma": ((1.0,), lambda x: -np.expm1(-x)),
    "beta": ((0.5, 0.5), lambda x: 2 / np.pi * np.arcsin(np.sqrt(x))),
    "standard_t": ((2.0,), lambda x: 0.5 + x / (2 * np.sqrt(2 + x**2))),
    "f": ((2.0, 4.0), lambda x: 1 - (1 + x / 2) ** -2.0),
}


@pytest.mark.parametrize("name", CDF)
@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_distribution_functions(name: str, kind: str) -> None:
    args, cdf = CDF[name]
    x = getattr(gp.random.default_rng(20), name)(*args, size=N, dtype=kind).to_numpy()
    assert x.dtype == kind
    u = cdf(np.sort(x.astype(np.float64)))
    distance = np.max(np.abs(u - (np.arange(N) + 0.5) / N)) * N**0.5
    # Kolmogorov's distribution is beyond 1.95 once in a thousand; a shifted or a coarse one is far beyond.
    assert distance < 1.95, f"{name}: {distance}"
    # Neighbours are not correlated.
    v = cdf(x.astype(np.float64))
    for lag in (1, 2, 4, 1024):
        assert abs(np.corrcoef(v[:-lag], v[lag:])[0, 1]) < 5 / N**0.5


def log_choose(n: float, k: np.ndarray) -> np.ndarray:
    return np.array([math.lgamma(n + 1) - math.lgamma(v + 1) - math.lgamma(n - v + 1) for v in k])


def log_factorial(k: np.ndarray) -> np.ndarray:
    return np.array([math.lgamma(v + 1) for v in k])


def poisson(lam: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda k: np.exp(k * math.log(lam) - lam - log_factorial(k))


def binomial(n: int, p: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda k: np.exp(log_choose(n, np.minimum(k, n)) + k * math.log(p) + (n - k) * math.log1p(-p)) * (k <= n)


PMF: list[tuple[str, tuple[Any, ...], Callable[[np.ndarray], np.ndarray]]] = [
    ("poisson", (0.3,), poisson(0.3)),
    ("poisson", (9.5,), poisson(9.5)),
    ("poisson", (10.0,), poisson(10.0)),
    ("poisson", (400.0,), poisson(400.0)),
    ("binomial", (1, 0.3), binomial(1, 0.3)),
    ("binomial", (20, 0.45), binomial(20, 0.45)),
    ("binomial", (20, 0.5), binomial(20, 0.5)),
    ("binomial", (25, 0.9), binomial(25, 0.9)),
    ("binomial", (1000, 0.3), binomial(1000, 0.3)),
    ("binomial", (100_000, 0.00005), binomial(100_000, 0.00005)),
    ("geometric", (0.3,), lambda k: 0.3 * 0.7 ** (k - 1.0) * (k > 0)),
    ("negative_binomial", (2, 0.4), lambda k: (k + 1) * 0.4**2 * 0.6**k),
    ("integers", (7,), lambda k: (k < 7) / 7),
    ("choice", (5,), lambda k: (k < 5) / 5),
]


@pytest.mark.parametrize(("name", "args", "pmf"), PMF)
def test_probabilities(name: str, args: tuple[Any, ...], pmf: Callable[[np.ndarray], np.ndarray]) -> None:
    x = getattr(gp.random.default_rng(9), name)(*args, size=N).to_numpy()
    assert x.dtype == np.int64
    assert x.min() >= 0
    expected = N * pmf(np.arange(x.max() + 50, dtype=np.float64))
    assert abs(expected.sum() - N) < 1e-3 * N
    chi_square(np.bincount(x, minlength=expected.size), expected)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> None:
    often = expected >= 8
    rest = expected[~often].sum()
    a, b = np.append(counts[often], counts[~often].sum()), np.append(expected[often], rest)
    a, b = (a, b) if rest >= 1 else (a[:-1], b[:-1])
    freedom = len(a) - 1
    value = float(((a - b) ** 2 / b).sum())
    assert value < freedom + 5 * (2 * freedom) ** 0.5 + 5, f"chi-square {value} of {freedom} degrees of freedom"


# Mean and variance.
MOMENTS: list[tuple[str, tuple[float, ...], float, float]] = [
    ("gamma", (0.1,), 0.1, 0.1),
    ("gamma", (1e4, 2.0), 2e4, 4e4),
    ("beta", (2.0, 5.0), 2 / 7, 10 / (49 * 8)),
    ("beta", (1e5, 1e5), 0.5, 1 / (4 * (2e5 + 1))),
    ("chisquare", (7.0,), 7.0, 14.0),
    ("standard_t", (9.0,), 0.0, 9 / 7),
    ("f", (5.0, 20.0), 20 / 18, 2 * 400 * 23 / (5 * 324 * 16)),
    ("noncentral_chisquare", (3.0, 2.0), 5.0, 14.0),
    ("noncentral_f", (5.0, 30.0, 2.0), 30 * 7 / (5 * 28), 2 * 900 / 25 * (49 + 9 * 28) / (28**2 * 26)),
    ("poisson", (1e12,), 1e12, 1e12),
    ("binomial", (10**12, 0.3), 3e11, 2.1e11),
]


@pytest.mark.parametrize(("name", "args", "mean", "variance"), MOMENTS)
def test_moments(name: str, args: tuple[float, ...], mean: float, variance: float) -> None:
    x = getattr(gp.random.default_rng(4), name)(*args, size=N).to_numpy().astype(np.float64)
    assert abs(x.mean() - mean) < 5 * (variance / N) ** 0.5
    fourth = ((x - x.mean()) ** 4).mean()
    assert abs(x.var() - variance) < 5 * ((fourth - x.var() ** 2) / N) ** 0.5 + 1e-12 * variance


def test_tails_of_small_floats() -> None:
    rng = gp.random.default_rng(6)
    x = rng.standard_normal(2_000_000, "float32").to_numpy()
    for limit in (3.0, 4.0, 4.5):
        expected = x.size * math.erfc(limit / 2**0.5)
        assert abs(np.sum(np.abs(x) > limit) - expected) < 5 * expected**0.5
    u = rng.random(2_000_000, "float32").to_numpy()
    assert u.min() >= 0
    assert u.max() < 1
    e = rng.standard_exponential(2_000_000, "float32").to_numpy()
    assert e.min() > 0
    assert abs(np.sum(e > 12) - e.size * math.exp(-12)) < 5 * (e.size * math.exp(-12)) ** 0.5
    for kind, bits in (("float16", 11), ("bfloat16", 8)):
        u = rng.random(100_000, kind).to_numpy().astype(np.float64)
        assert u.max() == 1 - 2.0**-bits
        assert (u * 2**bits == np.floor(u * 2**bits)).all()
        assert np.unique(u).size == 2**bits


def test_every_integer_type_has_its_range() -> None:
    rng = gp.random.default_rng(8)
    for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        info = np.iinfo(kind)
        x = rng.integers(info.min, info.max, N, kind, endpoint=True).to_numpy()
        assert x.dtype == kind
        scaled = (x.astype(np.float64) - float(info.min)) / (float(info.max) - float(info.min))
        assert abs(scaled.mean() - 0.5) < 5 / (12 * N) ** 0.5
        assert scaled.min() < 1e-3
        assert scaled.max() > 1 - 1e-3
        for low, count in ((info.min, 3), (info.max - 2, 3), (info.max, 1)):
            y = rng.integers(low, low + count, 200, kind).to_numpy()
            assert sorted({int(v) for v in y}) == list(range(low, low + count))
        # A third of the values is in the lower third, though words do not divide by it.
        span = (int(info.max) - int(info.min)) // 3 * 2
        y = rng.integers(info.min, int(info.min) + span, N, kind).to_numpy()
        lower = (y < np.array(int(info.min) + span // 2, kind)).mean()
        assert abs(lower - (span // 2) / span) < 5 * (0.25 / N) ** 0.5
    assert set(rng.integers(0, 2, 100, bool).tolist()) == {False, True}
    x = rng.integers([0, 10, -5], [3, 12, 5], (N // 10, 3)).to_numpy()
    for column, values in zip(x.T, (range(3), range(10, 12), range(-5, 5)), strict=True):
        counts = np.bincount(column - values[0], minlength=len(values))
        assert counts.size == len(values)
        chi_square(counts, np.full(len(values), column.size / len(values)))


def test_orders_are_equally_probable() -> None:
    rng = gp.random.default_rng(10)
    lanes = gp.from_numpy(np.broadcast_to(np.arange(4), (24_000, 4)).copy())
    x = rng.permuted(lanes, axis=1).to_numpy()
    np.testing.assert_array_equal(np.sort(x, 1), lanes.to_numpy())
    codes = x @ np.array([64, 16, 4, 1])
    chi_square(np.unique(codes, return_counts=True)[1], np.full(24, 1000.0))
    p = rng.permutation(1000).to_numpy()
    np.testing.assert_array_equal(np.sort(p), np.arange(1000))
    assert abs(np.corrcoef(p, np.arange(1000))[0, 1]) < 5 / 1000**0.5


def test_choices_have_their_probabilities() -> None:
    rng, p = gp.random.default_rng(12), np.array([0.1, 0.0, 0.3, 0.6])
    chi_square(np.bincount(rng.choice(4, N, p=p).to_numpy(), minlength=4)[[0, 2, 3]], N * p[[0, 2, 3]])
    chi_square(
        np.bincount(rng.choice(4, N, p=gp.from_numpy(p * 7)).to_numpy(), minlength=4)[[0, 2, 3]], N * p[[0, 2, 3]]
    )
    pairs = np.array([rng.choice(4, 2, replace=False, p=p).to_numpy() for _ in range(3000)])
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert not (pairs == 1).any()
    chi_square(np.bincount(pairs[:, 0], minlength=4)[[0, 2, 3]], 3000 * p[[0, 2, 3]])
    second = [sum(p[i] * p[j] / (1 - p[i]) for i in range(4) if i != j) for j in range(4)]
    chi_square(np.bincount(pairs[:, 1], minlength=4)[[0, 2, 3]], 3000 * np.array(second)[[0, 2, 3]])


def test_vectors() -> None:
    rng, alpha = gp.random.default_rng(13), np.array([0.2, 1.0, 2.0])
    x = rng.dirichlet(alpha, N).to_numpy()
    np.testing.assert_allclose(x.sum(1), 1, rtol=1e-12)
    share = alpha / alpha.sum()
    assert (np.abs(x.mean(0) - share) < 5 * np.sqrt(share * (1 - share) / (alpha.sum() + 1) / N)).all()
    assert rng.dirichlet(alpha, (2, 3), dtype="float32").shape == (2, 3, 3)
    counts = rng.multinomial(20, [0.2, 0.3, 0.5], N).to_numpy()
    assert (counts.sum(1) == 20).all()
    for i, chance in enumerate((0.2, 0.3, 0.5)):
        chi_square(np.bincount(counts[:, i], minlength=21), N * binomial(20, chance)(np.arange(21.0)))
    assert rng.multinomial([3, 9], [0.5, 0.5]).to_numpy().sum(1).tolist() == [3, 9]
    assert rng.multinomial(4, [0.0, 1.0, 0.0]).tolist() == [0, 4, 0]
    cov = np.array([[2.0, 1.0], [1.0, 3.0]])
    for method in ("svd", "eigh", "cholesky"):
        m = rng.multivariate_normal([1.0, -2.0], cov, N, method=method).to_numpy()
        assert (np.abs(m.mean(0) - [1, -2]) < 5 * np.sqrt(np.diag(cov) / N)).all()
        np.testing.assert_allclose(np.cov(m.T), cov, atol=0.1)
