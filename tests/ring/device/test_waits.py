"""How a client of device actors waits."""

from __future__ import annotations

import resource
import threading
from collections.abc import Callable
from typing import Any

import pytest
from device_actors import BATCH, COUNT, ECHO, Item, make, numbered, start
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


@pytest.mark.parametrize("make_runtime", [RingKernelRuntime, isolated], ids=["here", "worker"])
def test_what_an_interrupted_batch_had_taken_is_not_lost(
    make_runtime: Callable[[], RingKernelRuntime], dedicated: bool, interrupt: Callable[..., None]
) -> None:
    kernel = make(dedicated=dedicated, output_queue_size=8)
    with make_runtime() as runtime:
        (client,) = start(runtime, kernel)
        client.send_batch(numbered(4))
        with pytest.raises(KeyboardInterrupt):
            interrupt(lambda: client.receive_batch(1000))
        assert client.receive(timeout=30).id == 0
        # The others are still more than none, and room for all that the actor may send is there again.
        client.send_batch(numbered(20, 4), timeout=30)
        assert client.receive_batch(23, timeout=30)["id"].tolist() == list(range(1, 24))
        assert runtime.get_telemetry(kernel).output_depth == 0


def test_a_stream_of_batches_survives_an_interrupt(interrupt: Callable[..., None]) -> None:
    """Neither what was there is lost, nor what comes at that moment."""
    kernel = make(BATCH)
    with RingKernelRuntime() as runtime:
        (client,) = start(runtime, kernel)
        sender = threading.Thread(target=client.send_batch, args=(numbered(5000),))
        sender.start()
        with pytest.raises(KeyboardInterrupt):
            interrupt(lambda: client.receive_batch(100_000))
        assert client.receive_batch(5000, timeout=60)["id"].tolist() == list(range(5000))
        sender.join()


def test_how_a_worker_is_waited_for() -> None:
    kernel = make()
    with isolated() as runtime:
        start(runtime, kernel)
        with pytest.raises(ValueError, match="through a socket with isolation='process', must be 'hybrid', not 'spin'"):
            runtime.client(kernel, wait="spin")
