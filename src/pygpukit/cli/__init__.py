"""The `pygpukit` command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pygpukit import _pygpukit_rust as _native
from pygpukit.cli import audio, bench, cache, chat, demo, generate, info, model, status, top
from pygpukit.config import read_settings
from pygpukit.errors import GPUKitError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        Arguments after the program's name; the process's own by default.

    Examples
    --------
    >>> main(["cache", "list", "--json"]) in (0, 1)  # doctest: +SKIP
    True
    """
    parser = argparse.ArgumentParser(prog="pygpukit", description="A small GPU runtime for Python.")
    parser.add_argument("--version", action="version", version=f"pygpukit {_native.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info.add_parser(commands)
    demo.add_parser(commands)
    bench.add_parser(commands)
    cache.add_parser(commands)
    status.add_parser(commands)
    top.add_parser(commands)
    chat.add_parser(commands)
    generate.add_parser(commands)
    model.add_parser(commands)
    audio.add_parser(commands)
    args = parser.parse_args(argv)
    try:
        read_settings()
    except ValueError as error:
        # A wrong variable is a wrong argument, and every command would stumble over it.
        print(f"pygpukit: {error}", file=sys.stderr)
        return 2
    try:
        code: int = args.run(args)
        return code
    except GPUKitError as error:
        print(f"pygpukit: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return 1
