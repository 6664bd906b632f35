"""Actors through `RingKernel` and `RingKernelRuntime`: states, messages, ends, what is counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from dataclasses import asdict
from typing import Any

import pytest

from pygpukit.compat.pydotcompute.exceptions import (
    InvalidConfigurationError,
    KernelAlreadyExistsError,
    KernelNotFoundError,
    KernelStateError,
    QueueFullError,
    QueueTimeoutError,
)
from pygpukit.compat.pydotcompute.ring_kernels.fast_queue import FastMessageQueue
from pygpukit.compat.pydotcompute.ring_kernels.lifecycle import (
    KernelContext,
    KernelState,
    RingKernel,
    RingKernelConfig,
    managed_kernel,
)
from pygpukit.compat.pydotcompute.ring_kernels.message import RingKernelMessage
from pygpukit.compat.pydotcompute.ring_kernels.queue import MessageQueue
from pygpukit.compat.pydotcompute.ring_kernels.runtime import (
    RingKernelRuntime,
    get_registered_kernel,
    register_ring_kernel,
)
from pygpukit.errors import ActorFailedError

Message = RingKernelMessage


def run(main: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(main, 60))


async def echo(ctx: Any) -> None:
    """As published programs write it."""
    while not ctx.should_terminate:
        if not ctx.is_active:
            await ctx.wait_active()
            continue
        try:
            one = await ctx.receive(timeout=0.05)
            await ctx.send(one)
        except Exception:
            continue


async def plain_echo(ctx: Any) -> None:
    while not ctx.should_terminate:
        await ctx.send(await ctx.receive())


async def readme_echo(ctx: Any) -> None:
    """Without an except clause."""
    while not ctx.should_terminate:
        await ctx.send(await ctx.receive(timeout=0.01))


async def idle(ctx: Any) -> None:
    while not ctx.should_terminate:
        await asyncio.sleep(0.005)


async def over(ctx: Any) -> None:
    """Ends at once."""


async def stuck(ctx: Any) -> None:
    while True:
        await asyncio.sleep(60)


ACTORS = [echo, plain_echo, readme_echo, idle, over, stuck]
ECHOES = [echo, plain_echo, readme_echo]


def test_states() -> None:
    names = ["CREATED", "LAUNCHED", "ACTIVE", "DEACTIVATED", "TERMINATING", "TERMINATED"]
    assert [one.name for one in KernelState] == names


def test_configuration() -> None:
    assert asdict(RingKernelConfig("k")) == {
        "kernel_id": "k",
        "grid_size": 1,
        "block_size": 256,
        "input_queue_size": 4096,
        "output_queue_size": 4096,
        "backpressure_strategy": "block",
        "use_fast_queue": True,
    }
    for name in ("grid_size", "block_size", "input_queue_size", "output_queue_size"):
        for value in (0, -1):
            with pytest.raises(ValueError, match=name):
                RingKernelConfig("k", **{name: value})


@pytest.mark.parametrize("actor", ACTORS)
def test_the_life_of_a_kernel(actor: Any) -> None:
    async def main() -> None:
        kernel: RingKernel[Any, Any] = RingKernel("k", actor)
        assert (kernel.kernel_id, kernel.state, kernel.config.kernel_id) == ("k", KernelState.CREATED, "k")
        allowed = {"CREATED": "launch", "LAUNCHED": "activate", "ACTIVE": "deactivate", "DEACTIVATED": "reactivate"}
        for expected in ("CREATED", "LAUNCHED", "ACTIVE", "DEACTIVATED"):
            assert kernel.state.name == expected
            for step in allowed.values():
                if step != allowed[expected]:
                    with pytest.raises(KernelStateError) as caught:
                        await getattr(kernel, step)()
                    assert (caught.value.kernel_id, caught.value.current_state) == ("k", expected)
            if expected in ("CREATED", "LAUNCHED"):
                with pytest.raises(KernelStateError):
                    await kernel.send(Message())
                with pytest.raises(KernelStateError):
                    await kernel.receive(timeout=0)
            await getattr(kernel, allowed[expected])()
        assert kernel.state is KernelState.ACTIVE
        assert "ACTIVE" in repr(kernel)
        await kernel.terminate(timeout=0.05)
        await kernel.terminate()
        assert kernel.state is KernelState.TERMINATED
        for use in (kernel.launch(), kernel.send(Message()), kernel.receive()):
            with pytest.raises(KernelStateError):
                await use

    run(main())


def test_a_kernel_that_was_not_launched_can_be_terminated() -> None:
    kernel: RingKernel[Any, Any] = RingKernel("k", echo)
    run(kernel.terminate())
    assert kernel.state is KernelState.TERMINATED


@pytest.mark.parametrize("actor", ECHOES)
def test_messages_keep_their_number(actor: Any) -> None:
    async def main() -> None:
        async with managed_kernel("k", actor) as kernel:
            assert kernel.state is KernelState.ACTIVE
            one = Message(priority=100)
            await kernel.send(one)
            assert (await kernel.receive(timeout=60)).message_id == one.message_id
            with pytest.raises(QueueTimeoutError) as caught:
                await kernel.receive(timeout=0.01)
            assert (caught.value.kernel_id, caught.value.timeout) == ("k", 0.01)
        assert kernel.state is KernelState.TERMINATED

    run(main())


def test_a_managed_kernel_ends_with_an_error_too() -> None:
    async def main() -> None:
        with pytest.raises(ValueError, match="mine"):
            async with managed_kernel("k", echo, config=RingKernelConfig("k")) as kernel:
                raise ValueError("mine")
        assert kernel.state is KernelState.TERMINATED

    run(main())


def test_a_runtime_begins_and_ends() -> None:
    async def main() -> None:
        runtime = RingKernelRuntime()
        assert (runtime.is_active, runtime.kernel_ids, runtime.get_all_telemetry()) == (False, [], {})
        assert runtime.get_summary()["kernel_count"] == 0
        await runtime.shutdown()
        await runtime.start()
        await runtime.start()
        assert runtime.is_active
        for name in ("a", "b"):
            assert (await runtime.launch(name, echo)).state is KernelState.LAUNCHED
        await runtime.activate("a")
        assert runtime.kernel_ids == ["a", "b"]
        await runtime.shutdown()
        assert (runtime.is_active, runtime.kernel_ids) == (False, [])
        with pytest.raises(KernelNotFoundError):
            await runtime.send("a", Message())
        async with runtime as again:
            assert again is runtime
            assert runtime.is_active
        assert not runtime.is_active
        await runtime.launch("starts it", echo)
        assert runtime.is_active
        await runtime.shutdown()

    run(main())


def test_what_cannot_be_called_is_refused_before_the_id_is_taken() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            with pytest.raises(InvalidConfigurationError, match=r"kernel_func must not be 42.*give a function"):
                await runtime.launch("k", 42)  # type: ignore[arg-type]
            assert runtime.kernel_ids == []
            assert (await runtime.launch("k", echo)).state is KernelState.LAUNCHED

    run(main())


def test_ids() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            kernel = await runtime.launch("k", echo)
            with pytest.raises(KernelAlreadyExistsError) as caught:
                await runtime.launch("k", echo)
            assert caught.value.kernel_id == "k"
            await runtime.terminate("k")
            assert kernel.state is KernelState.TERMINATED
            assert runtime.kernel_ids == []
            with pytest.raises(KernelNotFoundError):
                await runtime.terminate("k")
            assert (await runtime.launch("k", echo)).state is KernelState.LAUNCHED
            uses = [runtime.launch("none")]
            uses += [getattr(runtime, name)("none") for name in ("activate", "deactivate", "reactivate", "terminate")]
            uses += [runtime.send("none", Message()), runtime.receive("none")]
            uses += [runtime.send_and_receive("none", Message())]
            for use in uses:
                with pytest.raises(KernelNotFoundError) as missing:
                    await use
                assert missing.value.kernel_id == "none"
                assert "k" in missing.value.available
            with pytest.raises(KernelNotFoundError):
                runtime.get_kernel_state("none")
            assert runtime.get_telemetry("none") is None

    run(main())


def test_two_launches_at_once_are_one() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            made = await asyncio.gather(*(runtime.launch("k", echo) for _ in range(2)), return_exceptions=True)
            assert sorted(type(one).__name__ for one in made) == ["KernelAlreadyExistsError", "RingKernel"]

    run(main())


def test_states_through_the_runtime() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            kernel = await runtime.launch("k", plain_echo)
            assert runtime.get_kernel_state("k") is KernelState.LAUNCHED
            with pytest.raises(KernelStateError) as caught:
                await runtime.send("k", Message())
            assert caught.value.current_state == "LAUNCHED"
            await runtime.activate("k")
            await runtime.deactivate("k")
            assert runtime.get_kernel_state("k") is kernel.state is KernelState.DEACTIVATED
            await runtime.send("k", Message(priority=5))
            with pytest.raises(QueueTimeoutError):
                await runtime.receive("k", timeout=0.02)
            await runtime.reactivate("k")
            assert (await runtime.receive("k", timeout=60)).priority == 5

    run(main())


@pytest.mark.parametrize("actor", ECHOES)
def test_calls(actor: Any) -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("k", actor) as kernel:
            assert kernel.state is KernelState.ACTIVE
            ones = [Message() for _ in range(20)]
            answers = await asyncio.gather(*(runtime.send_and_receive("k", one, timeout=60) for one in ones))
            assert [one.message_id for one in answers] == [one.message_id for one in ones]
        assert runtime.kernel_ids == []
        assert kernel.state is KernelState.TERMINATED

    run(main())


def test_answers_in_another_order_and_more_than_one() -> None:
    async def pairs(ctx: Any) -> None:
        while not ctx.should_terminate:
            first, second = await ctx.receive(), await ctx.receive()
            await ctx.send(second.reply(priority=2))
            await ctx.send(first.reply(priority=1))
            await ctx.send(Message(priority=3))

    async def main() -> None:
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("k", pairs):
            ones = [Message(), Message()]
            answers = await asyncio.gather(*(runtime.send_and_receive("k", one, timeout=60) for one in ones))
            assert [one.correlation_id for one in answers] == [one.message_id for one in ones]
            assert [one.priority for one in answers] == [1, 2]
            assert (await runtime.receive("k", timeout=60)).priority == 3

    run(main())


def test_a_call_that_nothing_answers() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("k", over):
            with pytest.raises(QueueTimeoutError):
                await runtime.send_and_receive("k", Message(), timeout=0.01)

    run(main())


@pytest.mark.parametrize(("strategy", "fast"), [("reject", True), ("reject", False), ("block", True), ("block", False)])
def test_a_full_queue(strategy: str, fast: bool) -> None:
    async def main() -> None:
        config = RingKernelConfig("k", input_queue_size=2, backpressure_strategy=strategy, use_fast_queue=fast)
        async with RingKernelRuntime() as runtime:
            kernel = await runtime.launch("k", over, config=config)
            assert kernel.config is config
            await runtime.activate("k")
            for _ in range(2):
                await runtime.send("k", Message())
            with pytest.raises(QueueFullError) as caught:
                await runtime.send("k", Message(), timeout=0.01)
            assert (caught.value.kernel_id, caught.value.queue_size) == ("k", 2)
            assert isinstance(caught.value, QueueTimeoutError) == (strategy == "block")
            assert runtime.get_telemetry("k").queue_depth == 2

    run(main())


def test_a_full_output_queue_that_rejects() -> None:
    seen: list[Exception] = []

    async def talker(ctx: Any) -> None:
        await ctx.wait_active()
        for one in range(3):
            try:
                await ctx.send(one)
            except QueueFullError as error:
                seen.append(error)

    async def main() -> None:
        config = RingKernelConfig("k", output_queue_size=2, backpressure_strategy="reject")
        async with managed_kernel("k", talker, config=config) as kernel:
            while not seen:
                await asyncio.sleep(0.001)
            assert [await kernel.receive(timeout=60) for _ in range(2)] == [0, 1]

    run(main())
    assert [(one.kernel_id, one.queue_size) for one in seen] == [("k", 2)]


def test_a_size_that_no_mailbox_has() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            with pytest.raises(InvalidConfigurationError, match="input_queue_size"):
                await runtime.launch("k", echo, config=RingKernelConfig("k", input_queue_size=1 << 40))
            assert runtime.kernel_ids == []
            await runtime.launch("k", echo)

    run(main())


def test_drops_are_counted() -> None:
    async def main() -> None:
        config = RingKernelConfig("k", input_queue_size=2, backpressure_strategy="drop_oldest")
        async with RingKernelRuntime() as runtime:
            await runtime.launch("k", over, config=config)
            await runtime.activate("k")
            for _ in range(5):
                await runtime.send("k", Message())
            assert runtime.get_telemetry("k").messages_dropped == 3
            assert runtime.get_summary()["total_messages_dropped"] == 3

    run(main())


@pytest.mark.parametrize("actor", ECHOES)
def test_telemetry_is_what_happened(actor: Any) -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await runtime.launch("k", actor)
            await runtime.activate("k")
            figures = runtime.get_telemetry("k")
            for count in range(1, 6):
                await runtime.send("k", Message())
                await runtime.receive("k", timeout=60)
                assert runtime.get_telemetry("k").messages_processed == count
            assert runtime.get_telemetry("k") is figures
            assert figures.kernel_id == "k"
            assert 0 < figures.min_latency_ns <= figures.avg_latency_ns <= figures.max_latency_ns
            assert figures.throughput == figures.messages_processed / figures.uptime_seconds
            assert runtime.get_all_telemetry() == {"k": figures}
            assert runtime.get_summary()["total_messages_processed"] == 5
        assert runtime.get_all_telemetry() == {}

    run(main())


def test_without_telemetry() -> None:
    async def main() -> None:
        async with RingKernelRuntime(enable_telemetry=False, use_uvloop=False, use_eager_tasks=False) as runtime:
            await runtime.launch("k", echo)
            assert runtime.get_telemetry("k") is None
            assert runtime.get_all_telemetry() == {}
            assert runtime.get_summary()["kernel_count"] == 1

    run(main())


def test_a_summary_has_these_figures() -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await runtime.launch("a", echo)
            await runtime.launch("b", echo)
            found = runtime.get_summary()
            assert set(found) == {
                *("kernel_count", "total_messages_processed", "total_messages_dropped"),
                *("total_errors", "uptime_seconds", "gpu_utilization"),
            }
            assert found["kernel_count"] == 2

    run(main())


def test_an_actor_that_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def picky(ctx: Any) -> None:
        while True:
            one = await ctx.receive()
            if one.priority == 0:
                raise ValueError("no zeros")
            await ctx.send(one)

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            kernel = await runtime.launch("k", picky)
            await runtime.activate("k")
            await runtime.send("k", Message(priority=1))
            await runtime.send("k", Message(priority=0))
            assert (await runtime.receive("k", timeout=60)).priority == 1
            with pytest.raises(KernelStateError):
                await runtime.receive("k", timeout=60)
            assert kernel.state is KernelState.TERMINATED
            with pytest.raises(KernelStateError) as caught:
                await runtime.send("k", Message())
            assert isinstance(caught.value.__cause__, ActorFailedError)
            figures = runtime.get_telemetry("k")
            assert (figures.error_count, figures.last_error) == (1, "ValueError: no zeros")
            assert runtime.get_summary()["total_errors"] == 1
            await runtime.terminate("k")

    with caplog.at_level(logging.CRITICAL, "pygpukit.ring"):
        run(main())


def test_what_was_accepted_is_done_before_the_end_and_so_is_what_follows_the_loop() -> None:
    done: list[Any] = []

    async def keeper(ctx: Any) -> None:
        while not ctx.should_terminate:
            try:
                done.append((await ctx.receive(timeout=60)).priority)
            except Exception:
                continue
        done.append("end")

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await runtime.launch("k", keeper)
            await runtime.activate("k")
            for priority in (3, 3, 3):
                await runtime.send("k", Message(priority=priority))
            await runtime.deactivate("k")
            await runtime.terminate("k")

    run(main())
    assert done == [3, 3, 3, "end"]


def test_an_idle_actor_goes_on_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("k", readme_echo) as kernel:
            while not caplog.records:
                await asyncio.sleep(0.002)
            await runtime.send("k", Message(priority=4))
            assert (await runtime.receive("k", timeout=60)).priority == 4
            assert kernel.state is KernelState.ACTIVE
            assert runtime.get_telemetry("k").error_count == 0

    with caplog.at_level(logging.WARNING, "pygpukit.ring"):
        run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_plain_functions_and_plain_objects() -> None:
    called: list[str] = []

    def actor(ctx: Any) -> None:
        called.append(ctx.kernel_id)

    async def main() -> None:
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("plain", actor):
            await asyncio.sleep(0)
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("k", plain_echo):
            for one in (5, "text", {"a": 1}):
                await runtime.send("k", one)
                assert await runtime.receive("k", timeout=60) is one

    run(main())
    assert called == ["plain"]


def test_contexts() -> None:
    seen: list[Any] = []

    async def curious(ctx: Any) -> None:
        seen.append((ctx.kernel_id, type(ctx.input_queue), ctx.is_active, ctx.should_terminate))
        await ctx.wait_active()
        seen.append(ctx.is_active)
        await ctx.send(ctx.input_queue.qsize)

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            kernel = await runtime.launch("k", curious, config=RingKernelConfig("k", use_fast_queue=False))
            await asyncio.sleep(0)
            await runtime.activate("k")
            assert await kernel.receive(timeout=60) == 0

    run(main())
    assert seen == [("k", MessageQueue, False, False), True]


def test_a_context_made_by_hand() -> None:
    async def main() -> None:
        queues: list[Any] = [MessageQueue(), FastMessageQueue()]
        ctx: KernelContext[Any, Any] = KernelContext("k", input_queue=queues[0], output_queue=queues[1])
        assert (ctx.kernel_id, ctx.should_terminate, ctx.is_active) == ("k", False, False)
        queues[0].put_nowait("in")
        assert await ctx.receive(timeout=1) == "in"
        await ctx.send("out")
        assert queues[1].get_nowait() == "out"
        with pytest.raises(QueueTimeoutError):
            await ctx.receive(timeout=0.01)

    run(main())


def test_registered_functions() -> None:
    async def main() -> None:
        register_ring_kernel("by-id", plain_echo, Message, Message, input_queue_size=3, other=1)
        found = get_registered_kernel("by-id")
        assert found["func"] is plain_echo
        assert (found["input_type"], found["output_type"]) == (Message, Message)
        assert found["config"] == {"input_queue_size": 3, "other": 1}
        assert get_registered_kernel("missing") is None
        async with RingKernelRuntime() as runtime:
            kernel = await runtime.launch("by-id")
            assert kernel.config.input_queue_size == 3
            await runtime.activate("by-id")
            assert (await runtime.send_and_receive("by-id", Message(priority=9), timeout=60)).priority == 9

    run(main())


def test_loops_are_left_alone() -> None:
    policy = asyncio.get_event_loop_policy()
    info = RingKernelRuntime().get_loop_info()
    assert info["uvloop_installed"] is False
    assert {"loop_class", "platform", "python_version"} <= set(info)

    async def main() -> dict[str, Any]:
        loop = asyncio.get_running_loop()
        async with RingKernelRuntime() as runtime:
            assert loop.get_task_factory() is None
            return {**runtime.get_loop_info(), "expected": type(loop).__name__}

    found = run(main())
    assert found["loop_class"] == found["expected"]
    assert asyncio.get_event_loop_policy() is policy
