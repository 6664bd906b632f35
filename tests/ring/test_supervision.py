"""Actors that fail: counted, reported, restarted, escalated."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from actors import KINDS, Answer, Ask, make_actor, run, until

from pygpukit.errors import ActorFailedError, RingError, UndeliveredError
from pygpukit.ring import KernelState, RingKernelRuntime, ring_kernel

pytestmark = pytest.mark.parametrize("kind", KINDS)


def picky(one: Any) -> Any:
    """Fails with negative numbers."""
    if one.n < 0:
        raise ValueError(f"{one.n} is negative")
    return Answer(one.n)


def test_a_failure_is_a_state_with_its_cause(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, picky).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            for n in (1, -1, 2):
                await runtime.send(kernel, Ask(n))
            await runtime.activate(kernel)
            assert (await runtime.receive(kernel)).n == 1
            with pytest.raises(ActorFailedError, match="failed: ValueError: -1 is negative") as caught:
                await runtime.receive(kernel)
            assert isinstance(caught.value.__cause__, ValueError)
            with pytest.raises(ActorFailedError):
                await runtime.send(kernel, Ask(3))
            assert runtime.get_kernel_state(kernel) is KernelState.FAILED
            figures = runtime.get_telemetry(kernel)
            assert (figures.received, figures.processed, figures.failed, figures.discarded) == (3, 1, 1, 1)
            assert figures.last_error == "ValueError: -1 is negative"
            assert [(letter.message.n, letter.reason) for letter in runtime.dead_letters()] == [
                (-1, "failed"),
                (2, "failed"),
            ]
            with pytest.raises(RingError, match=r"cannot terminate .* it is FAILED"):
                await runtime.terminate(kernel)

    run(main())


def test_callers_hear_of_it(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, picky, restart="on_failure").kernel_id
        silent = make_actor(kind, lambda one: None if one.n else 1 / 0).kernel_id
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel), runtime.kernel_scope(silent):
            with pytest.raises(UndeliveredError, match=r"not answered: failed \(ValueError: -1 is negative\)"):
                await runtime.send_and_receive(kernel, Ask(-1), timeout=60)
            assert (await runtime.send_and_receive(kernel, Ask(1), timeout=60)).n == 1
            unanswered = asyncio.create_task(runtime.send_and_receive(silent, Ask(1), timeout=60))
            await until(lambda: runtime.get_telemetry(silent).processed == 1)
            await runtime.send(silent, Ask(0))
            with pytest.raises(ActorFailedError, match="ZeroDivisionError"):
                await unanswered

    run(main())


def test_restarts_go_on_with_the_next_message(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, picky, restart="on_failure", max_restarts=3).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            for n in (-1, 1, -2, 2, -3, 3):
                await runtime.send(kernel, Ask(n))
            await runtime.activate(kernel)
            assert [(await runtime.receive(kernel)).n for _ in range(3)] == [1, 2, 3]
            figures = runtime.get_telemetry(kernel)
            assert (figures.restarts, figures.failed, figures.state) == (3, 3, KernelState.ACTIVE)
            await runtime.send(kernel, Ask(-4))
            await until(lambda: runtime.get_kernel_state(kernel) is KernelState.FAILED)

    run(main())


def test_failures_long_ago_do_not_count(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, picky, restart="on_failure", max_restarts=1, restart_window=0.005).kernel_id
        async with RingKernelRuntime() as runtime, runtime.kernel_scope(kernel):
            for n in range(4):
                await runtime.send(kernel, Ask(-1))
                await until(lambda n=n: runtime.get_telemetry(kernel).failed == n + 1)
                await asyncio.sleep(0.02)
            assert runtime.get_telemetry(kernel).restarts == 4

    run(main())


def test_draining_survives_failures(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, picky, restart="on_failure", max_restarts=100).kernel_id
        async with RingKernelRuntime() as runtime:
            await runtime.launch(kernel)
            for n in range(40):
                await runtime.send(kernel, Ask(n if n % 4 else -1))
            await runtime.terminate(kernel)
            figures = runtime.get_telemetry(kernel)
            assert (figures.processed, figures.failed, figures.sent) == (30, 10, 30)
            assert figures.state is KernelState.TERMINATED

    run(main())


def test_escalation_ends_the_runtime(kind: str) -> None:
    async def main() -> None:
        kernel = make_actor(kind, picky, escalate=True).kernel_id
        other = make_actor(kind).kernel_id
        runtime = RingKernelRuntime()
        await runtime.start()
        for name in (kernel, other):
            await runtime.launch(name)
            await runtime.activate(name)
        await runtime.send(kernel, Ask(-1))
        await until(lambda: runtime.get_kernel_state(other) is KernelState.TERMINATED)
        with pytest.raises(ActorFailedError, match="and the runtime with it"):
            await runtime.launch(other)
        with pytest.raises(ActorFailedError, match=f"'{kernel}' failed, and the runtime with it: ValueError"):
            await runtime.shutdown()

    run(main())


def test_a_function_that_hangs_is_given_up(kind: str) -> None:
    release = asyncio.Event()

    @ring_kernel(kernel_id=f"hangs-{kind}", input_type=Ask)
    async def coroutine(ctx: Any) -> None:
        await ctx.receive()
        await asyncio.sleep(3600)

    @ring_kernel(kernel_id=f"hangs-{kind}", input_type=Ask)
    def thread(ctx: Any) -> None:
        ctx.receive()
        while not release.is_set():
            ctx.is_active  # noqa: B018

    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            spec = coroutine if kind == "coroutine" else thread
            kernel = spec.kernel_id
            await runtime.launch(spec)
            await runtime.activate(kernel)
            for n in range(3):
                await runtime.send(kernel, Ask(n))
            await until(lambda: runtime.get_telemetry(kernel).in_progress == 1)
            if kind == "coroutine":
                await runtime.terminate(kernel, timeout=0.02)
                assert runtime.get_kernel_state(kernel) is KernelState.TERMINATED
            else:
                with pytest.raises(TimeoutError, match="a thread cannot be stopped"):
                    await runtime.terminate(kernel, timeout=0.02)
                assert runtime.get_kernel_state(kernel) is KernelState.TERMINATING
                release.set()
                await until(lambda: runtime.get_kernel_state(kernel) is KernelState.TERMINATED)
            assert [letter.reason for letter in runtime.dead_letters()] == ["terminated"] * 2
            assert runtime.get_telemetry(kernel).discarded == 2

    run(main())
