"""Failures that no caller asks for: logged when the task is dropped or the program ends, and said once."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from checks import PATIENCE, await_state, until_cancelled

from pygpukit.scheduler import Scheduler, Task


def fail() -> None:
    raise ValueError("lost")


def ended(scheduler: Scheduler) -> Task[None]:
    task = scheduler.submit(fail, name="loser")
    assert task.wait(PATIENCE)
    return task


def test_a_dropped_failure_is_logged(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    ended(scheduler)
    with caplog.at_level(logging.ERROR, "pygpukit.scheduler"):
        # The worker's thread may be about to let go of it.
        while not caplog.records:
            gc.collect()
    (record,) = caplog.records
    assert "'loser' failed, and its result was never asked for" in record.getMessage()
    assert "ValueError('lost') (" in record.getMessage()
    assert f"{Path(__file__).name}:{fail.__code__.co_firstlineno + 1}" in record.getMessage()


def test_a_failure_that_was_seen_is_not_logged(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    async def wait() -> None:
        await scheduler.submit(fail)

    with pytest.raises(ValueError, match="lost"):
        ended(scheduler).result()
    with pytest.raises(ValueError, match="lost"):
        asyncio.run(wait())
    with pytest.raises(ValueError, match="lost"), scheduler.task():
        fail()
    assert str(ended(scheduler).exception()) == "lost"
    cancelled = scheduler.submit(until_cancelled)
    await_state(cancelled, "running")
    cancelled.cancel()
    cancelled.wait(PATIENCE)
    del cancelled
    gc.collect()
    assert not caplog.records


def test_the_end_reports_what_no_caller_has_seen(run_python: Callable[..., str]) -> None:
    program = """
import sys
sys.stderr = sys.stdout
from pygpukit.scheduler import Scheduler
def fail():
    raise ValueError("lost")
scheduler = Scheduler()
task = scheduler.submit(fail, name="loser")
task.wait()
print("end")
"""
    out = run_python(program)
    assert out.startswith("end\n")
    assert out.count("'loser' failed") == 1
    assert "ValueError('lost')" in out
