"""Functions that users give and the engine's thread calls: which one it is in, and how long its end waits for that."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

__all__ = ["call", "detach", "join"]

_T = TypeVar("_T")

# How long a function may take once the engine is to end, where the caller of close() says nothing.
CALLBACK_SECONDS = 5.0
_POLL_SECONDS = 0.1
_PACKAGE = str(Path(__file__).parents[1])


class Thread(Protocol):
    """What is to end: a thread, or a function that runs in a task's."""

    @property
    def ident(self) -> int | None:
        """Number of the thread that it runs in."""

    def is_alive(self) -> bool:
        """Whether it has not ended."""

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""


def call(what: str, function: Callable[..., _T], *arguments: Any) -> _T:
    """Return what a function of a user returns; `what` names its kind while it has not.

    Examples
    --------
    >>> call("processor", abs, -3)
    3
    """
    return function(*arguments)


def join(thread: Thread, timeout: float | None = None) -> None:
    """Wait for the end of an engine's thread.

    Parameters
    ----------
    thread : Thread
    timeout : float, optional
        Seconds. Without it a step may take as long as it does, but a function of the user only `CALLBACK_SECONDS`.

    Raises
    ------
    TimeoutError
        If it takes longer; the text names what the thread is in.
    """
    given: Any = timeout
    if given is not None and not (isinstance(given, int | float) and given >= 0):
        raise ValueError(f"timeout is {timeout!r:.80}, and must be a number of seconds, at least 0, or None")
    begun = since = time.monotonic()
    before: FrameType | None = None
    while thread.is_alive():
        thread.join(_POLL_SECONDS if timeout is None else min(_POLL_SECONDS, timeout))
        now = time.monotonic()
        frame = _called(thread)
        if frame is not before:
            before, since = frame, now
        late = frame is not None and now - since >= CALLBACK_SECONDS if timeout is None else now - begun >= timeout
        if late and thread.is_alive():
            name = _name(frame)
            # The error would keep the thread's arrays.
            frame = before = None
            raise TimeoutError(
                f"the engine has not ended: its thread is in {name} for {now - since:.1f} s. Memory and thread are "
                "free when that returns; close() can be called again then"
            )


def detach(error: BaseException) -> None:
    """Take the frames of the engine's thread from an error, which would keep the arrays of its step.

    A note has what a traceback would show: the lines of a user's function, else the last ones.
    """
    chained: list[BaseException | None] = [error]
    while chained:
        one = chained.pop()
        if one is None or one.__traceback__ is None:
            continue
        place: TracebackType | None = one.__traceback__
        while place is not None and place.tb_frame.f_code is not call.__code__:
            place = place.tb_next
        own = None if place is None else place.tb_next
        lines = traceback.extract_tb(one.__traceback__)[-3:] if own is None else traceback.extract_tb(own)
        one.add_note("In the engine's thread:\n" + "".join(traceback.format_list(lines)).rstrip())
        one.__traceback__ = None
        if isinstance(one, AttributeError):
            # It may be an array.
            one.obj = None
        chained += [one.__cause__, one.__context__]


def _called(thread: Thread) -> FrameType | None:
    """The frame of `call` that a thread is in, if the function it calls is a user's."""
    frame = sys._current_frames().get(thread.ident or 0)
    foreign = False
    while frame is not None:
        if frame.f_code is call.__code__:
            # Drafters may be the package's own.
            own = str(getattr(frame.f_locals["function"], "__module__", "")).startswith("pygpukit.")
            return frame if foreign or not own else None
        foreign = foreign or not frame.f_code.co_filename.startswith(_PACKAGE)
        frame = frame.f_back
    return None


def _name(frame: FrameType | None) -> str:
    if frame is None:
        return "a step"
    function = frame.f_locals["function"]
    name = getattr(function, "__qualname__", None) or f"{function!r:.80}"
    code = getattr(function, "__code__", None)
    place = "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
    return f"the {frame.f_locals['what']} {name}{place}"
