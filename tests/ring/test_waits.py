"""How a client's threads wait: awake, asleep, or the one after the other."""

from __future__ import annotations

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


def spent(client: Any) -> float:
    """Processor time of a wait in vain."""
    begin = time.thread_time()
    with pytest.raises(TimeoutError):
        client.receive(timeout=0.2)
    return time.thread_time() - begin


def test_one_that_spins_does_not_sleep() -> None:
    kernel = make_actor("coroutine").kernel_id
    with RingKernelRuntime() as runtime:
        awake, asleep = (min(spent(runtime.client(kernel, wait=wait)) for _ in range(2)) for wait in ("spin", "sleep"))
        assert awake > 3 * asleep


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
