"""Launches and ends that go wrong half-way: the ring goes on, and nothing is left of them."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from device_actors import ECHO, PASS, Item, check_balance, letters, make, new_id, numbered, processed, start, until
from workers import isolated

import pygpukit as gp
from pygpukit.errors import ActorFailedError, RingError
from pygpukit.ring import KernelState, RingKernelRuntime
from pygpukit.ring import device as ring_device

# Says in the second word at this address that it works, and does until the first says stop.
HOLD = """
    volatile long long* words = (volatile long long*)in.id;
    if (words && ctx.lane == 0) words[1] = 1;
    while (words && words[0] == 0) __nanosleep(1000);
    if (ctx.lane == 0) out = in;
    ctx.send(out);
"""
# As many messages to itself as `hops` says.
PUMP = """
    if (ctx.lane == 0) { out = in; out.hops -= 1; state.count += 1; }
    if (in.hops == 0) ctx.send(out);
    else ctx.send("next", out);
"""


def flag() -> Any:
    word = gp.empty_pinned((2,), dtype="int64")
    word[:] = 0
    return word


def pump(**options: Any) -> str:
    name = new_id("pump")
    return make(PUMP, kernel_id=name, to=name, dedicated=False, **options)


def test_a_launch_that_gives_up_takes_nobody_along(dedicated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_device, "_LEAVE_SECONDS", 0.2)
    slow, echo, later = make(HOLD, dedicated=dedicated), make(dedicated=dedicated), make(HOLD, dedicated=dedicated)
    stop = flag()
    with RingKernelRuntime() as runtime:
        client, other = start(runtime, slow, echo)
        client.send(Item(stop.ctypes.data, 0, 0))
        until(lambda: stop[1] == 1)
        with pytest.raises(RingError, match="did not leave the device"):
            runtime.run(runtime.launch(later))
        stop[0] = 1
        client.receive(timeout=30)
        assert other.call(Item(1, 0, 0), timeout=30).id == 1
        [client] = start(runtime, later)
        assert client.call(Item(0, 0, 0), timeout=30).id == 0


def test_a_ring_that_cannot_be_closed_has_failed(dedicated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring_device, "_LEAVE_SECONDS", 0.2)
    slow, echo = make(HOLD, dedicated=dedicated), make(dedicated=dedicated)
    stop = flag()
    runtime = RingKernelRuntime().__enter__()
    try:
        client, other = start(runtime, slow, echo)
        client.send(Item(stop.ctypes.data, 0, 0))
        until(lambda: stop[1] == 1)
        with pytest.raises(RingError, match="did not leave the device"):
            runtime.close(timeout=0.1)
        # It has handled nothing more that anybody will hear of; the other one had ended, or was kept from it.
        assert runtime.get_kernel_state(slow) is KernelState.FAILED
        assert runtime.get_kernel_state(echo).is_over
        with pytest.raises(RingError, match="did not leave the device"):
            client.call(Item(1, 0, 0), timeout=30)
        with pytest.raises(RingError):
            other.call(Item(1, 0, 0), timeout=30)
        runtime.close()
    finally:
        stop[0] = 1
        # Until then the device reads that word.
        until(lambda: not runtime.status()["up"])


def test_busy_actors_leave_room_for_others_that_share() -> None:
    """As many as there are blocks always have something to do, also when the kernel comes back."""
    pumps, echo = [pump() for _ in range(2)], make(dedicated=False)
    with RingKernelRuntime(workers=2, time_slice=0.1) as runtime:
        *clients, client = start(runtime, *pumps, echo)
        for one in clients:
            one.send(Item(0, 1 << 30, 0))
        link = runtime._tier.ring.link
        for n in range(5):
            assert client.call(Item(n, 0, 0), timeout=20).id == n
            link.park()
            link.resume()
        # What they do is seen meanwhile.
        for one in pumps:
            before = processed(runtime, one)
            until(lambda one=one, before=before: processed(runtime, one) > before)
            runtime.run(runtime.terminate(one, drain=False, timeout=20))


def test_two_that_are_wanted_at_once() -> None:
    """Sent by one handler, for one block: the first of them pumps."""
    busy, echo = pump(), make(dedicated=False)
    body = 'if (ctx.lane == 0) out = in; ctx.send("pump", out); ctx.send("echo", out);'
    both = make(body.replace('"pump"', f'"{busy}"').replace('"echo"', f'"{echo}"'), dedicated=False)
    with RingKernelRuntime(workers=1, time_slice=None) as runtime:
        _, last, client = start(runtime, busy, echo, both)
        client.send(Item(1, 1 << 30, 0))
        assert last.receive(timeout=20).id == 1
        runtime.run(runtime.terminate(busy, drain=False, timeout=20))


@pytest.mark.parametrize("options", [{"block_size": 256}, {"block_size": 64, "grid_size": 2}], ids=["wide", "group"])
def test_a_launch_beside_an_actor_that_failed(options: dict[str, Any]) -> None:
    """Its sender is told, and what it was sent is handed back, whatever it needed of the kernel."""
    bad = make(
        "if (in.id == 5) { ctx.fail(); return; } if (ctx.lane == 0) out = in; ctx.send(out);",
        dedicated=True,
        input_queue_size=16,
        **options,
    )
    accepted: list[Any] = []

    def send() -> None:
        try:
            while True:
                accepted.append(client.send(Item(5, 0, 0), timeout=30))
        except ActorFailedError as error:
            accepted.append(error)

    with RingKernelRuntime() as runtime:
        [client] = start(runtime, bad)
        thread = threading.Thread(target=send)
        thread.start()
        others = [start(runtime, make(block_size=64))[0] for _ in range(3)]
        thread.join(30)
        assert isinstance(accepted.pop(), ActorFailedError)
        assert [one.call(Item(n, 0, 0), timeout=20).id for n, one in enumerate(others)] == [0, 1, 2]
        [again] = start(runtime, make(block_size=64))
        assert again.call(Item(7, 0, 0), timeout=20).id == 7
        until(lambda: len(letters(runtime)) == len(accepted))


def test_a_launch_that_is_cancelled_leaves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = new_id("topic")
    listener = make(topics=[topic], input_queue_size=2)
    first = make(f'if (ctx.lane == 0) out = in; ctx.publish("{topic}", out); ctx.send(out);')
    add, go_on = ring_device.DeviceRing.add, threading.Event()

    def held(self: Any, kernels: Any) -> Any:
        if kernels[0].kernel_id == listener:
            go_on.wait(30)
        return add(self, kernels)

    monkeypatch.setattr(ring_device.DeviceRing, "add", held)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, first)

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await runtime.launch(listener)

        runtime.run(give_up())
        go_on.set()
        until(lambda: len(runtime._tier.ring.places) == 2)
        for n in range(20):
            assert client.call(Item(n, 0, 0), timeout=20).id == n


def test_a_launch_that_fails_half_way_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    good, huge = make(), make(input_queue_size=777)
    place = ring_device.DeviceRing._place

    def refuses(self: Any, kernel: Any, *args: Any) -> Any:
        if kernel.kernel_id == huge:
            raise MemoryError("no more")
        return place(self, kernel, *args)

    monkeypatch.setattr(ring_device.DeviceRing, "_place", refuses)
    with RingKernelRuntime() as runtime:
        [echo] = start(runtime, make())

        async def both() -> list[Any]:
            return await asyncio.gather(runtime.launch(good), runtime.launch(huge), return_exceptions=True)

        found = runtime.run(both())
        assert found[0] is None
        assert isinstance(found[1], MemoryError)
        client = runtime.client(good)
        runtime.run(runtime.activate(good))
        for n in range(5):
            assert client.call(Item(n, 0, 0), timeout=20).id == n
            assert echo.call(Item(n, 0, 0), timeout=20).id == n
        open_places = [one.kernel.kernel_id for one in runtime._tier.ring.places if not one.is_over]
        assert open_places.count(good) == 1


def test_a_handler_after_one_that_was_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many handlers, but another one: the kernel of the first must not be taken for its."""
    place, refused = ring_device.DeviceRing._place, []

    def refuses(self: Any, kernel: Any, *args: Any) -> Any:
        if not refused:
            refused.append(kernel.kernel_id)
            raise MemoryError("no more")
        return place(self, kernel, *args)

    bad = make("if (ctx.lane == 0) { out = in; out.value = -1; } ctx.send(out);")
    good = make("if (ctx.lane == 0) { out = in; out.value = 1; } ctx.send(out);")
    with RingKernelRuntime() as runtime:
        [echo] = start(runtime, make())
        monkeypatch.setattr(ring_device.DeviceRing, "_place", refuses)
        with pytest.raises(MemoryError):
            runtime.run(runtime.launch(bad))
        [client] = start(runtime, good)
        assert client.call(Item(1, 0, 0), timeout=20).value == 1
        assert echo.call(Item(2, 0, 0), timeout=20).id == 2


