"""Ctrl-C during waits, and interpreters that end while work is queued."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")

# The fake driver's work is never done when it has to be asked this often.
NEVER = "4000000000"


WAITS = {
    "device": "gp.synchronize()",
    "stream": "gp.current_stream().synchronize()",
    "event": "event.synchronize()",
    "copy": "x.to_numpy()",
    "item": "x[0].item()",
    "graph": "graph.replay(); graph.synchronize()",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait_for_the_gpu(
    fake_cuda: str, interrupted: Callable[..., tuple[int, str, str]], wait: str
) -> None:
    program = f"""
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
k = native.load_kernel(b".entry endless(8)\\n", "endless", "endless", [("x", "*f32")])
x, event, graph = gp.empty(16), gp.Event(), gp.CudaGraph()
with graph.capture():
    k(x)
k(x)
event.record()
try:
    print("waiting")
    {WAITS[wait]}
except KeyboardInterrupt:
    print("interrupted", event.query())
"""
    environ = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda, "FAKECUDA_LAZY": NEVER}
    status, out, err = interrupted(program, **environ)
    assert (status, out) == (0, "interrupted False\n"), err


INSIDE_CALLS = {
    "launch": ("k(x)", {"PYGPUKIT_SYNC": "1"}),
    "fill": ("x.fill(1.0)", {"PYGPUKIT_SYNC": "1"}),
    # The memory of y comes back when the endless kernel that uses it has finished.
    "memory": ("y = gp.empty(10 << 20); k(y, stream=gp.Stream()); del y; gp.empty(12 << 20)", {}),
}


@pytest.mark.parametrize("wait", INSIDE_CALLS)
def test_ctrl_c_ends_a_wait_inside_another_call(
    fake_cuda: str, interrupted: Callable[..., tuple[int, str, str]], wait: str
) -> None:
    call, more = INSIDE_CALLS[wait]
    program = f"""
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
k = native.load_kernel(b".entry endless(8)\\n", "endless", "endless", [("x", "*f32")])
x = gp.empty(16)
try:
    print("waiting")
    {call}
except KeyboardInterrupt:
    print("interrupted")
"""
    environ = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda, "FAKECUDA_LAZY": NEVER, **more}
    status, out, err = interrupted(program, FAKECUDA_MEMORY=str(64 << 20), **environ)
    assert (status, out) == (0, "interrupted\n"), err


def test_ctrl_c_without_a_handler_ends_the_process(
    fake_cuda: str, interrupted: Callable[..., tuple[int, str, str]]
) -> None:
    program = """
import pygpukit as gp
x = gp.zeros(16)
print("waiting")
gp.synchronize()
"""
    environ = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda, "FAKECUDA_LAZY": NEVER}
    status, _, err = interrupted(program, **environ)
    assert status in (1, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" in err
    assert "panicked" not in err


def test_ctrl_c_during_queued_work_of_the_cpu_device(interrupted: Callable[..., tuple[int, str, str]]) -> None:
    program = """
import time
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
x = gp.zeros(4)
def slow():
    print("waiting")
    # The signal may arrive after the interpreter's last check and before the sleep begins, which it then does not end.
    while True:
        time.sleep(0.05)
try:
    native.submit_host(slow, [], [x])
    gp.synchronize()
except KeyboardInterrupt:
    print("interrupted", gp.add(x, 1.0).tolist())
"""
    status, out, err = interrupted(program, PYGPUKIT_DEVICE="cpu", PYGPUKIT_STREAMS="deferred:1")
    assert (status, out) == (0, "interrupted [1.0, 1.0, 1.0, 1.0]\n"), err


def test_a_handler_that_does_not_raise_does_not_end_the_wait(run_fake: Callable[..., str]) -> None:
    program = """
import signal, threading, time
seen = []
signal.signal(signal.SIGUSR1, lambda *_: (seen.append(1), configure("LAZY", 0), gp.zeros(1)))
x = gp.zeros(4)
def later():
    # Asked often, the queue is done in the end; the handler must have run before.
    while not seen:
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.05)
threading.Thread(target=later).start()
gp.synchronize()
while not seen:
    time.sleep(0.01)
print(x.tolist())
"""
    assert run_fake(program, lazy=3000) == "[0.0, 0.0, 0.0, 0.0]\n"


def test_other_threads_run_while_one_waits(run_fake: Callable[..., str]) -> None:
    program = """
