"""Streams of replies: all answers to one message, on the host."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, make_actor, run

from pygpukit.errors import ActorFailedError, MessageError, RingError, UndeliveredError
from pygpukit.ring import KernelState, RingKernel, RingKernelRuntime, ring_kernel

_numbers = itertools.count()
Step = Callable[[int, int], Any]


def make_counter(kind: str, step: Step = lambda n, k: None, **options: Any) -> RingKernel:
    """An actor that answers n with 0, 1, ... n; `step` is called before each."""
    options = {"kernel_id": f"counter-{next(_numbers)}", "input_type": Ask, "output_type": Answer, **options}

    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            n = (await ctx.receive()).n
            for k in range(n + 1):
                step(n, k)
                if not await ctx.send(Answer(k), more=k < n):
                    break

    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            n = ctx.receive().n
            for k in range(n + 1):
                step(n, k)
                if not ctx.send(Answer(k), more=k < n):
                    break

    return ring_kernel(**options)(coroutine if kind == "coroutine" else thread)


def late(runtime: RingKernelRuntime) -> list[int]:
    assert {letter.reason for letter in runtime.dead_letters()} <= {"late_answer"}
    return [letter.message.n for letter in runtime.dead_letters()]


def is_clean(runtime: RingKernelRuntime) -> bool:
    return not runtime._post._calls


@pytest.mark.parametrize("kind", KINDS)
def test_all_replies_in_order(kind: str) -> None:
    kernel = make_counter(kind, output_queue_size=4).kernel_id

    async def read(runtime: RingKernelRuntime, n: int) -> list[int]:
        return [reply.n async for reply in runtime.stream(kernel, Ask(n), timeout=60)]

    async def all_of_them(runtime: RingKernelRuntime) -> list[list[int]]:
        return await asyncio.gather(*(read(runtime, n) for n in range(20)))

    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        assert [reply.n for reply in client.stream(Ask(300), timeout=60)] == list(range(301))
        # In the runtime's own loop, and in another one.
        assert runtime.run(all_of_them(runtime)) == [list(range(n + 1)) for n in range(20)]
        assert run(all_of_them(runtime)) == [list(range(n + 1)) for n in range(20)]
        assert runtime.get_telemetry(kernel).answered == 301 + 2 * 210
        assert is_clean(runtime)
        assert runtime.dead_letters() == []


def test_many_readers_at_once() -> None:
    kernel = make_counter("thread", output_queue_size=2).kernel_id
    found: dict[int, list[int]] = {}
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)

        def read(n: int) -> None:
            found[n] = [reply.n for reply in client.stream(Ask(n), timeout=60)]

        threads = [threading.Thread(target=read, args=(n,)) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(90)
    assert found == {n: list(range(n + 1)) for n in range(12)}


@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_that_knows_nothing_of_streams(kind: str) -> None:
    kernel = make_actor(kind).kernel_id
    with RingKernelRuntime() as runtime:
        assert [reply.n for reply in runtime.client(kernel).stream(Ask(5), timeout=60)] == [5]


@pytest.mark.parametrize("kind", KINDS)
def test_who_does_not_read_a_stream(kind: str) -> None:
    """A call gets the first reply; without one who waits, all are results."""
    kernel = make_counter(kind).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        assert client.call(Ask(3), timeout=60).n == 0
        assert runtime.run(runtime.send_and_receive(kernel, Ask(3), timeout=60)).n == 0
        client.send(Ask(3))
        assert [client.receive(timeout=60).n for _ in range(4)] == [0, 1, 2, 3]
    # The actor was told at once, and stopped.
    assert late(runtime) == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_reader_is_waited_for(kind: str) -> None:
    sent = []
    kernel = make_counter(kind, lambda n, k: sent.append(k), output_queue_size=3).kernel_id
    with RingKernelRuntime() as runtime:
        stream = runtime.client(kernel).stream(Ask(100), timeout=60)
        for n in range(10):
            assert next(stream).n == n
            # What was read, three that lie there, and the one at hand.
            assert len(sent) <= n + 5
        assert [reply.n for reply in stream] == list(range(10, 101))


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_that_stops(kind: str) -> None:
    kernel = make_counter(kind, output_queue_size=2).kernel_id

    async def read(runtime: RingKernelRuntime, closes: bool) -> None:
        async with aclosing(runtime.stream(kernel, Ask(1000), timeout=60)) as stream:
            async for reply in stream:
                if reply.n == 5:
                    break
        if not closes:
            async for _reply in runtime.stream(kernel, Ask(1000), timeout=60):
                break
            gc.collect()

    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        for reply in client.stream(Ask(1000), timeout=60):
            if reply.n == 5:
                break
        assert is_clean(runtime)
        runtime.run(read(runtime, closes=True))
        assert is_clean(runtime)
        runtime.run(read(runtime, closes=False))
        stream = client.stream(Ask(1000), timeout=60)
        next(stream)
        stream.close()
        # One that was never begun has sent nothing.
        client.stream(Ask(1000), timeout=60)
        # The actor goes on with the next, and has been told each time.
        assert client.call(Ask(0), timeout=60).n == 0
        assert is_clean(runtime)
        assert runtime.get_telemetry(kernel).received == 6
        # Three lay there or were at hand, each time: none was lost without a trace.
        assert 5 <= len(late(runtime)) <= 15
        assert runtime.get_telemetry(kernel).answered == 6 + 6 + 6 + 1 + 1 + 1 + len(late(runtime))


def test_no_reply_in_time() -> None:
    hold = threading.Event()
    kernel = make_counter("thread", lambda n, k: k == 2 and hold.wait(60)).kernel_id
    with RingKernelRuntime() as runtime:
        stream = runtime.client(kernel).stream(Ask(4), timeout=0.05)
        with pytest.raises(TimeoutError, match=r"sent no reply within 0.05 s"):
            assert [reply.n for reply in stream] == []
        with pytest.raises(StopIteration):
            next(stream)
        assert is_clean(runtime)

        async def read() -> None:
            async for _reply in runtime.stream(kernel, Ask(4), timeout=0.05):
                raise AssertionError

        with pytest.raises(TimeoutError, match=r"sent no reply within 0.05 s"):
            runtime.run(read())
        assert is_clean(runtime)
        hold.set()


@pytest.mark.parametrize("kind", KINDS)
def test_replies_before_a_failure(kind: str) -> None:
    def fail(n: int, k: int) -> None:
        if (n, k) == (9, 3):
            raise ZeroDivisionError("no more")

    kernel = make_counter(kind, fail, restart="on_failure", max_restarts=1).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        for _ in range(2):
            stream = client.stream(Ask(9), timeout=60)
            assert [next(stream).n for _ in range(3)] == [0, 1, 2]
            with pytest.raises(UndeliveredError, match="no more"):
                next(stream)
        while not runtime.get_kernel_state(kernel).is_over:
            pass
        assert runtime.get_kernel_state(kernel) is KernelState.FAILED
        with pytest.raises(ActorFailedError):
            next(client.stream(Ask(1)))
        assert is_clean(runtime)


def test_a_message_that_is_not_delivered() -> None:
    kernel = make_counter("coroutine", queue_size=1, backpressure="drop_new").kernel_id
    with RingKernelRuntime() as runtime:
        runtime.run(runtime.launch(kernel))
        client = runtime.client(kernel)
        assert client.send(Ask(1))
        with pytest.raises(UndeliveredError, match="dropped_new"):
            next(client.stream(Ask(2)))

        async def read() -> None:
            await anext(runtime.stream(kernel, Ask(3)))

        with pytest.raises(UndeliveredError, match="dropped_new"):
            runtime.run(read())
        with pytest.raises(MessageError, match="takes Ask"):
            client.stream(Answer(1))
        with pytest.raises(MessageError, match="takes Ask"):
            runtime.stream(kernel, Answer(1))
        assert is_clean(runtime)


def test_one_message_in_several_streams() -> None:
    """Each has replies of its own, while the others go on and after they have ended."""
    kernel = make_counter("coroutine", output_queue_size=64).kernel_id
    with RingKernelRuntime() as runtime:
        client, once = runtime.client(kernel), Ask(20)
        first, second, third = (client.stream(once, timeout=60) for _ in range(3))
        assert next(first).n == 0
        assert next(second).n == 0
        assert [reply.n for reply in first] == list(range(1, 21))
        assert client.call(once, timeout=60).n == 0
        assert [reply.n for reply in second] == list(range(1, 21))
        assert [reply.n for reply in third] == list(range(21))


@pytest.mark.parametrize("kind", KINDS)
def test_replies_have_the_order_they_were_sent_in(kind: str) -> None:
    """Whatever their priorities are."""

    def handle(ctx: Any, request: Any) -> list[Any]:
        return [ctx.send(Answer(k, priority=k), more=k < 20) for k in range(21)]

    async def coroutine(ctx: Any) -> None:
        for sending in handle(ctx, await ctx.receive()):
            await sending

    def thread(ctx: Any) -> None:
        handle(ctx, ctx.receive())

    kernel = ring_kernel(kernel_id=f"urgent-{kind}", input_type=Ask, output_type=Answer, output_queue_size=50)(
        coroutine if kind == "coroutine" else thread
    )
    with RingKernelRuntime() as runtime:
        assert [one.n for one in runtime.client(kernel.kernel_id).stream(Ask(0), timeout=60)] == list(range(21))


def test_an_actor_answers_several_streams_at_a_time() -> None:
    async def turns(ctx: Any) -> None:
        asked = [await ctx.receive() for _ in range(3)]
        for k in range(4):
            for request in asked:
                await ctx.send(request.reply(Answer(10 * request.n + k)), more=k < 3)

    kernel = ring_kernel(kernel_id="turns", input_type=Ask, output_type=Answer)(turns)

    async def main() -> None:
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel):

            async def read(n: int) -> list[int]:
                return [reply.n async for reply in runtime.stream("turns", Ask(n), timeout=60)]

            found = await asyncio.gather(*map(read, range(3)))
            assert found == [[10 * n + k for k in range(4)] for n in range(3)]

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_the_actor_does_not_wait_for_readers(kind: str) -> None:
    """All replies are there for them."""
    kernel = make_counter(kind, output_queue_size=2).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        stream = client.stream(Ask(50), timeout=60)
        assert next(stream).n == 0
        runtime.run(runtime.terminate(kernel, timeout=60))
        assert [reply.n for reply in stream] == list(range(1, 51))
        with pytest.raises(RingError, match="is TERMINATED"):
            next(client.stream(Ask(1)))


def test_an_actor_that_ends_without_a_last_reply() -> None:
    async def begins(ctx: Any) -> None:
        await ctx.receive()
        await ctx.send(Answer(1), more=True)

    kernel = ring_kernel(kernel_id="begins", input_type=Ask, output_type=Answer)(begins)
    with RingKernelRuntime() as runtime:
        stream = runtime.client(kernel.kernel_id).stream(Ask(1), timeout=60)
        assert next(stream).n == 1
        with pytest.raises(RingError, match="'begins' is TERMINATED"):
            next(stream)


def test_more_is_said_of_answers() -> None:
    async def wrong(ctx: Any) -> None:
        await ctx.receive()
        await ctx.send(Answer(1), to="other", more=True)

    kernel = ring_kernel(kernel_id="wrong", input_type=Ask, output_type=Answer)(wrong)
    with RingKernelRuntime() as runtime, pytest.raises(UndeliveredError, match="more=True is said of an answer"):
        runtime.client(kernel.kernel_id).call(Ask(1), timeout=60)
