"""Orders that are cancelled half-way, or that several give at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from actors import KINDS, Ask, run, until

from pygpukit.errors import RingError
from pygpukit.ring import KernelState, RingKernel, RingKernelRuntime, ring_kernel

pytestmark = pytest.mark.parametrize("kind", KINDS)


class Busy:
    """An actor whose handler works until it is let go."""

    def __init__(self, kind: str) -> None:
        self.done: list[int] = []
        self._entered, self._leave = threading.Event(), threading.Event()
        self.spec: RingKernel = ring_kernel(kernel_id=f"busy-{kind}", input_type=Ask)(
            self._coroutine if kind == "coroutine" else self._thread
        )
        self.kernel_id = self.spec.kernel_id

    async def _coroutine(self, ctx: Any) -> None:
        while not ctx.should_terminate:
            one = await ctx.receive()
            self._entered.set()
            while not self._leave.is_set():
                await asyncio.sleep(0.001)
            self.done.append(one.n)

    def _thread(self, ctx: Any) -> None:
        while not ctx.should_terminate:
            one = ctx.receive()
            self._entered.set()
            self._leave.wait(60)
            self.done.append(one.n)

    async def start(self, runtime: RingKernelRuntime) -> None:
        """Launch it, and wait until it works on 0."""
        await runtime.launch(self.spec)
        await runtime.activate(self.kernel_id)
        await runtime.send(self.kernel_id, Ask(0))
        await until(self._entered.is_set)

    def let_go(self) -> None:
        """Handlers return from now on."""
        self._leave.set()


@pytest.fixture
def busy(kind: str) -> Any:
    one = Busy(kind)
    yield one
    one.let_go()


async def _cancel(order: Any) -> None:
    task = asyncio.create_task(order)
    await asyncio.sleep(0.02)
    assert not task.done()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _time_out(order: Any) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(order, 0.02)


@pytest.mark.parametrize("give_up", [_cancel, _time_out])
def test_a_cancelled_deactivation_leaves_it_active(busy: Busy, give_up: Callable[[Any], Any]) -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await busy.start(runtime)
            await give_up(runtime.deactivate(busy.kernel_id))
            assert runtime.get_kernel_state(busy.kernel_id) is KernelState.ACTIVE
            await runtime.send(busy.kernel_id, Ask(1))
            busy.let_go()
            await until(lambda: busy.done == [0, 1])
            await runtime.deactivate(busy.kernel_id)
            assert runtime.get_kernel_state(busy.kernel_id) is KernelState.DEACTIVATED

    run(main())


def test_one_deactivation_gives_up_and_another_does_not(busy: Busy) -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await busy.start(runtime)
            first = asyncio.create_task(runtime.deactivate(busy.kernel_id, timeout=0.02))
            second = asyncio.create_task(runtime.deactivate(busy.kernel_id, timeout=60))
            third = asyncio.create_task(runtime.deactivate(busy.kernel_id))
            with pytest.raises(TimeoutError, match="did not come"):
                await first
            await asyncio.sleep(0.02)
            assert not second.done()
            # The next one waits for its turn, and no longer than it wants to.
            with pytest.raises(TimeoutError, match="did not come"):
                await runtime.deactivate(busy.kernel_id, timeout=0.02)
            await runtime.send(busy.kernel_id, Ask(1))
            busy.let_go()
            await asyncio.gather(second, third)
            assert runtime.get_kernel_state(busy.kernel_id) is KernelState.DEACTIVATED
            await asyncio.sleep(0.02)
            assert busy.done == [0]
            await runtime.reactivate(busy.kernel_id)
            await until(lambda: busy.done == [0, 1])

    run(main())


def test_terminate_does_not_wait_for_deactivations(busy: Busy) -> None:
    async def main() -> None:
        async with RingKernelRuntime() as runtime:
            await busy.start(runtime)
            await runtime.send(busy.kernel_id, Ask(1))
            pausing = [asyncio.create_task(runtime.deactivate(busy.kernel_id)) for _ in range(2)]
            await asyncio.sleep(0.02)
            ending = asyncio.create_task(runtime.terminate(busy.kernel_id))
            for one in pausing:
                with pytest.raises(RingError, match="became TERMINATING while it was to be deactivated"):
                    await one
            busy.let_go()
            await ending
            assert runtime.get_kernel_state(busy.kernel_id) is KernelState.TERMINATED
            assert busy.done == [0, 1]

    run(main())


@pytest.mark.parametrize("drain", [True, False])
def test_a_cancelled_shutdown_is_finished_by_the_next(busy: Busy, drain: bool) -> None:
    async def main() -> None:
        runtime = RingKernelRuntime()
        await runtime.start()
        await busy.start(runtime)
        await runtime.send(busy.kernel_id, Ask(1))
        await _time_out(runtime.shutdown())
        assert runtime.get_kernel_state(busy.kernel_id) is KernelState.TERMINATING
        again = asyncio.create_task(runtime.shutdown(drain))
        await asyncio.sleep(0.02)
        assert not again.done()
        busy.let_go()
        await again
        assert runtime.get_kernel_state(busy.kernel_id) is KernelState.TERMINATED
        assert busy.done == ([0, 1] if drain else [0])
        # It is over, and can be started again.
        await runtime.shutdown()
        await runtime.start()
        await runtime.shutdown()

    run(main())


def test_close_finishes_a_cancelled_shutdown(busy: Busy) -> None:
    with RingKernelRuntime() as runtime:
        runtime.run(busy.start(runtime))
        run(_time_out(runtime.shutdown()))
        busy.let_go()
    assert runtime.get_kernel_state(busy.kernel_id) is KernelState.TERMINATED
    assert busy.done == [0]
