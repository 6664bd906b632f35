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
    parser.add_argument("--chat", action="store_true", help="the text is a message, to which the model replies")
    parser.add_argument(
        "--stop", metavar="TEXT", action="append", default=[], help="ends the reply; may be given again"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--schema", metavar="FILE", help="a JSON schema that the reply has")
    form.add_argument("--regex", metavar="PATTERN", help="an expression that the reply fits")
    parser.add_argument("--json", action="store_true", help="print JSON: text, tokens, why it ended, times")
    model.add_sampling(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    text = args.prompt if args.prompt is not None else _read(args.file)
    schema = None if args.schema is None else _read(args.schema)
    llm = model.load(args)
    params = model.sampling(args, llm, stop=args.stop, schema=schema, regex=args.regex)
    messages = [{"role": "user", "content": text}]
    with model.arguments_checked():
        if args.json:
            out = llm.chat(messages, params) if args.chat else llm.generate(text, params)
            print(json.dumps(dataclasses.asdict(out), indent=2))
            return 0
        pieces = llm.chat_stream(messages, params) if args.chat else llm.stream(text, params)
        try:
            for piece in pieces:
                print(piece.text, end="", flush=True)
        finally:
            # Also where Ctrl-C ends the reply: what there is of it is a line.
            print()
    return 0


def _read(name: str) -> str:
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LoadError(f"{name} cannot be read: {error}") from error
