"""The worker process of device actors: its device, and how it ends with the runtime's process."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable

import pytest
from device_actors import Item, make, until
from workers import is_alive, isolated, kill, pid_of

import pygpukit as gp

Start = Callable[[str], "subprocess.Popen[str]"]

PROGRAM = """
import faulthandler, sys, time
faulthandler.dump_traceback_later(50, exit=True)
from device_actors import *
echo = make()
runtime = RingKernelRuntime(isolation="process")
runtime.__enter__()
[client] = start(runtime, echo)
assert client.call(Item(1, 0, 0), timeout=20).id == 1
print(runtime._tier.ring.pid, flush=True)
"""


@pytest.mark.parametrize("way", [signal.SIGKILL, signal.SIGTERM, None], ids=["SIGKILL", "SIGTERM", "exit"])
def test_the_worker_ends_with_its_runtime(start_child: Start, way: signal.Signals | None) -> None:
    child = start_child(PROGRAM + ("" if way is None else "time.sleep(60)"))
    assert child.stdout is not None
    worker = int(child.stdout.readline())
    if way is not None:
        assert is_alive(worker)
        child.send_signal(way)
    child.wait(30)
    until(lambda: not is_alive(worker), 5)


def test_a_forked_process_leaves_the_worker_alone(start_child: Start) -> None:
    child = start_child(
        PROGRAM
        + """
import os
from pygpukit.ring import worker_ring
if not (forked := os.fork()):
    worker_ring._end_all()
    os._exit(0)
os.waitpid(forked, 0)
print(client.call(Item(2, 0, 0), timeout=20).id, flush=True)
if not os.fork():
    # It keeps the socket of the runtime's process open.
    os.close(1), os.close(2)
    time.sleep(20)
    os._exit(0)
time.sleep(60)
"""
    )
    assert child.stdout is not None
    worker = int(child.stdout.readline())
    assert child.stdout.readline() == "2\n"
    time.sleep(0.2)
    child.kill()
    child.wait(30)
    until(lambda: not is_alive(worker), 5)


def test_ctrl_c_is_for_the_runtime(start_child: Start) -> None:
    child = start_child(
        PROGRAM
        + """
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print(client.call(Item(2, 0, 0), timeout=20).id, flush=True)
    runtime.close()
    print("closed", flush=True)
"""
    )
    assert child.stdout is not None
    worker = int(child.stdout.readline())
    assert child.stdout.readline() == "ready\n"
    os.kill(worker, signal.SIGINT)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (out, err) == ("2\nclosed\n", "")
    assert child.returncode == 0
    assert not is_alive(worker)


def test_the_device_that_is_current_where_it_is_launched(device: str) -> None:
    other = "emulated" if device == "cpu" else f"cuda:{gp.device_count() - 1}"
    echo = make(restart="on_failure")
    with isolated() as runtime:
        with gp.device(other):
            client = runtime.client(echo)
        for n in range(2):
            assert client.call(Item(n, 0, 0), timeout=30).id == n
            with open(f"/proc/{pid_of(runtime)}/environ", encoding="utf-8") as file:
                assert f"PYGPUKIT_DEVICE={other}" in file.read().split("\0")
            # And the next worker too.
            kill(runtime)
            until(lambda n=n: runtime.get_telemetry(echo).restarts == n + 1)  # type: ignore[misc]
            until(lambda: runtime.status()["up"])


def test_a_process_that_has_no_device_opens_none(start_child: Start) -> None:
    child = start_child(
        PROGRAM
        + """
from pygpukit.core import device
runtime.run(runtime.publish("nothing", Item(1, 0, 0)))
runtime.status(), runtime.get_state(echo), runtime.get_summary()
runtime.close()
print(device._open, flush=True)
"""
    )
    out, err = child.communicate(timeout=50)
    assert err == ""
    assert out.splitlines()[-1] == "{}"


def test_the_fallback_is_told_here(start_child: Start) -> None:
    if gp.is_cuda_available():
        pytest.skip("there is a GPU")
    child = start_child(
        """
import os, warnings
for name in ("PYGPUKIT_DEVICE", "PYGPUKIT_QUIET"):
    os.environ.pop(name)
from device_actors import *
from workers import isolated, kill
with isolated() as runtime, warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    [client] = start(runtime, make(restart="on_failure"))
    kill(runtime)
    until(lambda: runtime._tier.ring.link.process is None)
    assert client.call(Item(1, 0, 0), timeout=30).id == 1
    print([one.category.__name__ for one in told])
"""
    )
    out, err = child.communicate(timeout=50)
    assert out == "['FallbackWarning']\n", err
