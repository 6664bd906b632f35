"""Messages that expire, and handlers that say they failed."""

from __future__ import annotations

import time
from typing import Any

import pytest
from actors import run
from device_actors import (
    BATCH,
    COUNT,
    ECHO,
    PASS,
    PICKY,
    Item,
    check_balance,
    count_of,
    launch,
    letters,
    make,
    numbered,
    processed,
    start,
    until,
)

import pygpukit as gp
from pygpukit.errors import ActorFailedError, GPUKitError, RingError, UndeliveredError
from pygpukit.ring import KernelState, RingKernelRuntime


def test_expired_messages_are_not_delivered(dedicated: bool) -> None:
    count = make(COUNT, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        launch(runtime, count)
        client = runtime.client(count)
        now = time.monotonic()
        for n in range(6):
            client.send(Item(n, 0, 0, deadline=now + (0.02 if n % 2 else 600)))
        runtime.run(runtime.send(count, Item(6, 0, 0), deadline=now + 0.02))
        time.sleep(0.05)
        runtime.run(runtime.activate(count))
        until(lambda: len(letters(runtime)) == 4)
        assert letters(runtime, "expired") == [1, 3, 5, 6]
        until(lambda: processed(runtime, count) == 3)
        figures = check_balance(runtime, count, 7)
        assert (figures.processed, figures.expired) == (3, 4)


def test_a_call_that_expires_is_told(dedicated: bool) -> None:
    echo = make(dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        with pytest.raises(UndeliveredError, match="not answered: expired"):
            client.call(Item(1, 0, 0, deadline=time.monotonic() - 1), timeout=20)
        late = Item(2, 0, 0, deadline=time.monotonic() - 1)
        with pytest.raises(UndeliveredError, match="not answered: expired"):
            runtime.run(runtime.send_and_receive(echo, late, timeout=20))
        assert client.call(Item(3, 0, 0, deadline=time.monotonic() + 600), timeout=20).id == 3


@pytest.mark.parametrize("deadline", [0, -0.5, float("-inf")])
def test_a_deadline_before_the_clock_began_is_over(dedicated: bool, deadline: float) -> None:
    count = make(COUNT, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, count)
        with pytest.raises(UndeliveredError, match="expired"):
            client.call(Item(1, 0, 0, deadline=deadline), timeout=20)
        client.send(Item(2, 0, 0, deadline=deadline))
        runtime.run(runtime.send(count, Item(3, 0, 0), deadline=deadline))
        until(lambda: sorted(letters(runtime, "expired")) == [1, 2, 3])
        until(lambda: runtime.get_telemetry(count).expired == 3)


@pytest.mark.parametrize("block_size", [32, 96])
def test_a_batch_has_no_expired_messages(block_size: int) -> None:
    batch = make(BATCH, block_size=block_size)
    late = [0, 3, 4, 7]
    with RingKernelRuntime() as runtime:
        launch(runtime, batch)
        client = runtime.client(batch)
        now = time.monotonic()
        for n in range(8):
            client.send(Item(n, 0, n, deadline=now + 0.02) if n in late else Item(n, 0, n))
        client.send(Item(8, 0, 8, deadline=now + 600))
        time.sleep(0.05)
        runtime.run(runtime.activate(batch))
        until(lambda: letters(runtime, "expired") == late)
        got = [client.receive(timeout=20) for _ in range(5)]
        assert [(one.id, one.value, one.hops) for one in got] == [(n, n, 1) for n in (1, 2, 5, 6, 8)]
        until(lambda: processed(runtime, batch) == 5)
        figures = check_balance(runtime, batch, 9)
        assert (figures.processed, figures.expired, figures.sent) == (5, 4, 5)
        # One that is all late, and what comes after it.
        with pytest.raises(UndeliveredError, match="not answered: expired"):
            client.call(Item(9, 0, 9, deadline=time.monotonic() - 1), timeout=20)
        assert client.call(Item(10, 0, 10), timeout=20).id == 10
        until(lambda: count_of(runtime, batch) == 6)


def test_a_batch_from_another_actor_after_the_end() -> None:
    """What is sent to a batch actor that has failed says so."""
    body = "if (batch.in(0).value < 0) { ctx.fail(); return; }" + BATCH
    batch = make(body)
    first = make(PASS, to=batch)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, first, batch)
        client.send(Item(1, 0, -1))
        until(lambda: runtime.get_kernel_state(batch) is KernelState.FAILED)
        client.send(Item(2, 0, 1))
        until(lambda: letters(runtime, "failed") == [1, 2])


def test_a_failure_costs_its_message_and_the_state(dedicated: bool) -> None:
    picky = make(PICKY, dedicated=dedicated, restart="on_failure", state={"count": gp.int64, "fixed": gp.int32[4]})
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, picky)
        assert [client.call(Item(n, 0, 1), timeout=20).hops for n in range(3)] == [1, 2, 3]
        with pytest.raises(UndeliveredError, match="not answered: failed"):
            client.call(Item(3, 0, -1), timeout=20)
        # It began anew.
        assert client.call(Item(4, 0, 1), timeout=20).hops == 1
        with pytest.raises(UndeliveredError, match="not answered: failed"):
            runtime.run(runtime.send_and_receive(picky, Item(5, 0, -1), timeout=20))
        client.send(Item(6, 0, -1))
        until(lambda: letters(runtime, "failed") == [3, 5, 6])
        until(lambda: runtime.get_telemetry(picky).failed == 3)
        figures = check_balance(runtime, picky, 7)
        assert (figures.processed, figures.failed, figures.restarts) == (4, 3, 3)
        assert runtime.get_kernel_state(picky) is KernelState.ACTIVE


