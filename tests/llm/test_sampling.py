"""How a token is chosen: parameters, limits, penalties, draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.llm import SamplingParams, sample_token
from pygpukit.llm.sampling import Line, best, draw, process


def sample(logits: gp.GPUArray, params: SamplingParams, **line: Any) -> int:
    """Of one row."""
    lines = [Line(params, **line)]
    scores, failed = process(logits[None], lines)
    assert not failed
    return int(draw(scores, lines).item())


SCORES = gp.asarray([1.0, 3.0, 3.0, -2.0, 0.5], "float32")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": True}, "temperature is True"),
        ({"top_p": 0}, "above 0"),
        ({"top_p": 1.5}, "at most 1"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": 1.5}, "whole number"),
        ({"min_p": 2}, "from 0 to 1"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 3}, "more than max_tokens"),
        ({"n": 0}, "n is 0"),
        ({"n": 10**9}, "n is 1000000000, and must be at most 4096"),
        ({"n": 2, "temperature": 0}, "all replies would be the same"),
        ({"stop": ""}, "not empty"),
        ({"stop": [3]}, "texts"),
        ({"stop": None}, "stop is None, and must be a list of texts"),
        ({"stop_token_ids": None}, "stop_token_ids is None, and must be a list of ids"),
        ({"temperature": 1e39}, "temperature is 1e"),
        ({"logit_bias": {5: 1e39}}, "not finite"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5"),
        ({"stop_token_ids": [1.5]}, "whole numbers"),
        ({"logit_bias": {"a": 1}}, "a number for each id"),
        ({"logit_bias": [5]}, "a number for each id"),
        ({"ignore_eos": None}, "True or False"),
        ({"processors": 5}, "a list of functions"),
        ({"seed": 1 << 64}, "below 2"),
        ({"repetition_penalty": 0}, "positive"),
        ({"presence_penalty": 3}, "from -2 to 2"),
        ({"allowed_token_ids": []}, "no token could come"),
        ({"logit_bias": {1: float("inf")}}, "not finite"),
        ({"schema": [1]}, "schema is .* and must be an object"),
        ({"regex": "a", "grammar": "start: x"}, "regex and grammar are given"),
        ({"max_thinking_tokens": -1}, "max_thinking_tokens is -1"),
    ],
)
def test_parameters_are_checked(values: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SamplingParams(**values)


def test_parameters_are_frozen_and_normal() -> None:
    params = SamplingParams(stop="x", bad_words=["y"], stop_token_ids=[np.int64(3)])
    assert (params.stop, params.bad_words, params.stop_token_ids) == (("x",), ("y",), (3,))
    with pytest.raises(AttributeError):
        params.temperature = 2.0  # type: ignore[misc]


def test_greedy_takes_the_lowest_id_of_equal_ones() -> None:
    assert sample(SCORES, SamplingParams(temperature=0)) == 1
    assert sample_token(SCORES, temperature=0) == 1


def test_what_changes_scores() -> None:
    greedy = SamplingParams(temperature=0)
    assert sample(SCORES, greedy, banned=[1]) == 2
    assert sample(SCORES, SamplingParams(temperature=0, logit_bias={4: 5.0})) == 4
    assert sample(SCORES, SamplingParams(temperature=0, allowed_token_ids=[0, 3])) == 0
    assert sample(SCORES, SamplingParams(temperature=0, repetition_penalty=1.5), prompt=[1]) == 2
    assert sample(SCORES, SamplingParams(temperature=0, frequency_penalty=1.5), reply=[1, 1, 2]) == 2
    seen: list[list[int]] = []

    def processor(ids: list[int], scores: Any) -> Any:
        seen.append(ids)
        return -scores

    assert sample(SCORES, SamplingParams(temperature=0, processors=[processor]), prompt=[4], reply=[0]) == 3
    assert seen == [[4, 0]]


def test_presence_counts_once() -> None:
    params = SamplingParams(temperature=0, presence_penalty=1.0)
    assert sample(gp.asarray([3.0, 2.5], "float32"), params, reply=[0, 0, 0]) == 1
    assert sample(gp.asarray([3.0, 1.9], "float32"), params, reply=[0, 0, 0]) == 0


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    seed=st.integers(0, 1000), top_k=st.integers(0, 400), top_p=st.sampled_from([0.05, 0.5, 1.0]),
    min_p=st.sampled_from([0.0, 0.1]), temperature=st.sampled_from([0.5, 2.0]),
)  # fmt: skip
def test_only_what_the_limits_leave_is_drawn(
    seed: int, top_k: int, top_p: float, min_p: float, temperature: float
) -> None:
    scores = np.random.default_rng(seed).standard_normal(300).astype(np.float32)
    order = np.argsort(-scores, kind="stable")
    if top_k:
        order = order[:top_k]
    weights = np.exp(scores[order].astype(np.float64) / temperature)
    share = weights / weights.sum()
    kept = order[(np.cumsum(share) - share < top_p + 1e-5) & (share >= min_p * share[0] * (1 - 1e-5))]
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    drawn = {sample(gp.from_numpy(scores), params, seed=seed, position=i) for i in range(4)}
    assert drawn <= set(kept.tolist())


def test_a_draw_depends_on_seed_and_place_alone() -> None:
    scores = gp.from_numpy(np.random.default_rng(1).standard_normal(50).astype(np.float32))
    params = SamplingParams()
    first = [sample(scores, params, seed=3, position=i) for i in range(20)]
    assert first == [sample(scores, params, seed=3, position=i) for i in range(20)]
    assert first != [sample(scores, params, seed=4, position=i) for i in range(20)]
    assert len(set(first)) > 5


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_best_tokens_and_the_given_one(count: int) -> None:
    logits = np.random.default_rng(2).standard_normal((2, 30)).astype(np.float32)
    exact = logits - np.log(np.exp(logits.astype(np.float64)).sum(axis=1, keepdims=True))
    for row, token, expected in zip(best(gp.from_numpy(logits), [4, 9], count), [4, 9], exact, strict=True):
        assert set(row) == {token, *np.argsort(-expected)[:count].tolist()}
        np.testing.assert_allclose([row[i] for i in row], [expected[i] for i in row], atol=1e-5)
