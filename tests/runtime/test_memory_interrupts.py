"""Programs that are interrupted, killed or forked while memory moves: nothing stays locked, and the others go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from memory_programs import PROLOGUE

Run = Callable[..., str]
Interrupted = Callable[..., tuple[int, str, str]]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of Unix")


@pytest.mark.parametrize("streams", ["inline", "deferred:1"])
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
    x, y = arrays[0], arrays[5]
    for call in (x.to_numpy, x.prefetch, x.pin, lambda: x.ptr, y.evict, lambda: pool.set_quota(1 << 20)):
        assert "forked" in refused(call, gp.ForkError)
    with pool:
        refused(lambda: full(1.0, 10), gp.ForkError)
    del x, y
    arrays.clear()
"""
    assert run_fake(PROLOGUE + poisoned + FORK) == "ok\n"