def test_the_state_begins_with_its_initial_values(dedicated: bool) -> None:
    import numpy as np

    body = """
    if (in.value < 0) { ctx.fail(); return; }
    if (ctx.lane == 0) { out = in; out.value = state.table[1]; state.table[1] += 1; }
    ctx.send(out);
    """
    table = np.array([5, 7, 9], np.int32)
    actor = make(body, dedicated=dedicated, restart="on_failure", state={"table": table})
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, actor)
        assert [client.call(Item(n, 0, 1), timeout=20).value for n in range(3)] == [7, 8, 9]
        client.send(Item(3, 0, -1))
        assert client.call(Item(4, 0, 1), timeout=20).value == 7


@pytest.mark.parametrize("restart", ["never", "on_failure"])
def test_an_actor_fails_for_good(dedicated: bool, restart: str) -> None:
    picky = make(PICKY, dedicated=dedicated, restart=restart, max_restarts=2)
    allowed = 2 if restart == "on_failure" else 0
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, picky)
        for n in range(allowed + 1):
            assert client.call(Item(n, 0, 1), timeout=20).id == n
            client.send(Item(100 + n, 0, -1))
        until(lambda: runtime.get_kernel_state(picky) is KernelState.FAILED)
        with pytest.raises(ActorFailedError):
            client.send(Item(1, 0, 1))
        with pytest.raises(ActorFailedError):
            client.call(Item(1, 0, 1), timeout=20)
        with pytest.raises(ActorFailedError):
            client.receive(timeout=20)
        figures = check_balance(runtime, picky, 2 * (allowed + 1))
        assert (figures.failed, figures.restarts) == (allowed + 1, allowed)
        assert figures.last_error is not None
        # It can be launched again.
        [client] = start(runtime, picky)
        assert client.call(Item(1, 0, 1), timeout=20).hops == 1
        assert runtime.get_telemetry(picky).failed == 0


def test_what_a_failed_actor_had_is_accounted_for(dedicated: bool) -> None:
    picky = make(PICKY, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        launch(runtime, picky)
        client = runtime.client(picky)
        for n in range(10):
            client.send(Item(n, 0, -1 if n == 4 else 1))
        runtime.run(runtime.activate(picky))
        # What it failed with, and what it will not come to.
        until(lambda: letters(runtime) == letters(runtime, "failed") == [4, 5, 6, 7, 8, 9])
        until(lambda: runtime.get_telemetry(picky).discarded == 5)
        figures = check_balance(runtime, picky, 10)
        assert (figures.processed, figures.failed, figures.discarded) == (4, 1, 5)


def test_mail_for_one_that_had_a_block_and_failed() -> None:
    """The blocks that all share tell its senders, each message once."""
    picky = make(PICKY, dedicated=True, queue_size=64)
    senders = [make(PASS, to=picky, dedicated=own, queue_size=64) for own in (True, True, False)]
    with RingKernelRuntime(workers=3) as runtime:
        clients = start(runtime, picky, *senders)
        with pytest.raises(UndeliveredError):
            clients[0].call(Item(1, 0, -1), timeout=20)
        until(lambda: runtime.get_kernel_state(picky) is KernelState.FAILED)
        before = len(letters(runtime))
        start(runtime, make(dedicated=True))
        for n in range(0, 400, 4):
            for client in clients[1:]:
                assert client.send_batch(numbered(4, n), timeout=20) == 4
        until(lambda: len(letters(runtime)) >= before + 1200)
        runtime.run(runtime.terminate(senders[0]))
        assert sorted(letters(runtime)[before:]) == sorted(3 * list(range(400)))


def test_a_failure_of_a_sender(dedicated: bool) -> None:
    """A message from another actor that fails is a dead letter; both go on."""
    picky = make(PICKY, dedicated=dedicated, restart="on_failure")
    sender = make(PASS, to=picky, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, sender, picky)
        for n, value in enumerate((1, -1, 1)):
            client.send(Item(n, 0, value))
        assert [last.receive(timeout=20).id for _ in range(2)] == [0, 2]
        until(lambda: letters(runtime, "failed") == [1])


def test_a_batch_that_fails() -> None:
    body = "if (batch.in(0).value < 0) { ctx.fail(); return; }" + BATCH
    actor = make(body, restart="on_failure", max_restarts=100)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, actor)
        assert client.call(Item(1, 0, 1), timeout=20).id == 1
        with pytest.raises(UndeliveredError, match="failed"):
            client.call(Item(2, 0, -1), timeout=20)
        assert client.call(Item(3, 0, 1), timeout=20).id == 3
        until(lambda: runtime.get_telemetry(actor).failed == 1)
        until(lambda: count_of(runtime, actor) == 1)
        check_balance(runtime, actor, 3)


