"""Signs of life on stderr when a compile or a load takes long."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pygpukit.config import read_settings

__all__ = ["progress", "progress_bar"]

_DELAY = 1.0
# Two moving lines on one terminal would overwrite each other.
_terminal = threading.Lock()


class _Stoppable(Protocol):
    def stop(self) -> None: ...


@contextmanager
def progress(text: str, delay: float = _DELAY) -> Iterator[None]:
    """Show `text` if the block takes longer than `delay` seconds; never with PYGPUKIT_QUIET=1.

    A terminal gets a moving line that goes away at the end, anything else one plain line.
    """
    if read_settings().quiet:
        yield
        return
    line = _Line(text)
    timer = threading.Timer(delay, line.show)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.close()


@contextmanager
def progress_bar(
    text: str, total: int, *, always: bool = False, delay: float = _DELAY
) -> Iterator[Callable[[int], None]]:
    """Give a function that shows how many bytes of `total` are done, as a bar on a terminal that goes away at the end.

    Nothing is shown in the first `delay` seconds, elsewhere than on a terminal, or with PYGPUKIT_QUIET=1; `always`
    shows it at once and wherever stderr goes.
    """
    bar: _Bar | None = None
    start = time.monotonic()

    def show(done: int) -> None:
        nonlocal bar
        if bar is None and sys.stderr is not None and (always or _is_due(start, delay)):
            bar = _Bar(text, total) if _terminal.acquire(blocking=False) else None
        if bar is not None:
            bar.show(done)

    try:
        yield show
    finally:
        if bar is not None:
            bar.close()
            _terminal.release()


def _is_due(start: float, delay: float) -> bool:
    return time.monotonic() - start >= delay and sys.stderr.isatty() and not read_settings().quiet


class _Bar:
    def __init__(self, text: str, total: int) -> None:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        columns = (TextColumn(escape(text)), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("", total=total)
        self._progress.start()

    def show(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def close(self) -> None:
        self._progress.stop()


class _Line:
    def __init__(self, text: str) -> None:
        self._text = text
        self._lock = threading.Lock()
        self._closed = False
        self._status: _Stoppable | None = None

    def show(self) -> None:
        """Called by the timer, at any moment up to and even after `close`."""
        with self._lock:
            if self._closed:
                return
            # A program without a console has no stderr.
            if sys.stderr is None:
                return
            if sys.stderr.isatty() and _terminal.acquire(blocking=False):
                self._status = _moving_line(self._text)
            else:
                print(f"pygpukit: {self._text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._status is not None:
                self._status.stop()
                self._status = None
                _terminal.release()


def _moving_line(text: str) -> _Stoppable:
    from rich.console import Console
    from rich.markup import escape

    status = Console(stderr=True).status(escape(text))
    status.start()
    return status
