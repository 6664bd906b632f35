"""A pipeline of host actors: a coroutine that cuts text into lines, threads that count words, one that adds up.

python examples/host_actors.py
python examples/host_actors.py --lines 100000 --workers 8
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter

from pygpukit.ring import RingKernelRuntime, message, ring_kernel

WORDS = ("a ring of actors passes messages on", "one to the next", "each message to one actor")


@message
class Text:
    lines: list[str]


@message
class Counts:
    words: dict[str, int]


@message
class Question:
    word: str


def define(workers: int) -> list[str]:
    """The actors; returns their ids."""

    @ring_kernel(kernel_id="splitter", input_type=Text)
    async def splitter(ctx):  # type: ignore[no-untyped-def]
        turn = 0
        while not ctx.should_terminate:
            text = await ctx.receive()
            for at in range(0, len(text.lines), 100):
                await ctx.send(Text(text.lines[at : at + 100]), to=f"worker-{turn % workers}")
                turn += 1

    def count(ctx):  # type: ignore[no-untyped-def]
        while not ctx.should_terminate:
            found = Counter(word for line in ctx.receive().lines for word in line.split())
            ctx.send(Counts(dict(found)), to="total")

    for number in range(workers):
        ring_kernel(kernel_id=f"worker-{number}", input_type=Text, queue_size=16)(count)

    @ring_kernel(kernel_id="total", output_type=Counts)
    async def total(ctx):  # type: ignore[no-untyped-def]
        sums: Counter[str] = Counter()
        while not ctx.should_terminate:
            got = await ctx.receive()
            if isinstance(got, Question):
                await ctx.send(Counts({got.word: sums[got.word]}))
            else:
                sums.update(got.words)

    return ["total", *(f"worker-{number}" for number in range(workers)), "splitter"]


async def run(lines: int, workers: int) -> None:
    """Send the text, wait until it is counted, ask, and show what every actor did."""
    text = [WORDS[at % len(WORDS)] for at in range(lines)]
    expected = Counter(word for line in text for word in line.split())["message"]
    async with RingKernelRuntime() as runtime:
        for kernel in define(workers):
            await runtime.launch(kernel)
            await runtime.activate(kernel)
        start = time.perf_counter()
        await runtime.send("splitter", Text(text))
        # Ended one after the other, each with everything it was sent done.
        for kernel in ["splitter", *(f"worker-{number}" for number in range(workers))]:
            await runtime.terminate(kernel)
        answer = await runtime.send_and_receive("total", Question("message"))
        seconds = time.perf_counter() - start
        print(f"{lines} lines in {seconds:.3f} s; 'message' was counted {answer.words['message']} times")
        print(f"as expected: {answer.words['message'] == expected}")
    for kernel, figures in runtime.get_all_telemetry().items():
        print(f"{kernel:10} received {figures.received:5} processed {figures.processed:5} {figures.state.name}")


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=10_000, help="lines of text")
    parser.add_argument("--workers", type=int, default=4, help="threads that count")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.lines, arguments.workers))


if __name__ == "__main__":
    main()
