"""Calls from threads: each gets its own answer and no other, or is told that none will come."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from actors import run
from device_actors import ECHO, Item, Other, letters, make, new_id, start, until

import pygpukit as gp
from pygpukit.errors import ActorFailedError, MessageError, RingError
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

ISOLATION = pytest.mark.parametrize("isolation", [None, "process"])

# Answers with 1, 2, 3, a moment apart.
THREE = """
    for (int k = 1; k <= 3; k++) {
        if (ctx.lane == 0) { out = in; out.hops = k; }
        ctx.send(out, k < 3 ? ring::MORE : 0);
        unsigned long long began = ctx.time();
        while (ctx.time() - began < 300000);
    }
"""
# The same without saying that more follow.
TWO = """
    for (int k = 1; k <= 2; k++) {
        if (ctx.lane == 0) { out = in; out.hops = k; }
        ctx.send(out);
    }
"""
# Answers, and fails then.
AFTERWARDS = """
    if (ctx.lane == 0) { out = in; out.hops = 1; }
    ctx.send(out);
    ctx.fail();
"""
# Fails with negative numbers, and never answers.
SILENT = """
    if (in.value < 0) ctx.fail();
    if (ctx.lane == 0) state.count += 1;
"""
SLOW = """
    unsigned long long began = ctx.time();
    while (ctx.time() - began < 100000000);
    if (ctx.lane == 0) { out = in; out.hops += 1; }
    ctx.send(out);
