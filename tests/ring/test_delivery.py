"""Carrying messages: types, backpressure, priorities, deadlines, calls."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, make_actor, run, until

from pygpukit.errors import MailboxFullError, MessageError, RingError, UndeliveredError
from pygpukit.ring import RingKernelRuntime, ring_kernel

pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_types_are_checked_on_both_sides(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, lambda one: Ask(one.n)).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            await runtime.activate(kernel)
            with pytest.raises(MessageError, match=rf"'{kernel}' takes Ask, not Answer\(n=1\)"):
                await runtime.send(kernel, Answer(1))
            with pytest.raises(MessageError, match="takes Ask, not 5"):
                await runtime.send_and_receive(kernel, 5)
            await runtime.send(kernel, Ask(1))
            with pytest.raises(RingError, match="sends Answer, not Ask"):
                await runtime.receive(kernel)

    run(main())


def test_block_blocks_until_there_is_room(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, queue_size=2).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            for n in range(2):
                await runtime.send(kernel, Ask(n))
            with pytest.raises(TimeoutError, match=r"full with 2 messages for 0.01 s"):
                await runtime.send(kernel, Ask(9), timeout=0.01)
            third = asyncio.create_task(runtime.send(kernel, Ask(2)))
            await asyncio.sleep(0.01)
            assert not third.done()
            await runtime.activate(kernel)
            assert await third
            assert [(await runtime.receive(kernel)).n for _ in range(3)] == [0, 1, 2]

    run(main())


@pytest.mark.parametrize("policy", ["reject", "drop_oldest", "drop_new"])
def test_policies_that_do_not_wait(kind: str, policy: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, queue_size=2, backpressure=policy, output_queue_size=10).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            outcomes: list[Any] = []
            for n in range(4):
                try:
                    outcomes.append(await runtime.send(kernel, Ask(n)))
                except MailboxFullError as error:
                    outcomes.append(str(error))
            await runtime.activate(kernel)
            got = [(await runtime.receive(kernel, timeout=60)).n for _ in range(2)]
            figures = runtime.get_telemetry(kernel)
            letters = [(letter.message.n, letter.reason) for letter in runtime.dead_letters()]
        full = f"the mailbox of '{kernel}' is full with 2 messages, and rejects more"
        assert (
            outcomes
            == {
                "reject": [True, True, full, full],
                "drop_oldest": [True] * 4,
                "drop_new": [True, True, False, False],
            }[policy]
        )
        assert got == ([2, 3] if policy == "drop_oldest" else [0, 1])
        counted = (figures.received, figures.rejected, figures.displaced, figures.dropped)
        assert counted == {"reject": (2, 2, 0, 0), "drop_oldest": (4, 0, 2, 0), "drop_new": (2, 0, 0, 2)}[policy]
        assert (
            letters
            == {
                "reject": [],
                "drop_oldest": [(0, "dropped_oldest"), (1, "dropped_oldest")],
                "drop_new": [(2, "dropped_new"), (3, "dropped_new")],
            }[policy]
        )

    run(main())


def test_urgent_messages_go_first(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            for n, priority in enumerate([0, 1, 255, 1]):
                await runtime.send(kernel, Ask(n), priority=priority)
            await runtime.activate(kernel)
            assert [(await runtime.receive(kernel)).n for _ in range(4)] == [2, 1, 3, 0]

    run(main())


def test_expired_messages_are_dead_letters(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            await runtime.send(kernel, Ask(0), deadline=time.monotonic())
            call = asyncio.create_task(runtime.send_and_receive(kernel, Ask(1, deadline=time.monotonic())))
            await runtime.send(kernel, Ask(2), deadline=time.monotonic() + 60)
            await asyncio.sleep(0.001)
            await runtime.activate(kernel)
            assert (await runtime.receive(kernel)).n == 2
            with pytest.raises(UndeliveredError, match="not answered: expired"):
                await call
            assert [letter.reason for letter in runtime.dead_letters(kernel)] == ["expired"] * 2
            assert runtime.get_telemetry(kernel).expired == 2

    run(main())


def test_concurrent_calls_get_their_own_answers(kind: str) -> None:
    many = 200

    async def main() -> None:
        kernel = make_actor(kind, lambda one: Answer(one.n * one.n)).kernel_id
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel):
            calls = [runtime.send_and_receive(kernel, Ask(n), timeout=60) for n in range(many)]
            await runtime.send(kernel, Ask(1000))
            answers = await asyncio.gather(*calls)
            assert [answer.n for answer in answers] == [n * n for n in range(many)]
            assert (await runtime.receive(kernel)).n == 1_000_000, "who did not call is answered in the mailbox"
            figures = runtime.get_telemetry(kernel)
            assert (figures.sent, figures.answered) == (many + 1, many)

    run(main())


def test_answers_out_of_order_are_told_apart_by_reply(kind: str) -> None:
    @ring_kernel(kernel_id=f"pairs-{kind}", input_type=Ask, output_type=Answer)
    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            first, second = await ctx.receive(), await ctx.receive()
            await ctx.send(second.reply(Answer(second.n)))
            await ctx.send(first.reply(Answer(first.n)))

    @ring_kernel(kernel_id=f"pairs-{kind}", input_type=Ask, output_type=Answer)
    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            first, second = ctx.receive(), ctx.receive()
            ctx.send(second.reply(Answer(second.n)))
            ctx.send(first.reply(Answer(first.n)))

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            async with runtime.kernel_scope(coroutine if kind == "coroutine" else thread) as kernel:
                answers = await asyncio.gather(
                    *(runtime.send_and_receive(kernel, Ask(n), timeout=60) for n in range(10))
                )
            assert [answer.n for answer in answers] == list(range(10))

    run(main())


def test_late_answers_disturb_nobody(kind: str) -> None:
    @ring_kernel(kernel_id=f"sluggish-{kind}", input_type=Ask, output_type=Answer)
    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = await ctx.receive()
            await asyncio.sleep(0.05 if one.n == 0 else 0)
            await ctx.send(Answer(one.n))

    @ring_kernel(kernel_id=f"sluggish-{kind}", input_type=Ask, output_type=Answer)
    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = ctx.receive()
            time.sleep(0.05 if one.n == 0 else 0)
            ctx.send(Answer(one.n))

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            async with runtime.kernel_scope(coroutine if kind == "coroutine" else thread) as kernel:
                with pytest.raises(TimeoutError, match=r"did not answer within 0.001 s"):
                    await runtime.send_and_receive(kernel, Ask(0), timeout=0.001)
                assert (await runtime.send_and_receive(kernel, Ask(1), timeout=60)).n == 1
                await until(lambda: len(runtime.dead_letters()) == 1)
                with pytest.raises(TimeoutError):
                    await runtime.receive(kernel, timeout=0.001)
            assert [(letter.message.n, letter.reason) for letter in runtime.dead_letters()] == [(0, "late_answer")]

    run(main())


def test_a_call_is_forwarded_with_its_caller(kind: str) -> None:
    @ring_kernel(kernel_id=f"front-{kind}", input_type=Ask)
    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            await ctx.send(await ctx.receive(), to=f"back-{kind}")

    @ring_kernel(kernel_id=f"front-{kind}", input_type=Ask)
    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            ctx.send(ctx.receive(), to=f"back-{kind}")

    async def main() -> None:
        back = make_actor(kind, lambda one: Answer(-one.n), kernel_id=f"back-{kind}")
        async with (
            RingKernelRuntime() as runtime,
            runtime.kernel_scope(back),
            runtime.kernel_scope(coroutine if kind == "coroutine" else thread) as front,
        ):
            assert (await runtime.send_and_receive(front, Ask(3), timeout=60)).n == -3

    run(main())


def test_unknown_kernels_are_named(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind).kernel_id
        async with RingKernelRuntime() as runtime:
            with pytest.raises(RingError, match=r"no ring kernel 'nobody'; those defined by .*-\d"):
                await runtime.send("nobody", Ask(1))
            with pytest.raises(RingError, match=f"'{kernel}' is CREATED; launch it first"):
                await runtime.receive(kernel)
        with pytest.raises(RingError, match="the runtime does not run"):
            await runtime.launch(kernel)

    run(main())
