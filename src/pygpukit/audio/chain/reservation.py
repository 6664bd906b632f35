"""What a chain asks the scheduler for: a task that holds SMs and a deadline while the chain is in real time."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from pygpukit.audio.operators import gp
from pygpukit.errors import AdmissionError, DeadlineRefusedError

if TYPE_CHECKING:
    from types import TracebackType

    from pygpukit.audio.chain.chain import Chain

__all__ = ["Reservation"]

# A share that is rounded up to the smallest lane there is.
_SHARE = 0.01

# Measured cost, and what is declared for it.
_MARGIN = 1.25


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"


def measured_cost(chain: Chain) -> float:
    """Return seconds that a block takes on the device, of the kernel over whole arrays."""
    blocks = 32
    stream = chain.stream()
    rng = np.random.default_rng(0)
    shape = (blocks * chain.block,) if chain.channels == 1 else (chain.channels, blocks * chain.block)
    y = gp.from_numpy((rng.standard_normal(shape) * 0.1).astype(np.float32))
    best = float("inf")
    for _ in range(3):
        gp.current_device().synchronize()
        began = time.perf_counter()
        stream.push(y).to_numpy()
        best = min(best, time.perf_counter() - began)
    return _MARGIN * best / blocks


class Reservation:
    """A task of the scheduler, in a thread of its own, from ``with`` until its end.

    Parameters
    ----------
    chain : Chain
        Whose.
    deadline, period : float
        Seconds.
    cost : float, optional
        Seconds of device time that a block takes; measured by default.
    scheduler : Scheduler, optional
        Which one; the process's own by default, if it is that of the current device.
    promises : bool
        Does the device promise timing? Else only numbers that were given are refused.

    Attributes
    ----------
    task : Task
        The task, while it runs.
    cost : float or None
        Seconds that were asked for; None where the device promises no timing and none were given.
    """

    task: Any = None

    def __init__(
        self, chain: Chain, deadline: float, period: float, cost: float | None, scheduler: Any, promises: bool
    ) -> None:
        self._promises, self._deadline, self._period = promises, deadline, period
        if cost is None and promises:
            cost = measured_cost(chain)
        self.cost = cost
        if cost is not None and cost > deadline:
            raise DeadlineRefusedError(
                f"cost {_milliseconds(cost)} of a block > deadline {_milliseconds(deadline)}: give it more time, "
                "larger blocks, or less to do"
            )
        self._scheduler, self._own = scheduler, False
        self._ready, self._over = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def has_lane(self) -> bool:
        """Has the task SMs of its own?"""
        return self.task is not None and self.task.stats()["mode"] == "own lane"

    def __enter__(self) -> Reservation:
        from pygpukit.scheduler import Scheduler
        from pygpukit.scheduler.default import default_scheduler

        if self._scheduler is None:
            self._scheduler = default_scheduler()
            if self._scheduler.device != gp.current_device():
                self._scheduler, self._own = Scheduler(device=gp.current_device()), True
        self._thread = threading.Thread(target=self._hold, name="pygpukit-chain", daemon=True)
        self._thread.start()
        self._ready.wait()
        if self._error is None and self._promises and not self.has_lane:
            stats = self.task.stats()
            self._error = DeadlineRefusedError(
                f"no SMs of its own: the task's mode is '{stats['mode']}' with {stats['sm_count']} SMs, and beside "
                "other work a deadline is not held"
            )
        if self._error is not None:
            self.__exit__(None, None, None)
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._own:
            self._scheduler.shutdown(cancel=True, timeout=1.0)

    def _hold(self) -> None:
        request: dict[str, Any] = {"name": "audio chain", "on_full": "reject"}
        if self.cost is not None:
            request |= {"policy": "guaranteed", "bandwidth": _SHARE, "deadline": self._deadline, "period": self._period,
                        "cost": self.cost}  # fmt: skip
        try:
            with self._scheduler.task(**request) as task:
                self.task = task
                self._ready.set()
                self._over.wait()
        except AdmissionError as error:
            cost = "no cost" if self.cost is None else f"cost {_milliseconds(self.cost)}"
            self._error = DeadlineRefusedError(
                f"{error}; asked: {cost} in each {_milliseconds(self._period)}, deadline "
                f"{_milliseconds(self._deadline)}"
            )
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
