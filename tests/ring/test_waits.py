"""How a client's threads wait: awake, asleep, or the one after the other."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from actors import KINDS, Answer, Ask, make_actor

import pygpukit as gp
from pygpukit._pygpukit_rust import set_patience
from pygpukit.ring import RingKernelRuntime, message

WAITS = ("hybrid", "spin", "sleep")


@message
class Row:
    n: gp.int64


@message
class Text:
    n: int
    text: str = ""


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_that_waits(kind: str, wait: str) -> None:
    """The actor needs the interpreter to answer: a wait that held it would never end."""
    kernel = make_actor(kind, lambda one: Row(2 * one.n), input_type=Row, output_type=Row, queue_size=2).kernel_id
    array = np.zeros(20, Row.dtype)
    array["n"] = np.arange(20)
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel, wait=wait)
        assert [client.call(Row(n), timeout=60).n for n in range(10)] == list(range(0, 20, 2))
        sender = threading.Thread(target=lambda: [client.send(Row(n), timeout=60) for n in range(20)])
        sender.start()
        assert [client.receive(timeout=60).n for n in range(20)] == list(range(0, 40, 2))
        sender.join()
        sender = threading.Thread(target=client.send_batch, args=(array,))
        sender.start()
        assert client.receive_batch(20, timeout=60)["n"].tolist() == list(range(0, 40, 2))
        sender.join()
        assert [one.n for one in client.stream(Row(4), timeout=60)] == [8]
        with pytest.raises(TimeoutError):
            client.receive(timeout=0.001)


def naps(client: Any) -> int:
    """How often a wait in vain gave the processor away by itself, however busy the machine is."""
    begin = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    with pytest.raises(TimeoutError):
        client.receive(timeout=0.2)
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - begin


def test_one_that_spins_does_not_sleep() -> None:
    kernel = make_actor("coroutine").kernel_id
    with RingKernelRuntime() as runtime:
        awake, asleep = (min(naps(runtime.client(kernel, wait=wait)) for _ in range(2)) for wait in ("spin", "sleep"))
        assert awake < asleep


@pytest.mark.parametrize("wait", WAITS)
def test_it_can_be_interrupted(wait: str, interrupt: Callable[..., None]) -> None:
    kernel = make_actor("coroutine", lambda one: None).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel, wait=wait)
        for waits in (client.receive, lambda: client.call(Ask(1)), lambda: list(client.stream(Ask(1)))):
            with pytest.raises(KeyboardInterrupt):
                interrupt(waits)
        # As other waits of the thread.
        assert set_patience(None) is None


@pytest.mark.parametrize("row", [Answer, Row, Text], ids=["int", "row", "list"])
def test_what_an_interrupted_batch_had_taken_is_not_lost(row: Any, interrupt: Callable[..., None]) -> None:
    """Neither what was there, nor what comes at that moment."""
    kernel = make_actor("thread", lambda one: row(one.n), output_type=row, output_queue_size=8).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        for many in (5, 20_000):
            sender = threading.Thread(target=client.send_batch, args=([Ask(n) for n in range(many)],))
            sender.start()
            with pytest.raises(KeyboardInterrupt):
                interrupt(lambda: client.receive_batch(100_000))
            got = client.receive_batch(many, timeout=60)
            sender.join()
            assert (got["n"].tolist() if row.is_fixed else [one.n for one in got]) == list(range(many))
        counts = runtime.get_telemetry(kernel)
        assert (counts.sent, counts.output_depth) == (20_005, 0)


@pytest.mark.parametrize("is_array", [False, True])
def test_a_batch_of_short_waits_can_be_interrupted(is_array: bool, interrupt: Callable[..., None]) -> None:
    kernel = make_actor("thread", lambda one: time.sleep(0.005), input_type=Row, queue_size=2).kernel_id
    rows = [Row(n) for n in range(400)]
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel)
        with pytest.raises(KeyboardInterrupt):
            interrupt(lambda: client.send_batch(Row.to_array(rows) if is_array else rows))
        assert runtime.get_telemetry(kernel).received < 400


def test_it_is_the_clients_own() -> None:
    """Another client of the same thread waits as it does, also after an error."""
    kernel = make_actor("thread", lambda one: Answer(one.n)).kernel_id
    with RingKernelRuntime() as runtime:
        client = runtime.client(kernel, wait="spin")
        assert client.call(Ask(1), timeout=60).n == 1
        with pytest.raises(TimeoutError):
            client.receive(timeout=0.0)
        assert set_patience(None) is None
        stream = client.stream(Ask(2), timeout=60)
        assert next(stream).n == 2
        assert set_patience(None) is None


def test_a_strategy_that_there_is_not() -> None:
    kernel = make_actor("coroutine").kernel_id
    with RingKernelRuntime() as runtime:
        with pytest.raises(ValueError, match="wait must be 'hybrid' or 'spin' or 'sleep', not 'never'"):
            runtime.client(kernel, wait="never")
        assert runtime.kernel_ids == []
