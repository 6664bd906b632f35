"""The sign of life of a long compile."""

from __future__ import annotations

import io
import sys
import threading
from typing import Any

import pytest

from pygpukit.jit import progress as progress_module
from pygpukit.jit.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Timers that go off when the test says so."""
    made: list[Any] = []

    class Timer:
        def __init__(self, delay: float, function: Any) -> None:
            self.delay, self.function, self.cancelled, self.daemon = delay, function, False, False
            made.append(self)

        def start(self) -> None:
            assert self.daemon

        def cancel(self) -> None:
            self.cancelled = True

    monkeypatch.setattr(progress_module.threading, "Timer", Timer)
    monkeypatch.delenv("PYGPUKIT_QUIET")
    return made


def test_a_quick_compile_says_nothing(timers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with progress("compiling"):
        pass
    assert timers[0].cancelled
    assert timers[0].delay == 1.0
    # Going off too late changes nothing.
    timers[0].function()
    assert capsys.readouterr() == ("", "")


def test_a_long_one_says_one_line(timers: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    with progress("compiling kernel 'k'"):
        timers[0].function()
    assert capsys.readouterr() == ("", "pygpukit: compiling kernel 'k'\n")


def test_a_terminal_gets_a_line_that_goes_away(timers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("compiling [k]"):
        timers[0].function()
        with progress("compiling another"):
            timers[1].function()
    assert "compiling [k]" in terminal.getvalue()
    assert "pygpukit: compiling another\n" in terminal.getvalue()
    assert progress_module._terminal.acquire(blocking=False)
    progress_module._terminal.release()


def test_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYGPUKIT_QUIET", "1")
    before = threading.active_count()
    with progress("compiling", delay=0.0):
        assert threading.active_count() == before


def test_without_stderr(timers: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with progress("compiling"):
        timers[0].function()


def test_errors_pass_through(timers: list[Any]) -> None:
    with pytest.raises(KeyError), progress("compiling"):
        raise KeyError
    assert timers[0].cancelled
