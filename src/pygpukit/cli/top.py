"""`pygpukit top`: a moving view of the schedulers and ring kernels of this user's processes."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pygpukit.cli.status import nothing, nothing_text

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["add_parser", "run"]

_WHAT = "scheduler or ring"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``top`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("top", help="a moving view of running schedulers and ring kernels; q leaves it")
    parser.add_argument("--interval", type=_interval, default=0.5, metavar="SECONDS", help="between two looks (0.5)")
    parser.add_argument("--once", action="store_true", help="print one picture; so it is where there is no terminal")
    parser.add_argument("--pid", type=int, help="only this process")
    parser.set_defaults(run=run)


def _interval(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds >= 0.05):
        raise argparse.ArgumentTypeError(f"{text} is no interval: use 0.05 seconds or more")
    return seconds


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit top``."""
    from pygpukit.cli.board import Rates, actors, board, console
    from pygpukit.scheduler.publish import ask_all

    rates = Rates()

    def look(width: int) -> list[RenderableType]:
        schedulers, rings = ask_all(args.pid)
        return [
            *(board(answer, live=True, width=width) for answer in schedulers),
            *(actors(answer, rates, width) for answer in rings),
        ]

    if args.once or not sys.stdout.isatty():
        screen = console()
        shown = look(screen.width)
        for part in shown:
            screen.print(part)
        return 0 if shown else nothing(args.pid, _WHAT)

    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    screen = console()

    def picture() -> RenderableType:
        shown = look(screen.width) or [Text(nothing_text(_WHAT))]
        return Group(Text(time.strftime("%H:%M:%S  q leaves"), "dim"), *shown)

    # Ctrl-C is as good a way out as q.
    with (
        suppress(KeyboardInterrupt),
        _interrupts() as is_interrupted,
        _keys() as pressed,
        Live(picture(), console=screen, screen=True, auto_refresh=False) as live,
    ):
        while not is_interrupted() and pressed(args.interval) not in ("q", "Q"):
            live.update(picture(), refresh=True)
    return 0


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Remember Ctrl-C: an exception raised while an object is finalised would be lost."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Read single keys: the function waits for one, for so many seconds at most."""
    if not sys.stdin.isatty() or sys.platform == "win32":
        # No terminal to read from: Ctrl-C leaves.
        yield _no_key
        return
    import select
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