def test_escalation(dedicated: bool) -> None:
    async def main() -> None:
        picky = make(PICKY, dedicated=dedicated, escalate=True)
        other = make(dedicated=dedicated)
        runtime = RingKernelRuntime()
        await runtime.start()
        for one in (picky, other):
            await runtime.launch(one)
            await runtime.activate(one)
        await runtime.send(picky, Item(1, 0, -1))
        with pytest.raises(RingError):  # noqa: PT012
            for _ in range(1000):
                await runtime.send_and_receive(other, Item(1, 0, 1), timeout=20)
        with pytest.raises(ActorFailedError, match="and the runtime with it"):
            await runtime.shutdown()
        assert runtime.get_kernel_state(other) is KernelState.TERMINATED

    run(main())


def test_restarts_are_counted_in_a_window(dedicated: bool) -> None:
    picky = make(PICKY, dedicated=dedicated, restart="on_failure", max_restarts=1, restart_window=0.05)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, picky)
        for n in range(3):
            client.send(Item(n, 0, -1))
            until(lambda n=n: runtime.get_telemetry(picky).failed == n + 1)  # type: ignore[misc]
            time.sleep(0.1)
        assert runtime.get_kernel_state(picky) is KernelState.ACTIVE
        assert runtime.get_telemetry(picky).restarts == 3


def test_callers_of_an_actor_that_ends_are_told(dedicated: bool) -> None:
    silent = make(COUNT, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        start(runtime, silent)

        async def main() -> Any:
            import asyncio

            call = asyncio.create_task(runtime.send_and_receive(silent, Item(1, 0, 0), timeout=20))
            await asyncio.sleep(0.02)
            await runtime.terminate(silent)
            return await call

        with pytest.raises(RingError, match="launch it again"):
            runtime.run(main())


@pytest.fixture
def on_the_emulator(device: str) -> None:
    """Faults and aborts cost a process its GPU."""
    if device != "cpu":
        pytest.skip("a GPU would be lost to the process")


@pytest.mark.usefixtures("on_the_emulator")
def test_a_fault_names_the_actor_and_the_line_of_its_handler() -> None:
    wild = make("""
    if (in.value == 13) *(volatile int*)16 = 1;
    ctx.send(out);
""")
    place = f"--> handler of '{wild}':2"
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, make(ECHO), wild)[1:]
        seen = []
        for _ in range(3):
            with pytest.raises(GPUKitError) as caught:
                client.call(Item(1, 0, 13), timeout=60)
            seen.append(str(caught.value))
        assert [place in text for text in seen] == [True] * 3, seen
        until(lambda: runtime.get_telemetry(wild).last_error is not None)
        assert place in str(runtime.get_telemetry(wild).last_error)


@pytest.mark.usefixtures("on_the_emulator")
def test_after_an_abort_actors_are_failed_and_the_runtime_ends() -> None:
    spin = make("while (in.value > 0 && *(volatile long long*)&state.count >= 0) {}" + ECHO)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, spin)
        assert client.call(Item(1, 0, 0), timeout=60).id == 1
        client.send(Item(1, 0, 1))
        runtime.abort()
        assert runtime.get_kernel_state(spin) is KernelState.FAILED
        with pytest.raises(ActorFailedError, match=r"the ring was ended by runtime\.abort\(\)"):
            client.call(Item(1, 0, 0), timeout=60)


@pytest.mark.usefixtures("on_the_emulator")
def test_leaving_after_an_abort_raises_nothing() -> None:
    with RingKernelRuntime() as runtime:
        start(runtime, make(ECHO))
        runtime.abort()
    with RingKernelRuntime() as runtime:
        runtime.abort()
