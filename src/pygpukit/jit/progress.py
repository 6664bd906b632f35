"""A sign of life on stderr when a compile takes long."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from pygpukit.config import read_settings

__all__ = ["progress"]

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
