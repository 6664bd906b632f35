"""Device actors in a worker process: the same as elsewhere.

A worker serves actors with blocks of their own and those that share them by the program that other tests run in this
process, so that each test here has one of the two.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import Any

import numpy as np
import pytest
from actors import make_actor, run
from device_actors import (
    BATCH,
    ECHO,
    PASS,
    PICKY,
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
from workers import isolated, pid_of

import pygpukit as gp
from pygpukit.errors import ActorFailedError, MailboxFullError, RingError, UndeliveredError
from pygpukit.ring import KernelState, RingKernelRuntime


@pytest.mark.parametrize("value", ["thread", "processes", 1, ""])
def test_other_isolations_are_refused(value: Any) -> None:
    with pytest.raises(RingError, match=f"isolation must be None or 'process', not {value!r}"):
        RingKernelRuntime(isolation=value)


@pytest.mark.parametrize("dedicated", [True])
def test_round_trips(dedicated: bool) -> None:
    echo, host = make(dedicated=dedicated), make_actor("thread")
    with isolated(time_slice=0.1, lease=5.0) as runtime:
        [client] = start(runtime, echo)
        assert pid_of(runtime) != os.getpid()
        for n in range(20):
            answer = client.call(Item(n, 0, 2 * n), timeout=20)
            assert (answer.id, answer.hops, answer.value) == (n, 1, 2 * n)
        for n in range(20):
            assert client.send(Item(n, 0, 0))
        assert [client.receive(timeout=20).id for _ in range(20)] == list(range(20))
        # Host actors are in this process.
        assert runtime.client(host.kernel_id).call(host.input_type(3), timeout=20).n == 3  # type: ignore[misc]
        figures = check_balance(runtime, echo, 40)
        assert (figures.processed, figures.answered, figures.sent, figures.restarts) == (40, 20, 40, 0)
        assert runtime.get_actor_number(echo) == 0
    assert runtime.get_kernel_state(echo) is KernelState.TERMINATED
    assert runtime.get_telemetry(echo).processed == 40
    assert runtime.dead_letters() == []


def test_event_loops() -> None:
    async def main() -> None:
        echo = make()
        async with isolated() as runtime:
            await runtime.launch(echo)
            await runtime.activate(echo)
            calls = (runtime.send_and_receive(echo, Item(n, 0, n), timeout=30) for n in range(50))
            assert [one.id for one in await asyncio.gather(*calls)] == list(range(50))
            for n in range(50):
                await runtime.send(echo, Item(n, 0, n))
            assert [(await runtime.receive(echo)).id for _ in range(50)] == list(range(50))
            with pytest.raises(TimeoutError):
                await runtime.receive(echo, timeout=0.01)
            receiver = asyncio.create_task(runtime.receive(echo))
            await asyncio.sleep(0.01)
            await runtime.send(echo, Item(7, 0, 0))
            assert (await receiver).id == 7

    run(main())


@pytest.mark.parametrize("body", [ECHO, BATCH], ids=["handle", "handle_batch"])
def test_batches(body: str) -> None:
    actor = make(body, queue_size=64)
    with isolated() as runtime:
        [client] = start(runtime, actor)
        got: list[int] = []
        reader = threading.Thread(
            target=lambda: got.extend(client.receive_batch(1000, timeout=60)["id"].tolist())  # more than fit at a time
        )
        reader.start()
        assert client.send_batch(numbered(1000), timeout=60) == 1000
        reader.join()
        assert got == list(range(1000))
        client.send_batch([Item(n, 0, 0) for n in range(5)])
        assert len(client.receive_batch(10, timeout=0.5)) == 5
        check_balance(runtime, actor, 1005)


def test_state_and_pauses() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    state = {"count": gp.int64, "table": table, "is_on": np.bool_(True), "small": gp.bfloat16}
    echo = make(state=state)
    with isolated() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        client.send(Item(1, 0, 0))
        assert runtime.get_kernel_state(echo) is KernelState.LAUNCHED
        with pytest.raises(TimeoutError):
            client.receive(timeout=0.05)
        runtime.run(runtime.activate(echo))
        assert client.receive(timeout=20).id == 1
        runtime.run(runtime.deactivate(echo, timeout=20))
        client.send(Item(2, 0, 0))
        found = runtime.get_state(echo)
        assert found["count"].tolist() == [1]
        assert np.array_equal(found["table"], table)
        assert found["is_on"].tolist() == [True]
        assert processed(runtime, echo) == 1
        runtime.run(runtime.reactivate(echo))
        assert client.receive(timeout=20).id == 2


@pytest.mark.parametrize("dedicated", [False])
def test_actors_that_send_to_each_other(dedicated: bool) -> None:
    end = make(ECHO, dedicated=dedicated)
    first = make(PASS, to=end, dedicated=dedicated)
    with isolated() as runtime:
        client, last = start(runtime, first, end)
        assert client.send_batch(numbered(50), timeout=20) == 50
        assert last.receive_batch(50, timeout=20)["hops"].tolist() == [2] * 50
        # One that is launched later finds the others.
        [later] = start(runtime, make(PASS, to=end))
        later.send(Item(99, 0, 0))
        assert last.receive(timeout=20).id == 99


def test_terminate_drains() -> None:
    echo = make(queue_size=128)
    with isolated() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        assert client.send_batch(numbered(100), timeout=20) == 100
        runtime.run(runtime.terminate(echo, timeout=30))
        assert client.receive_batch(200, timeout=20)["id"].tolist() == list(range(100))
        assert check_balance(runtime, echo, 100).processed == 100
        with pytest.raises(RingError, match="TERMINATED"):
            client.send(Item(1, 0, 0))
        [again] = start(runtime, echo)
        assert again.call(Item(5, 0, 0), timeout=20).id == 5
        runtime.run(runtime.deactivate(echo))
        again.send_batch(numbered(20))
        runtime.run(runtime.terminate(echo, drain=False, timeout=30))
        until(lambda: len(letters(runtime)) == 20)
        assert letters(runtime, "terminated") == list(range(20))


@pytest.mark.parametrize("dedicated", [True])
@pytest.mark.parametrize("policy", ["block", "reject", "drop_new", "drop_oldest"])
def test_full_mailboxes(policy: str, dedicated: bool) -> None:
    echo = make(dedicated=dedicated, input_queue_size=8, output_queue_size=64, backpressure=policy)
    with isolated() as runtime:
        launch(runtime, echo)
        client = runtime.client(echo)
        for n in range(8):
            assert client.send(Item(n, 0, 0), timeout=5)
        if policy == "block":
            with pytest.raises(TimeoutError, match="full with 8 messages"):
                client.send(Item(8, 0, 0), timeout=0.05)
        elif policy == "reject":
            with pytest.raises(MailboxFullError):
                client.send(Item(8, 0, 0))
            assert runtime.get_telemetry(echo).rejected == 1
        elif policy == "drop_new":
            assert client.send(Item(8, 0, 0)) is False
            assert letters(runtime, "dropped_new") == [8]
        else:
            for n in range(8, 20):
                assert client.send(Item(n, 0, 0), timeout=20)
            until(lambda: letters(runtime, "dropped_oldest") == list(range(12)))
        runtime.run(runtime.activate(echo))
        expected = list(range(12, 20)) if policy == "drop_oldest" else list(range(8))
        assert [client.receive(timeout=20).id for _ in range(8)] == expected
        check_balance(runtime, echo, 20 if policy == "drop_oldest" else 8)


def test_failures_and_deadlines() -> None:
    picky = make(PICKY, restart="on_failure", max_restarts=1)
    with isolated() as runtime:
        [client] = start(runtime, picky)
        with pytest.raises(UndeliveredError, match="not answered: failed"):
            client.call(Item(1, 0, -1), timeout=20)
        with pytest.raises(UndeliveredError, match="not answered: expired"):
            client.call(Item(2, 0, 1, deadline=time.monotonic() - 1), timeout=20)
        assert client.call(Item(3, 0, 1), timeout=20).hops == 1
        client.send(Item(4, 0, -1))
        until(lambda: runtime.get_kernel_state(picky) is KernelState.FAILED)
        with pytest.raises(ActorFailedError):
            client.call(Item(5, 0, 1), timeout=20)
        assert runtime.get_telemetry(picky).restarts == 1


def test_errors_of_the_compiler_reach_the_caller() -> None:
    wrong = make("this is no C++;")
    with isolated() as runtime:
        with pytest.raises(gp.errors.KernelCompileError):
            runtime.run(runtime.launch(wrong))
        assert runtime.get_kernel_state(wrong) is KernelState.FAILED
        [client] = start(runtime, make())
        assert client.call(Item(1, 0, 0), timeout=20).id == 1
