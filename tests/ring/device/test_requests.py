"""Requests between device actors: an actor that asks another, and answers its own client when the answer comes."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from device_actors import PICKY, Item, Other, launch, letters, make, new_id, processed, start, until

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime

# Doubles the value. An answer is of the type that its asker takes.
DOUBLE = "if (ctx.lane == 0) { out = in; out.value = 2 * in.value; } ctx.reply(out);"

# Asks the next actor, with eight questions at a time, and answers its own askers in whatever order the answers come.
ASK = """
    int slot = 0;
    if (ctx.correlation() == 0) {
        while (slot < 8 && state.asked[slot] != 0) slot++;
        if (slot == 8) return ctx.fail();
        const unsigned long long number = ctx.send("next", in);
        if (ctx.lane == 0) {
            state.asked[slot] = number;
            ctx.remember(state.asker[slot]);
        }
        return;
    }
    while (slot < 8 && state.asked[slot] != ctx.correlation()) slot++;
    if (slot == 8) return ctx.fail();
    if (ctx.lane == 0) { out = in; out.hops += 1; }
    ctx.reply_to(state.asker[slot], out);
    if (ctx.lane == 0) state.asked[slot] = 0;
"""
STATE = {"asked": gp.uint64[8], "asker": gp.uint64[8, 2]}


def asker(to: str, **options: Any) -> str:
    return make(ASK, to=to, state=STATE, restart="on_failure", max_restarts=1000, **options)


@pytest.mark.parametrize("width", [32, 64])
def test_calls_go_on_when_the_answer_comes(dedicated: bool, width: int) -> None:
    answerer = make(DOUBLE, dedicated=dedicated)
    front = asker(answerer, dedicated=dedicated, block_size=width)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, front, answerer)
        for n in range(20):
            got = client.call(Item(n, 0, n), timeout=30)
            assert (got.id, got.hops, got.value) == (n, 1, 2 * n)
        # Nobody waits for the answer to this: it is in the output.
        sent = Item(99, 0, 1)
        client.send(sent)
        got = client.receive(timeout=30)
        assert (got.id, got.value, got.correlation_id) == (99, 2, sent.message_id)
        assert runtime.get_telemetry(front).answered == 20
        until(lambda: processed(runtime, answerer) == 21)
        assert runtime.dead_letters() == []


def test_a_chain_of_askers(dedicated: bool) -> None:
    """Those in the middle are asked by actors, and answer them."""
    ids = [new_id("asker") for _ in range(3)]
    answerer = make(DOUBLE, dedicated=dedicated)
    for one, after in zip(ids, [*ids[1:], answerer], strict=True):
        asker(after, kernel_id=one, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, *_ = start(runtime, *ids, answerer)
        for n in range(10):
            got = client.call(Item(n, 0, n), timeout=30)
            assert (got.id, got.hops, got.value) == (n, 3, 2 * n)


def test_many_askers_at_once(dedicated: bool) -> None:
    """Of threads and of an event loop; each gets its own answer."""
    answerer = make(DOUBLE, dedicated=dedicated)
    fronts = [asker(answerer, dedicated=dedicated) for _ in range(2)]
    with RingKernelRuntime() as runtime:
        *clients, _ = start(runtime, *fronts, answerer)
        wrong: list[Any] = []

        def call(client: Any, first: int) -> None:
            for n in range(first, first + 15):
                got = client.call(Item(n, 0, n), timeout=30)
                if (got.id, got.value) != (n, 2 * n):
                    wrong.append(got)

        threads = [threading.Thread(target=call, args=(clients[k % 2], 100 * k)) for k in range(4)]
        for thread in threads:
            thread.start()

        async def calls() -> list[Any]:
            asked = (runtime.send_and_receive(fronts[k % 2], Item(1000 + k, 0, k), timeout=30) for k in range(8))
            return await asyncio.gather(*asked)

        answers = runtime.run(calls())
        for thread in threads:
            thread.join()
        assert wrong == []
        assert [(one.id, one.value) for one in answers] == [(1000 + k, 2 * k) for k in range(8)]
        assert runtime.dead_letters() == []


def test_what_a_message_says_of_itself(dedicated: bool) -> None:
    """Its source, and what it answers, as the host and another actor say."""
    body = """
    if (ctx.lane == 0) {
        out = in;
        out.hops = ctx.source() == ring::HOST ? -1 : (int)ctx.source();
        out.value = (int)ctx.correlation();
    }
    ctx.send(out);
    """
    end = make(body, dedicated=dedicated)
    first = make('ctx.send("next", in);', to=end, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, first, end)
        got = last.call(Item(1, 0, 0), timeout=30)
        assert (got.hops, got.value) == (-1, 0)
        last.send(Item(1, 0, 0, correlation_id=4711))
        got = last.receive(timeout=30)
        assert (got.hops, got.value) == (-1, 4711)
        client.send(Item(2, 0, 0, correlation_id=4711))
        got = last.receive(timeout=30)
        assert (got.hops, got.value) == (runtime.get_actor_number(first), 0)


def test_an_answer_that_comes_too_late(dedicated: bool) -> None:
    answerer = make(DOUBLE, dedicated=dedicated)
    front = asker(answerer, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, front, answerer)
        runtime.run(runtime.deactivate(answerer, timeout=30))
        with pytest.raises(TimeoutError):
            client.call(Item(1, 0, 1), timeout=0.05)
        runtime.run(runtime.reactivate(answerer))
        until(lambda: letters(runtime, "late_answer") == [1])
        assert client.call(Item(2, 0, 2), timeout=30).value == 4


def test_questions_to_one_that_has_ended(dedicated: bool) -> None:
    answerer = make(DOUBLE, dedicated=dedicated)
    front = asker(answerer, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, front, answerer)
        runtime.run(runtime.terminate(answerer, timeout=30))
        client.send(Item(1, 0, 1))
        until(lambda: letters(runtime, "terminated") == [1])


def test_an_answer_of_another_type(dedicated: bool) -> None:
    """An actor takes one type, and answers are of it."""
    body = "if (ctx.lane == 0) { out.id = in.id; out.x = 0.5; } ctx.reply(out);"
    answerer = make(body, output_type=Other, dedicated=dedicated)
    front = asker(answerer, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, front, answerer)
        client.send(Item(5, 0, 1))
        until(lambda: letters(runtime, "wrong_type") == [5])


def test_requests_in_a_random_order(schedule: int, dedicated: bool) -> None:
    answerer = make(DOUBLE, dedicated=dedicated, block_size=64)
    front = asker(answerer, dedicated=dedicated, block_size=64)
    with RingKernelRuntime() as runtime:
        start(runtime, front, answerer)
        link = runtime._tier.ring.link

        async def calls(first: int) -> list[Any]:
            asked = (runtime.send_and_receive(front, Item(first + k, 0, k), timeout=30) for k in range(8))
            return await asyncio.gather(*asked)

        for turn in range(3):
            found = runtime.run(calls(10 * turn))
            assert [(one.id, one.hops, one.value) for one in found] == [(10 * turn + k, 1, 2 * k) for k in range(8)]
            link.park()
            link.resume()
        assert runtime.dead_letters() == []


@pytest.mark.parametrize("isolation", [None, "process"])
def test_a_call_keeps_the_number_of_what_it_answers(dedicated: bool, isolation: str | None) -> None:
    body = "if (ctx.lane == 0) { out = in; out.value = (int)ctx.correlation(); } ctx.send(out);"
    echo = make(body, dedicated=dedicated)
    with RingKernelRuntime(isolation=isolation) as runtime:
        [client] = start(runtime, echo)
        message = Item(1, 0, 0)
        message.correlation_id = 4711
        assert client.call(message, timeout=30).value == 4711
        later = Item(2, 0, 0)
        later.correlation_id = 4712
        assert runtime.run(runtime.send_and_receive(echo, later, timeout=30)).value == 4712


def test_a_message_that_was_sent_before_it_is_called_with(dedicated: bool) -> None:
    """When the first of them becomes a dead letter, the other one is answered all the same."""
    picky = make(PICKY, dedicated=dedicated, restart="on_failure")
    with RingKernelRuntime() as runtime:
        launch(runtime, picky)
        client, once = runtime.client(picky), Item(1, 0, -1)
        client.send(once)
        once.value = 1
        with ThreadPoolExecutor(1) as threads:
            called = threads.submit(client.call, once, 30)
            until(lambda: dict(runtime._tier.ring.link.figures(0))["host_sent"] == 2)
            runtime.run(runtime.activate(picky))
            assert called.result().value == 1
        until(lambda: len(letters(runtime, "failed")) == 1)
        assert runtime.dead_letters()[0].message.message_id == once.message_id
