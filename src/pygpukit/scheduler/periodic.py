"""Tasks with deadlines: releases, jobs, and whether they were in time."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pygpukit.errors import TaskCancelledError

if TYPE_CHECKING:
    from pygpukit.scheduler.task import Task

__all__ = ["run_jobs"]

# A job that has used its declared cost and so much more loses its place in front.
_COST_MARGIN = 1.15


def run_jobs(
    task: Task[Any],
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    jobs: int | None,
    request: Mapping[str, Any],
) -> Any:
    """Run a function once with a deadline, or once in every period.

    Returns
    -------
    object
        What the function returned last.
    """
    period = request.get("period")
    deadline = float(request.get("deadline") or period or 0.0)
    budget = float(request.get("cost") or deadline) * _COST_MARGIN
    figures = task._jobs
    figures.update(released=0, met=0, missed=0, skipped=0, worst_seconds=0.0, deadline_seconds=deadline)
    lease = task._lease
    assert lease is not None
    stream = lease.stream
    release = time.monotonic()
    outcome: Any = None
    while True:
        now = time.monotonic()
        lease.begin_job(release + deadline - now, budget)
        figures["released"] += 1
        try:
            outcome = fn(*args, **kwargs)
            if inspect.iscoroutine(outcome):
                outcome.close()
                raise ValueError("a coroutine cannot have a deadline: the event loop decides when it runs")
            # All of it is submitted: the next job follows it on the device, with no gap.
            lease.give_way()
            stream.synchronize()
        finally:
            lease.end_job()
        response = time.monotonic() - release
        figures["worst_seconds"] = max(figures["worst_seconds"], response)
        figures["met" if response <= deadline else "missed"] += 1
        if period is None or (jobs is not None and figures["released"] >= jobs):
            return outcome
        release += float(period)
        behind = time.monotonic() - release
        if behind > float(period):
            # Releases that have passed entirely are skipped, not piled up.
            lost = int(behind // float(period))
            figures["skipped"] += lost
            release += lost * float(period)
        _sleep_until(task, release)


def _sleep_until(task: Task[Any], release: float) -> None:
    """Wait for a release: asleep at first, awake for the last stretch."""
    while (left := release - time.monotonic()) > 0:
        if left > 0.0005:
            if task._cancel.wait(left - 0.0003):
                break
        elif task._cancel.is_set():
            break
    if task._cancel.is_set():
        raise TaskCancelledError(f"task '{task.name}' was cancelled")
