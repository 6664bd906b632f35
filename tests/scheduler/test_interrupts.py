"""A Ctrl-C that arrives in the last moment before a wait of the main thread blocks."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")

# The interpreter converts the lock's timeout after its last check for signals and before it blocks. Here that
# conversion raises the signal, in C alone: no bytecode runs in between, so nothing checks.
LATE = """
import asyncio, ctypes, faulthandler, functools, signal, sys, threading
from pygpukit.errors import *
from pygpukit.scheduler import *
signal.signal(signal.SIGINT, signal.default_int_handler)
faulthandler.dump_traceback_later(20, exit=True)
raise_signal = ctypes.CDLL(None)["raise"]
allocate, armed = threading._allocate_lock, []

class Lock:
    def __init__(self):
        self._lock = allocate()
        self.release, self.locked = self._lock.release, self._lock.locked
    def acquire(self, blocking=True, timeout=-1):
        here = threading.current_thread() is threading.main_thread()
        if not (here and armed and blocking and self._lock.locked()):
            return self._lock.acquire(blocking, timeout)
        armed.clear()
        seconds = int(timeout) if timeout < 0 else 1
        raise_signal.restype = (seconds).__add__
        late = type("Late", (), {"__index__": functools.partial(raise_signal, signal.SIGINT)})
        return self._lock.acquire(True, late())
    __enter__ = acquire
    def __exit__(self, *_):
        self.release()

threading._allocate_lock = Lock
scheduler, leave = Scheduler(total_memory="64MiB"), threading.Event()

def interrupted(wait):
    armed.append(True)
    try:
        wait()
    except KeyboardInterrupt:
        assert not armed
        print("interrupted")
"""

WAITS = {
    "result": "interrupted(task.result)",
    "result with a timeout": "interrupted(lambda: task.result(1000))",
    "shutdown": "interrupted(scheduler.shutdown)",
    "block": "interrupted(lambda: scheduler.task(memory='64MiB').__enter__())",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_just_before_a_wait_blocks(run_python: Callable[..., str], wait: str) -> None:
    program = f"""
task = scheduler.submit(leave.wait, memory="64MiB")
{WAITS[wait]}
leave.set()
print(task.result())
"""
    assert run_python(LATE + program) == "interrupted\nTrue\n"
