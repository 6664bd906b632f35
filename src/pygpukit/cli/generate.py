"""`pygpukit generate`: the text that a model continues a prompt with."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from pygpukit.cli import model
from pygpukit.errors import LoadError

__all__ = ["add_parser"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``generate`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("generate", help="continue a text with a language model")
    parser.add_argument("model", metavar="MODEL", help="folder, .safetensors, .index.json, .gguf, or smollm2")
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", metavar="TEXT", help="the text")
    prompt.add_argument("-f", "--file", metavar="FILE", help="a file with the text; - is the standard input")
    parser.add_argument("--json", action="store_true", help="print JSON: text, tokens, why it ended, times")
    model.add_sampling(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    text = args.prompt if args.prompt is not None else _read(args.file)
    llm = model.load(args)
    params = model.sampling(args, llm)
    if args.json:
        print(json.dumps(dataclasses.asdict(llm.generate(text, params)), indent=2))
        return 0
    for piece in llm.stream(text, params):
        print(piece.text, end="", flush=True)
    print()
    return 0


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{name} cannot be read: {error}") from error
