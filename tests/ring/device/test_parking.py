"""The kernel leaves the device and comes back; processes that stop, end and are interrupted."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from device_actors import ECHO, PASS, Item, check_balance, make, new_id, numbered, processed, start, until

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime

Start = Callable[..., "subprocess.Popen[str]"]


class Load:
    """Threads that call an actor and send through a chain until the block ends, and check what comes back."""

    def __init__(self, runtime: RingKernelRuntime, dedicated: bool) -> None:
        echo = make(ECHO, dedicated=dedicated)
        end = make(ECHO, dedicated=not dedicated, queue_size=256)
        first = make(PASS, to=end, dedicated=dedicated, queue_size=256)
        self.runtime, self.first, self.echo = runtime, first, echo
        self.client, self.sender, self.last = start(runtime, echo, first, end)
        self.calls = self.sent = self.seen = 0
        self.errors: list[Any] = []
        self.is_over = threading.Event()
        self.threads = [threading.Thread(target=one) for one in (self._call, self._send, self._receive)]

    def _call(self) -> None:
        try:
            while not self.is_over.is_set():
                if self.client.call(Item(self.calls, 0, 0), timeout=30).id != self.calls:
                    self.errors.append(self.calls)
                self.calls += 1
        except BaseException as error:
            self.errors.append(error)

    def _send(self) -> None:
        try:
            while not self.is_over.is_set():
                self.sent += self.sender.send_batch(numbered(16, self.sent), timeout=30)
        except BaseException as error:
            self.errors.append(error)

    def _receive(self) -> None:
        try:
            while self.threads[1].is_alive() or self.seen < self.sent:
                got = self.last.receive_batch(16, timeout=0.2)["id"]
                if not np.array_equal(got, np.arange(self.seen, self.seen + len(got))):
                    self.errors.append((self.seen, got))
                self.seen += len(got)
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        until(lambda: self.calls > 5 and self.seen > 5)
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_over.set()
        self.threads[1].join()
        for thread in self.threads:
            thread.join()
        assert self.errors == []
        assert self.seen == self.sent
        check_balance(self.runtime, self.first, self.sent)
        check_balance(self.runtime, self.echo, self.calls)
        assert self.runtime.dead_letters() == []

    def goes_on(self) -> None:
        calls, seen = self.calls, self.seen
        until(lambda: self.errors or (self.calls > calls + 2 and self.seen > seen + 16))


def test_parking_under_load_loses_nothing(dedicated: bool) -> None:
    with RingKernelRuntime() as runtime, Load(runtime, dedicated) as load:
        link = runtime._tier.ring.link
        for _ in range(15):
            link.park()
            assert link.status()["up"] is False
            time.sleep(0.001)
            link.resume()
            load.goes_on()
        assert link.status()["parks"] >= 15


def test_tokens_that_never_end_do_not_keep_the_kernel(dedicated: bool) -> None:
    """One block for all that share, so that it always finds something to do."""
    body = 'if (ctx.lane == 0) out = in; ctx.send("next", out);'
    ids = [new_id() for _ in range(4)]
    for one, following in zip(ids, ids[1:] + ids[:1], strict=True):
        make(body, kernel_id=one, to=following, dedicated=dedicated)
    with RingKernelRuntime(workers=1) as runtime:
        for n, client in enumerate(start(runtime, *ids)):
            client.send_batch(numbered(5, 5 * n))
        link = runtime._tier.ring.link
        for _ in range(5):
            before = processed(runtime, ids[0])
            until(lambda before=before: processed(runtime, ids[0]) > before + 5)
            link.park()
            assert link.status()["up"] is False
            link.resume()
        for one in ids:
            runtime.run(runtime.terminate(one, drain=False, timeout=20))


def test_nothing_moves_while_it_is_parked(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        link = runtime._tier.ring.link
        link.park()
        try:
            before = processed(runtime, echo)
            for n in range(20):
                client.send(Item(n, 0, 0), timeout=5)
            time.sleep(0.02)
            assert processed(runtime, echo) == before
            with pytest.raises(TimeoutError):
                client.receive(timeout=0.02)
        finally:
            link.resume()
        assert [client.receive(timeout=20).id for _ in range(20)] == list(range(20))


def test_kernels_and_operators_beside_a_ring(dedicated: bool) -> None:
    with RingKernelRuntime() as runtime, Load(runtime, dedicated) as load:
        kernel = gp.jit(
            f'extern "C" __global__ void add_{int(dedicated)}(float* x) {{ x[threadIdx.x] += 1; }}',
            func=f"add_{int(dedicated)}",
        )
        x = gp.zeros(32)
        kernel(x, grid=1, block=32)
        assert (x.to_numpy() == 1).all()
        a = gp.ones((40, 50))
        assert np.array_equal((a @ gp.ones((50, 20))).to_numpy(), np.full((40, 20), 50.0))
        assert gp.sum(a + a).item() == 4000
        big = gp.zeros(1 << 22)
        del big
        gp.synchronize()
        load.goes_on()


def test_time_slices(dedicated: bool) -> None:
    with RingKernelRuntime(time_slice=0.02) as runtime, Load(runtime, dedicated) as load:
        link = runtime._tier.ring.link
        first = link.status()["launches"]
        until(lambda: link.status()["launches"] > first + 5)
        load.goes_on()
        assert link.status()["last_exit"] in (1, 3)


PROGRAM = """
import faulthandler, os, sys, threading, time
faulthandler.dump_traceback_later(25, exit=True)
from device_actors import *
echo = make(dedicated={dedicated}, queue_size=8)
runtime = RingKernelRuntime(lease=0.3)
runtime.__enter__()
[client] = start(runtime, echo)
"""


def test_a_process_that_was_stopped_goes_on(start_child: Start, dedicated: bool) -> None:
    child = start_child(
        PROGRAM.format(dedicated=dedicated)
        + """
