"""Rows of section ``llm`` that are about requests: arrivals, prompts with a known beginning, and loading."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

import pygpukit as gp

if TYPE_CHECKING:
    from pygpukit.llm import LLM

__all__ = ["PART", "Pair", "loads", "params", "prefixes", "serving"]

# Seconds of ours, and of what they are held against.
Pair = tuple[tuple[float, ...], tuple[float, ...]]

PART = 0.9
"""Of a prompt that is in the cache."""

_SIGMA = 0.8
_LONGEST = 4
_MOST_REPLIES = 256
_MOST_LOADS = 3
_COPIED = 1 << 30


def params(new: int) -> Any:
    """Sampled replies of so many tokens."""
    from pygpukit.llm import SamplingParams

    return SamplingParams(temperature=1.0, max_tokens=new, ignore_eos=True)


def prefixes(engine: LLM, prompt: Callable[[int], list[int]], tokens: int, rounds: int) -> Pair:
    """Return seconds to the first token of prompts whose beginning is in the cache, and of the same ones without."""
    known = int(PART * tokens)
    ours: list[float] = []
    cold: list[float] = []
    for _ in range(rounds + 1):
        start = prompt(known)
        for kept in (cold, ours):
            whole = [*start, *prompt(tokens - known)]
            begun = time.perf_counter()
            out = engine.generate(whole, params(1))
            kept.append(time.perf_counter() - begun)
        if not out.usage.cached > known - 2 * 16:
            raise RuntimeError(f"{out.usage.cached} of {known} known tokens were found in the cache")
    return tuple(ours[1:]), tuple(cold[1:])


def loads(make: Callable[[], LLM], nbytes: int, rounds: int) -> Pair:
    """Return seconds to load a model, and to copy as many bytes from page-locked memory."""
    ours = []
    for _ in range(min(rounds, _MOST_LOADS)):
        begun = time.perf_counter()
        made = make()
        ours.append(time.perf_counter() - begun)
        made.close()
    size = min(_COPIED, nbytes)
    host = gp.empty_pinned((size,), "uint8")
    host[:] = 1
    copies = []
    for _ in range(_MOST_LOADS + 1):
        begun = time.perf_counter()
        gp.copy_to_device(host).wait()
        copies.append((time.perf_counter() - begun) * nbytes / size)
    return tuple(ours), tuple(copies[1:])


def serving(
    engine: LLM, prompt: Callable[[int], list[int]], requests: int, lengths: tuple[int, int], seed: int
) -> Pair:
    """Return seconds per token of requests that arrive twice as fast as they can be served, and of a static batch.

    Lengths of prompts and replies are lognormal with these means. The batch has as many replies as a step of the
    others had on average, all of the mean length.
    """
    rng = np.random.default_rng(seed)
    sizes = zip(*(_lognormal(rng, mean, requests) for mean in lengths), strict=True)
    asked = [(prompt(before), params(after)) for before, after in sizes]
    most = min(_MOST_REPLIES, requests)
    # Requests a second that a full engine serves.
    capacity = most / _static(engine, prompt, most, lengths)
    arrivals = np.cumsum(rng.exponential(1 / (2 * capacity), requests)).tolist()
    steps, begun = engine.stats()["steps"], time.perf_counter()
    made = []
    for (ids, settings), at in zip(asked, arrivals, strict=True):
        time.sleep(max(0.0, begun + at - time.perf_counter()))
        made.append(engine.submit(ids, settings))
    tokens = sum(request.result().usage.completion for request in made)
    spent, steps = time.perf_counter() - begun, engine.stats()["steps"] - steps
    size = max(1, round(tokens / steps))
    static = _static(engine, prompt, size, lengths) / (size * lengths[1])
    return (spent / tokens,), (static,)


def _static(engine: LLM, prompt: Callable[[int], list[int]], size: int, lengths: tuple[int, int]) -> float:
    """Seconds of a batch of equal requests, prompts included."""
    prompts = [prompt(lengths[0]) for _ in range(size)]
    begun = time.perf_counter()
    engine.generate(prompts, params(lengths[1]))
    return time.perf_counter() - begun


def _lognormal(rng: np.random.Generator, mean: int, count: int) -> list[int]:
    drawn = rng.lognormal(np.log(mean) - _SIGMA**2 / 2, _SIGMA, count)
    return [int(n) for n in np.clip(drawn, 1, _LONGEST * mean)]
