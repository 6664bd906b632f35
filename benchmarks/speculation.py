"""Tokens per second of CPU time of a model that answers with and without speculation: a copy of a text, and a story.

    python benchmarks/speculation.py none ngram --model smollm2 --replies 4

Several replies at once copy different parts of the text, or tell stories of different animals. A method is what
``LLM(speculative=...)`` takes, a mapping as JSON. Replies of all methods are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path
from typing import Any

from pygpukit.llm import LLM, RequestOutput, SamplingParams

TEXT = Path(__file__).resolve().parents[1] / "tests" / "llm" / "perplexity.txt"
ANIMALS = ("fox", "bear", "wolf", "crow", "hare", "frog", "goat", "seal")


def words(task: str, number: int) -> str:
    """Return what one reply is asked for."""
    if task == "story":
        return f"Tell me a short story about a {ANIMALS[number % len(ANIMALS)]}."
    text = TEXT.read_text(encoding="utf-8")[40 * number : 40 * number + 700]
    return f"Repeat the following text exactly, word for word:\n\n{text}"


async def ask(llm: LLM, task: str, replies: int, tokens: int) -> list[RequestOutput]:
    """Return replies that are computed together."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    asked = [[{"role": "user", "content": words(task, number)}] for number in range(replies)]
    return await asyncio.gather(*(llm.achat(messages, params) for messages in asked))


def run(model: str, method: Any, rounds: int, tokens: int, replies: int) -> dict[str, tuple[Any, float, float, str]]:
    """Return for each task the tokens, tokens per second of CPU time and of time (medians), and the use of guesses."""
    made = {}
    with LLM(model, speculative=method) as llm:
        for task in ("copy", "story"):
            # The prompts are in the cache then.
            asyncio.run(ask(llm, task, replies, 1))
            times = []
            for _ in range(rounds):
                cpu, wall = time.process_time(), time.perf_counter()
                outs = asyncio.run(ask(llm, task, replies, tokens))
                times.append((time.process_time() - cpu, time.perf_counter() - wall))
            cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
            usages = [out.usage for out in outs]
            use = f"{sum(use.accepted for use in usages)} of {sum(use.drafted for use in usages)} guesses right"
            made[task] = [out.token_ids for out in outs], replies * tokens / cpu, replies * tokens / wall, use
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", help="none, ngram, or a mapping as JSON")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--replies", type=int, default=1)
    given = parser.parse_args()
    first = None
    for name in given.methods:
        method = None if name == "none" else json.loads(name) if name.startswith("{") else name
        found = run(given.model, method, given.rounds, given.tokens, given.replies)
        first = first or found
        for task, (ids, cpu, wall, use) in found.items():
            same = "same tokens" if ids == first[task][0] else "OTHER TOKENS"
            print(f"{name:30} {task:6} {cpu:7.1f} tokens per CPU second {wall:7.1f} per second, {use}, {same}")


if __name__ == "__main__":
    main()