print("ready")
for line in sys.stdin:
    for n in range(50):
        assert client.call(Item(n, 0, 0), timeout=15).id == n
    print("answered", runtime._tier.ring.link.status()["last_exit"], count_of(runtime, echo) > 0)
runtime.close()
print("closed")
"""
    )
    assert child.stdin is not None
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.stdin.write("go\n")
    child.stdin.flush()
    assert child.stdout.readline().startswith("answered")
    child.send_signal(signal.SIGSTOP)
    time.sleep(0.6)
    child.send_signal(signal.SIGCONT)
    out, err = child.communicate("go\n", timeout=30)
    assert child.returncode == 0, out + err
    assert out.startswith("answered")
    assert out.endswith("closed\n")


def test_a_process_that_is_killed(start_child: Start, dedicated: bool) -> None:
    child = start_child(PROGRAM.format(dedicated=dedicated) + 'print("ready")\ntime.sleep(20)\n')
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.kill()
    assert child.wait(10) == -signal.SIGKILL
    # The device is free for others.
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, make(dedicated=dedicated))
        assert client.call(Item(1, 0, 0), timeout=20).id == 1


WAITS = {
    "call": "silent.call(Item(1, 0, 0))",
    "receive": "silent.receive()",
    "receive_batch": "silent.receive_batch(5)",
    "send": "runtime.run(runtime.deactivate(echo))\n    while True: client.send(Item(1, 0, 0))",
    "send_batch": "runtime.run(runtime.deactivate(echo))\n    client.send_batch(numbered(100))",
    "run": "runtime.run(runtime.receive(echo))",
}


@pytest.mark.parametrize("wait", WAITS)
def test_interrupts_end_a_wait(start_child: Start, wait: str) -> None:
    child = start_child(
        PROGRAM.format(dedicated=wait != "send")
        + f"""
[silent] = start(runtime, make(COUNT))
try:
    print("waiting")
    {WAITS[wait]}
except KeyboardInterrupt:
    print("interrupted")
runtime.close(timeout=5)
print(runtime.get_kernel_state(echo).name)
"""
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "waiting\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=40)
    assert (child.returncode, out) == (0, "interrupted\nTERMINATED\n"), out + err


@pytest.mark.parametrize("work", ["", "client.send_batch(numbered(8))"])
def test_the_process_ends_without_closing(start_child: Start, dedicated: bool, work: str) -> None:
    child = start_child(PROGRAM.format(dedicated=dedicated) + f'{work}\nprint("end")\n')
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err) == (0, "end\n", "")


def test_an_exception_in_the_block_ends_the_runtime(start_child: Start, dedicated: bool) -> None:
    child = start_child(
        PROGRAM.format(dedicated=dedicated)
        + """
with RingKernelRuntime() as other:
    start(other, make(dedicated=True))
    raise ValueError("as it happens")
"""
    )
    out, err = child.communicate(timeout=30)
    assert child.returncode == 1, out + err
    assert err.endswith("ValueError: as it happens\n")


def test_fork(start_child: Start, device: str) -> None:
    child = start_child(
        PROGRAM.format(dedicated=True)
        + """
import warnings; warnings.simplefilter("ignore")
# Its thread is not in the child, which would wait for it.
faulthandler.cancel_dump_traceback_later()
assert client.call(Item(1, 0, 0), timeout=15).id == 1
pid = os.fork()
if pid == 0:
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert client.call(Item(2, 0, 0), timeout=15).id == 2
pid = os.fork()
if pid == 0:
    sys.exit(0)
end = time.monotonic() + 10
while (found := os.waitpid(pid, os.WNOHANG))[0] == 0:
    if time.monotonic() > end:
        os.kill(pid, 9)
        raise SystemExit("the forked process does not end")
    time.sleep(0.01)
assert client.call(Item(3, 0, 0), timeout=15).id == 3
runtime.close()
print("closed", found[1])
"""
    )
    out, err = child.communicate(timeout=40)
    assert (child.returncode, out) == (0, "closed 0\n"), out + err
