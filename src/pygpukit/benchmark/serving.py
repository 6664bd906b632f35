"""Rows of section ``llm`` about requests: arrivals, prompts with a known beginning, loading, two engines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

import pygpukit as gp

if TYPE_CHECKING:
    from pygpukit.llm import LLM

__all__ = ["PART", "Pair", "beside", "loads", "params", "prefixes", "serving"]

# Seconds of ours, and of what they are held against.
Pair = tuple[tuple[float, ...], tuple[float, ...]]

PART = 0.9
"""Of a prompt that is in the cache."""

_SIGMA = 0.8
_LONGEST = 4
_MOST_REPLIES = 256
_MOST_LOADS = 3
_COPIED = 1 << 30
# Tokens of prompts of an engine that is to decode most of the time.
_SHORT = 16


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


def beside(
    make: Callable[..., LLM],
    prompt: Callable[[int], list[int]],
    memory: str,
    size: int,
    lengths: tuple[int, int],
    long: int,
    rounds: int,
) -> dict[str, Pair]:
    """Return seconds between tokens of an engine that is promised half of the SMs, beside another one and alone.

    Parameters
    ----------
    make : callable
        Loads the model, with options of `LLM`.
    prompt : callable
        Makes a prompt of so many tokens.
    memory : str
        Of each engine.
    size : int
        Replies of the other engine at once.
    lengths : (int, int)
        Tokens of prompts, and of replies of both.
    long : int
        Tokens of the other engine's prompts, where prompts are all it does.
    rounds : int
        Replies, of which each gives a median and a 99th percentile.

    Returns
    -------
    dict
        By what the other engine does, and quantile.
    """
    from pygpukit.scheduler import Scheduler

    with (
        Scheduler() as scheduler,
        make(policy="guaranteed", bandwidth=0.5, memory=memory, scheduler=scheduler) as chat,
        make(policy="besteffort", memory=memory, scheduler=scheduler) as batch,
    ):

        def decode() -> None:
            batch.generate([prompt(_SHORT) for _ in range(size)], params(lengths[1]))

        def prefill() -> None:
            batch.generate(prompt(long), params(1))

        def replies() -> list[list[float]]:
            return [_gaps(chat, prompt(lengths[0]), lengths[1]) for _ in range(rounds + 1)][1:]

        decode()
        prefill()
        alone, found = replies(), {}
        for name, work in (("decoding", decode), ("prefilling", prefill)):
            with _busy(work):
                both = replies()
            for quantile in (50, 99):
                seconds = [tuple(float(np.percentile(part, quantile)) for part in parts) for parts in (both, alone)]
                found[f"{name} p{quantile}"] = seconds[0], seconds[1]
        return found


def _gaps(engine: LLM, prompt: list[int], new: int) -> list[float]:
    """Seconds between the tokens of a reply, in the engine's thread."""
    times: list[float] = []
    request = engine.submit(prompt, params(new))
    request.on_change(lambda: times.append(time.perf_counter()))
    request.result()
    # The first time is that of the call.
    return [float(gap) for gap in np.diff(times[1:])]


@contextmanager
def _busy(work: Callable[[], None]) -> Iterator[None]:
    """Do something again and again in another thread while the block runs."""
    stop, failures = threading.Event(), []

    def run() -> None:
        try:
            while not stop.is_set():
                work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]
