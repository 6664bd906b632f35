"""Transfers on the fake driver: what it is asked, and what happens when it fails or never ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest

# The fake driver's work is never done when it has to be asked this often.
NEVER = "4000000000"

PROLOGUE = """
native.set_transfer_options(3, 64 << 10, 4, False)
a = np.random.default_rng(0).integers(0, 256, 2 << 20, dtype=np.uint8)
"""


@pytest.mark.parametrize("lazy", [0, 1, 5])
def test_values_on_a_driver_that_takes_its_time(run_fake: Callable[..., str], lazy: int) -> None:
    program = (
        PROLOGUE
        + """
p = gp.empty_pinned(a.size, "uint8")
p[:] = a
for host in (a, p, a[:1000], p[5:2000]):
    x = gp.from_numpy(host)
    wanted = host.copy()
    t = gp.copy_to_device(host, priority="high")
    back = gp.copy_to_host(x, gp.empty_pinned(host.size, "uint8"))
    assert (x.to_numpy() == wanted).all()
    assert t.wait() and back.wait()
    assert (t.array.to_numpy() == wanted).all() and (back.host == wanted).all()
print(gp.memory.trim_pinned() > 0)
"""
    )
    assert run_fake(program, lazy=lazy) == "True\n"


def test_small_uploads_wait_for_nothing_and_reuse_their_blocks(run_fake: Callable[..., str]) -> None:
    program = """
gp.from_numpy(np.ones(10))
gp.synchronize()
before = [count(call) for call in ("cuMemHostAlloc", "cuStreamQuery", "cuMemcpyHtoDAsync")]
for _ in range(100):
    gp.from_numpy(np.ones(10))
print(*(count(call) - n for call, n in zip(("cuMemHostAlloc", "cuStreamQuery", "cuMemcpyHtoDAsync"), before)))
"""
    assert run_fake(program) == "0 0 100\n"


def test_many_small_uploads_are_few_driver_calls(run_fake: Callable[..., str]) -> None:
    program = """
x = gp.zeros((100, 32))
before = count("cuMemcpyHtoDAsync")
gp.copy_many([(np.full(32, i, "f"), x[i]) for i in range(100)])
print(count("cuMemcpyHtoDAsync") - before, x.to_numpy()[:, 5].sum())
"""
    assert run_fake(program) == "1 4950.0\n"


def test_uploads_left_behind_are_bounded(run_fake: Callable[..., str]) -> None:
    # Nothing passes before it is asked for often; blocks are reused all the same.
    program = """
for i in range(400):
    x = gp.from_numpy(np.full(25_000, i))
print(x.to_numpy()[-1], gp.memory.pinned_stats()["cached"] < 64 << 20)
"""
    assert run_fake(program, lazy=3) == "399 True\n"


@pytest.mark.parametrize("failing", ["cuMemHostAlloc:1:2:*", "cuMemHostAlloc:2:2:*"])
def test_no_page_locked_memory_left(run_fake: Callable[..., str], failing: str) -> None:
    program = (
        PROLOGUE
        + f"""
configure("FAIL", "{failing}")
for host in (a, a[:1000], a[:300_000]):
    t = gp.copy_to_device(host)
    assert t.wait()
    assert (gp.from_numpy(host).to_numpy() == host).all() and (t.array.to_numpy() == host).all()
print(refused(lambda: gp.empty_pinned(100 << 20), Exception))
"""
    )
    for lazy in (0, 2):
        assert "cuMemHostAlloc" in run_fake(program, lazy=lazy)


@pytest.mark.parametrize(
    ("call", "start"),
    [
        ("cuMemcpyHtoDAsync", "gp.copy_to_device(a)"),
        ("cuMemcpyHtoDAsync", "gp.from_numpy(a)"),
        ("cuMemcpyDtoHAsync", "gp.copy_to_host(x)"),
        ("cuMemcpyDtoHAsync", "x.to_numpy()"),
    ],
)
def test_the_failure_of_a_chunk_reaches_whoever_waits(run_fake: Callable[..., str], call: str, start: str) -> None:
    program = (
        PROLOGUE
        + f"""
