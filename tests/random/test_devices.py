"""The same bits on every device, in every size and layout, and nothing read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.registry import OPERATORS
from pygpukit.random import philox, rejection, rows
from pygpukit.random import reference as reference_steps
from pygpukit.random.generator import Generator

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
Draw = Callable[[Generator], gp.GPUArray]


def same(device: str, draws: list[Draw], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each draw gives on the device what the CPU device gives; there, whatever the chunks rejection computes in."""
    rng = gp.random.default_rng(11)
    got = [draw(rng) for draw in draws]
    if device == "cpu":
        monkeypatch.setattr(rejection, "_CHUNK", 7)
    with gp.device("cpu"):
        rng = gp.random.default_rng(11)
        for i, (ours, draw) in enumerate(zip(got, draws, strict=True)):
            want = draw(rng)
            assert ours.dtype is want.dtype
            assert ours.shape == want.shape
            assert ours.to_numpy().tobytes() == want.to_numpy().tobytes(), f"draw {i}: {ours} and not {want}"


PLACES = [(0x1234_5678_9ABC_DEF0, 0, 0), (2**64 - 1, 2**64 - 3, 6), (5, 2**32 - 2, 2**31 + 1)]
"""Key, first block and stream of a draw; with an odd stream the counter is added."""


@pytest.mark.parametrize("kind", FLOATS)
def test_the_core_draws_what_numpys_steps_give(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(philox, "CHUNK", 70)
    reference = OPERATORS["random_fill"].reference
    with gp.device("cpu"):
        counter = gp.asarray([2**40 + 7], "int64")
        for distribution in reference_steps.KINDS:
            for place in PLACES:
                for n, a, b in ((0, 0.0, 1.0), (1, -2.5, 1.0), (1031, 0.25, 3.0)):
                    args = (n, *place, a, b, distribution, gp.dtype(kind))
                    got = rows.fill(counter, *args).to_numpy()
                    want = reference(counter.to_numpy(), *args)
                    assert got.dtype == want.dtype
                    assert got.tobytes() == want.tobytes(), (distribution, place, n)


@pytest.mark.parametrize("kind", INTEGERS)
def test_the_core_draws_the_integers_of_numpys_steps(kind: str) -> None:
    reference = OPERATORS["random_integers"].reference
    spans = [(0, 1), (2**64 - 5, 10), (7, 3 << 30), (0, 2**32)]
    if kind.endswith("64"):
        spans += [(3, 2**40 + 1), (2**63, 3 << 62), (0, 2**64)]
    with gp.device("cpu"):
        counter = gp.asarray([3], "int64")
        for low, span in spans:
            wide = span > 2**32
            for place in PLACES:
                args = (1301, *place, low, span - 1, (2**64 if wide else 2**32) % span, wide, gp.dtype(kind))
                got = rows.integers(counter, *args).to_numpy()
                assert got.tobytes() == reference(counter.to_numpy(), *args).tobytes(), (low, span, place)


def test_draws_of_the_core_may_be_long_and_recorded() -> None:
    """A long draw runs without the interpreter; replays go on where the counter is."""
    with gp.device("cpu"):
        whole = gp.random.default_rng(3).normal(size=100_000).to_numpy()
        rng = gp.random.default_rng(3)
        parts = [rng.normal(size=n).to_numpy() for n in (2, 40_000, 59_998)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()
        graph, out = gp.CudaGraph(), gp.empty(40_000, "float64")
        rng.standard_normal(out=out)
        with graph.capture(gp.Stream()):
            rng.standard_normal(out=out)
        key = rng.bit_generator.state["state"]["key"]
        for replay in range(2):
            graph.replay()
            graph.synchronize()
            counter = gp.asarray([20_000 * replay], "int64")
            want = rows.fill(counter, 40_000, key, 0, 1, 0.0, 1.0, "normal", gp.float64)
            assert out.to_numpy().tobytes() == want.to_numpy().tobytes()


def test_floats(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[Draw] = []
    for kind in FLOATS:
        for n in (0, 1, 2, 3, 5, 257):
            draws.append(lambda rng, n=n, kind=kind: rng.random(n, kind))
        for n in (3, 258):
            draws.append(lambda rng, n=n, kind=kind: rng.standard_normal(n, kind))
            draws.append(lambda rng, n=n, kind=kind: rng.standard_exponential(n, kind))
        draws.append(lambda rng, kind=kind: rng.uniform(-3, 0.7, (2, 3), dtype=kind))
        draws.append(lambda rng, kind=kind: rng.normal(1e-3, 1.7, (3, 5), dtype=kind))
        draws.append(lambda rng, kind=kind: rng.exponential(0.3, (), dtype=kind))
        for name in ("gumbel", "laplace", "logistic"):
            draws.append(lambda rng, kind=kind, name=name: getattr(rng, name)(1.0, 2.0, 131, dtype=kind))
        draws.append(lambda rng, kind=kind: rng.rayleigh(2.0, 131, dtype=kind))
        draws.append(lambda rng, kind=kind: rng.standard_cauchy(131, dtype=kind))
    # More than a block of threads, with a part of one at the end.
    draws += [lambda rng: rng.random(4 * 1024 + 6, "float32"), lambda rng: rng.normal(size=2 * 1024 + 3)]
    draws += [lambda rng: rng.normal([0.0, 5.0], [[1.0], [3.0]]), lambda rng: rng.uniform(0, [1.0, 2.0], (3, 2))]
    same(device, draws, monkeypatch)


def test_integers(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[Draw] = [lambda rng: rng.integers(0, 2, 9, bool)]
    for kind in INTEGERS:
        info = np.iinfo(kind)
        draws.append(lambda rng, i=info, k=kind: rng.integers(i.min, i.max, (5, 3), k, endpoint=True))
        draws.append(lambda rng, i=info, k=kind: rng.integers(i.min // 2, i.max // 3 * 2, 67, k))
    # Nearly half of the words, and half of the pairs of words, are refused.
    draws += [lambda rng: rng.integers(2**31 + 1, size=4099), lambda rng: rng.integers(-5, 2**63 - 4, 300)]
    draws += [lambda rng: rng.integers([1, -7, 2**40], [[2**41], [2**62]])]
    draws += [lambda rng: rng.integers(3, [2**64 - 1, 2**63 + 5], (4, 2), "uint64")]
    draws += [lambda rng: rng.integers(gp.asarray([0, 100]), gp.asarray([3, 110]), (40, 2), "uint8")]
    same(device, draws, monkeypatch)


def test_rejection(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[Draw] = [
        lambda rng: rng.gamma(2.5, 2.0, 300),
        lambda rng: rng.gamma([0.0, 1.0, 3.0, 1e4], dtype="float32"),
        lambda rng: rng.poisson(3.0, 300),
        lambda rng: rng.poisson([0.0, 9.99, 10.0, 1e3, 1e15], (30, 5)),
        lambda rng: rng.binomial(20, 0.3, 100),
        lambda rng: rng.binomial([0, 1, 30, 2**50], [[0.0], [0.5], [0.9], [1.0]]),
        lambda rng: rng.multinomial(50, [0.2, 0.3, 0.5], 30),
        lambda rng: rng.gamma(gp.asarray([2.0, np.nan, -1.0, np.inf]))[1:],
        lambda rng: rng.poisson(gp.asarray([-1.0, np.nan, np.inf, 1e19])),
        lambda rng: rng.binomial(gp.asarray([-1, 5, 5]), gp.asarray([0.5, -0.1, np.nan])),
    ]
    same(device, draws, monkeypatch)
    rng = gp.random.default_rng(1)
    assert rng.poisson(gp.asarray([-1.0, np.nan])).tolist() == [-1, -1]
    assert rng.binomial(gp.asarray([-1, 5]), gp.asarray([0.5, np.nan])).tolist() == [-1, -1]


def test_what_is_made_of_them_is_close(device: str) -> None:
    """By the operators of the device, whose functions differ by some ulp."""

    def draw(rng: Generator) -> list[gp.GPUArray]:
        return [
            rng.lognormal(0.0, 0.5, 50), rng.wald(2, [3.0, 1e-3], (9, 2)),
            rng.weibull(1.5, 50), rng.pareto(3.0, 50), rng.power([2.0, 3.0]),
            rng.triangular(0, [1, 2], 3), rng.gamma(0.3, size=50), rng.chisquare(3, 50),
            rng.standard_t(4, 50), rng.f(4, 9, 50), rng.beta([0.01, 2], 0.02), rng.dirichlet([0.1, 2, 3], 5),
            rng.noncentral_chisquare(3, 2, 50), rng.noncentral_f(3, 9, 1, 50), rng.geometric(0.3, 50),
            rng.multivariate_normal([1, 2], [[2, 1], [1, 3]], 5), rng.negative_binomial(3, 0.4, 50),
        ]  # fmt: skip

    got = draw(gp.random.default_rng(3))
    with gp.device("cpu"):
        want = draw(gp.random.default_rng(3))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_allclose(a.to_numpy(), b.to_numpy(), rtol=1e-12, atol=1e-300, err_msg=str(i))


def test_orders_and_choices(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    host = np.arange(24.0).reshape(2, 3, 4)

    def shuffled(rng: Generator, view: Callable[[gp.GPUArray], gp.GPUArray], axis: int) -> gp.GPUArray:
        x = gp.from_numpy(host)
        assert rng.shuffle(view(x), axis) is None
        return x

    draws: list[Draw] = [lambda rng, n=n: rng.permutation(n) for n in (0, 1, 2, 300)]
    for axis in (0, 1, -1):
        draws.append(lambda rng, axis=axis: rng.permutation(gp.from_numpy(host), axis))
        draws.append(lambda rng, axis=axis: rng.permuted(gp.from_numpy(host), axis))
        draws.append(lambda rng, axis=axis: shuffled(rng, lambda x: x, axis))
        draws.append(lambda rng, axis=axis: shuffled(rng, lambda x: x.T[::-1, ::2], axis))
        draws.append(lambda rng, axis=axis: rng.choice(gp.from_numpy(host), (2, 2), axis=axis))
    draws += [
        lambda rng: rng.permuted(gp.from_numpy(host)),
        lambda rng: rng.choice(5, 40),
        lambda rng: rng.choice(gp.from_numpy(host)),
        lambda rng: rng.choice(50, 20, replace=False),
        lambda rng: rng.choice(4, 40, p=[0.1, 0.2, 0.3, 0.4]),
        lambda rng: rng.choice(4, 3, replace=False, p=[0.1, 0.0, 0.5, 0.4]),
        lambda rng: rng.choice(4, (2, 20), p=gp.asarray([0.5, 0.0, 0.25, 0.25])),
    ]
    same(device, draws, monkeypatch)


def test_views_and_out(device: str) -> None:
    for kind in FLOATS:
        want = gp.random.default_rng(1).random(30, kind).to_numpy().tobytes()
        memory = gp.zeros(70, kind)
        for target in (memory[:30], memory[1:31], memory[2:32], memory[5:65:2], memory[30:0:-1]):
            assert gp.random.default_rng(1).random(dtype=kind, out=target) is target
            assert target.to_numpy().tobytes() == want
        matrix = gp.zeros((6, 5), kind)
        gp.random.default_rng(1).random((6, 5), kind, out=matrix)
        assert matrix.to_numpy().tobytes() == want
        turned = gp.zeros((5, 6), kind).T
        gp.random.default_rng(1).random(dtype=kind, out=turned)
        assert turned.to_numpy().tobytes() == want
    untouched = gp.zeros(12, "float32")
    gp.random.default_rng(1).random(dtype="float32", out=untouched[3:9])
    assert untouched[:3].tolist() + untouched[9:].tolist() == [0.0] * 6
    out = gp.zeros(4, "float64")
    for name, args in (("laplace", ()), ("gamma", (2.0,)), ("uniform", ([1.0] * 4, 3.0)), ("beta", (1, 2))):
        assert getattr(gp.random.default_rng(1), name)(*args, out=out) is out
        assert out.tolist() == getattr(gp.random.default_rng(1), name)(*args, size=4).tolist()


def test_nothing_is_read_back(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise AssertionError("a draw reads the device")

    scale, ends = gp.asarray([1.0, 2.0]), gp.asarray([5, 9])
    x = gp.from_numpy(np.arange(12.0).reshape(4, 3))
    monkeypatch.setattr(native, "read_buffer", refuse)
    rng = gp.random.default_rng(1)
    rng.random(5), rng.normal(0, scale), rng.integers(0, ends), rng.gamma(scale), rng.poisson(scale), rng.beta(scale, 2)
    rng.binomial(ends, 0.5), rng.geometric(gp.asarray([0.5])), rng.dirichlet(scale, 3), rng.standard_t(scale)
    rng.permutation(x, 1), rng.permuted(x), rng.shuffle(x), rng.choice(x, 2, p=gp.asarray([0.25] * 4))
    rng.choice(x, 3, replace=False), rng.multinomial(5, [0.5, 0.5]), rng.triangular(0, scale, 3)
    with pytest.raises(AssertionError, match="reads the device"):
        rng.bytes(3)
