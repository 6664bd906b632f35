"""Full mailboxes of device actors, whoever sends."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import numpy as np
import pytest
from device_actors import (
    COUNT,
    ECHO,
    PASS,
    Item,
    check_balance,
    launch,
    letters,
    make,
    numbered,
    processed,
    start,
    until,
)

from pygpukit.errors import MailboxFullError, UndeliveredError
from pygpukit.ring import RingKernelRuntime


def test_block_waits_for_room(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=8)
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        for n in range(8):
            assert client.send(Item(n, 0, 0), timeout=0)
        began = time.monotonic()
        with pytest.raises(TimeoutError, match=r"was full with 8 messages for 0.05 s"):
            client.send(Item(8, 0, 0), timeout=0.05)
        assert time.monotonic() - began >= 0.05
        with pytest.raises(TimeoutError):
            runtime.run(runtime.send(echo, Item(8, 0, 0), timeout=0.05))
        with pytest.raises(TimeoutError):
            client.call(Item(8, 0, 0), timeout=0.05)
        assert client.send_batch(numbered(5), timeout=0.02) == 0
        sent: list[Any] = []
        waiting = threading.Thread(target=lambda: sent.append(client.send(Item(9, 0, 0), timeout=30)))
        waiting.start()
        time.sleep(0.02)
        assert sent == []
        runtime.run(runtime.activate(echo))
        waiting.join()
        assert sent == [True]
        assert [client.receive(timeout=20).id for _ in range(9)] == [*range(8), 9]
        assert runtime.dead_letters() == []
        check_balance(runtime, echo, 9)


def test_a_coroutine_waits_for_room(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=4)
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)

        async def main() -> list[int]:
            sending = [asyncio.create_task(runtime.send(echo, Item(n, 0, 0))) for n in range(50)]
            await asyncio.sleep(0.02)
            assert sum(task.done() for task in sending) == 4
            await runtime.activate(echo)
            got = [(await runtime.receive(echo, timeout=20)).id for _ in range(50)]
            assert all(await asyncio.gather(*sending))
            return got

        assert sorted(runtime.run(main())) == list(range(50))


def test_reject(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=8, backpressure="reject")
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        assert client.send_batch(numbered(6)) == 6
        assert client.send_batch(numbered(6, 6)) == 2
        with pytest.raises(MailboxFullError, match="full with 8 messages, and rejects"):
            client.send(Item(8, 0, 0))
        with pytest.raises(MailboxFullError):
            runtime.run(runtime.send(echo, Item(9, 0, 0)))
        with pytest.raises(MailboxFullError):
            client.call(Item(10, 0, 0), timeout=5)
        runtime.run(runtime.activate(echo))
        assert [client.receive(timeout=20).id for _ in range(8)] == list(range(8))
        until(lambda: processed(runtime, echo) == 8)
        figures = check_balance(runtime, echo, 8)
        # Four of the batch, and three.
        assert (figures.processed, figures.rejected, figures.dropped) == (8, 7, 0)


def test_drop_new(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=8, backpressure="drop_new")
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        assert [client.send(Item(n, 0, 0)) for n in range(12)] == [True] * 8 + [False] * 4
        with pytest.raises(UndeliveredError):
            client.call(Item(12, 0, 0), timeout=5)
        runtime.run(runtime.activate(echo))
        assert [client.receive(timeout=20).id for _ in range(8)] == list(range(8))
        until(lambda: processed(runtime, echo) == 8)
        figures = check_balance(runtime, echo, 8)
        assert (figures.processed, figures.dropped, figures.rejected) == (8, 5, 0)
        assert letters(runtime, "dropped_new") == [8, 9, 10, 11, 12]


def test_drop_oldest(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=8, backpressure="drop_oldest")
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        assert [client.send(Item(n, 0, 0)) for n in range(12)] == [True] * 12
        until(lambda: len(letters(runtime)) == 4)
        assert letters(runtime, "dropped_oldest") == [0, 1, 2, 3]
        assert client.send_batch(numbered(20, 100), timeout=20) == 20
        runtime.run(runtime.activate(echo))
        assert [client.receive(timeout=20).id for _ in range(8)] == list(range(112, 120))
        until(lambda: processed(runtime, echo) == 8)
        figures = check_balance(runtime, echo, 32)
        assert (figures.processed, figures.displaced, figures.input_depth) == (8, 24, 0)
        until(lambda: len(letters(runtime, "dropped_oldest")) == 24)


def test_drop_oldest_of_calls(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=2, backpressure="drop_oldest")
    with RingKernelRuntime() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        told: list[Any] = []

        def ask(n: int) -> None:
            try:
                told.append(client.call(Item(n, 0, 0), timeout=30).id)
            except UndeliveredError as error:
                told.append(str(error))

        first = threading.Thread(target=ask, args=(1,))
        first.start()
        until(lambda: runtime.get_telemetry(echo).input_depth == 1)
        client.send(Item(2, 0, 0))
        client.send(Item(3, 0, 0))
        first.join()
        assert "not answered: dropped_oldest" in told[0]


@pytest.mark.parametrize("policy", ["block", "reject", "drop_oldest", "drop_new"])
def test_a_device_actor_sends_to_a_full_one(dedicated: bool, policy: str) -> None:
    """The receiver stands still; it has room for 8, and its sender tries with 40."""
    end = make(ECHO, dedicated=dedicated, queue_size=8, output_queue_size=64, backpressure=policy)
    first = make(PASS, to=end, dedicated=dedicated, queue_size=64)
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, first, end)
        runtime.run(runtime.deactivate(end))
        assert client.send_batch(numbered(40), timeout=20) == 40
        if policy == "block":
            until(lambda: processed(runtime, first) == 9)
            time.sleep(0.02)
            assert processed(runtime, first) == 9
            kept = list(range(40))
        else:
            until(lambda: processed(runtime, first) == 40)
            kept = list(range(32, 40)) if policy == "drop_oldest" else list(range(8))
            until(lambda: len(letters(runtime)) == 32)
        runtime.run(runtime.reactivate(end))
        got = last.receive_batch(len(kept), timeout=20)
        assert got["id"].tolist() == kept
        reason = {"reject": "rejected", "drop_oldest": "dropped_oldest", "drop_new": "dropped_new"}.get(policy)
        assert letters(runtime) == letters(runtime, reason) == [n for n in range(40) if n not in kept]
        until(lambda: processed(runtime, end) == len(kept))
        figures = check_balance(runtime, end, 40 if policy in ("block", "drop_oldest") else 8)
        assert figures.displaced == (32 if policy == "drop_oldest" else 0)
        until(lambda: check_balance(runtime, first, 40).processed == 40)


@pytest.mark.parametrize("senders", [1, 3])
def test_the_oldest_make_room_for_a_burst(dedicated: bool, senders: int) -> None:
    """Handlers send more than fits, at once: as many go as come, and not one more."""
    body = """
    for (int i = 0; i < 20; i++) {
        if (ctx.lane == 0) { out = in; out.value = i; }
        ctx.send("next", out);
    }
    """
    end = make(COUNT, dedicated=dedicated, queue_size=8, backpressure="drop_oldest")
    makers = [make(body, to=end, dedicated=dedicated) for _ in range(senders)]
    with RingKernelRuntime() as runtime:
        *clients, _ = start(runtime, *makers, end)
        runtime.run(runtime.deactivate(end))
        for n, client in enumerate(clients):
            client.send(Item(n, 0, 0))
        count = 20 * senders
        until(lambda: len(letters(runtime, "dropped_oldest")) == count - 8)
        until(lambda: all(runtime.get_telemetry(one).sent == 20 for one in makers))
        assert len(runtime.dead_letters()) == count - 8
        if senders == 1:
            assert [one.message.value for one in runtime.dead_letters()] == list(range(12))
        runtime.run(runtime.reactivate(end))
        until(lambda: processed(runtime, end) == 8)
        figures = check_balance(runtime, end, count)
        assert figures.displaced == count - 8


@pytest.mark.parametrize("policy", ["block", "reject", "drop_oldest", "drop_new"])
def test_counts_agree_under_pressure(dedicated: bool, policy: str) -> None:
    """Threads send to an actor that now and then stands still; nothing is unaccounted for."""
    count = make(COUNT, dedicated=dedicated, queue_size=4, backpressure=policy)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, count)
        told = {"sent": 0, "dropped": 0, "rejected": 0}
        lock = threading.Lock()

        def write(first: int) -> None:
            for n in range(first, first + 150):
                try:
                    what = "sent" if client.send(Item(n, 0, 0), timeout=30) else "dropped"
                except MailboxFullError:
                    what = "rejected"
                with lock:
                    told[what] += 1

        threads = [threading.Thread(target=write, args=(1000 * at,)) for at in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(4):
            runtime.run(runtime.deactivate(count))
            time.sleep(0.005)
            runtime.run(runtime.reactivate(count))
        for thread in threads:
            thread.join()
        figures = check_balance(runtime, count, told["sent"])
        until(lambda: processed(runtime, count) + runtime.get_telemetry(count).displaced == told["sent"])
        figures = runtime.get_telemetry(count)
        assert (figures.rejected, figures.dropped) == (told["rejected"], told["dropped"])
        until(lambda: len(letters(runtime)) == figures.displaced + figures.dropped)
        if policy in ("block", "reject"):
            assert figures.displaced == 0


def test_a_full_output_holds_its_actor_up(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=64, output_queue_size=4)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        assert client.send_batch(numbered(40), timeout=20) == 40
        until(lambda: processed(runtime, echo) == 5)
        time.sleep(0.02)
        assert processed(runtime, echo) == 5
        got = client.receive_batch(40, timeout=20)
        assert np.array_equal(got["id"], np.arange(40))
        check_balance(runtime, echo, 40)
