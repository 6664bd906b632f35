"""Processes that are forked while other threads use the CPU device: what cannot work is refused, and nothing waits."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")

BEGIN = """
import gc, os, signal, sys, threading, traceback
import numpy as np
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.errors import ForkError
from pygpukit.scheduler import Scheduler, submit
x, event, s, pool = gp.ones(3), gp.Event(), gp.Stream(), gp.memory.MemoryPool("1MiB")
transfer = gp.copy_to_device(np.ones(100_000))
transfer.wait()
graph = gp.CudaGraph()
with graph.capture():
    gp.add(x, 1.0)
scheduler = Scheduler(total_memory="1MiB")
gp.synchronize()
event.record()

def refused(call):
    try:
        found = call()
    except ForkError as error:
        return str(error)
    raise AssertionError(f"not refused: {found!r}")

def child_of(work, end=os._exit):
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        # Longer is a wait that does not end.
        signal.alarm(20)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        end(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
"""

# A thread is in a function that the interpreter runs, in the middle of work on the default stream.
IN_THE_MIDDLE = """
began, go_on = threading.Event(), threading.Event()
worker = threading.Thread(target=lambda: native.submit_host(lambda: (began.set(), go_on.wait()), [], [x]))
worker.start()
began.wait()
"""

END = """
go_on.set()
worker.join()
gp.synchronize()
print(gp.add(x, 1.0).tolist())
"""


def test_work_that_a_missing_thread_was_in_the_middle_of_is_refused(run_python: Callable[..., str]) -> None:
    program = """
def work():
    for call in (
        x.to_numpy, lambda: gp.add(x, 1.0), lambda: x.fill(2.0), gp.synchronize, gp.default_stream().synchronize,
        lambda: graph.replay(), lambda: gp.from_numpy(np.ones(3)), lambda: x[0].item(),
    ):
        assert "in the middle of work on this stream" in refused(call), call
    # The rest of the device is as usable as before.
    with s:
        y = gp.ones(1000)
        assert gp.sum(gp.add(y, 1.0)).item() == 2000
        assert pool.used == 0 and event.query()
    # And one's own tasks have streams of their own.
    assert submit(lambda: float(gp.sum(gp.ones(10)).item())).result(60) == 10
print(child_of(work))
"""
    assert run_python(BEGIN + IN_THE_MIDDLE + program + END) == "0\n[2.0, 2.0, 2.0]\n"


def test_every_use_of_a_device_whose_locks_may_be_taken_is_refused(run_python: Callable[..., str]) -> None:
    program = """
# A kernel runs in the background, on a thread of the runtime's that may have any lock at any time.
spin = gp.load_ptx('''
.version 8.0
.target sm_90
.address_size 64
.visible .entry spin(.param .u64 flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [flag];
AGAIN:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
''')
flag = gp.zeros(1, dtype="int32")
spin(flag.ptr, grid=1, block=1)
assert native.busy_threads() > 0

def work():
    for call in (
        x.to_numpy, lambda: gp.add(x, 1.0), lambda: x.fill(2.0), lambda: x[0].item(),
        lambda: gp.zeros(3), lambda: gp.from_numpy(np.ones(3)), lambda: gp.copy_to_device(np.ones(9)),
        lambda: gp.empty_pinned(10), lambda: gp.empty_growable((4,), capacity=8),
        gp.synchronize, s.synchronize, s.query, s.record, lambda: s.wait(event), gp.Stream, gp.Event,
        event.record, event.query, event.synchronize, transfer.wait, graph.replay, gp.CudaGraph().begin_capture,
        lambda: gp.memory.MemoryPool("1MiB"), lambda: pool.used, pool.stats, pool.trim, pool.close,
        lambda: pool.allocate(10), gp.memory.snapshot, gp.memory.pinned_stats,
        Scheduler, lambda: submit(int), scheduler.status, lambda: scheduler.submit(int),
        lambda: scheduler.create_partition("p"), lambda: scheduler.stats(1),
    ):
        assert "fork" in refused(call).lower(), call
    scheduler.shutdown()
    repr(pool)
    for name in ("x", "pool", "graph", "transfer", "event", "s"):
        del globals()[name]
    gc.collect()
print(child_of(work), child_of(work, sys.exit))
"""
    end = """
with s:
    flag.fill(1)
gp.synchronize()
print(gp.add(x, 1.0).tolist())
"""
    assert run_python(BEGIN + program + end) == "0 0\n[2.0, 2.0, 2.0]\n"


def test_children_of_multiprocessing_end_while_a_thread_adds(run_python: Callable[..., str]) -> None:
    program = """
import multiprocessing
context, stop = multiprocessing.get_context("fork"), threading.Event()

def add():
    y = gp.ones(200_000)
    while not stop.is_set():
        y = gp.add(y, 1.0)

def work():
    signal.alarm(20)
    try:
        answer = float(x.to_numpy().sum())
    except ForkError:
        answer = 3.0
    assert answer == 3.0

threads = [threading.Thread(target=add) for _ in range(3)]
for thread in threads:
    thread.start()
codes = []
for _ in range(5):
    process = context.Process(target=work)
    process.start()
    process.join()
    codes.append(process.exitcode)
stop.set()
for thread in threads:
    thread.join()
print(codes)
"""
    assert run_python(BEGIN + program) == "[0, 0, 0, 0, 0]\n"
