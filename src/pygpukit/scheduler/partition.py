"""Partitions: parts of a device with limits of their own, in which tasks are admitted as on a small device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from pygpukit.core.device import Device
    from pygpukit.scheduler.scheduler import Scheduler
    from pygpukit.scheduler.task import Task

__all__ = ["Context", "Partition", "with_use"]

_T = TypeVar("_T")


class Partition:
    """A part of the device; made by `Scheduler.create_partition`.

    Attributes
    ----------
    name : str
        Unique in its scheduler.
    """

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self.name = name
        self._scheduler = scheduler

    def __repr__(self) -> str:
        return f"<Partition '{self.name}'>"

    @property
    def device(self) -> Device:
        """The device it is a part of."""
        return self._scheduler.device

    def submit(self, fn: Callable[..., _T], /, **options: Any) -> Task[_T]:
        """`Scheduler.submit` for a task in this partition."""
        return self._scheduler.submit(fn, partition=self.name, **options)

    def task(self, **options: Any) -> AbstractContextManager[Task[None]]:
        """`Scheduler.task` in this partition."""
        return self._scheduler.task(partition=self.name, **options)

    def usage(self) -> dict[str, Any]:
        """What is used, reserved and allowed."""
        for row in self._scheduler._core.partitions():
            if row["name"] == self.name:
                return dict(row)
        raise ValueError(f"partition '{self.name}' was removed")

    def remove(self) -> None:
        """Give everything back. Tasks in it must have ended."""
        self._scheduler._remove_partition(self.name)


class Context(Partition):
    """A partition made for one model; made by `Scheduler.create_context`. Leaving it as a context manager closes it.

    Examples
    --------
    >>> from pygpukit.scheduler import Scheduler
    >>> with Scheduler() as scheduler, scheduler.create_context("llm", max_vram="16MiB") as context:
    ...     context.submit(lambda: 6 * 7).result()
    42
    """

    def __repr__(self) -> str:
        return f"<Context '{self.name}'>"

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close(cancel=exc[0] is not None)

    def close(self, *, cancel: bool = False) -> None:
        """Wait for its tasks, and give everything back; a second call does nothing.

        Parameters
        ----------
        cancel : bool
            Cancel its tasks first.
        """
        if all(row["name"] != self.name for row in self._scheduler._core.partitions()):
            return
        tasks = [task for task in self._scheduler._roster.tasks() if task.partition == self.name]
        if cancel:
            for task in reversed(tasks):
                task.cancel()
        for task in tasks:
            task.wait()
        self.remove()


def with_use(row: Mapping[str, Any], tasks: Sequence[Mapping[str, Any]], sms: int) -> dict[str, Any]:
    """A partition's row with what its tasks use, and the part of a device of so many SMs that was promised to them.

    Examples
    --------
    >>> row = {"name": "default", "time_reserved": 0.25, "lane_sms": 66}
    >>> with_use(row, [{"partition": "default", "share": 0.5, "memory": 4096}], 132)["compute_promised"]
    0.75
    """
    inside = [task for task in tasks if task["partition"] == row["name"]]
    return {
        **row,
        "memory_in_use": sum(task.get("memory", 0) for task in inside),
        "compute_used": sum(task.get("share", 0.0) for task in inside),
        "compute_promised": row["time_reserved"] + row["lane_sms"] / max(1, sms),
    }
