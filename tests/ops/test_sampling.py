"""Sampling: kernels against NumPy token by token, kept sets against their definition, draws against probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.ops.sampling import reference
from pygpukit.ops.sampling import rows as sampling

BF16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture(
    params=[
        pytest.param("cuda", marks=pytest.mark.cuda),
        pytest.param("emulated", marks=pytest.mark.nvrtc),
        "cpu",
    ]
)
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    with gp.device(request.param) as current:
        yield current


def normal(shape: tuple[int, ...], kind: Any = np.float32, seed: int = 0, scale: float = 3.0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(kind)


def rows(logits: Any, **options: Any) -> list[int]:
    given = {name: gp.from_numpy(np.asarray(x)) for name, x in options.items()}
    return list(gp.sample_rows(gp.from_numpy(logits), **given).tolist())


def options_of(rng: np.random.Generator, n: int, v: int) -> dict[str, Any]:
    """Parameters of n rows, each on or off."""
    made = {
        "temperature": rng.choice([0.0, 0.3, 1.0, 1.7, 1e-6, 50.0], n).astype(np.float32),
        "top_k": rng.choice([0, 1, 2, 7, v // 2 + 1, v, 2 * v], n).astype(np.int32),
        "top_p": rng.choice([0.0, 0.1, 0.5, 0.9, 0.999999, 1.0, 1.5], n).astype(np.float32),
        "min_p": rng.choice([0.0, 1e-30, 0.05, 0.7, 1.0], n).astype(np.float32),
        "seeds": rng.integers(0, 2**64, n, dtype=np.uint64),
        "positions": rng.integers(0, 2**40, n, dtype=np.int64),
        "repetition": rng.choice([1.0, 1.3], n).astype(np.float32),
        "frequency": rng.choice([0.0, 0.4], n).astype(np.float32),
        "presence": rng.choice([0.0, 0.9], n).astype(np.float32),
        "counts": rng.integers(0, 3, (n, v), dtype=np.int32),
        "prompt": rng.random((n, v)) < 0.2,
        "bias": rng.choice([0.0, 2.0, -np.inf], (n, v), p=[0.8, 0.1, 0.1]).astype(np.float32),
        "allowed": rng.integers(-(2**31), 2**31, (n, -(-v // 32)), dtype=np.int64).astype(np.int32),
    }
    return {name: x for name, x in made.items() if rng.random() < 0.6}


@pytest.mark.nvrtc
@settings(max_examples=40, derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from([1, 8, 33, 700, 4096, 5003, 6160]), st.booleans(), st.integers(1, 2))
def test_kernels_draw_the_tokens_of_numpy(seed: int, v: int, plain: bool, steps: int) -> None:
    rng = np.random.default_rng(seed)
    n = 3
    kind = rng.choice([np.float32, BF16, np.float16])
    logits = normal((n, v), kind, seed)
    if rng.random() < 0.5:
        # Many tokens with one logit, at all borders.
        logits = np.round(logits.astype(np.float32)).astype(kind)
    logits.reshape(-1)[rng.integers(0, n * v, 2)] = rng.choice([np.nan, np.inf, -np.inf], 2)
    options = options_of(rng, n, v)
    if plain:
        # Kernels read the logits themselves where nothing changes them.
        options = {name: x for name, x in options.items() if name not in sampling._ADJUSTMENTS}
    try:
        sampling.force(steps)
        with gp.device("emulated"):
            got = rows(logits, **options)
    finally:
        sampling.force(None)
    with gp.device("cpu"):
        assert rows(logits, **options) == got


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32), st.integers(0, 12), st.floats(0, 1), st.sampled_from([0.0, 0.02, 0.3]))
def test_what_is_kept_follows_the_definition(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    rng = np.random.default_rng(seed)
    z = np.round(rng.standard_normal(10) * 2).astype(np.float32)
    t = 0.7
    ids, _ = reference.kept(z, t, top_k, top_p, min_p)
    order = sorted(range(10), key=lambda i: (-z[i], i))
    if 0 < top_k < 10:
        order = order[:top_k]
    p = {i: math.exp((float(z[i]) - float(z.max())) / t) for i in order}
    # A token on a border that rounding may move to either side makes no statement.
    if any(abs(p[i] - min_p) < 1e-4 for i in order):
        return
    order = [i for i in order if p[i] >= min_p]
    total, taken, wanted = sum(p[i] for i in order), 0.0, []
    for i in order:
        if abs(taken - top_p * total) < 1e-4 and wanted:
            return
        if taken >= top_p * total and wanted and top_p < 1:
            break
        wanted.append(i)
        taken += p[i]
    assert sorted(ids) == sorted(wanted)


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.2}, {"temperature": 2.0}])
def test_draws_follow_the_probabilities(options: dict[str, float]) -> None:
    z, draws = np.float32([0.3, 2.0, -1.0, 1.2, 0.3, -4.0, 1.1, 0.0]), 3000
    kinds = {"top_k": np.int32}
    arrays = {name: np.full(draws, x, kinds.get(name, np.float32)) for name, x in options.items()}
    got = rows(np.tile(z, (draws, 1)), **arrays, seeds=np.full(draws, 11, np.uint64), positions=np.arange(draws))
    full = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | options
    ids, d = reference.kept(z, **full)  # type: ignore[arg-type]
    p = np.exp(d.astype(np.float64))
    expected = np.zeros(8)
    expected[ids] = draws * p / p.sum()
    counts = np.bincount(got, minlength=8)
    assert not counts[expected == 0].any()
    on = expected > 0
    chi = float(((counts[on] - expected[on]) ** 2 / expected[on]).sum())
    assert chi < 30.0 + on.sum()  # beyond that with a probability under 1e-4


def test_a_row_draws_alone_what_it_draws_beside_others(device: gp.Device) -> None:
    logits, rng = normal((6, 5000)), np.random.default_rng(3)
    options = {
        "temperature": np.float32([1, 0.5, 2, 0, 1, 1.5]),
        "top_k": np.int32([0, 50, 3, 9, 4999, 1]),
        "top_p": np.float32([1, 0.9, 0.5, 0.1, 0.99, 1]),
        "seeds": np.arange(6, dtype=np.uint64),
        "positions": np.arange(6),
    }
    together = rows(logits, **options)
    turned = rng.permutation(6)
    assert rows(logits[turned], **{name: x[turned] for name, x in options.items()}) == [together[i] for i in turned]
    assert rows(logits[2:3], **{name: x[2:3] for name, x in options.items()}) == together[2:3]
    wide = gp.from_numpy(np.pad(logits, ((0, 0), (0, 7)), constant_values=99))[:, :5000]
    arrays = {name: gp.from_numpy(x) for name, x in options.items()}
    assert gp.sample_rows(wide, **arrays).tolist() == together


def test_tied_tokens_are_kept_by_their_ids(device: gp.Device) -> None:
    n, v = 40, 5000
    seeds = np.arange(n, dtype=np.uint64)
    equal = np.zeros((n, v), np.float32)
    few = rows(equal, top_k=np.full(n, 3, np.int32), seeds=seeds)
    assert set(few) == {0, 1, 2}
    many = rows(equal, top_k=np.full(n, 4500, np.int32), seeds=seeds)
    assert 4096 <= max(many) < 4500
    part = rows(equal, top_p=np.full(n, 0.00099, np.float32), seeds=seeds)
    assert set(part) == {0, 1, 2, 3, 4}
    # Both at one border: the four first of the tokens that tie for places 1 to 6.
    both = rows(equal, top_k=np.full(n, 6, np.int32), top_p=np.full(n, 0.6, np.float32), seeds=seeds)
    assert set(both) == {0, 1, 2, 3}


def test_special_values_and_extremes(device: gp.Device) -> None:
    nan, inf = np.nan, np.inf
    logits = np.float32([[nan, 1, 2], [-inf, -inf, nan], [inf, 5, -inf], [-inf, -inf, -5], [-0.0, 0.0, -1], [1, 2, 3]])
    zero = np.zeros(6, np.float32)
    assert rows(logits, temperature=zero) == [2, -1, 0, 2, 0, 2]
    assert rows(logits, top_p=zero) == [2, -1, 0, 2, 0, 2]
    assert rows(logits, min_p=zero + 1, temperature=zero + 1e-30) == [2, -1, 0, 2, rows(logits, min_p=zero + 1)[4], 2]
    assert rows(logits[:0]) == []
    assert gp.sample_rows(gp.empty((2, 0))).tolist() == [-1, -1]
    assert rows(logits, allowed=np.full((6, 1), 2, np.int32)) == [1, -1, 1, -1, 1, 1]


@pytest.mark.parametrize("kind", [np.float32, np.float16, BF16])
def test_greedy_rows_are_the_best_token_or_none(device: gp.Device, kind: Any) -> None:
    """Alone, beside rows with scores that are no numbers, and by the steps that rows with a bias take."""
    logits = normal((6, 70), kind, scale=1.0)
    logits[1, [3, 60]] = 9.0
    logits[2] = -np.inf
    logits[3] = np.nan
    logits[4, :5] = np.nan
    logits[5, ::2], logits[5, 1::2] = -0.0, 0.0
    wide = np.where(np.isnan(logits.astype(np.float32)), -np.inf, logits.astype(np.float32))
    best = np.where(wide.max(axis=1) > -np.inf, wide.argmax(axis=1), -1).tolist()
    assert best[1:4] + best[5:] == [3, -1, -1, 0]
    for some in (slice(0, 2), slice(0, 6)):
        cold = np.zeros(len(best[some]), np.float32)
        assert rows(logits[some], temperature=cold) == best[some]
        assert rows(logits[some], temperature=cold, bias=np.zeros((cold.size, 70), np.float32)) == best[some]


def test_penalties(device: gp.Device) -> None:
    logits = np.float32([[2.0, 1.9, -1.0, -1.1]])
    zero = np.zeros(1, np.float32)
    counts, prompt = np.int32([[1, 0, 0, 0]]), np.array([[False, True, False, False]])

    def greedy(**options: Any) -> int:
        return rows(logits, temperature=zero, **options)[0]

    assert greedy() == 0
    assert greedy(repetition=zero + 1.2, counts=counts) == 1
    assert greedy(repetition=zero + 1.2, counts=counts, prompt=prompt) == 0
    assert greedy(frequency=zero + 0.2, counts=counts) == 1
    assert greedy(presence=zero + 0.2, counts=counts, prompt=prompt) == 1
    assert greedy(bias=np.float32([0, 0, 9, 0])) == 2
    assert rows(-logits[:, 2:], temperature=zero, repetition=zero + 2, counts=counts[:, 1:3]) == [1]
    negative = rows(logits[:, 2:], temperature=zero, repetition=zero + 2, counts=np.int32([[1, 0]]))
    assert negative == [1]


def test_one_row_is_an_int_and_a_graph_reads_new_parameters(device: gp.Device) -> None:
    logits = gp.from_numpy(normal((2, 300)))
    token = gp.sample(logits[1], 0.9, top_k=40, top_p=0.95, min_p=0.01, seed=5, counter=3)
    assert isinstance(token, int)
    assert gp.sample(logits, 0.9, 40, 0.95, 0.01, seed=4, counter=3)[1].item() == token
    with pytest.raises(ValueError, match="no token may be drawn"):
        gp.sample(gp.full((3,), -math.inf, "float32"))

    position, heat = gp.zeros(2, "int64"), gp.full((2,), 0.8, "float32")
    out = gp.empty((2,), "int32")
    call: Callable[[], Any] = lambda: gp.sample_rows(logits, heat, positions=position, out=out)  # noqa: E731
    call()
    graph = gp.CudaGraph()
    with graph.capture():
        call()
    seen = set()
    for step in range(6):
        position.fill(step)
        graph.replay()
        replayed = out.tolist()
        assert replayed == gp.sample_rows(logits, heat, positions=position).tolist()
        seen.add(tuple(replayed))
    assert len(seen) > 1


def test_log_probabilities(device: gp.Device) -> None:
    x = normal((3, 400), BF16)
    wide = x.astype(np.float64)
    want = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    got = gp.token_logprobs(gp.from_numpy(x), gp.asarray([5, 399, 0], "int32")).to_numpy()
    np.testing.assert_allclose(got, want[[0, 1, 2], [5, 399, 0]], atol=1e-5)
    values, tokens = gp.top_logprobs(gp.from_numpy(x), 4)
    order = np.argsort(-want, 1, kind="stable")[:, :4]
    assert tokens.tolist() == order.tolist()
    np.testing.assert_allclose(values.to_numpy(), np.take_along_axis(want, order, 1), atol=1e-5)


L = ((2, 40), "float32")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: gp.sample_rows(gp.ones(3)), gp.ShapeError, r"\[rows, vocabulary\]"),
        (lambda: gp.sample_rows(gp.ones((2, 3), "float64")), gp.DTypeError, "logits are float64"),
        (lambda: gp.sample_rows(gp.ones(*L), gp.ones(3)), gp.ShapeError, r"temperature has shape \(3,\).*\(2,\)"),
        (lambda: gp.sample_rows(gp.ones(*L), top_k=gp.ones(2)), gp.DTypeError, "top_k has type float32; use int32"),
        (lambda: gp.sample_rows(gp.ones(*L), allowed=gp.zeros((2, 1), "int32")), gp.ShapeError, r"need \(2, 2\)"),
        (lambda: gp.sample_rows(gp.ones(*L), bias=gp.zeros(39)), gp.ShapeError, "or one row"),
        (lambda: gp.sample_rows(gp.ones(*L), counts=gp.zeros((1, 40), "int32")), gp.ShapeError, "counts"),
        (lambda: gp.sample(gp.ones((1, 2, 3))), gp.ShapeError, r"\[vocabulary\]"),
        (lambda: gp.Penalties(repetition=0.0), ValueError, "repetition is 0.0"),
        (lambda: gp.token_logprobs(gp.ones((2, 3)), gp.zeros(3, "int32")), gp.ShapeError, "do not fit"),
    ],
)
def test_bad_input_is_refused(call: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        call()