"""


@ISOLATION
@pytest.mark.parametrize("body", [THREE, TWO, AFTERWARDS], ids=["more", "twice", "failing"])
def test_a_message_that_is_used_again_gets_the_answer_to_this_call(body: str, isolation: str | None) -> None:
    many = make(body, restart="on_failure", max_restarts=1000)
    with RingKernelRuntime(isolation=isolation) as runtime:
        [client] = start(runtime, many)
        asked = Item(1, 0, 0)
        answers = [client.call(asked, 20.0) for _ in range(8)]
        assert [one.hops for one in answers] == 8 * [1]
        assert {one.correlation_id for one in answers} == {asked.message_id}
        assert [client.call(Item(n, 0, 0), 20.0).hops for n in range(8)] == 8 * [1]


@ISOLATION
def test_messages_of_two_rings_with_the_same_number(isolation: str | None) -> None:
    echo, slow = make(), make(SLOW)

    @ring_kernel(kernel_id=new_id("host"), input_type=Item, output_type=Item)
    async def host(context: Any) -> None:
        while not context.should_terminate:
            one = await context.receive()
            await asyncio.sleep(0.02)
            await context.send(Item(one.id, one.hops + 1, one.value))

    async def main() -> None:
        runtimes = [RingKernelRuntime(isolation=isolation) for _ in range(2)]
        async with runtimes[0], runtimes[1], RingKernelRuntime(isolation=isolation) as third:
            for runtime in runtimes:
                await runtime.launch(echo)
                await runtime.activate(echo)
            for kernel in (slow, host.kernel_id):
                await third.launch(kernel)
                await third.activate(kernel)
                client = third.client(kernel)

                async def awaited(one: Any, kernel: str = kernel) -> Any:
                    return await third.send_and_receive(kernel, one, timeout=20)

                async def waited(one: Any, client: Any = client) -> Any:
                    return await asyncio.to_thread(client.call, one, 20.0)

                for ask in (awaited, waited):
                    for n, runtime in enumerate(runtimes):
                        await runtime.send(echo, Item(n, 0, 0))
                    came = [await runtime.receive(echo, timeout=20) for runtime in runtimes]
                    assert came[0].message_id == came[1].message_id
                    answers = await asyncio.gather(*map(ask, came))
                    assert [(one.id, one.hops) for one in answers] == [(0, 2), (1, 2)]
            assert third.dead_letters() == []

    run(main())


@ISOLATION
@pytest.mark.parametrize("how", ["terminate", "fail"])
def test_a_thread_is_told_that_the_actor_has_ended(how: str, isolation: str | None, dedicated: bool) -> None:
    silent = make(SILENT, dedicated=dedicated)
    with RingKernelRuntime(isolation=isolation) as runtime:
        [client] = start(runtime, silent)
        raised: list[Any] = []

        def ask() -> None:
            try:
                client.call(Item(1, 0, 0))
            except RingError as error:
                raised.append(error)

        threads = [threading.Thread(target=ask) for _ in range(2)]
        for thread in threads:
            thread.start()
        until(lambda: runtime.get_telemetry(silent).processed == 2)
        if how == "terminate":
            runtime.run(runtime.terminate(silent))
        else:
            client.send(Item(2, 0, -1))
        for thread in threads:
            thread.join(20)
        assert len(raised) == 2
        expected = RingError if how == "terminate" else ActorFailedError
        assert all(type(one) is expected for one in raised), raised


@ISOLATION
def test_what_a_signal_handler_raises_is_raised(isolation: str | None) -> None:
    class StopError(Exception):
        pass

    def interrupt(*_: Any) -> None:
        # The answer comes meanwhile.
        time.sleep(0.3)
        raise StopError

    slow = make(SLOW)
    with RingKernelRuntime(isolation=isolation) as runtime, ExitStack() as stack:
        [client] = start(runtime, slow)
        stack.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        asked = Item(3, 0, 0)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(StopError):
            client.call(asked, 20.0)
        until(lambda: letters(runtime, "late_answer") == [3])
        assert client.call(asked, 20.0).correlation_id == asked.message_id


@ISOLATION
def test_a_message_that_was_answered_can_be_sent(isolation: str | None) -> None:
    echo, go = make(), new_id("host")

    @ring_kernel(kernel_id=go, input_type=Item, output_type=Item)
    def relay(context: Any) -> None:
        while not context.should_terminate:
            one = Item(context.receive().id, 0, 0)
            assert clients[0].call(one, 20.0).hops == 1
            context.send(one, to=echo)

    clients: list[Any] = []
    with RingKernelRuntime(isolation=isolation) as runtime:
        clients += start(runtime, echo, go)
        for n in range(3):
            clients[1].send(Item(n, 0, 0))
            # As a message, not as another call that nobody waits for.
            assert clients[0].receive(timeout=20).id == n
        assert runtime.dead_letters() == []


@ISOLATION
def test_answers_say_the_same_by_every_way(isolation: str | None) -> None:
    echo = make()
    back = make("ctx.send(in);", output_type=Other)

    async def main() -> None:
        async with RingKernelRuntime(isolation=isolation) as runtime:
            for kernel in (echo, back):
                await runtime.launch(kernel)
                await runtime.activate(kernel)
            for kernel in (echo, back):
                for priority in (0, 9):
                    asked = Item(1, 2, 3, priority=priority)
                    for _ in range(2):
                        answer = await asyncio.to_thread(runtime.client(kernel).call, asked, 20.0)
                        assert (type(answer), answer.priority) == (Item, priority)
                        assert answer.correlation_id == asked.message_id
                    answer = await runtime.send_and_receive(kernel, Item(1, 2, 3, priority=priority), timeout=20)
                    assert (type(answer), answer.priority) == (Item, priority)

    run(main())


@message
class Row:
    """One array."""

    x: gp.int32[4]  # type: ignore[valid-type]


@ISOLATION
def test_fields_that_are_no_values_are_named(isolation: str | None) -> None:
    rows = make("if (ctx.lane < 4) out.x[ctx.lane] = in.x[ctx.lane]; ctx.send(out);", input_type=Row, output_type=Row)
    echo = make(ECHO)

    class Liar:
        dtype, shape = np.dtype(np.int32), (4,)

        def __init__(self, given: Any) -> None:
            self.tobytes = lambda: given

        def __repr__(self) -> str:
            return "Liar"

    with RingKernelRuntime(isolation=isolation) as runtime:
        clients = start(runtime, rows, echo)
        row: Any = Row(np.arange(4))
        for given in (b"short", bytes(100), bytearray(16)):
            row.x = Liar(given)
            with pytest.raises(MessageError, match=r"Row\(x=Liar\) does not fit its layout"):
                clients[0].call(row, 20.0)
        row.x = np.arange(4, dtype=np.int32)
        assert clients[0].call(row, 20.0).x.tolist() == [0, 1, 2, 3]
        item: Any = Item(1, 2, 3)
        del item.hops
        with pytest.raises(MessageError, match=r"Item\(id=1, hops=<none>, value=3\) does not fit its layout"):
            clients[1].call(item, 20.0)
