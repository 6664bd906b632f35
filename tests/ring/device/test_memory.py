"""Memory of actors that have ended: it is used again, and what others still need of them stays."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
from device_actors import (
    BATCH,
    ECHO,
    PASS,
    Item,
    count_of,
    launch,
    letters,
    make,
    new_id,
    numbered,
    start,
    until,
)

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime
from pygpukit.ring.device_mailbox import OUTCOMES
from pygpukit.ring.waiting import CLOSED

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "dedicated": (ECHO, {"dedicated": True}),
    "shared": (ECHO, {"dedicated": False}),
    "batches": (BATCH, {}),
    "ticks": (ECHO, {"every": 60.0}),
}


def held(runtime: RingKernelRuntime) -> tuple[int, int]:
    """Bytes that a ring has on the device and of mapped memory."""
    ring: Any = runtime._tier.ring
    return ring._device.nbytes, ring._mapped.nbytes


def release(runtime: RingKernelRuntime) -> None:
    """Launch something small: memory of what has ended is taken then."""
    launch(runtime, make(dedicated=False, queue_size=2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_that_is_launched_again_and_again(kind: str) -> None:
    body, options = KINDS[kind]
    kernel = make(body, queue_size=512, **options)
    sizes = []
    with RingKernelRuntime() as runtime:
        for n in range(6):
            [client] = start(runtime, kernel)
            assert [client.call(Item(i, 0, 0), timeout=20).id for i in (n, n + 1)] == [n, n + 1]
            assert client.send_batch(numbered(20)) == 20
            assert len(client.receive_batch(20, timeout=20)) == 20
            assert count_of(runtime, kernel) <= 22
            sizes.append(held(runtime))
            runtime.run(runtime.terminate(kernel))
            assert runtime.get_telemetry(kernel).processed == 22
    assert len(set(sizes)) == 1, sizes


def test_what_is_large_is_freed() -> None:
    large = [make(queue_size=4096, dedicated=one) for one in (True, False)]
    with RingKernelRuntime() as runtime:
        release(runtime)
        before = held(runtime)
        start(runtime, *large)
        assert all(most > few + (1 << 20) for most, few in zip(held(runtime), before, strict=True))
        for kernel in large:
            runtime.run(runtime.terminate(kernel))
        release(runtime)
        assert held(runtime) == before


def test_the_state_is_who_has_its(dedicated: bool) -> None:
    kernel = make(state={"count": gp.int64, "more": gp.int64[2000]}, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, kernel)
        for n in range(3):
            client.call(Item(n, 0, 0), timeout=20)
        runtime.run(runtime.terminate(kernel))
        release(runtime)
        old = runtime.get_state(kernel)
        assert old["count"].to_numpy()[0] == 3
        # Another launch has another one.
        [client] = start(runtime, kernel)
        client.call(Item(7, 0, 0), timeout=20)
        runtime.run(runtime.deactivate(kernel))
        release(runtime)
        assert count_of(runtime, kernel) == 1
        assert old["count"].to_numpy()[0] == 3
        assert not old["more"].to_numpy().any()
        # When nobody has it any more it is gone, with the actor.
        runtime.run(runtime.terminate(kernel))
        actor: Any = runtime._actors[kernel]
        ended = weakref.ref(actor.place.state.array)
        release(runtime)
        assert ended() is not None
        del actor, client
        launch(runtime, kernel)
        gc.collect()
        assert ended() is None


@pytest.mark.parametrize("backpressure", ["block", "reject", "drop_oldest", "drop_new"])
def test_what_is_sent_to_one_that_has_ended(dedicated: bool, backpressure: str) -> None:
    last = make(dedicated=dedicated, kernel_id=new_id("last"), backpressure=backpressure)
    first = make(PASS, to=last, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, *_ = start(runtime, first, last)
        client.send(Item(1, 0, 0))
        assert runtime.run(runtime.receive(last, timeout=20)).id == 1
        actor: Any = runtime._actors[last]
        runtime.run(runtime.terminate(last))
        release(runtime)
        # By another actor, more than there is room for. A sender of the host that was late is refused.
        assert client.send_batch(numbered(40)) == 40
        fate = actor.link.send(actor.place.index, actor.packed(Item(40, 0, 0)), 4711, timeout=20.0)
        assert OUTCOMES[fate] == CLOSED
        until(lambda: len(runtime.dead_letters()) == 40)
        assert sorted(letters(runtime)) == list(range(40))
        reasons = {letter.reason for letter in runtime.dead_letters()}
        # What is dropped or rejected for want of room is none the wiser.
        assert "terminated" in reasons
        assert reasons <= {"terminated", "rejected", "dropped_new", "dropped_oldest"}
        assert {letter.kernel_id for letter in runtime.dead_letters()} == {last}


@pytest.mark.parametrize("kind", ["dedicated", "shared", "batches"])
def test_results_are_there_after_the_end(kind: str, schedule: int) -> None:
    body, options = KINDS[kind]
    kernel = make(body, **options)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, kernel)
        client.send_batch(numbered(30))
        runtime.run(runtime.terminate(kernel))
        for _ in range(2):
            release(runtime)
        assert np.array_equal(client.receive_batch(30, timeout=20)["id"], np.arange(30))
        assert count_of(runtime, kernel) == 30
        [again] = start(runtime, kernel)
        assert again.call(Item(5, 0, 0), timeout=20).id == 5
