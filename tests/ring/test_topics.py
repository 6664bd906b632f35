"""Topics of host actors."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, make_actor, run, until

from pygpukit.errors import MessageError, RingError
from pygpukit.ring import RingKernelRuntime, message, ring_kernel


@message
class Louder(Ask):
    by: int


def test_subscribers_of_both_kinds() -> None:
    async def main() -> None:
        kernels = [make_actor(kind, topics=["news", "more"]) for kind in KINDS]
        others = [make_actor("thread", topics=["more"]), make_actor("thread", input_type=Answer, topics=["news"])]
        anything = make_actor("thread", lambda one: Answer(-one.n), input_type=None, topics=["news"])
        async with RingKernelRuntime() as runtime:
            for one in (*kernels, *others, anything):
                await runtime.launch(one)
                await runtime.activate(one.kernel_id)
            assert await runtime.publish("news", Ask(1)) == 3
            assert await runtime.publish("nobody", Ask(1)) == 0
            for one in kernels:
                assert (await runtime.receive(one.kernel_id, timeout=30)).n == 1
            assert (await runtime.receive(anything.kernel_id, timeout=30)).n == -1
            # A subclass is taken where its base is.
            assert await runtime.publish("more", Louder(2, by=3)) == 3
            assert [(await runtime.receive(one.kernel_id, timeout=30)).n for one in (*kernels, others[0])] == [2, 2, 2]
            assert runtime.get_telemetry(others[1].kernel_id).received == 0
            assert runtime.dead_letters() == []

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_an_actor_publishes(kind: str) -> None:
    """To all but itself; with a header for each."""
    seen: list[Any] = []
    ends = [make_actor(one, seen.append, topics=["news"]) for one in KINDS]

    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            got = await ctx.receive()
            await ctx.send(Answer(await ctx.publish("news", got)))

    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            ctx.send(Answer(ctx.publish("news", ctx.receive())))

    made = ring_kernel(kernel_id=f"publishes-{kind}", input_type=Ask, output_type=Answer, topics=["news"])
    first = made(coroutine if kind == "coroutine" else thread)

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            for one in (first, *ends):
                await runtime.launch(one)
                await runtime.activate(one.kernel_id)
            asked = Ask(7, priority=9)
            assert (await runtime.send_and_receive(first.kernel_id, asked, timeout=30)).n == 2
            await until(lambda: len(seen) == 2)
            assert [(one.n, one.priority) for one in seen] == [(7, 9), (7, 9)]
            assert len({asked.message_id, *(one.message_id for one in seen)}) == 3
            figures = runtime.get_telemetry(first.kernel_id)
            assert (figures.sent, figures.answered) == (3, 1)
            assert runtime.dead_letters() == []

    run(main())


def test_each_has_its_own_policy() -> None:
    async def main() -> None:
        policies = ("block", "reject", "drop_new", "drop_oldest")
        kernels = {one: make_actor("thread", topics=["full"], backpressure=one, queue_size=2) for one in policies}
        async with RingKernelRuntime() as runtime:
            for one in kernels.values():
                await runtime.launch(one)
            for n in range(2):
                assert await runtime.publish("full", Ask(n)) == 4
            # The one that blocks holds nobody up.
            assert await runtime.publish("full", Ask(2), timeout=0.01) == 1
            dead = {(letter.kernel_id, letter.reason, letter.message.n) for letter in runtime.dead_letters()}
            assert dead == {
                (kernels["block"].kernel_id, "rejected", 2),
                (kernels["reject"].kernel_id, "rejected", 2),
                (kernels["drop_new"].kernel_id, "dropped_new", 2),
                (kernels["drop_oldest"].kernel_id, "dropped_oldest", 0),
            }
            waits = asyncio.ensure_future(runtime.publish("full", Ask(3)))
            await asyncio.sleep(0.01)
            assert not waits.done()
            await runtime.activate(kernels["block"].kernel_id)
            assert await waits == 2
            assert [(await runtime.receive(kernels["block"].kernel_id, timeout=30)).n for _ in range(3)] == [0, 1, 3]

    run(main())


def test_subscribers_that_come_and_go() -> None:
    async def main() -> None:
        first = make_actor("coroutine", topics=["news"])
        async with RingKernelRuntime() as runtime:
            assert await runtime.publish("news", Ask(0)) == 0
            await runtime.launch(first)
            assert await runtime.publish("news", Ask(1)) == 1
            await runtime.terminate(first.kernel_id)
            assert await runtime.publish("news", Ask(2)) == 0
            # Defined anew, it may have other topics.
            make_actor("thread", kernel_id=first.kernel_id, topics=["other"])
            await runtime.launch(first.kernel_id)
            assert await runtime.publish("news", Ask(3)) == 0
            assert await runtime.publish("other", Ask(4)) == 1
            assert runtime.dead_letters() == []
        with pytest.raises(RingError, match="does not run"):
            await runtime.publish("news", Ask(5))

    run(main())


def test_what_is_refused() -> None:
    with pytest.raises(RingError, match=r"topics must be a list of names, not one name; write topics=\['news'\]"):
        make_actor("thread", topics="news")
    with pytest.raises(RingError, match=r"topics of 'actor-.*' must be names, not 3"):
        make_actor("thread", topics=["news", 3])
    with pytest.raises(RingError, match=r"topics of 'actor-.*' must be names, not ''"):
        make_actor("thread", topics=[""])
    with pytest.raises(RingError, match=r"is a host actor and has no timer: .* ctx.receive\(timeout\)"):
        make_actor("coroutine", every=0.1)

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            with pytest.raises(MessageError, match="messages are published, not 3"):
                await runtime.publish("news", 3)
            for topic in (None, 5, "", []):
                with pytest.raises(RingError, match=rf"a topic is a name, .*, not {re.escape(repr(topic))}"):
                    await runtime.publish(topic, Ask(1))

    run(main())
