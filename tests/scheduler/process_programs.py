"""Functions that run in processes of their own; such a process imports this module to find them."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pygpukit as gp
from pygpukit.scheduler import current_task, scheduled, submit


class StubbornError(Exception):
    """Cannot be pickled back: it needs two arguments and remembers one."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what)
        self.why = why


def square(x: gp.GPUArray, scale: float = 1.0) -> dict[str, Any]:
    return {"pid": os.getpid(), "product": gp.matmul(x, x) * scale, "task": str(current_task())}


def bfloats() -> gp.GPUArray:
    return gp.ones((3,), dtype="bfloat16")


def fail(what: str) -> None:
    raise ValueError(what)


def fail_stubbornly() -> None:
    raise StubbornError("no way", "because")


def return_a_lock() -> Any:
    return threading.Lock()


def end_by(how: str) -> None:
    gp.matmul(gp.ones((8, 8)), gp.ones((8, 8)))
    if how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def allocate(nbytes: int) -> int:
    return int(gp.zeros((nbytes,), dtype="uint8").nbytes)


def loop(size: int, ready: Path | None = None) -> None:
    """Use the device until somebody ends it."""
    x = gp.ones((size, size))
    gp.matmul(x, x)
    if ready is not None:
        ready.write_text(str(os.getpid()))
    while True:
        gp.matmul(x, x)


def loop_until(size: int, stop: Path) -> int:
    x = gp.ones((size, size))
    count = 0
    while not stop.exists():
        for _ in range(20):
            gp.matmul(x, x)
            count += 1
    return count


def one_long_operator(ready: Path) -> float:
    x = gp.ones((2500, 2500), dtype="float64")
    ready.touch()
    return float(gp.matmul(x, x).to_numpy()[0, 0])


def ignore_the_end(ready: Path) -> None:
    # The function is not in the main thread, which alone may set handlers; what every thread blocks waits for ever.
    for thread in threading.enumerate():
        if thread.ident is not None:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    ready.write_text(str(os.getpid()))
    time.sleep(600)


def sleep_with_a_turn(ready: Path) -> int:
    """Have had a turn, and then nothing to do."""
    gp.matmul(gp.ones((8, 8)), gp.ones((8, 8)))
    ready.write_text(str(os.getpid()))
    time.sleep(600)
    return 0


def nest() -> list[int]:
    return [submit(len, args=("abc",)).result(), submit(os.getpid).result() == os.getpid()]


async def wait_a_little(value: int) -> int:
    await asyncio.sleep(0.01)
    return value + int(gp.ones((2,)).sum().item())


@scheduled(isolation="process")
def decorated(value: int) -> tuple[int, int]:
    return value + 1, os.getpid()
