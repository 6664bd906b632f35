"""The words and functions everything is made of: published vectors, accuracy, and sequences that stay as they are."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.random import philox, reference, rejection

# Random123, kat_vectors, philox4x32 with 10 rounds: counter, key, words.
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((2**32 - 1,) * 4, (2**32 - 1,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "want"), VECTORS)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, int], want: tuple[int, ...]) -> None:
    block = np.array([counter[0] | counter[1] << 32], np.uint64)
    got = philox.words(key[0] | key[1] << 32, block, counter[2], counter[3])
    assert got.tolist() == [list(want)]


def ulps(got: np.ndarray, want: np.ndarray) -> float:
    spacing = np.spacing(np.abs(want).astype(got.dtype)).astype(np.longdouble)
    return float(np.max(np.abs(got.astype(np.longdouble) - want) / spacing))


@pytest.mark.parametrize("real", [np.float32, np.float64])
def test_functions_are_accurate(real: type) -> None:
    rng = np.random.default_rng(1)
    u = np.concatenate([rng.random(5000), 2.0 ** -rng.integers(0, 50, 500), 1 - rng.random(500) * 1e-6]).astype(real)
    u = u[(u > 0) & (u < 1)]
    assert ulps(reference.minus_log(u), -np.log(u.astype(np.longdouble))) < 3
    x = ((rng.random(5000) - 0.5) * np.pi / 2).astype(real)
    s, c = reference.sine_cosine(x)
    wide = x.astype(np.longdouble)
    assert ulps(s, np.sin(wide)) < 2
    assert ulps(c, np.cos(wide)) < 2


def test_functions_of_rejection_are_accurate() -> None:
    for k in (*range(12), 20, 1000, 10**6):
        want = math.lgamma(k + 1) - ((k + 0.5) * math.log(k + 1) - (k + 1) + 0.5 * math.log(2 * math.pi))
        got = rejection._stirling(np.array([float(k)]))[0]
        assert abs(got - want) < 1e-11 + 1e-15 * math.lgamma(k + 1)
    x, y = np.array([1e15, 3.0, 1.0]), np.array([1e15 + 1, 4.0, 70.0])
    np.testing.assert_allclose(rejection._log_ratio(x, y), np.log1p((x - y) / y), rtol=1e-13)
    p = np.array([1e-300, 1e-9, 0.1, 0.2499, 0.25, 0.5])
    np.testing.assert_allclose(reference.minus_log_rest(p), -np.log1p(-p), rtol=1e-14)
    a = np.random.default_rng(2).integers(0, 2**64 - 1, 50, np.uint64, endpoint=True)
    for b in (1, 3, 2**32, 2**63 + 5, 2**64 - 1):
        want = [int(v) * b >> 64 for v in a]
        assert reference.high_product(a, np.uint64(b)).tolist() == want


def test_sequences_stay_as_they_are() -> None:
    """What a seed gives is a promise: a change of these is a change of every program's results."""
    assert gp.random.default_rng(42).bit_generator.state["state"]["key"] == 0x9F1E2E6DCD540AB7
    rng = gp.random.default_rng(42)
    assert rng.random(3).tolist() == [0.06771607840373872, 0.682798499021973, 0.20643347375413268]
    assert rng.random(3, "float32").tolist() == [0.5516868233680725, 0.9022433161735535, 0.3280971646308899]
    assert rng.integers(-5, 1000, 5).tolist() == [602, 823, 475, 426, 503]
    assert rng.integers(2**40, size=2).tolist() == [294644230379, 477554108614]
    assert rng.permutation(6).tolist() == [2, 0, 3, 4, 1, 5]
    assert rng.normal(size=2).tolist() == [1.3649929618546082, 0.42034239224896747]
    assert rng.normal(size=2, dtype="float32").tolist() == [1.5085786581039429, 0.28921177983283997]
    assert rng.exponential(size=2).tolist() == [0.30494384342141573, 0.4678825946253622]
    assert rng.poisson([2.0, 50.0]).tolist() == [2, 58]
    assert rng.binomial([5, 500], 0.4).tolist() == [2, 199]


def test_seeds() -> None:
    def key(seed: object) -> int:
        state: dict[str, dict[str, int]] = gp.random.default_rng(seed).bit_generator.state
        return state["state"]["key"]

    seeds = [0, 1, 2**31, 2**64, 2**200 + 1, [1], [1, 2], (3, 4), np.array([5, 6]), np.random.SeedSequence(9)]
    assert len({key(seed) for seed in seeds}) == len(seeds) - 1  # 1 and [1] are one seed, as in NumPy
    assert key(None) != key(None)
    rng = gp.random.default_rng(1)
    assert gp.random.default_rng(rng) is rng
    assert gp.random.default_rng(rng.bit_generator).bit_generator is rng.bit_generator
    for wrong, error in ((-1, ValueError), ("a", TypeError), (2.5, TypeError), ([-1], ValueError)):
        with pytest.raises(error):
            gp.random.default_rng(wrong)
    with pytest.raises(TypeError, match="default_rng"):
        gp.random.Generator(np.random.PCG64(1))  # type: ignore[arg-type]