import threading, time
x = gp.zeros(4)
done = threading.Event()
waiter = threading.Thread(target=lambda: (gp.synchronize(), done.set()))
waiter.start()
steps = 0
while not done.is_set():
    steps += 1
    time.sleep(0)
waiter.join()
print(steps > 3)
"""
    assert run_fake(program, lazy=3000) == "True\n"


@pytest.mark.parametrize(
    "ending", ["", "sys.exit(0)", "raise SystemExit", "del gp, native, x, y; import gc; gc.collect()"]
)
def test_the_interpreter_ends_with_work_queued_on_a_gpu(run_fake: Callable[..., str], ending: str) -> None:
    program = f"""
k = kernel("endless", "8", [("x", "*f32")])
streams, pool, graph = [gp.Stream() for _ in range(3)], gp.memory.MemoryPool(), gp.CudaGraph()
with graph.capture():
    k(gp.empty(100))
with pool:
    x = gp.zeros(1 << 20)
    y = [x.copy() for s in streams]
for s in streams:
    k(x, stream=s)
    graph.replay(s)
event = gp.Event()
event.record()
print("end")
{ending}
"""
    # run_python asserts that the status is 0 and that it ends in time.
    assert run_fake(program, lazy=NEVER) == "end\n"


@pytest.mark.parametrize("streams", ["inline", "deferred:1"])
@pytest.mark.parametrize("ending", ["", "sys.exit(0)", "del gp; import gc; gc.collect()"])
def test_the_interpreter_ends_with_work_queued_on_the_cpu(
    run_python: Callable[..., str], ending: str, streams: str
) -> None:
    program = f"""
import sys
import pygpukit as gp
x, s, graph = gp.ones(1000), gp.Stream(), gp.CudaGraph()
with graph.capture():
    gp.add(x, 1.0, out=x)
for _ in range(50):
    y = gp.add(x, 1.0)
    gp.mul(y, 2.0, stream=s)
    graph.replay(s)
print("end")
{ending}
"""
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "end\n"


def test_the_interpreter_ends_inside_a_capture_and_a_context(run_python: Callable[..., str]) -> None:
    program = """
import pygpukit as gp
x = gp.ones(10)
gp.Stream().__enter__()
gp.memory.MemoryPool().__enter__()
gp.CudaGraph().begin_capture()
gp.add(x, 1.0)
print("end")
"""
    for streams in ("inline", "deferred:1"):
        assert run_python(program, PYGPUKIT_STREAMS=streams) == "end\n"


def test_threads_still_at_work_do_not_hold_the_end(run_python: Callable[..., str]) -> None:
    program = """
import threading, time
import pygpukit as gp
started = threading.Event()
def work():
    x = gp.ones(1000)
    try:
        while True:
            x = gp.add(x, 1.0)
            started.set()
    except RuntimeError:
        # Refused, because the interpreter is going away.
        pass
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
started.wait()
print("end")
"""
    for streams in ("inline", "deferred:1"):
        for _ in range(2):
            assert run_python(program, PYGPUKIT_STREAMS=streams, PYGPUKIT_CPU_MEMORY="256MB") == "end\n"


def test_a_thread_that_waits_for_the_gpu_does_not_hold_the_end(run_fake: Callable[..., str]) -> None:
    program = """
import threading, time
x, s = gp.zeros(4), gp.Stream()
waiting = threading.Semaphore(0)
def wait(call):
    waiting.release()
    try:
        call()
    except RuntimeError as error:
        assert "shutting down" in str(error), error
for call in (gp.synchronize, gp.current_stream().synchronize, gp.current_stream().record().synchronize, x.to_numpy):
    threading.Thread(target=wait, args=(call,), daemon=True).start()
    waiting.acquire()
time.sleep(0.05)
print("end")
"""
    for _ in range(3):
        assert run_fake(program, lazy=NEVER) == "end\n"


def test_an_array_in_an_exit_handler(run_python: Callable[..., str]) -> None:
    program = """
import atexit
import pygpukit as gp
x = gp.ones(3)
atexit.register(lambda: print(gp.add(x, 1.0).tolist()))
"""
    # Handlers run last first: one that was registered after the import may still use arrays.
    for streams in ("inline", "deferred:1"):
        assert run_python(program, PYGPUKIT_STREAMS=streams) == "[2.0, 2.0, 2.0]\n"
