"""Memory that runs out, is cut off or loses its program half way: nothing lost, nothing locked, a clear error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]
Interrupted = Callable[..., tuple[int, str, str]]

unix = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of Unix")
both = pytest.mark.parametrize("streams", ["inline", "deferred:1"])

PROLOGUE = """
import gc, os, signal, sys, threading, time
import numpy as np
import pygpukit as gp
from pygpukit import _pygpukit_rust as native

MIB = 1 << 20
N = MIB // 2  # 2 MiB of float32

def make(quota=6 * MIB, **more):
    return gp.memory.MemoryPool(quota=quota, enable_eviction=True, name="moving", **more)

def full(value, count=N):
    return gp.full(count, value, "float32")

def filled(pool, count):
    with pool:
        return [full(i) for i in range(count)]

def check(arrays, first=0):
    for i, array in enumerate(arrays):
        assert (array.to_numpy() == first + i).all(), i

def refused(call, kind=gp.OutOfMemoryError):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError("it was not refused")

def check_empty(pool):
    gc.collect()
    # Transfers that nobody waits for keep their arrays until they are over.
    for _ in range(2000):
        gp.synchronize()
        if not pool.stats()["live"]:
            break
        time.sleep(0.005)
    pool.trim()
    stats = pool.stats()
    left = {key: stats[key] for key in ("used", "live", "evicted", "reserved", "host_pageable")}
    assert not any(left.values()), left
"""


@both
def test_a_capture_that_finds_no_memory(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make()
x, other = filled(pool, 2)
gp.synchronize()
graph = gp.CudaGraph()
with pool:
    # Short of memory a capture evicts; nothing is run.
    with graph.capture():
        a = x + 1.0
        b = a * 2.0
    assert graph.num_nodes == 2
    graph.replay()
    assert (b.to_numpy() == 2).all()
    check([other], 1)
    del a, b
    graph.reset()
    # What is pinned cannot go: the capture ends with an error, and the next one works.
    x.pin(), other.pin()
    y = full(5.0)
    y.pin()
    def capture():
        with graph.capture():
            x + 1.0
    text = refused(capture)
    assert "pinned" in text and "quota of 6.0 MiB" in text, text
    assert not graph.is_ready
    other.unpin()
    graph.reset()
    with graph.capture():
        result = x + 1.0
    graph.replay()
    assert (result.to_numpy() == 1).all()
    x.unpin(), y.unpin()
    graph.replay()
check([x, other])
del x, y, other, graph, result
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_host_memory_that_runs_out(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make()
arrays = filled(pool, 5)  # three on the device, two on the host, and no more room there
with pool:
    text = refused(lambda: full(5.0), Exception)
    assert "no host memory" in text and "PYGPUKIT_SPILL_LIMIT" in text, text
refused(lambda: pool.set_quota(2 * MIB), Exception)
pool.set_quota(6 * MIB)
assert pool.used <= 6 * MIB and pool.stats()["live"] == 5
# Dropping what is on the host makes room there.
gone = next(i for i, array in enumerate(arrays) if not array.is_resident)
arrays[gone] = None
gp.synchronize()
with pool:
    arrays[gone] = full(gone)
for i, array in enumerate(arrays):
    if array.is_resident:
        assert (array.to_numpy() == i).all()
del array
# Dropping what is on the device makes room for what is not.
away = [i for i, array in enumerate(arrays) if not array.is_resident]
for i in range(5):
    if i not in away:
        arrays[i] = None
array = None
for i in away:
    assert (arrays[i].to_numpy() == i).all(), i
arrays.clear()
check_empty(pool)
print("ok")
"""
    )
    for limits in (("0", "4MiB"), ("4MiB", "0")):
        environ = {"PYGPUKIT_PINNED_LIMIT": limits[0], "PYGPUKIT_SPILL_LIMIT": limits[1]}
        assert run_python(program, PYGPUKIT_STREAMS=streams, **environ) == "ok\n", limits


