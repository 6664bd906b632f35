"""`pygpukit chat`: a conversation in the terminal."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from pygpukit.cli import model
from pygpukit.errors import ContextLengthError

if TYPE_CHECKING:
    from pygpukit.llm import LLM, RequestOutput, SamplingParams

__all__ = ["add_parser"]

_HELP = "/clear begins anew, /think shows or hides thoughts, /stats what replies took, /quit ends; Ctrl-C stops a reply"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``chat`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("chat", help="talk to a language model", epilog=_HELP)
    parser.add_argument("model", metavar="MODEL", nargs="?", default="smollm2",
                        help="folder, .safetensors, .index.json, .gguf; smollm2 by default")  # fmt: skip
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    model.add_sampling(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    if hasattr(sys.stdout, "reconfigure"):
        # A terminal without UTF-8 shows a mark in place of what it cannot.
        sys.stdout.reconfigure(errors="replace")
    llm = model.load(args)
    return _Chat(llm, model.sampling(args, llm), args.system).run()


class _Chat:
    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm, self._params, self._system = llm, params, system
        self._thinks = True
        self._last: RequestOutput | None = None
        self._clear()

    def run(self) -> int:
        print(f"{self._llm.name}. {_HELP}")
        while True:
            try:
                line = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return 0
            if line == "/quit":
                return 0
            if line == "/clear":
                self._clear()
            elif line == "/think":
                self._thinks = not self._thinks
                print("thoughts are shown" if self._thinks else "no thoughts")
            elif line == "/stats":
                self._stats()
            elif line.startswith("/"):
                print(_HELP)
            elif line:
                self._reply(line)

    def _clear(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def _reply(self, line: str) -> None:
        messages = [*self._messages, {"role": "user", "content": line}]
        said: list[str] = []
        try:
            values = {"enable_thinking": self._thinks}
            with closing(self._llm.chat_stream(messages, self._params, template_kwargs=values)) as pieces:
                for piece in pieces:
                    said.append(piece.text)
                    print((piece.thinking if self._thinks else "") + piece.text, end="", flush=True)
                    self._last = piece.output or self._last
            print()
        except KeyboardInterrupt:
            print("\n(stopped)")
        except ContextLengthError as error:
            print(f"{error}; /clear begins anew")
            return
        # What was stopped has been said too.
        self._messages = [*messages, {"role": "assistant", "content": "".join(said)}]

    def _stats(self) -> None:
        counts = self._llm.stats()
        print(", ".join(f"{value} {name.replace('_', ' ')}" for name, value in counts.items()))
        if self._last is not None:
            usage, timing = self._last.usage, self._last.timing
            print(
                f"last reply: {usage.prompt} tokens of prompt, {usage.completion} of reply, first after "
                f"{timing.first_token:.2f} s, then {timing.rate(usage.completion):.1f} a second, ended by "
                f"{self._last.finish_reason}"
            )
