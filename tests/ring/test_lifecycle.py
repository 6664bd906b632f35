"""Host actors from launch to end: states, pauses, draining, figures."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, make_actor, run, until

from pygpukit.errors import RingError
from pygpukit.ring import KernelState, RingKernelRuntime, ring_kernel

pytestmark = pytest.mark.parametrize("kind", KINDS)


def test_the_states_in_order(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind).kernel_id
        async with RingKernelRuntime() as runtime:
            assert runtime.get_kernel_state(kernel) is KernelState.CREATED
            await runtime.launch(kernel)
            assert runtime.get_kernel_state(kernel) is KernelState.LAUNCHED
            await runtime.activate(kernel)
            assert runtime.get_kernel_state(kernel) is KernelState.ACTIVE
            await runtime.deactivate(kernel)
            assert runtime.get_kernel_state(kernel) is KernelState.DEACTIVATED
            await runtime.reactivate(kernel)
            assert runtime.get_kernel_state(kernel) is KernelState.ACTIVE
            assert (await runtime.send_and_receive(kernel, Ask(4), timeout=60)).n == 4
            await runtime.terminate(kernel)
            assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED
            assert runtime.kernel_ids == [kernel]

    run(main())


@pytest.mark.parametrize("verb", ["activate", "deactivate", "reactivate", "terminate", "launch"])
def test_steps_out_of_order_are_refused_by_name(kind: str, verb: str) -> None:
    allowed = {
        "launch": {"CREATED", "TERMINATED"},
        "activate": {"LAUNCHED"},
        "deactivate": {"ACTIVE"},
        "reactivate": {"DEACTIVATED"},
        "terminate": {"LAUNCHED", "ACTIVE", "DEACTIVATED"},
    }

    async def main() -> None:
        for steps in (
            [],
            ["launch"],
            ["launch", "activate"],
            ["launch", "activate", "deactivate"],
            ["launch", "terminate"],
        ):
            kernel = make_actor(kind).kernel_id
            async with RingKernelRuntime() as runtime:
                for step in steps:
                    await getattr(runtime, step)(kernel)
                state = runtime.get_kernel_state(kernel).name
                if state in allowed[verb]:
                    continue
                with pytest.raises(RingError, match=f"cannot {verb} '{kernel}': it is {state}, and must be"):
                    await getattr(runtime, verb)(kernel)
                assert runtime.get_kernel_state(kernel).name == state

    run(main())


def test_nothing_is_delivered_before_activation_or_in_a_pause(kind: str) -> None:
    seen: list[int] = []

    async def main() -> None:
        kernel = make_actor(kind, lambda one: seen.append(one.n)).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            await runtime.send(kernel, Ask(0))
            await asyncio.sleep(0.02)
            assert seen == []
            await runtime.activate(kernel)
            await until(lambda: seen == [0])
            await runtime.deactivate(kernel)
            for n in range(1, 4):
                await runtime.send(kernel, Ask(n))
            await asyncio.sleep(0.02)
            assert seen == [0]
            assert runtime.get_telemetry(kernel).input_depth == 3
            await runtime.reactivate(kernel)
            await until(lambda: seen == [0, 1, 2, 3])

    run(main())


def test_deactivation_waits_for_what_is_in_hand(kind: str) -> None:
    entered, leave = threading.Event(), threading.Event()
    done: list[int] = []

    @ring_kernel(kernel_id=f"slow-{kind}")
    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = await ctx.receive()
            entered.set()
            while not leave.is_set():
                await asyncio.sleep(0.001)
            done.append(one.n)

    @ring_kernel(kernel_id=f"slow-{kind}")
    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = ctx.receive()
            entered.set()
            leave.wait()
            done.append(one.n)

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            kernel = (coroutine if kind == "coroutine" else thread).kernel_id
            await runtime.launch(coroutine if kind == "coroutine" else thread)
            await runtime.activate(kernel)
            await runtime.send(kernel, Ask(0))
            await runtime.send(kernel, Ask(1))
            await until(entered.is_set)
            with pytest.raises(TimeoutError, match=r"did not come .* active as before"):
                await runtime.deactivate(kernel, timeout=0.02)
            assert runtime.get_kernel_state(kernel) is KernelState.ACTIVE
            pausing = asyncio.create_task(runtime.deactivate(kernel))
            await asyncio.sleep(0.02)
            assert not pausing.done()
            leave.set()
            await pausing
            assert done == [0], "the message in hand was finished, and the next was not begun"
            await runtime.reactivate(kernel)
            await until(lambda: done == [0, 1])

    run(main())


def test_a_pause_under_load_stops_the_counter(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, lambda one: None).kernel_id
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel):
            stop = False

            async def load() -> None:
                while not stop:
                    await runtime.send(kernel, Ask(1))
                    await asyncio.sleep(0)

            loading = asyncio.create_task(load())
            for _ in range(5):
                before = runtime.get_telemetry(kernel)
                await until(lambda so_far=before.processed: runtime.get_telemetry(kernel).processed > so_far)
                await runtime.deactivate(kernel)
                before = runtime.get_telemetry(kernel)
                assert before.in_progress == 0
                await asyncio.sleep(0.005)
                assert runtime.get_telemetry(kernel).processed == before.processed
                await runtime.reactivate(kernel)
            stop = True
            await loading

    run(main())


@pytest.mark.parametrize("paused", [False, True])
def test_terminate_drains_and_the_counts_agree(kind: str, paused: bool) -> None:
    many = 10_000

    async def main() -> None:
        kernel = make_actor(kind, queue_size=many, output_queue_size=16).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            if not paused:
                await runtime.activate(kernel)
            for n in range(many):
                await runtime.send(kernel, Ask(n))
            # The output mailbox is far too small for what is left, and nobody reads it before the end.
            await runtime.terminate(kernel)
            figures = runtime.get_telemetry(kernel)
            assert figures.state is KernelState.TERMINATED
            assert (figures.received, figures.processed, figures.sent) == (many, many, many)
            assert (figures.input_depth, figures.failed, figures.discarded) == (0, 0, 0)
            assert figures.latency.count == many
            assert [(await runtime.receive(kernel)).n for _ in range(many)] == list(range(many))
            with pytest.raises(RingError, match="is TERMINATED"):
                await runtime.receive(kernel)
            with pytest.raises(RingError, match="is TERMINATED"):
                await runtime.send(kernel, Ask(0))
            assert runtime.dead_letters() == []

    run(main())


def test_terminate_without_draining_counts_what_is_lost(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            for n in range(5):
                await runtime.send(kernel, Ask(n))
            await runtime.terminate(kernel, drain=False)
            figures = runtime.get_telemetry(kernel)
            assert (figures.received, figures.processed, figures.discarded) == (5, 0, 5)
            letters = runtime.dead_letters(kernel)
            assert [(letter.message.n, letter.reason) for letter in letters] == [(n, "terminated") for n in range(5)]

    run(main())


def test_an_ended_kernel_can_be_launched_again(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind).kernel_id
        async with RingKernelRuntime() as runtime:
            for n in range(3):
                async with runtime.kernel_scope(kernel) as name:
                    assert (await runtime.send_and_receive(name, Ask(n), timeout=60)).n == n
                assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED
                assert runtime.get_telemetry(kernel).received == 1

    run(main())


def test_a_function_that_returns_is_terminated(kind: str) -> None:
    @ring_kernel(kernel_id=f"brief-{kind}")
    async def coroutine(ctx: Any) -> None:
        await ctx.receive()

    @ring_kernel(kernel_id=f"brief-{kind}")
    def thread(ctx: Any) -> None:
        ctx.receive()

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            spec = coroutine if kind == "coroutine" else thread
            kernel = spec.kernel_id
            await runtime.launch(spec)
            for n in range(3):
                await runtime.send(kernel, Ask(n))
            await runtime.activate(kernel)
            await until(lambda: runtime.get_kernel_state(kernel) is KernelState.TERMINATED)
            figures = runtime.get_telemetry(kernel)
            assert (figures.processed, figures.discarded) == (1, 2)
            assert [letter.reason for letter in runtime.dead_letters()] == ["terminated"] * 2

    run(main())


def test_actors_send_to_each_other_and_drain_together(kind: str) -> None:
    many = 300

    async def main() -> None:
        stages = [f"stage-{kind}-{at}" for at in range(4)]
        for at, stage in enumerate(stages):
            onward = stages[at + 1] if at + 1 < len(stages) else None

            async def coroutine(ctx: Any, to: str | None = onward) -> None:
                while not ctx.should_terminate:
                    await ctx.send(Ask((await ctx.receive()).n + 1), to)

            def thread(ctx: Any, to: str | None = onward) -> None:
                while not ctx.should_terminate:
                    ctx.send(Ask(ctx.receive().n + 1), to)

            options: dict[str, Any] = {"kernel_id": stage, "input_type": Ask, "output_queue_size": many}
            ring_kernel(queue_size=8, **options)(coroutine if kind == "coroutine" else thread)
        async with RingKernelRuntime() as runtime:
            for stage in stages:
                await runtime.launch(stage)
                await runtime.activate(stage)
            for n in range(many):
                await runtime.send(stages[0], Ask(n))
        figures = runtime.get_all_telemetry()
        assert [figures[stage].processed for stage in stages] == [many] * 4
        assert figures[stages[-1]].output_depth == many
        assert runtime.get_summary()["dead_letters"] == {}
        assert runtime.get_summary()["processed"] == 4 * many

    run(main())


def test_messages_to_nobody_are_dead_letters(kind: str) -> None:
    @ring_kernel(kernel_id=f"lost-{kind}", input_type=Ask)
    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = await ctx.receive()
            assert not await ctx.send(one, to="nobody")
            assert not await ctx.send(Answer(one.n), to=ctx.kernel_id)

    @ring_kernel(kernel_id=f"lost-{kind}", input_type=Ask)
    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = ctx.receive()
            assert not ctx.send(one, to="nobody")
            assert not ctx.send(Answer(one.n), to=ctx.kernel_id)

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            spec = coroutine if kind == "coroutine" else thread
            async with runtime.kernel_scope(spec) as kernel:
                await runtime.send(kernel, Ask(1))
            assert runtime.get_telemetry(kernel).failed == 0
            reasons = {letter.reason: letter for letter in runtime.dead_letters()}
            assert set(reasons) == {"unknown_destination", "wrong_type"}
            assert "takes Ask" in reasons["wrong_type"].detail

    run(main())


def test_sources_pause_where_they_wait(kind: str) -> None:
    @ring_kernel(kernel_id=f"source-{kind}", output_type=Answer, backpressure="drop_oldest", queue_size=4)
    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            await ctx.wait_active()
            await ctx.send(Answer(1))
            await asyncio.sleep(0)

    @ring_kernel(kernel_id=f"source-{kind}", output_type=Answer, backpressure="drop_oldest", queue_size=4)
    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            ctx.wait_active()
            ctx.send(Answer(1))

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            spec = coroutine if kind == "coroutine" else thread
            async with runtime.kernel_scope(spec) as kernel:
                assert (await runtime.receive(kernel)).n == 1
                await runtime.deactivate(kernel)
                sent = runtime.get_telemetry(kernel).sent
                await asyncio.sleep(0.01)
                assert runtime.get_telemetry(kernel).sent == sent
                await runtime.reactivate(kernel)
                await until(lambda: runtime.get_telemetry(kernel).sent > sent)

    run(main())


def test_sources_end_before_who_they_feed(kind: str) -> None:
    sink = make_actor(kind, lambda one: None).kernel_id

    async def coroutine(ctx: Any) -> None:
        while not ctx.should_terminate:
            await ctx.send(Ask(1), to=sink)

    def thread(ctx: Any) -> None:
        while not ctx.should_terminate:
            ctx.send(Ask(1), to=sink)

    async def main() -> None:
        source = ring_kernel(kernel_id=f"feeder-{kind}")(coroutine if kind == "coroutine" else thread)
        async with RingKernelRuntime() as runtime:
            for kernel in (sink, source.kernel_id):
                await runtime.launch(kernel)
                await runtime.activate(kernel)
            await until(lambda: runtime.get_telemetry(sink).processed > 100)
        figures = runtime.get_all_telemetry()
        assert figures[sink].processed == figures[sink].received == figures[source.kernel_id].sent
        assert runtime.dead_letters() == []

    run(main())


def test_two_who_terminate_wait_for_the_same_end(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, lambda one: None).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            for n in range(2000):
                await runtime.send(kernel, Ask(n))
            ending = asyncio.create_task(runtime.terminate(kernel))
            await asyncio.sleep(0)
            await runtime.shutdown()
            assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED
            assert runtime.get_telemetry(kernel).processed == 2000
            await ending

    run(main())


def test_who_never_waits_lets_others_run(kind: str) -> None:
    async def greedy(ctx: Any) -> None:
        while not ctx.should_terminate:
            await ctx.send(Answer(1))

    async def main() -> None:
        source = ring_kernel(kernel_id="greedy", output_type=Answer, backpressure="drop_new", queue_size=4)(greedy)
        async with (
            RingKernelRuntime() as runtime,
            runtime.kernel_scope(source),
            runtime.kernel_scope(make_actor(kind)) as other,
        ):
            for n in range(3):
                assert (await runtime.send_and_receive(other, Ask(n), timeout=60)).n == n

    run(main())
