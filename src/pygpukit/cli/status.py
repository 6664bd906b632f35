"""`pygpukit status`: what the schedulers of this user's processes do now."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

__all__ = ["add_parser", "nothing", "nothing_text", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``status`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("status", help="partitions and tasks of running schedulers, and why tasks wait")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--pid", type=int, help="only the schedulers of this process")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit status``."""
    from pygpukit.scheduler.publish import ask

    answers: list[dict[str, Any]] = ask(args.pid)
    if args.json:
        print(json.dumps(answers, indent=2))
        return 0
    if not answers:
        return nothing(args.pid)
    from pygpukit.cli.board import board, console

    screen = console()
    for answer in answers:
        screen.print(board(answer, width=screen.width))
    return 0


def nothing(pid: int | None, what: str = "scheduler") -> int:
    """Say that nobody answered; a process that was asked for by number is missed."""
    if pid is None:
        print(nothing_text(what))
        return 0
    print(f"pygpukit: process {pid} has no {what} that answers; PYGPUKIT_STATUS=0 switches it off", file=sys.stderr)
    return 1


def nothing_text(what: str) -> str:
    """What is said where there is nothing to show."""
    return (
        f"no {what} runs in any process of this user.\n"
        'A program that makes one is seen here: try "pygpukit demo scheduler" in another terminal.'
    )
