"""Orders to device actors that are cancelled half-way, or that several give at once."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from actors import run
from device_actors import Item, make, processed
from test_rough_ends import HOLD, flag

from pygpukit.errors import RingError
from pygpukit.ring import KernelState, RingKernelRuntime
from pygpukit.ring.device import DeviceRing


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.001)


class Busy:
    """An actor whose handler works until it is let go."""

    def __init__(self, dedicated: bool) -> None:
        self.kernel_id = make(HOLD, dedicated=dedicated)
        self._words = flag()

    async def start(self, runtime: RingKernelRuntime) -> None:
        """Launch it, and wait until it works on its first message."""
        await runtime.launch(self.kernel_id)
        await runtime.activate(self.kernel_id)
        await runtime.send(self.kernel_id, Item(self._words.ctypes.data, 0, 0))
        await _until(lambda: self._words[1] == 1)

    def let_go(self) -> None:
        """The handler returns."""
        self._words[0] = 1


@pytest.fixture
def busy(dedicated: bool) -> Any:
    one = Busy(dedicated)
    yield one
    one.let_go()


@pytest.mark.parametrize("seconds", [0.0, 0.02])
def test_a_cancelled_deactivation_leaves_it_active(busy: Busy, seconds: float) -> None:
    async def main() -> None:
        name = busy.kernel_id
        async with RingKernelRuntime() as runtime:
            await busy.start(runtime)
            pausing = asyncio.create_task(runtime.deactivate(name))
            await asyncio.sleep(seconds)
            pausing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pausing
            assert runtime.get_kernel_state(name) is KernelState.ACTIVE
            busy.let_go()
            assert (await runtime.send_and_receive(name, Item(0, 0, 7), timeout=30)).value == 7
            await runtime.deactivate(name, timeout=30)
            assert runtime.get_kernel_state(name) is KernelState.DEACTIVATED

    run(main())


def test_one_deactivation_gives_up_and_another_does_not(busy: Busy) -> None:
    async def main() -> None:
        name = busy.kernel_id
        async with RingKernelRuntime() as runtime:
            await busy.start(runtime)
            first = asyncio.create_task(runtime.deactivate(name, timeout=0.02))
            others = [asyncio.create_task(runtime.deactivate(name, timeout=30)) for _ in range(2)]
            with pytest.raises(TimeoutError, match="did not stand still"):
                await first
            await runtime.send(name, Item(0, 0, 0))
            await asyncio.sleep(0.02)
            assert not any(one.done() for one in others)
            busy.let_go()
            await asyncio.gather(*others)
            assert runtime.get_kernel_state(name) is KernelState.DEACTIVATED
            await asyncio.sleep(0.02)
            assert processed(runtime, name) == 1
            await runtime.reactivate(name)
            await _until(lambda: processed(runtime, name) == 2)

    run(main())


def test_terminate_does_not_wait_for_deactivations(busy: Busy) -> None:
    async def main() -> None:
        name = busy.kernel_id
        async with RingKernelRuntime() as runtime:
            await busy.start(runtime)
            await runtime.send(name, Item(0, 0, 0))
            pausing = [asyncio.create_task(runtime.deactivate(name)) for _ in range(2)]
            await asyncio.sleep(0.02)
            ending = asyncio.create_task(runtime.terminate(name))
            await asyncio.sleep(0)
            busy.let_go()
            for one in pausing:
                with pytest.raises(RingError, match="while it was to be deactivated"):
                    await one
            await ending
            assert runtime.get_kernel_state(name) is KernelState.TERMINATED
            assert processed(runtime, name) == 2

    run(main())


def test_a_cancelled_activation_happens(dedicated: bool) -> None:
    async def main() -> None:
        name = make(dedicated=dedicated)
        async with RingKernelRuntime() as runtime:
            await runtime.launch(name)
            activating = asyncio.create_task(runtime.activate(name))
            await asyncio.sleep(0)
            activating.cancel()
            with pytest.raises(asyncio.CancelledError):
                await activating
            await _until(lambda: runtime.get_kernel_state(name) is KernelState.ACTIVE)
            assert (await runtime.send_and_receive(name, Item(5, 0, 0), timeout=30)).id == 5

    run(main())


def test_a_cancelled_shutdown_is_finished_by_the_next(busy: Busy) -> None:
    async def main() -> None:
        runtime = RingKernelRuntime()
        await runtime.start()
        await busy.start(runtime)
        await runtime.send(busy.kernel_id, Item(0, 0, 0))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(runtime.shutdown(), 0.02)
        assert not runtime.get_kernel_state(busy.kernel_id).is_over
        again = asyncio.create_task(runtime.shutdown())
        await asyncio.sleep(0.02)
        assert not again.done()
        busy.let_go()
        await again
        assert runtime.get_kernel_state(busy.kernel_id) is KernelState.TERMINATED
        assert processed(runtime, busy.kernel_id) == 2
        assert not runtime.status()["up"]

    run(main())


def test_a_shutdown_that_is_cancelled_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, close = threading.Event(), threading.Event(), DeviceRing.close

    def held(ring: DeviceRing) -> None:
        begun.set()
        assert go.wait(30)
        close(ring)

    monkeypatch.setattr(DeviceRing, "close", held)

    async def main() -> None:
        runtime, name = RingKernelRuntime(), make()
        await runtime.start()
        await runtime.launch(name)
        ending = asyncio.create_task(runtime.shutdown())
        await _until(begun.is_set)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        again = asyncio.create_task(runtime.shutdown())
        await asyncio.sleep(0.02)
        assert not again.done()
        go.set()
        await again
        assert not runtime.status()["up"]

    run(main())
