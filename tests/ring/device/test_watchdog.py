"""Handlers that do not return: who is told of them, and who is not."""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from device_actors import BATCH, ECHO, PASS, Item, make, new_id, processed, start, until

import pygpukit as gp
from pygpukit.errors import RingError
from pygpukit.ring import RingKernelRuntime

# Loops until the word that its state points to says stop.
SPIN = """
    while (in.value > 0 && *(volatile long long*)state.stop == 0) {}
    if (ctx.lane == 0) { out = in; state.count += 1; }
    ctx.send(out);
"""
# Works for so many milliseconds.
SLOW = """
    const unsigned long long end = ctx.time() + in.value * 1000000ull;
    while (ctx.time() < end) {}
    if (ctx.lane == 0) { out = in; state.count += 1; }
    ctx.send(out);
"""
LIMIT = 0.2


class Stop:
    """A word that a handler reads, in memory of the host that the device sees."""

    def __init__(self) -> None:
        self.word = gp.empty_pinned((1,), dtype="int64")
        self.word[:] = 0

    def state(self) -> dict[str, object]:
        """The state of an actor that reads it."""
        return {"count": gp.int64, "stop": np.uint64(self.word.ctypes.data)}


def spinner(stop: Stop, body: str = SPIN, **options: object) -> str:
    """An actor that is stuck with messages above 0 until it is told to stop."""
    return make(body, state=stop.state(), **options)


def warnings(caplog: pytest.LogCaptureFixture, name: str) -> list[str]:
    """What was logged of an actor's handler."""
    texts = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    return [text for text in texts if repr(name) in text and "watchdog" in text]