x = gp.from_numpy(a)
gp.synchronize()
configure("FAIL", "{call}:3:1")
def work():
    result = {start}
    if isinstance(result, gp.Transfer):
        result.wait()
text = refused(work)
assert "{call} failed with CUDA_ERROR_INVALID_VALUE" in text, text
assert (gp.from_numpy(a).to_numpy() == a).all()
print("goes on")
"""
    )
    for lazy in (0, 3):
        assert run_fake(program, lazy=lazy) == "goes on\n"


def test_a_fault_ends_transfers_with_its_report(run_fake: Callable[..., str]) -> None:
    program = (
        PROLOGUE
        + """
t = gp.copy_to_device(a)
t.wait()
configure("FAIL", "cuMemcpyHtoDAsync:2:700")
t = gp.copy_to_device(a)
text = refused(t.wait, gp.DeviceLostError)
assert "Restart the process" in text, text
refused(lambda: gp.copy_to_device(a), gp.DeviceLostError)
refused(lambda: gp.empty_pinned(10), gp.DeviceLostError)
print(t.done)
"""
    )
    assert run_fake(program) == "True\n"


WAITS = {
    "transfer": "gp.copy_to_device(a).wait()",
    "download": "gp.copy_to_host(x).wait()",
    "upload": "gp.from_numpy(a)",
    "pinned": "gp.from_numpy(p)",
    "load": "gp.load_raw(native.__file__, 0, 1 << 20, 'uint8')",
    "blocks": "[gp.from_numpy(a[:200_000]) for _ in range(1000)]",
}


@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_a_wait(fake_cuda: str, interrupted: Callable[..., tuple[int, str, str]], wait: str) -> None:
    program = f"""
import numpy as np
import pygpukit as gp
from pygpukit import _pygpukit_rust as native
native.set_transfer_options(3, 64 << 10, 4, False)
k = native.load_kernel(b".entry endless(8)\\n", "endless", "endless", [("x", "*f32")])
a, p = np.ones(1 << 20, "uint8"), gp.empty_pinned(1 << 20, "uint8")
x = gp.empty(1 << 20, "uint8")
k(gp.empty(4))
try:
    print("waiting")
    {WAITS[wait]}
except KeyboardInterrupt:
    # Nothing is locked.
    print("interrupted", gp.memory.pinned_stats()["used"] > 0, gp.copy_to_host(x).done)
"""
    environ = {"PYGPUKIT_DEVICE": "cuda", "PYGPUKIT_LIBCUDA": fake_cuda, "FAKECUDA_LAZY": NEVER}
    status, out, err = interrupted(program, **environ)
    assert (status, out) == (0, "interrupted True False\n"), err


def test_the_end_of_the_interpreter_does_not_wait_for_transfers(run_fake: Callable[..., str]) -> None:
    program = (
        PROLOGUE
        + """
import threading, time
k = kernel("endless", "8", [("x", "*f32")])
k(gp.empty(4))
t = [gp.copy_to_device(a) for _ in range(3)]
def wait():
    try:
        t[0].wait()
    except RuntimeError as error:
        assert "shutting down" in str(error), error
threading.Thread(target=wait, daemon=True).start()
time.sleep(0.05)
print("end")
"""
    )
    for _ in range(3):
        assert run_fake(program, lazy=NEVER) == "end\n"


def test_a_forked_child_is_refused(run_fake: Callable[..., str]) -> None:
    program = (
        PROLOGUE
        + """
gp.from_numpy(a)
pid = os.fork()
if pid == 0:
    try:
        gp.copy_to_device(a)
    except gp.ForkError:
        os._exit(3)
    os._exit(4)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    )
    assert run_fake(program) == "3\n"
