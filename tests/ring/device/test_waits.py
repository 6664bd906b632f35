"""How a client of device actors waits."""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Any

import pytest
from device_actors import COUNT, ECHO, Item, make, start
from workers import isolated

from pygpukit.ring import RingKernelRuntime

WAITS = ("hybrid", "spin", "sleep")


@pytest.mark.parametrize("wait", WAITS)
def test_how_a_client_waits(wait: str, dedicated: bool) -> None:
    kernel = make(ECHO, dedicated=dedicated, input_queue_size=2, output_queue_size=4)
    with RingKernelRuntime() as runtime:
        start(runtime, kernel)
        client = runtime.client(kernel, wait=wait)
        assert [client.call(Item(n, 0, 0), timeout=30).id for n in range(20)] == list(range(20))
        for n in range(12):
            client.send(Item(n, 0, 0), timeout=30)
            assert client.receive(timeout=30).id == n
        assert next(client.stream(Item(5, 0, 0), timeout=30)).id == 5
        runtime.run(runtime.deactivate(kernel, timeout=30))
        while client.send_batch(Item.to_array([Item(0, 0, 0)]), timeout=0.01):
            pass
        with pytest.raises(TimeoutError):
            client.send(Item(0, 0, 0), timeout=0.01)


def naps(client: Any) -> int:
    """How often a wait in vain gave the processor away by itself. An emulated device may leave it little of that."""
    begin = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    with pytest.raises(TimeoutError):
        client.receive(timeout=0.3)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - begin


def test_one_that_spins_does_not_sleep() -> None:
    kernel = make()
    with RingKernelRuntime() as runtime:
        start(runtime, kernel)
        awake, asleep = (min(naps(runtime.client(kernel, wait=wait)) for _ in range(2)) for wait in ("spin", "sleep"))
        assert awake < asleep / 2


@pytest.mark.parametrize("wait", WAITS)
def test_it_can_be_interrupted(wait: str, interrupt: Callable[..., None]) -> None:
    kernel = make(COUNT)
    with RingKernelRuntime() as runtime:
        start(runtime, kernel)
        client = runtime.client(kernel, wait=wait)
        for waits in (client.receive, lambda: client.call(Item(1, 0, 0)), lambda: list(client.stream(Item(1, 0, 0)))):
            with pytest.raises(KeyboardInterrupt):
                interrupt(waits)


def test_how_a_worker_is_waited_for() -> None:
    kernel = make()
    with isolated() as runtime:
        start(runtime, kernel)
        with pytest.raises(ValueError, match="through a socket with isolation='process', must be 'hybrid', not 'spin'"):
            runtime.client(kernel, wait="spin")
