"""Faults on a real device, each in a process of its own: kernels that crash, fork, Ctrl-C and early exit."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.cuda

AFTERWARDS = """
def afterwards():
    calls = {
        "operator": lambda: gp.add(x, x),
        "array": lambda: gp.zeros(3),
        "large array": lambda: gp.zeros(10_000_000),
        "transfer": lambda: x.to_numpy(),
        "upload": lambda: gp.from_numpy(np.ones(3)),
        "stream": gp.Stream,
        "event": gp.Event,
        "synchronize": gp.synchronize,
        "kernel": lambda: kernel(x, *rest),
        "jit": lambda: gp.jit(gpu_kernels.SCALE),
        "memory": lambda: gp.current_device().memory_info(),
    }
    for name, call in calls.items():
        try:
            call()
        except gp.DeviceLostError as error:
            assert kernel.name in str(error), error
        else:
            print("still ran:", name)
    # The CPU device is not affected.
    with gp.device("cpu"):
        assert (gp.ones(3) + 1).tolist() == [2, 2, 2]
    print("refused")
"""

PREPARE = f"""
import gpu_kernels
import numpy as np
import pygpukit as gp
{AFTERWARDS}
x = gp.ones(1000)
y = x + x
gp.synchronize()
"""

FAULTS = {
    "illegal address": "kernel, rest = gp.jit(gpu_kernels.WILD), (1 << 40,)",
    "trap": "kernel, rest = gp.jit(gpu_kernels.TRAP), ()",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_crash_is_reported_with_what_was_in_flight(fault: str, run_cuda: Callable[..., str]) -> None:
    program = f"""{PREPARE}
{FAULTS[fault]}
stream = gp.Stream()
event = gp.Event()
with stream:
    for _ in range(3):
        y = y + x
    kernel(x, *rest, block=(32,))
    event.record()
try:
    gp.synchronize()
except gp.DeviceLostError as error:
    print(error)
    print("=====")
try:
    event.synchronize()
except gp.DeviceLostError:
    print("event refused")
afterwards()
"""
    out = run_cuda(program)
    report, _, rest = out.partition("=====")
    name = "wild" if fault == "illegal address" else "stumble"
    assert f"'{name}'" in report
    assert "PYGPUKIT_SYNC=1" in report
    assert "Launches in flight" in report
    assert "float32(1000)" in report
    assert "Restart the process" in report
    assert rest.split("\n")[1:3] == ["event refused", "refused"]


@pytest.mark.parametrize("fault", FAULTS)
def test_synchronous_launches_name_the_culprit(fault: str, run_cuda: Callable[..., str]) -> None:
    program = f"""{PREPARE}
{FAULTS[fault]}
z = y * 2.0
try:
    kernel(x, *rest, grid=1, block=32)
except gp.DeviceLostError as error:
    print(error)
else:
    print("not noticed at the launch")
print("=====")
afterwards()
"""
    out = run_cuda(program, PYGPUKIT_SYNC="1")
    name = "wild" if fault == "illegal address" else "stumble"
    assert f"It happened in kernel '{name}'" in out
    assert "refused" in out.partition("=====")[2]
    assert "still ran" not in out


def test_a_crash_in_a_graph(run_cuda: Callable[..., str]) -> None:
    program = f"""{PREPARE}
kernel, rest = gp.jit(gpu_kernels.WILD), (1 << 40,)
graph = gp.CudaGraph()
with graph.capture():
    z = y * 2.0
    kernel(x, *rest)
graph.replay()
try:
    graph.synchronize()
except gp.DeviceLostError as error:
    print("graph replay" in str(error))
try:
    graph.replay()
except gp.DeviceLostError:
    print("refused")
"""
    assert run_cuda(program).split() == ["True", "refused"]


def test_a_crash_ends_waits_in_other_threads(run_cuda: Callable[..., str]) -> None:
    program = f"""{PREPARE}
import threading
kernel, rest = gp.jit(gpu_kernels.WILD), (1 << 40,)
spin = gp.jit(gpu_kernels.SPIN)
streams = [gp.Stream() for _ in range(3)]
for stream in streams:
    spin(200_000_000, grid=1, block=1, stream=stream)
lost = []

def wait(stream):
    try:
        stream.synchronize()
    except gp.DeviceLostError:
        lost.append(stream)

threads = [threading.Thread(target=wait, args=(stream,)) for stream in streams]
for thread in threads:
    thread.start()