@pytest.mark.parametrize("time_slice", [None, 0.1], ids=["resident", "sliced"])
def test_a_handler_that_does_not_return_is_named(
    dedicated: bool, time_slice: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    stop = Stop()
    spin = spinner(stop, dedicated=dedicated)
    other = make(ECHO, dedicated=dedicated)
    with RingKernelRuntime(time_slice=time_slice, watchdog=LIMIT) as runtime:
        spinning, fine = start(runtime, spin, other)
        assert spinning.call(Item(0, 0, 0), timeout=20).id == 0
        assert (runtime.status()["stuck"], runtime.status()["stuck_actors"]) == (False, [])
        for n in (1, 2):
            spinning.send(Item(n, 0, 2 - n))
        until(lambda: runtime.status()["stuck_actors"] == [spin])
        assert runtime.status()["stuck"]
        assert runtime.get_telemetry(spin).stuck
        assert not runtime.get_telemetry(other).stuck
        until(lambda: len(warnings(caplog, spin)) == 1)
        assert "runtime.abort()" in warnings(caplog, spin)[0]
        if time_slice is None:
            # The others go on meanwhile.
            assert fine.call(Item(5, 0, 0), timeout=20).id == 5
        time.sleep(LIMIT)
        stop.word[0] = 1
        until(lambda: not runtime.status()["stuck"])
        assert runtime.status()["stuck_actors"] == []
        assert not runtime.get_telemetry(spin).stuck
        assert [spinning.receive(timeout=20).id for _ in range(2)] == [1, 2]
        assert fine.call(Item(6, 0, 0), timeout=20).id == 6
        # Once for each time it is stuck.
        assert len(warnings(caplog, spin)) == 1
        assert warnings(caplog, other) == []
        stop.word[0] = 0
        spinning.send(Item(3, 0, 1))
        until(lambda: len(warnings(caplog, spin)) == 2)
        stop.word[0] = 1
        assert spinning.receive(timeout=20).id == 3


def test_a_batch_that_is_not_finished(caplog: pytest.LogCaptureFixture) -> None:
    stop = Stop()
    body = "while (batch.in(0).value > 0 && *(volatile long long*)state.stop == 0) {}" + BATCH
    spin = spinner(stop, body)
    with RingKernelRuntime(time_slice=None, watchdog=LIMIT) as runtime:
        [client] = start(runtime, spin)
        client.send(Item(1, 0, 1))
        until(lambda: runtime.status()["stuck_actors"] == [spin])
        stop.word[0] = 1
        assert client.receive(timeout=20).id == 1
        until(lambda: not runtime.get_telemetry(spin).stuck)


def test_the_right_one_in_any_order(schedule: int) -> None:
    stop = Stop()
    spins = [spinner(stop, dedicated=own) for own in (True, False)]
    others = [make(ECHO, dedicated=own) for own in (True, False)]
    with RingKernelRuntime(time_slice=None, watchdog=LIMIT) as runtime:
        clients = start(runtime, *spins, *others)
        for client in clients:
            client.send(Item(1, 0, 1))
        until(lambda: runtime.status()["stuck_actors"] == sorted(spins))
        for client in clients[2:]:
            assert client.call(Item(2, 0, 1), timeout=20).id == 2
        stop.word[0] = 1
        until(lambda: not runtime.status()["stuck"])
        assert [client.receive(timeout=20).id for client in clients] == [1] * 4


def test_nobody_looks_without_a_watchdog(dedicated: bool, caplog: pytest.LogCaptureFixture) -> None:
    stop = Stop()
    spin = spinner(stop, dedicated=dedicated)
    with RingKernelRuntime(time_slice=None, watchdog=None) as runtime:
        [client] = start(runtime, spin)
        client.send(Item(1, 0, 1))
        time.sleep(4 * LIMIT)
        assert not runtime.status()["stuck"]
        assert warnings(caplog, spin) == []
        stop.word[0] = 1
        assert client.receive(timeout=20).id == 1


def test_long_handlers_are_not_stuck(dedicated: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Many of them in a row take longer than the limit, and each of them less."""
    slow = make(SLOW, dedicated=dedicated)
    with RingKernelRuntime(time_slice=0.3, watchdog=2.0) as runtime:
        [client] = start(runtime, slow)
        for n in range(6):
            client.send(Item(n, 0, 400))
        for n in range(6):
            assert not runtime.status()["stuck"]
            assert client.receive(timeout=20).id == n
        assert warnings(caplog, slow) == []


def test_who_waits_for_others_is_not_stuck(dedicated: bool) -> None:
    """For room in a mailbox, for the host to receive, for its activation, and for the ring to come back.

    A block of the emulator that gets no processor for that long is named too, until it does.
    """
    full = make(ECHO, dedicated=dedicated, input_queue_size=2)
    sender = make(PASS, to=full, dedicated=dedicated)
    unread = make(ECHO, dedicated=dedicated, output_queue_size=2)
    batch = make(BATCH, output_queue_size=2)
    paused = make(ECHO, dedicated=dedicated)
    with RingKernelRuntime(time_slice=None, watchdog=LIMIT) as runtime:
        clients = start(runtime, sender, unread, batch, paused, full)
        for one in (paused, full):
            runtime.run(runtime.deactivate(one, timeout=20))
        for client in clients[:4]:
            for n in range(8):
                client.send(Item(n, 0, 1), timeout=20)
        until(lambda: processed(runtime, unread) >= 2)
        for _ in range(2):
            time.sleep(2 * LIMIT)
            until(lambda: not runtime.status()["stuck"])
            runtime._tier.ring.link.park()
            time.sleep(2 * LIMIT)
            runtime._tier.ring.link.resume()
        until(lambda: not runtime.status()["stuck"])
        for one in (paused, full):
            runtime.run(runtime.reactivate(one))
        for client in clients[1:]:
            assert [client.receive(timeout=20).id for _ in range(8)] == list(range(8))


def test_a_process_that_stood_still(start_child: Callable[..., subprocess.Popen[str]]) -> None:
    child = start_child(
        f"""
import logging, sys, time
logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
sys.path.insert(0, {str(__file__).rpartition("/")[0]!r})
from test_watchdog import *
slow = make(SLOW, dedicated=True), make(SLOW, dedicated=False)
with RingKernelRuntime(watchdog=1.6) as runtime:
    clients = start(runtime, *slow)
    for client in clients: client.send(Item(1, 0, 200))
    print("ready", flush=True)
    for n in range(5):
        for client in clients: client.call(Item(1, 0, 200), timeout=30)
print("end", flush=True)
"""
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    child.send_signal(signal.SIGCONT)
    assert child.communicate(timeout=50)[0] == "end\n"


def test_ctrl_c_beside_a_handler_that_does_not_return(
    start_child: Callable[..., subprocess.Popen[str]], repository: Path
) -> None:
    """What has to wait until the ring has left the device can be given up, and done later."""
    child = start_child(
        f"""
import sys
sys.path[:0] = [{str(repository / "tests")!r}, {str(__file__).rpartition("/")[0]!r}]
from ctrl_c import press_ctrl_c
from test_watchdog import *
stop = Stop()
spin = spinner(stop)
a = gp.zeros(1, dtype=gp.int32)
def fill(): gp.jit('extern "C" __global__ void fill(int* a) {{ *a = 3; }}', func="fill")(a, grid=1, block=1)
with RingKernelRuntime(watchdog=0.2, time_slice=None) as runtime:
    [client] = start(runtime, spin)
    client.send(Item(1, 0, 1))
    until(lambda: runtime.status()["stuck_actors"])
    try:
        press_ctrl_c()
        fill()
    except KeyboardInterrupt:
        print("interrupted", runtime.status()["stuck_actors"] == [spin], flush=True)
    sys.setswitchinterval(0.005)
    stop.word[0] = 1
    # The ring was asked to leave, and comes back by itself.
    assert client.receive(timeout=40).id == 1
    assert client.call(Item(2, 0, 1), timeout=40).id == 2
    fill()
    print(a.to_numpy()[0], flush=True)
"""
    )
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "interrupted True\n3\n"), out + err


def test_the_status_of_a_runtime(device: str) -> None:
    runtime = RingKernelRuntime(time_slice=None)
    nothing = {"host": 0, "device_ns": 0}
    assert runtime.status() == {
        "up": False,
        "launches": 0,
        "parks": 0,
        "last_exit": None,
        "beats": nothing,
        "stuck": False,
        "stuck_actors": [],
    }
    with runtime:
        start(runtime, make(kernel_id=new_id("status")))
        runtime._tier.ring.link.park()
        assert not runtime.status()["up"]
        runtime._tier.ring.link.resume()
        until(lambda: runtime.status()["up"])
        status = runtime.status()
        assert (status["parks"], status["last_exit"]) == (1, "asked")
        assert status["launches"] >= 2
        until(lambda: runtime.status()["beats"] != status["beats"])
    assert not runtime.status()["up"]


@pytest.mark.parametrize("watchdog", [0, -1.0, 0.01, "2", float("nan"), float("inf")])
def test_what_no_watchdog_can_be(watchdog: object) -> None:
    with pytest.raises(RingError, match=r"watchdog must be at least 0\.1 seconds"):
        RingKernelRuntime(watchdog=watchdog)  # type: ignore[arg-type]
