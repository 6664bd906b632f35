"""Arguments as NumPy's Generator takes them: names, defaults, shapes and types of results, classes of errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pygpukit as gp

METHODS = sorted(name for name in dir(gp.random.Generator) if not name.startswith("_"))


@pytest.fixture(autouse=True)
def on_cpu() -> Iterator[None]:
    with gp.device("cpu"):
        yield


def test_names_and_order_of_parameters_are_numpys() -> None:
    theirs = np.random.default_rng(0)
    missing = {name for name in dir(theirs) if not name.startswith("_")} - set(METHODS)
    assert missing == {"hypergeometric", "multivariate_hypergeometric", "logseries", "vonmises", "wald", "zipf"}
    for name in METHODS:
        text = re.match(rf"{name}\((.*?)\)\n", (getattr(theirs, name).__doc__ or "").strip() + "\n", re.DOTALL)
        if text is None or name == "bit_generator":
            continue
        want = [part.partition("=") for part in re.sub(r"\s+", " ", text[1]).split(", ") if part != "*"]
        parameters = list(inspect.signature(getattr(gp.random.Generator, name)).parameters.values())[1:]
        positional = [p for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        known = [p for p in parameters if p in positional or p.name in {w[0] for w in want}]
        assert [p.name for p in known] == [w[0] for w in want], name
        for ours, (_, _, default) in zip(known, want, strict=True):
            shown = {"np.int64": "pygpukit.int64", "np.float64": "pygpukit.float64", "1e-8": "1e-08"}.get(
                default, default
            )
            given = "" if ours.default is inspect.Parameter.empty else repr(ours.default)
            assert given.strip("'") == shown.strip("'"), f"{name}: {ours}"


SHAPES: list[Callable[[Any], Any]] = [
    lambda rng: rng.random(),
    lambda rng: rng.random(3),
    lambda rng: rng.random((2, 0)),
    lambda rng: rng.random(()),
    lambda rng: rng.random(np.int64(2)),
    lambda rng: rng.random([2, 3]),
    lambda rng: rng.random(size=2, dtype=np.float32),
    lambda rng: rng.normal([1.0, 2.0]),
    lambda rng: rng.normal([[1.0], [2.0]], [1.0, 2.0, 3.0]),
    lambda rng: rng.normal([1.0, 2.0], 1.0, (3, 2)),
    lambda rng: rng.normal(0, 0, 2),
    lambda rng: rng.uniform([0.0, 1.0], 2, size=2),
    lambda rng: rng.exponential(np.array(2.0)),
    lambda rng: rng.standard_normal((2, 2), "float32"),
    lambda rng: rng.standard_exponential(2, np.float64, "inv"),
    lambda rng: rng.integers(5),
    lambda rng: rng.integers(5, size=(2, 3)),
    lambda rng: rng.integers(2, [3, 4]),
    lambda rng: rng.integers([[0], [1]], [3, 4], dtype=np.uint16),
    lambda rng: rng.integers(0, 1, 3, bool),
    lambda rng: rng.integers(2.0, size=2),
    lambda rng: rng.integers(7, 7, 2, endpoint=True),
    lambda rng: rng.poisson(),
    lambda rng: rng.poisson([1, 2]),
    lambda rng: rng.binomial(3, [0.5, 0.1], (4, 2)),
    lambda rng: rng.gamma(2.0),
    lambda rng: rng.gamma([1, 2], [[1], [2]]),
    lambda rng: rng.gamma(0.0, size=2),
    lambda rng: rng.weibull(0, 2),
    lambda rng: rng.dirichlet([1, 2]),
    lambda rng: rng.dirichlet([1, 2], 3),
    lambda rng: rng.multinomial(3, [0.5, 0.5]),
    lambda rng: rng.multinomial(3, [[0.5, 0.5], [0.1, 0.9]]),
    lambda rng: rng.multinomial([3, 4], [0.5, 0.5], (5, 2)),
    lambda rng: rng.multivariate_normal([0, 0], np.eye(2)),
    lambda rng: rng.multivariate_normal([0, 0], np.eye(2), (2, 3)),
    lambda rng: rng.triangular(0, 1, [2, 3]),
    lambda rng: rng.geometric(0.5),
    lambda rng: rng.permutation(4),
    lambda rng: rng.permutation(0),
    lambda rng: rng.permutation(-3),
    lambda rng: rng.permutation([1.5, 2.5]),
    lambda rng: rng.permutation(np.ones((2, 3), np.int8), 1),
    lambda rng: rng.permutation(np.ones((2, 0))),
    lambda rng: rng.permuted(np.ones((2, 3)), axis=0),
    lambda rng: rng.permuted([[1, 2], [3, 4]]),
    lambda rng: rng.choice(5),
    lambda rng: rng.choice(5, (2, 3)),
    lambda rng: rng.choice([1.5, 2.5], 3),
    lambda rng: rng.choice(np.ones((2, 3)), 4, axis=1),
    lambda rng: rng.choice(np.ones((2, 3))),
    lambda rng: rng.choice(np.ones((2, 3)), axis=1),
    lambda rng: rng.choice(np.ones((4, 3)), (2, 2), replace=False),
    lambda rng: rng.choice(3, 0, p=[0.5, 0.5, 0]),
    lambda rng: rng.choice(0, 0),
    lambda rng: rng.choice([], 0),
]


@pytest.mark.parametrize("i", range(len(SHAPES)))
def test_results_have_numpys_shapes_and_types(i: int) -> None:
    want = np.asarray(SHAPES[i](np.random.default_rng(0)))
    got = SHAPES[i](gp.random.default_rng(0))
    assert isinstance(got, gp.GPUArray)
    assert got.shape == want.shape
    assert got.to_numpy().dtype == want.dtype


ERRORS: list[Callable[[Any], Any]] = [
    lambda rng: rng.random(-1),
    lambda rng: rng.random((2, -3)),
    lambda rng: rng.random(2.5),
    lambda rng: rng.random("a"),
    lambda rng: rng.random(2**70),
    lambda rng: rng.random((2**40, 2**40)),
    lambda rng: rng.random(dtype="int32"),
    lambda rng: rng.random(dtype="complex64"),
    lambda rng: rng.normal(0, -1),
    lambda rng: rng.normal(0, [1.0, -1.0]),
    lambda rng: rng.normal([0, 0], 1, 3),
    lambda rng: rng.normal([0, 0], [1, 2, 3]),
    lambda rng: rng.normal(1j),
    lambda rng: rng.normal("a"),
    lambda rng: rng.normal(None),
    lambda rng: rng.uniform(2, 1),
    lambda rng: rng.uniform(0, np.inf),
    lambda rng: rng.uniform(-1e308, 1e308),
    lambda rng: rng.exponential(-1),
    lambda rng: rng.lognormal(0, -1),
    lambda rng: rng.laplace(0, -1),
    lambda rng: rng.logistic(0, -1),
    lambda rng: rng.gumbel(0, -1),
    lambda rng: rng.rayleigh(-1),
    lambda rng: rng.weibull(-1),
    lambda rng: rng.pareto(0),
    lambda rng: rng.power(0),
    lambda rng: rng.triangular(1, 0, 2),
    lambda rng: rng.triangular(0, 3, 2),
    lambda rng: rng.triangular(1, 1, 1),
    lambda rng: rng.integers(3, 3),
    lambda rng: rng.integers(0),
    lambda rng: rng.integers(-1, endpoint=True),
    lambda rng: rng.integers(4, 3, endpoint=True),
    lambda rng: rng.integers(0, 300, dtype="uint8"),
    lambda rng: rng.integers(-1, 5, dtype="uint8"),
    lambda rng: rng.integers(0, 2**64, endpoint=True, dtype="uint64"),
    lambda rng: rng.integers(0, 3, dtype=bool),
    lambda rng: rng.integers(5, dtype="float32"),
    lambda rng: rng.integers(np.nan),
    lambda rng: rng.integers(np.inf),
    lambda rng: rng.integers(None, 3),
    lambda rng: rng.integers("a"),
    lambda rng: rng.integers([0, 5], [1, 5]),
    lambda rng: rng.integers([0, 5], [1, 2, 9]),
    lambda rng: rng.integers(0, [5, 300], dtype="uint8"),
    lambda rng: rng.poisson(-1),
    lambda rng: rng.poisson(np.nan),
    lambda rng: rng.poisson(1e20),
    lambda rng: rng.binomial(-1, 0.5),
    lambda rng: rng.binomial(1, 1.5),
    lambda rng: rng.binomial(1, np.nan),
    lambda rng: rng.binomial([1, -1], 0.5),
    lambda rng: rng.geometric(0),
    lambda rng: rng.negative_binomial(0, 0.5),
    lambda rng: rng.negative_binomial(np.nan, 0.5),
    lambda rng: rng.negative_binomial(1, 0),
    lambda rng: rng.negative_binomial(1e10, 1e-9),
    lambda rng: rng.gamma(-1),
    lambda rng: rng.gamma(1, -1),
    lambda rng: rng.beta(0, 1),
    lambda rng: rng.chisquare(0),
    lambda rng: rng.standard_t(0),
    lambda rng: rng.f(0, 1),
    lambda rng: rng.dirichlet([-1, 1]),
    lambda rng: rng.dirichlet(2.0),
    lambda rng: rng.multinomial(3, [0.5, 0.6, 0.1]),
    lambda rng: rng.multinomial(3, [-0.5, 0.6]),
    lambda rng: rng.multinomial(-3, [0.5, 0.5]),
    lambda rng: rng.multivariate_normal([0, 0], np.eye(3)),
    lambda rng: rng.multivariate_normal([0, 0], [1, 2]),
    lambda rng: rng.multivariate_normal([0, 0], np.eye(2), method="x"),
    lambda rng: rng.multivariate_normal([0, 0], [[1, 2], [2, 1]], check_valid="raise"),
    lambda rng: rng.multivariate_normal([0, 0], [[1, 2], [2, 1]], method="cholesky"),
    lambda rng: rng.permutation(2.5),
    lambda rng: rng.permutation(np.ones((2, 3)), 2),
    lambda rng: rng.permuted(5, axis=0),
    lambda rng: rng.permuted(np.ones((2, 3)), axis=2),
    lambda rng: rng.permuted(np.ones((2, 3)), out=[1]),
    lambda rng: rng.shuffle(3),
    lambda rng: rng.choice(0),
    lambda rng: rng.choice(-3),
    lambda rng: rng.choice([]),
    lambda rng: rng.choice(2.5),
    lambda rng: rng.choice(5, 6, replace=False),
    lambda rng: rng.choice(3, p=[0.5, 0.5]),
    lambda rng: rng.choice(3, p=[0.5, 0.5, 0.5]),
    lambda rng: rng.choice(3, p=[-0.5, 1.0, 0.5]),
    lambda rng: rng.choice(3, p=[np.nan, 0.5, 0.5]),
    lambda rng: rng.choice(3, p=[[0.5, 0.25, 0.25]]),
    lambda rng: rng.choice(3, 3, False, p=[1, 0, 0]),
    lambda rng: rng.choice(np.ones((2, 3)), 2, axis=2),
    lambda rng: rng.bytes("a"),
    lambda rng: rng.spawn("a"),
    lambda rng: rng.standard_exponential(dtype="int8"),
]


@pytest.mark.parametrize("i", range(len(ERRORS)))
def test_errors_are_numpys(i: int) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        ERRORS[i](np.random.default_rng(0))
    rng = gp.random.default_rng(0)
    with pytest.raises(Exception) as ours:  # noqa: PT011
        ERRORS[i](rng)
    # The exception itself, not a class that all exceptions have in common.
    assert isinstance(ours.value, theirs.type), f"{ours.value!r} and not {theirs.value!r}"
    assert str(ours.value)
    assert rng.bit_generator.state == gp.random.default_rng(0).bit_generator.state, "what is refused draws nothing"


def test_out_and_size() -> None:
    rng, x = gp.random.default_rng(0), gp.zeros((2, 3), "float64")
    assert rng.random((2, 3), out=x) is x
    with pytest.raises(ValueError, match="size must match"):
        rng.random(3, out=x)
    with pytest.raises(TypeError, match="out must be a GPUArray"):
        rng.random(out=[1.0])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Expected float64, got float32"):
        rng.normal(out=gp.zeros(3, "float32"))
    frozen = gp.zeros(3, "float64")
    frozen.setflags(write=False)
    for draw in (rng.random, lambda out: rng.laplace(out=out), lambda out: rng.gamma(2.0, out=out)):
        with pytest.raises(ValueError, match="read-only"):
            draw(out=frozen)
    with pytest.raises(ValueError, match="read-only"):
        rng.shuffle(frozen)
    with pytest.raises(TypeError, match="asarray"):
        rng.shuffle([1, 2, 3])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="share memory"):
        rng.random(out=gp.zeros(1, "float64")._broadcast_to((3,)))


def test_numbers_that_are_special() -> None:
    rng = gp.random.default_rng(0)
    assert np.isnan(rng.normal(np.nan, 1.0, 2).to_numpy()).all()
    assert np.isnan(rng.pareto(np.nan, 2).to_numpy()).all()
    assert np.isnan(rng.beta(np.nan, 2.0, 2).to_numpy()).all()
    assert rng.normal(np.inf, 1.0, 2).tolist() == [np.inf] * 2
    assert rng.normal(3.0, 0.0, 2).tolist() == [3.0, 3.0]
    assert rng.uniform(2.0, 2.0, 2).tolist() == [2.0, 2.0]
    assert rng.gamma(np.inf, size=1).tolist() == [np.inf]
    assert rng.exponential(0.0, 2).tolist() == [0.0, 0.0]
    # What the type cannot hold is infinite, as in NumPy's casts.
    assert rng.normal(1e300, 1.0, 2, dtype="float32").tolist() == [np.inf] * 2
    assert rng.uniform(-1e30, 1e30, 2, dtype="float16").to_numpy().astype(float).tolist() != []
    assert rng.binomial(5, 1.0, 2).tolist() == [5, 5]
    assert rng.binomial(5, 0.0, 2).tolist() == [0, 0]
    assert rng.geometric(1.0, 2).tolist() == [1, 1]
    assert rng.geometric(1e-300, 2).to_numpy().min() > 2**60
    assert rng.permutation(1).tolist() == [0]
    assert rng.shuffle(gp.zeros((0, 3))) is None
    assert rng.bytes(0) == b""
    with pytest.raises(ValueError, match="negative"):
        rng.bytes(-9)
