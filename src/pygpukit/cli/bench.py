"""`pygpukit bench`: how far each operator is from what the machine can do, and from its peer."""

from __future__ import annotations

import argparse

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``bench`` to the parser of ``pygpukit``."""
    from pygpukit.benchmark.command import add_arguments

    parser = subparsers.add_parser("bench", help="measure operators against the machine's limits and their peers")
    add_arguments(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit bench``."""
    from pygpukit.benchmark.command import run as measure

    return measure(args)
