"""One GPU, many tenants: admission, shares and memory that are enforced, and figures of what everybody got."""

from __future__ import annotations

from pygpukit.scheduler.default import default_scheduler, scheduled, shutdown, stats, status, submit, task
from pygpukit.scheduler.external import external
from pygpukit.scheduler.partition import Context, Partition
from pygpukit.scheduler.scheduler import Scheduler
from pygpukit.scheduler.task import Decision, Task, current_task, yield_

__all__ = [
    "Context",
    "Decision",
    "Partition",
    "Scheduler",
    "Task",
    "current_task",
    "default_scheduler",
    "external",
    "scheduled",
    "shutdown",
    "stats",
    "status",
    "submit",
    "task",
    "yield_",
]