@both
def test_slabs_give_their_host_memory_back(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make(4 * MIB)
with pool:
    small = [full(float(i), 1000) for i in range(50)]
assert small[0].evict()
del small
gp.synchronize()
# All of it is needed for the next one.
with pool:
    large = [full(i) for i in range(3)]
assert [array.is_resident for array in large] == [False, True, True]
del large[1:]
check(large)
print("ok")
"""
    )
    environ = {"PYGPUKIT_PINNED_LIMIT": "0", "PYGPUKIT_SPILL_LIMIT": "2MiB"}
    assert run_python(program, PYGPUKIT_STREAMS=streams, **environ) == "ok\n"


@both
def test_a_file_cut_short_while_its_array_moves(run_python: Run, tmp_path: Path, streams: str) -> None:
    path = tmp_path / "weights.bin"
    program = (
        PROLOGUE
        + f"""
path = {str(path)!r}
native.set_transfer_options(3, 64 << 10, 4, False)
values = np.random.default_rng(1).integers(0, 256, 4 * MIB, dtype=np.uint8)
values.tofile(path)
pool = make(8 * MIB)
with pool:
    arrays = [full(i) for i in range(3)]
    array = gp.load_raw(path, 0, 4 * MIB, "uint8")
    assert (array.to_numpy() == values).all()
    target = gp.zeros(4 * MIB, "uint8")
said = ""
with open(path, "rb") as file:
    # Threads may be done before the file is short; not every time.
    for turn in range(50):
        target.evict()
        handle = native.start_load(target, file.fileno(), path, 0)
        os.truncate(path, 1000)
        arrays[turn % 3].evict()
        try:
            handle.wait()
        except gp.LoadError as error:
            said = str(error)
            break
        values.tofile(path)
assert path in said and "1000 bytes" in said, said
check(arrays)
assert (array.to_numpy() == values).all()
arrays.clear()
del array, target, handle
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_transfers_cancelled_while_their_arrays_move(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
native.set_transfer_options(3, 64 << 10, 4, False)
pool = make()
arrays = filled(pool, 6)
host = np.full(N, 9, "float32")
for turn in range(20):
    up = gp.copy_to_device(host, arrays[turn % 3])
    down = gp.copy_to_host(arrays[3 + turn % 3])
    # Others push them out, and they come back for each chunk.
    arrays[(turn + 1) % 3].fill((turn + 1) % 3)
    cancelled = [up.cancel(), down.cancel()]
    for transfer, stopped in zip((up, down), cancelled):
        try:
            transfer.wait()
            assert not stopped
        except gp.TransferCancelledError:
            assert stopped
    if not cancelled[1]:
        assert (down.host == 3 + turn % 3).all()
    arrays[turn % 3].fill(turn % 3)
    assert pool.used <= 6 * MIB
# Dropped in the middle, array and all.
for _ in range(5):
    with pool:
        gp.copy_to_device(host)
        gp.copy_to_host(full(1.0))
check(arrays)
arrays.clear()
del up, down, transfer
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_a_quota_lowered_below_what_cannot_move(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make(8 * MIB)
arrays = filled(pool, 4)
arrays[0].pin()
address = arrays[1].ptr
pool.set_quota(1 * MIB)
assert pool.used == 4 * MIB, pool.used
assert [array.is_resident for array in arrays] == [True, True, False, False]
arrays[0] += 1.0
arrays[0] -= 1.0
text = refused(lambda: arrays[2].to_numpy())
assert "2.0 MiB pinned" in text and "2.0 MiB exported" in text, text
with pool:
    refused(lambda: full(1.0, 10))
pool.set_quota(8 * MIB)
check(arrays)
assert arrays[1].ptr == address
arrays[0].unpin()
arrays.clear()
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_a_pool_closed_with_arrays_on_the_host(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
outer = make(8 * MIB)
with outer:
    pool = make()
arrays = filled(pool, 6)
view = arrays[0][10:20]
pool.close()
with pool:
    assert "closed" in refused(lambda: full(1.0), ValueError)
check(arrays)
others = filled(outer, 4)
check(arrays)
check(others)
del pool
check(arrays)
del arrays
gc.collect()
assert view.tolist() == [0.0] * 10
del view
others.clear()
gc.collect()
gp.synchronize()
assert outer.used == 0
check_empty(outer)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_an_exception_sent_to_a_thread_that_moves_memory(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
import ctypes
pool = make()
arrays = filled(pool, 6)

class Stop(Exception):
    pass

def work():
    try:
        while True:
            for array in arrays:
                array.to_numpy()
                array.evict()
    except Stop:
        stopped.append(1)

stopped = []
for turn in range(6):
    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.02)
    assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Stop)) == 1
    for _ in range(3):
        with pool:
            full(7.0)
    thread.join(60)
    assert not thread.is_alive()
    check(arrays)
assert len(stopped) == 6
arrays.clear()
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


@both
def test_memory_errors_inside_host_functions(run_python: Run, streams: str) -> None:
    program = (
        PROLOGUE
        + """
pool = make()
arrays = filled(pool, 4)
def fail():
    raise MemoryError("no more")
for turn in range(4):
    try:
        native.submit_host(fail, [arrays[turn]], [arrays[(turn + 1) % 4]])
        gp.synchronize()
        raise AssertionError("the error is lost")
    except MemoryError as error:
        assert "no more" in str(error)
    arrays[turn].evict()
errors = []
def work():
    try:
        with pool:
            [gp.zeros(N) for _ in range(4)][0].pin()
            gp.zeros(8 * MIB)
    except MemoryError as error:
        errors.append(str(error))
threads = [threading.Thread(target=work) for _ in range(3)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert len(errors) == 3 and all("quota of 6.0 MiB" in text for text in errors), errors
check(arrays)
arrays.clear()
check_empty(pool)
print("ok")
"""
    )
    assert run_python(program, PYGPUKIT_STREAMS=streams) == "ok\n"


# Work that never ends uses the arrays that have to go.
WAITS = {
    "make room": "more = full(9.0)",
    "restore": "arrays[0].to_numpy()",
    "evict": "arrays[2].evict()",
    "quota": "pool.set_quota(2 * MIB)",
    "prefetch": "arrays[0].prefetch()",
    "pin": "arrays[0].pin()",
    "address": "arrays[0].ptr",
    "graph": "graph.replay()",
}

NEVER_ENDING = """
from pygpukit import _pygpukit_rust as native
kernel = native.load_kernel(b".entry endless(8)\\n", "endless", "endless", [("x", "*f32")])
pool = make()
arrays = filled(pool, 2)
graph = gp.CudaGraph()
with pool, graph.capture():
    kernel(arrays[0])
arrays += filled(pool, 3)
"""


@unix
@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_while_memory_moves(fake_cuda: str, interrupted: Interrupted, wait: str) -> None:
    program = (
        PROLOGUE
        + NEVER_ENDING
        + f"""
import ctypes
fake = ctypes.CDLL(os.environ["PYGPUKIT_LIBCUDA"])
fake.fakecuda_configure(b"LAZY", b"4000000000")
for array in arrays:
    if array.is_resident:
        kernel(array)
with pool:
    try:
        print("waiting")
        {WAITS[wait]}
        print("not interrupted")
    except KeyboardInterrupt:
        pass
# Nothing is locked: also another thread gets as far as waiting, or on.
fake.fakecuda_configure(b"LAZY", b"0")
def others():
    for i, array in enumerate(arrays):
        assert array.evict() in (True, False)
thread = threading.Thread(target=others)
thread.start()
thread.join(30)
assert not thread.is_alive()
gp.synchronize()
for i, array in enumerate(arrays):
    assert (array.to_numpy() == (i if i < 2 else i - 2)).all(), i
assert pool.used <= 6 * MIB
print("ok")
"""
    )
    environ = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda}
    status, out, err = interrupted(program, **environ)
    assert (status, out) == (0, "ok\n"), err


@unix
def test_ctrl_c_while_another_thread_moves_memory(fake_cuda: str, interrupted: Interrupted) -> None:
    program = (
        PROLOGUE
        + NEVER_ENDING
        + """
import ctypes
fake = ctypes.CDLL(os.environ["PYGPUKIT_LIBCUDA"])
fake.fakecuda_configure(b"LAZY", b"4000000000")
for array in arrays[2:]:
    kernel(array)
def work():
    arrays[2].evict()
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.2)
try:
    print("waiting")
    arrays[0].to_numpy()
except KeyboardInterrupt:
    print("interrupted")
fake.fakecuda_configure(b"LAZY", b"0")
thread.join(30)
assert not thread.is_alive()
for i, array in enumerate(arrays):
    assert (array.to_numpy() == (i if i < 2 else i - 2)).all(), i
"""
    )
    environ = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda}
    status, out, err = interrupted(program, **environ)
    assert (status, out) == (0, "interrupted\n"), err