def test_a_group_that_has_ended_does_not_keep_a_worker_from_coming_back() -> None:
    group, kept = make(grid_size=2), make(restart="on_failure")
    with isolated() as runtime:
        ended, client = start(runtime, group, kept)
        assert ended.call(Item(1, 0, 0), timeout=30).id == 1
        runtime.run(runtime.terminate(group, timeout=30))
        runtime.abort()
        until(lambda: runtime._tier.ring.link.process is not None)
        assert client.call(Item(2, 0, 0), timeout=30).id == 2


def test_clients_that_send_on_are_refused_at_the_end() -> None:
    ids = [make(ECHO, queue_size=256, output_queue_size=1 << 16) for _ in range(2)]
    runtime = RingKernelRuntime()
    clients = [runtime.client(one) for one in ids]
    accepted = [0, 0]
    refused = []

    def send(k: int) -> None:
        try:
            while True:
                accepted[k] += clients[k].send_batch(numbered(10), timeout=30)
        except RingError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=send, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    until(lambda: all(processed(runtime, one) > 20 for one in ids))
    runtime.close(timeout=60)
    for thread in threads:
        thread.join(30)
    assert len(refused) == 2
    assert runtime.dead_letters() == []
    for one, count in zip(ids, accepted, strict=True):
        assert check_balance(runtime, one, count).processed == count


