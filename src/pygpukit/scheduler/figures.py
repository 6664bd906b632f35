"""What is told of one task: what it asked for, what it got, and what it waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pygpukit import _pygpukit_rust as _native
    from pygpukit.scheduler.task import Task

__all__ = ["figures_of", "row_of"]


def figures_of(task: Task[Any], lease: _native.TaskLease) -> dict[str, Any]:
    """What a task that has its place on the device has used until now."""
    figures: dict[str, Any] = dict(lease.stats())
    memory = lease.pool.stats()
    figures["memory"] = memory["used"]
    figures["memory_peak"] = memory["peak"]
    figures["enforcement"] = "full" if task._libraries is None else task._libraries.enforcement
    if task._process is not None:
        figures.update(task._process.figures(lease))
    return figures


def row_of(task: Task[Any]) -> dict[str, Any]:
    """Everything known of a task, whatever its state; see `Scheduler.stats`."""
    row: dict[str, Any] = {
        "id": task.id,
        "name": task.name,
        "state": task.state,
        "decision": str(task.decision),
        "reason": task.reason,
        "position": task.position,
        "policy": task.policy,
        "partition": task.partition,
    }
    lease = task._lease
    row.update(figures_of(task, lease) if lease is not None else task._final)
    if task._jobs:
        row["jobs"] = dict(task._jobs)
    return row