kernel(x, *rest)
for thread in threads:
    thread.join()
print(len(lost))
afterwards()
"""
    assert run_cuda(program).split() == ["3", "refused"]


def test_a_forked_child_refuses_the_gpu(run_cuda: Callable[..., str]) -> None:
    program = """
import os
import sys
import gpu_kernels
import pygpukit as gp
x = gp.ones(1000)
kernel = gp.jit(gpu_kernels.SCALE)
kernel(x, 2.0, 1000)
graph = gp.CudaGraph()
with graph.capture():
    y = x + x
event, stream = gp.Event(), gp.Stream()
pool = gp.memory.MemoryPool()
child = os.fork()
if child == 0:
    calls = [
        lambda: x + x, lambda: gp.zeros(3), x.to_numpy, gp.Stream, gp.synchronize, graph.replay, stream.synchronize,
        lambda: kernel(x, 2.0, 1000), lambda: pool.allocate(10), lambda: x.fill(1),
    ]
    for i, call in enumerate(calls):
        try:
            call()
        except gp.ForkError as error:
            assert "spawn" in str(error)
        else:
            print("still ran:", i)
    with gp.device("cpu"):
        assert (gp.ones(3) + 1).tolist() == [2, 2, 2]
    # Everything that belongs to the device is dropped here, and then by the interpreter's end.
    del x, y, kernel, graph, event, stream, pool, calls, call
    print("child", flush=True)
    sys.exit(0)
_, status = os.waitpid(child, 0)
print("status", status)
graph.replay()
assert (y.to_numpy() == 4).all()
print("parent")
"""
    assert run_cuda(program).split() == ["child", "status", "0", "parent"]


INTERRUPTED = """
import signal
import gpu_kernels
import pygpukit as gp
# A shell may have started us with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
spin = gp.jit(gpu_kernels.SPIN)
x = gp.ones(1000)
gp.synchronize()
event = gp.Event()
waits = {
    "device": gp.synchronize,
    "stream": lambda: gp.current_stream().synchronize(),
    "event": event.synchronize,
    "transfer": x.to_numpy,
}
for name, wait in waits.items():
    spin(1_000_000_000, grid=1, block=1)
    event.record()
    try:
        print(name)
        wait()
        print("was not interrupted")
    except KeyboardInterrupt:
        # The wait has ended, not the kernel.
        assert not gp.current_stream().query()
print("again")
gp.synchronize()
assert (x + x).to_numpy().sum() == 2000
print("done")
"""


def test_ctrl_c_ends_a_wait(start_cuda: Callable[..., subprocess.Popen[str]]) -> None:
    child = start_cuda(INTERRUPTED)
    assert child.stdout is not None
    for name in ("device", "stream", "event", "transfer"):
        line = child.stdout.readline().strip()
        assert line == name, line + (child.stderr.read() if child.stderr and not line else "")
        # It is about to wait; should it not be there yet, the wait is not what ends, but the test still holds.
        time.sleep(0.1)
        child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out.split() == ["again", "done"]


def test_exit_with_queued_work(start_cuda: Callable[..., subprocess.Popen[str]]) -> None:
    child = start_cuda(
        """
import gpu_kernels
import pygpukit as gp
spin = gp.jit(gpu_kernels.SPIN)
streams = [gp.Stream() for _ in range(3)]
arrays = []
graph = gp.CudaGraph()
with graph.capture():
    captured = gp.ones(1000) + 1
for i in range(6):
    with streams[i % 3]:
        spin(200_000_000, grid=1, block=1)
        x = gp.ones(100_000) + i
        arrays.append(x * x)
    graph.replay()
event = gp.Event()
event.record()
print("leaving")
"""
    )
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    assert out.split() == ["leaving"]
    assert not err


def test_an_exception_leaves_with_queued_work(start_cuda: Callable[..., subprocess.Popen[str]]) -> None:
    child = start_cuda(
        """
import gpu_kernels
import pygpukit as gp
with gp.Stream(), gp.memory.MemoryPool("1GiB"):
    gp.jit(gpu_kernels.SPIN)(500_000_000, grid=1, block=1)
    x = gp.ones(1_000_000) * 2
    raise RuntimeError("the program's own")
"""
    )
    _, err = child.communicate(timeout=60)
    assert child.returncode == 1
    assert err.rstrip().endswith("RuntimeError: the program's own")
