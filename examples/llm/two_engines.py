"""A guaranteed chat model beside a besteffort batch model on one GPU, and the latencies of both, alone and together.

python examples/llm/two_engines.py
python examples/llm/two_engines.py --chat PATH --batch PATH --share 0.5 --memory 40GiB --tokens 200 --prompt 4096

Without paths both models are tiny random ones. On the CPU device lanes are worker threads on the processor's cores, so
the figures there show that the program runs and promise no latency.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections.abc import Callable

import numpy as np

import pygpukit as gp
from pygpukit.llm import LLM, SamplingParams
from pygpukit.llm.testing import tiny_gguf
from pygpukit.scheduler import Scheduler


def prompt(llm: LLM, tokens: int, seed: int) -> list[int]:
    """Random tokens, which no cache has seen."""
    return [int(n) for n in np.random.default_rng(seed).integers(3, llm.config.vocab_size, tokens)]


def gaps(llm: LLM, count: int, length: int, tokens: int, seed: int) -> list[float]:
    """Time some replies that are computed together; returns the seconds between tokens of the first."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    requests = [llm.submit(prompt(llm, length, seed + i), params) for i in range(count)]
    times: list[float] = []
    # In the engine's thread: this one may have to wait for the interpreter.
    requests[0].on_change(lambda: times.append(time.perf_counter()))
    for request in requests:
        request.result()
    # The first time is that of the call, not of a token.
    return np.diff(times[1:]).tolist()


class Neighbour:
    """Keeps an engine busy while the block runs, and collects the gaps of its replies."""

    def __init__(self, work: Callable[[int], list[float]]) -> None:
        self.gaps: list[float] = []
        self._work, self._stop = work, threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        seed = 1_000_000
        try:
            while not self._stop.is_set():
                self.gaps += self._work(seed)
                seed += 1000
        except BaseException as error:
            self._failure = error

    def __enter__(self) -> Neighbour:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure


def show(what: str, seconds: list[float], alone: list[float] | None = None) -> None:
    """Print p50 and p99, and what they are of those alone."""
    p50, p99 = np.quantile(seconds, (0.5, 0.99))
    line = f"{what:<34} p50 {p50 * 1e3:8.3f} ms   p99 {p99 * 1e3:8.3f} ms   {len(seconds):5} gaps"
    if alone is not None:
        ratios = (p50, p99) / np.quantile(alone, (0.5, 0.99))
        line += f"   {ratios[0]:.2f} and {ratios[1]:.2f} of alone"
    print(line)


def describe(name: str, llm: LLM) -> None:
    """Print what the scheduler gave an engine."""
    row = llm.stats()["task"]
    lane = f"{row['mode']:<10} {row['sm_count']:>4} SMs"
    memory = f"{row['memory_peak'] / 2**20:10.1f} MiB   {row['evictions']} evictions"
    print(f"{name:<6} {row['policy']:<11} {lane}   {row['gpu_seconds']:8.3f} s on them   {memory}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chat", help="the guaranteed model (default: a tiny random one)")
    parser.add_argument("--batch", help="the besteffort model (default: a tiny random one)")
    parser.add_argument("--share", type=float, default=0.5, help="compute guaranteed to the chat model (default: 0.5)")
    parser.add_argument("--memory", default="32MiB", help="memory of each engine (default: 32MiB)")
    parser.add_argument("--tokens", type=int, default=40, help="tokens of a reply (default: 40)")
    parser.add_argument("--replies", type=int, default=4, help="replies of the chat model in a row (default: 4)")
    parser.add_argument("--size", type=int, default=8, help="replies of the batch model at once (default: 8)")
    parser.add_argument("--prompt", type=int, default=200, help="tokens of a long prompt (default: 200)")
    args = parser.parse_args()

    with (
        tempfile.TemporaryDirectory() as folder,
        Scheduler() as scheduler,
        LLM(
            args.chat or tiny_gguf(f"{folder}/chat.gguf"), policy="guaranteed", bandwidth=args.share,
            memory=args.memory, scheduler=scheduler,
        ) as chat,
        LLM(
            args.batch or tiny_gguf(f"{folder}/batch.gguf", seed=1), policy="besteffort", memory=args.memory,
            scheduler=scheduler,
        ) as batch,
    ):  # fmt: skip
        on_gpu = scheduler.device.kind == "cuda"
        capacity = scheduler.status()["capacity"]
        print(f"{scheduler.device.name}: {capacity['sms']} SMs, shared by {capacity['mechanism']}")
        if not on_gpu:
            print("no GPU: lanes are threads on the processor's cores, and these figures promise no latency")
        print("time between tokens\n")

        def talk(seed: int) -> list[float]:
            return [gap for n in range(args.replies) for gap in gaps(chat, 1, 16, args.tokens, seed + n)]

        def decode(seed: int) -> list[float]:
            return gaps(batch, args.size, 16, args.tokens, seed)

        def prefill(seed: int) -> list[float]:
            # Two tokens: the step after a long prompt is the gap.
            return gaps(batch, args.size, args.prompt, 2, seed)

        for warm in (talk, decode, prefill):
            warm(0)
        alone = talk(100)
        show("chat, alone", alone)
        with Neighbour(decode) as decoding:
            show("chat, beside a batch that decodes", talk(200), alone)
        with Neighbour(prefill):
            show("chat, beside a batch of prompts", talk(300), alone)
        batch_alone = [gap for n in range(2) for gap in decode(400 + 100 * n)]
        show("batch, alone", batch_alone)
        show("batch, beside the chat", decoding.gaps, batch_alone)
        print()
        describe("chat", chat)
        describe("batch", batch)
    gp.synchronize()


if __name__ == "__main__":
    main()
