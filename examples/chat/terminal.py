"""What the chat programs beside this file share: their flags, a tiny model, and the lines that a user types."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any


def parser(description: str | None, *, models: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return the flags that both programs take; `models` says what a model may be."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", required=True, help=f"{models}; tiny for a random one")
    made.add_argument("--tokenizer", help="tokenizer.json; the one beside the model by default")
    made.add_argument("--max-seq-len", type=int, help="tokens of a conversation (%(default)s)")
    made.add_argument("--max-new-tokens", type=int, help="length of a reply (%(default)s)")
    made.add_argument("--temperature", type=float, help="0 takes the best token (%(default)s)")
    made.add_argument("--top-k", type=int, help="only the best K tokens (%(default)s)")
    made.add_argument("--top-p", type=float, help="only the best that together have this (%(default)s)")
    made.add_argument("--system", help="what the model is told first")
    made.add_argument("--repetition-penalty", type=float, help="1 for none (%(default)s)")
    made.add_argument("--dtype", default="bfloat16", choices=("float16", "bfloat16", "float32"))
    made.set_defaults(**defaults)
    return made


def tiny(folder: str) -> Path:
    """Write a tiny random model."""
    from pygpukit.llm.testing import tiny_model

    return tiny_model("qwen3", Path(folder) / "tiny")


def typed(conversation: list[Any], commands: Mapping[str, Callable[[], str]]) -> Iterator[str]:
    """Return an iterator of what the user says, up to /quit or the end of the input.

    /clear forgets the conversation; `commands` are others, each of which returns what is printed.
    """
    while True:
        try:
            line = input("\nYou: ").strip()
        except (EOFError, KeyboardInterrupt):
            return
        if line == "/quit":
            return
        if line == "/clear":
            conversation.clear()
            print("cleared")
        elif line in commands:
            print(commands[line]())
        elif line:
            yield line