@pytest.mark.parametrize("way", ["timeout", "cancelled"])
def test_an_end_that_nobody_waited_for_comes(dedicated: bool, way: str) -> None:
    slow, stop = make(HOLD, dedicated=dedicated), flag()
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, slow)
        client.send(Item(stop.ctypes.data, 0, 0))

        async def end() -> None:
            if way == "timeout":
                await runtime.terminate(slow, drain=False, timeout=0.05)
            else:
                await asyncio.wait_for(runtime.terminate(slow), 0.05)

        until(lambda: stop[1] == 1)
        with pytest.raises(TimeoutError):
            runtime.run(end())
        assert runtime.get_kernel_state(slow) is KernelState.TERMINATING
        stop[0] = 1
        until(lambda: runtime.get_kernel_state(slow) is KernelState.TERMINATED)
        [client] = start(runtime, slow)
        assert client.call(Item(0, 0, 0), timeout=30).id == 0


def test_all_blocks_can_be_had_again_and_again() -> None:
    """An actor that takes all but two of them, launched anew."""
    many = make(grid_size=60 if gp.current_device().kind != "cuda" else 8)
    with RingKernelRuntime() as runtime:
        for n in range(4):
            [client] = start(runtime, many)
            assert client.call(Item(n, 0, 0), timeout=60).id == n
            runtime.run(runtime.terminate(many, timeout=60))


@pytest.mark.parametrize("drain", [True, False])
def test_an_end_does_not_wait_for_what_was_sent(dedicated: bool, drain: bool) -> None:
    """It was sent to one that has no room and stands still: the mailbox of who sent it is empty all the same."""
    last = make(queue_size=4)
    first = make(PASS, to=last, dedicated=dedicated, queue_size=16)
    with RingKernelRuntime() as runtime:
        client, after = start(runtime, first, last)
        runtime.run(runtime.deactivate(last))
        for n in range(12):
            client.send(Item(n, 0, 0))
        until(lambda: processed(runtime, first) >= 5)
        runtime.run(runtime.terminate(first, drain=drain, timeout=0.2))
        counts = check_balance(runtime, first, 12)
        assert counts.input_depth == 0
        until(lambda: sorted(letters(runtime)) == list(range(counts.processed, 12)))
        runtime.run(runtime.reactivate(last))
        assert [after.receive(timeout=20).id for _ in range(counts.processed)] == list(range(counts.processed))


def test_the_end_of_one_that_floods_itself(dedicated: bool) -> None:
    """Its outbox is for its own mailbox, which is full."""
    name = new_id("flood")
    make(f'for (int i = 0; i < 20; i++) ctx.send("{name}", in);', kernel_id=name, dedicated=dedicated, queue_size=4)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, name)
        client.send(Item(1, 0, 0))
        until(lambda: processed(runtime, name) >= 1)
        runtime.run(runtime.terminate(name, drain=False, timeout=20))
        counts = runtime.get_telemetry(name)
        # Whatever it had sent to itself was handled, or is a dead letter, at the end or before for lack of room.
        until(lambda: len(letters(runtime)) == 20 * counts.processed + 1 - counts.processed)
