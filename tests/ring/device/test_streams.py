"""Streams of replies of device actors: partial answers, who waits for whom, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from device_actors import ECHO, Item, check_balance, letters, make, processed, start, until
from workers import isolated, kill

import pygpukit as gp
from pygpukit.errors import ActorFailedError, RingError, UndeliveredError
from pygpukit.ring import RingKernelRuntime

# Answers with 0, 1, ... value, and counts what it has sent.
COUNT_UP = """
    for (int k = 0; k <= in.value; k++) {
        if (ctx.lane == 0) { out = in; out.value = k; state.count += 1; }
        ctx.send(out, k < in.value ? ring::MORE : 0);
    }
"""

# One answer for each further message, to whoever sent the first one; the last one when that says so.
LATER = """
    if (ctx.header().flags & ring::CALL) {
        if (ctx.lane == 0) ctx.remember(state.asker);
        return;
    }
    ctx.reply_to(state.asker, in, in.value > 0 ? ring::MORE : 0);
"""


@pytest.fixture(params=[RingKernelRuntime, isolated], ids=["here", "isolated"])
def make_runtime(request: pytest.FixtureRequest) -> Callable[..., RingKernelRuntime]:
    """A runtime, with its device actors in this process or in another."""
    made: Callable[..., RingKernelRuntime] = request.param
    return made


def is_clean(runtime: RingKernelRuntime) -> bool:
    return not runtime._post._calls


async def read(runtime: RingKernelRuntime, kernel: str, n: int) -> list[int]:
    return [reply.value async for reply in runtime.stream(kernel, Item(n, 0, n), timeout=30)]


@pytest.mark.parametrize("width", [32, 64])
def test_all_replies_in_order(dedicated: bool, width: int) -> None:
    kernel = make(COUNT_UP, dedicated=dedicated, block_size=width)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, kernel)
        for n in (0, 1, 40):
            found = list(client.stream(Item(7, 0, n), timeout=30))
            assert [(one.id, one.value) for one in found] == [(7, k) for k in range(n + 1)]

        async def all_of_them() -> list[list[int]]:
            return await asyncio.gather(*(read(runtime, kernel, n) for n in range(8)))

        assert runtime.run(all_of_them()) == [list(range(n + 1)) for n in range(8)]
        assert runtime.get_telemetry(kernel).answered == 1 + 2 + 41 + 36
        assert runtime.dead_letters() == []
        assert is_clean(runtime)


def test_a_slow_reader_is_waited_for(dedicated: bool, make_runtime: Callable[..., RingKernelRuntime]) -> None:
    """The actor is given no further message; what one handler sends beyond its window waits with it."""
    kernel = make(COUNT_UP, dedicated=dedicated, output_queue_size=8)
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        stream = client.stream(Item(1, 0, 30), timeout=30)
        assert next(stream).value == 0
        others = [Item(2, 0, 0) for _ in range(4)]
        for one in others:
            client.send(one)
        until(lambda: processed(runtime, kernel) == 1)
        with pytest.raises(TimeoutError):
            client.receive(timeout=0.05)
        assert processed(runtime, kernel) == 1
        assert [one.value for one in stream] == list(range(1, 31))
        assert [client.receive(timeout=30).id for _ in others] == [2] * 4
        check_balance(runtime, kernel, 5)
        assert runtime.dead_letters() == []


def test_more_replies_than_fit_anywhere(make_runtime: Callable[..., RingKernelRuntime]) -> None:
    """Many streams, one after another, through a small window: what was read makes room."""
    kernel = make(COUNT_UP, output_queue_size=4)
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        for _ in range(20):
            assert [one.value for one in client.stream(Item(1, 0, 9), timeout=30)] == list(range(10))
        assert runtime.dead_letters() == []


def test_a_reader_that_stops(dedicated: bool, make_runtime: Callable[..., RingKernelRuntime]) -> None:
    kernel = make(COUNT_UP, dedicated=dedicated, output_queue_size=4)
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        for turn in range(4):
            for reply in client.stream(Item(turn, 0, 12), timeout=30):
                if reply.value == 3:
                    break
            assert is_clean(runtime)
        # It goes on: nothing waits for those that are gone.
        assert client.call(Item(9, 0, 0), timeout=30).id == 9
        until(lambda: len(letters(runtime, "late_answer")) == 4 * 9)
        assert runtime.get_telemetry(kernel).answered == 4 * 13 + 1


def test_who_does_not_read_a_stream(dedicated: bool, make_runtime: Callable[..., RingKernelRuntime]) -> None:
    kernel = make(COUNT_UP, dedicated=dedicated, output_queue_size=4)
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        for _ in range(4):
            assert client.call(Item(1, 0, 3), timeout=30).value == 0
            assert runtime.run(runtime.send_and_receive(kernel, Item(1, 0, 3), timeout=30)).value == 0
        until(lambda: len(letters(runtime, "late_answer")) == 8 * 3)
        client.send(Item(1, 0, 3))
        assert [client.receive(timeout=30).value for _ in range(4)] == [0, 1, 2, 3]


def test_answers_that_come_later(dedicated: bool) -> None:
    """The actor remembers who asked, and goes on with other messages."""
    kernel = make(LATER, dedicated=dedicated, state={"asker": gp.uint64[2]})
    with RingKernelRuntime() as runtime:
        start(runtime, kernel)

        async def subscribe() -> list[int]:
            found = []
            async for reply in runtime.stream(kernel, Item(0, 0, 0), timeout=30):
                found.append(reply.value)
                await runtime.send(kernel, Item(1, 0, 3 - len(found)))
            return found

        async def main() -> list[int]:
            task = asyncio.create_task(subscribe())
            while not processed(runtime, kernel):
                await asyncio.sleep(0.001)
            await runtime.send(kernel, Item(1, 0, 3))
            return await task

        assert runtime.run(main()) == [3, 2, 1, 0]


def test_an_actor_that_knows_nothing_of_streams(make_runtime: Callable[..., RingKernelRuntime]) -> None:
    kernel = make(ECHO)
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        assert [one.hops for one in client.stream(Item(1, 0, 5), timeout=30)] == [1]


def test_a_message_that_is_not_handled(dedicated: bool, make_runtime: Callable[..., RingKernelRuntime]) -> None:
    body = "if (in.value < 0) return ctx.fail(); ctx.send(in, ring::MORE);"
    kernel = make(body, dedicated=dedicated, restart="on_failure")
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        with pytest.raises(UndeliveredError, match="failed"):
            next(client.stream(Item(1, 0, -1), timeout=30))
        stream = client.stream(Item(2, 0, 1), timeout=30)
        assert next(stream).id == 2
        # The last one does not come.
        runtime.run(runtime.terminate(kernel, timeout=30))
        with pytest.raises(RingError, match="is TERMINATED"):
            next(stream)
        with pytest.raises(RingError, match="is TERMINATED"):
            next(client.stream(Item(3, 0, 1)))
        assert is_clean(runtime)


def test_a_message_that_is_dropped() -> None:
    kernel = make(COUNT_UP, input_queue_size=2, backpressure="drop_new")
    with RingKernelRuntime() as runtime:
        runtime.run(runtime.launch(kernel))
        client = runtime.client(kernel)
        while client.send(Item(0, 0, 0)):
            pass
        with pytest.raises(UndeliveredError, match="dropped_new"):
            next(client.stream(Item(1, 0, 1)))
        assert is_clean(runtime)


def test_more_than_a_handler_may_send(dedicated: bool, make_runtime: Callable[..., RingKernelRuntime]) -> None:
    """Replies are lost then, and the reader is told."""
    kernel = make(COUNT_UP, dedicated=dedicated, output_queue_size=4)
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        with pytest.raises(UndeliveredError, match="as an answer, which was lost: outbox_full"):
            list(client.stream(Item(1, 0, 100), timeout=30))
        until(lambda: len(runtime.dead_letters()) > 30)
        assert client.call(Item(2, 0, 0), timeout=30).id == 2
        assert is_clean(runtime)


def test_the_end_of_the_actor_does_not_wait_for_readers(
    dedicated: bool, make_runtime: Callable[..., RingKernelRuntime]
) -> None:
    kernel = make(COUNT_UP, dedicated=dedicated, output_queue_size=4)
    with make_runtime() as runtime:
        [client] = start(runtime, kernel)
        stream = client.stream(Item(1, 0, 40), timeout=30)
        assert next(stream).value == 0
        runtime.run(runtime.terminate(kernel, timeout=30))
        assert [one.value for one in stream] == list(range(1, 41))


def test_a_worker_that_is_lost(quiet: None) -> None:
    body = "if (in.value == 0) ctx.send(in, ring::MORE); else ctx.send(in);"
    kernel = make(body, restart="on_failure", output_queue_size=4)
    with isolated() as runtime:
        [client] = start(runtime, kernel)
        for _ in range(2):
            stream = client.stream(Item(1, 0, 0), timeout=30)
            assert next(stream).id == 1
            kill(runtime)
            with pytest.raises(ActorFailedError, match="was ended by SIGKILL"):
                next(stream)
        assert client.call(Item(2, 0, 1), timeout=30).id == 2
        assert is_clean(runtime)


def test_streams_in_a_random_order(schedule: int, dedicated: bool) -> None:
    kernel = make(COUNT_UP, dedicated=dedicated, block_size=64, output_queue_size=4)
    with RingKernelRuntime() as runtime:
        start(runtime, kernel)
        link = runtime._tier.ring.link

        async def all_of_them() -> list[list[int]]:
            return await asyncio.gather(*(read(runtime, kernel, n) for n in range(6)))

        for _ in range(2):
            assert runtime.run(all_of_them()) == [list(range(n + 1)) for n in range(6)]
            link.park()
            link.resume()
        assert runtime.dead_letters() == []
