"""Tokens per second of CPU time of a model that answers with and without speculation: a copy of a text, and a story.

    python benchmarks/speculation.py none ngram --model smollm2

A method is what ``LLM(speculative=...)`` takes, a mapping as JSON. Replies of all methods are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from pygpukit.llm import LLM, SamplingParams

TEXT = Path(__file__).resolve().parents[1] / "tests" / "llm" / "perplexity.txt"
TASKS = {
    "copy": "Repeat the following text exactly, word for word:\n\n" + TEXT.read_text(encoding="utf-8")[:700],
    "story": "Tell me a short story about a fox.",
}


def run(model: str, method: Any, rounds: int, tokens: int) -> dict[str, tuple[list[int], float, float, Any]]:
    """Return for each task the tokens, tokens per second of CPU time and of time (medians), and the use of guesses."""
    made = {}
    with LLM(model, speculative=method) as llm:
        for task, words in TASKS.items():
            messages = [{"role": "user", "content": words}]
            # The prompt is in the cache then.
            llm.chat(messages, SamplingParams(temperature=0, max_tokens=1))
            times = []
            for _ in range(rounds):
                cpu, wall = time.process_time(), time.perf_counter()
                out = llm.chat(messages, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
                times.append((time.process_time() - cpu, time.perf_counter() - wall))
            cpu, wall = (statistics.median(column) for column in zip(*times, strict=True))
            made[task] = out.token_ids, tokens / cpu, tokens / wall, out.usage
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", help="none, ngram, or a mapping as JSON")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    given = parser.parse_args()
    first = None
    for name in given.methods:
        method = None if name == "none" else json.loads(name) if name.startswith("{") else name
        found = run(given.model, method, given.rounds, given.tokens)
        first = first or found
        for task, (ids, cpu, wall, usage) in found.items():
            same = "same tokens" if ids == first[task][0] else "OTHER TOKENS"
            print(
                f"{name:30} {task:6} {cpu:7.1f} tokens per CPU second {wall:7.1f} per second, "
                f"{usage.accepted} of {usage.drafted} guesses right, {same}"
            )


if __name__ == "__main__":
    main()