@unix
def test_a_process_killed_while_it_holds_memory(repository: Path, tmp_path: Path, run_python: Run) -> None:
    shared = Path("/dev/shm")
    before = set(os.listdir(shared)) if shared.is_dir() else set()
    program = (
        PROLOGUE
        + """
pool = make()
arrays = filled(pool, 6)
pinned = gp.empty_pinned(MIB, "uint8")
np.arange(1 << 20, dtype="float32").tofile("weights.bin")
transfer = gp.copy_to_device(pinned)
print("holding", flush=True)
while True:
    gp.load_raw("weights.bin", 0, 1 << 20, "float32")
    for array in arrays:
        array += 1.0
"""
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYGPUKIT_")}
    environment |= {"PYTHONPATH": str(repository / "src"), "PYGPUKIT_DEVICE": "cpu", "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "holding\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait(30) == -signal.SIGKILL
    finally:
        child.kill()
    assert os.listdir(tmp_path) == ["weights.bin"]
    if shared.is_dir():
        assert {name for name in os.listdir(shared) if "gpukit" in name} <= before
    assert run_python("import pygpukit as gp; print(gp.ones(3).tolist())") == "[1.0, 1.0, 1.0]\n"


FORK = """
pool = make()
arrays = filled(pool, 6)
gp.synchronize()
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    try:
        child()
        os._exit(0)
    except BaseException as error:
        print(repr(error), flush=True)
        os._exit(1)
status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
assert status == 0, status
check(arrays)
arrays.clear()
check_empty(pool)
print("ok")
"""


@unix
def test_a_fork_while_arrays_are_away(run_python: Run, run_fake: Run) -> None:
    works = """
def child():
    check(arrays)
    arrays[0] += 1.0
    arrays[0].evict()
    check(arrays[:1], 1)
"""
    assert run_python(PROLOGUE + works + FORK) == "ok\n"
    poisoned = """
def child():
    for call in (arrays[0].to_numpy, arrays[0].prefetch, arrays[0].pin, arrays[5].evict, lambda: pool.set_quota(1 << 20)):
        assert "forked" in refused(call, gp.ForkError)
    with pool:
        refused(lambda: full(1.0, 10), gp.ForkError)
    arrays.clear()
"""
    assert run_fake(PROLOGUE + poisoned + FORK) == "ok\n"
