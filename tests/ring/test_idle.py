"""Receive timeouts that leave an actor's function, and deactivation without waiting."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, run, until

from pygpukit.errors import ActorFailedError
from pygpukit.ring import KernelState, RingKernelRuntime, ring_kernel


def make(kind: str, timeout: float, kernel_id: str) -> list[str]:
    """An actor that lets the timeout of `receive` leave its function; what it did."""
    did: list[str] = []

    async def coroutine(ctx: Any) -> None:
        did.append("begin")
        while not ctx.should_terminate:
            await ctx.send(Answer((await ctx.receive(timeout=timeout)).n))

    def thread(ctx: Any) -> None:
        did.append("begin")
        while not ctx.should_terminate:
            ctx.send(Answer(ctx.receive(timeout=timeout).n))

    options: Any = {"kernel_id": kernel_id, "input_type": Ask, "output_type": Answer}
    ring_kernel(**options)(coroutine if kind == "coroutine" else thread)
    return did


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("timeout", [0, 0.001])
def test_an_idle_actor_is_called_again(kind: str, timeout: float, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        did = make(kind, timeout, "impatient")
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("impatient"):
            await until(lambda: runtime.get_telemetry("impatient").idle_restarts >= 2)
            await runtime.send("impatient", Ask(7))
            assert (await runtime.receive("impatient", timeout=60)).n == 7
            await until(lambda: runtime.get_telemetry("impatient").processed == 1)
            assert runtime.get_kernel_state("impatient") is KernelState.ACTIVE
        figures = runtime.get_telemetry("impatient")
        assert (figures.received, figures.processed, figures.failed, figures.restarts) == (1, 1, 0, 0)
        assert len(did) == 1 + figures.idle_restarts
        assert figures.last_error is None
        assert not runtime.dead_letters()

    with caplog.at_level(logging.WARNING, "pygpukit.ring"):
        run(main())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "'impatient'" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
def test_other_timeouts_still_fail_an_actor(kind: str) -> None:
    def handle(ctx: Any) -> None:
        raise TimeoutError("of something else")

    async def coroutine(ctx: Any) -> None:
        try:
            await ctx.receive(timeout=0)
        except TimeoutError:
            handle(ctx)

    def thread(ctx: Any) -> None:
        try:
            ctx.receive(timeout=0)
        except TimeoutError:
            handle(ctx)

    async def main() -> None:
        ring_kernel(kernel_id="other-timeout")(coroutine if kind == "coroutine" else thread)
        async with RingKernelRuntime() as runtime:
            await runtime.launch("other-timeout")
            await runtime.activate("other-timeout")
            with pytest.raises(ActorFailedError, match="of something else"):
                await runtime.receive("other-timeout", timeout=60)
            assert runtime.get_telemetry("other-timeout").idle_restarts == 0

    run(main())


def test_an_idle_actor_that_is_cancelled_ends() -> None:
    async def main() -> None:
        make("coroutine", 0, "cancelled")
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("cancelled"):
            await until(lambda: runtime.get_telemetry("cancelled").idle_restarts >= 1)
            await runtime.terminate("cancelled", drain=False, timeout=0)
            assert runtime.get_kernel_state("cancelled") is KernelState.TERMINATED

    run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_deactivate_need_not_wait(kind: str) -> None:
    async def main() -> None:
        at_work, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def coroutine(ctx: Any) -> None:
            while not ctx.should_terminate:
                one = await ctx.receive()
                at_work.set()
                await go_on.wait()
                await ctx.send(Answer(one.n))

        def thread(ctx: Any) -> None:
            while not ctx.should_terminate:
                one = ctx.receive()
                loop.call_soon_threadsafe(at_work.set)
                asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
                ctx.send(Answer(one.n))

        ring_kernel(kernel_id="busy")(coroutine if kind == "coroutine" else thread)
        async with RingKernelRuntime() as runtime, runtime.kernel_scope("busy"):
            await runtime.send("busy", Ask(1))
            await runtime.send("busy", Ask(2))
            await at_work.wait()
            await runtime.deactivate("busy", wait=False)
            assert runtime.get_kernel_state("busy") is KernelState.DEACTIVATED
            go_on.set()
            assert (await runtime.receive("busy", timeout=60)).n == 1
            with pytest.raises(TimeoutError):
                await runtime.receive("busy", timeout=0.01)
            await runtime.reactivate("busy")
            assert (await runtime.receive("busy", timeout=60)).n == 2

    run(main())
