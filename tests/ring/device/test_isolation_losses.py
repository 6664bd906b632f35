"""The worker process of device actors is lost: what is counted, who is told, and who begins anew."""

from __future__ import annotations

import asyncio
import threading

import pytest
from device_actors import (
    COUNT,
    ECHO,
    Item,
    check_balance,
    launch,
    letters,
    make,
    numbered,
    processed,
    start,
    until,
)
from workers import WILD, isolated, kill, pid_of

import pygpukit as gp
from pygpukit.errors import ActorFailedError, MailboxFullError
from pygpukit.ring import KernelState

pytestmark = pytest.mark.usefixtures("quiet")


def test_nothing_is_lost_uncounted_when_the_worker_is_killed(dedicated: bool) -> None:
    echo = make(dedicated=dedicated, queue_size=64, restart="on_failure", max_restarts=100)
    with isolated() as runtime:
        [client] = start(runtime, echo)
        sent, got, is_over = 0, [], threading.Event()

        def read() -> None:
            while not is_over.is_set():
                got.extend(client.receive_batch(1000, timeout=0.05)["id"].tolist())

        reader = threading.Thread(target=read)
        reader.start()
        for losses in range(1, 4):
            first = pid_of(runtime)
            for _ in range(10):
                sent += client.send_batch(numbered(50, sent), timeout=30)
            kill(runtime)
            for _ in range(3):
                sent += client.send_batch(numbered(20, sent), timeout=30)
                client.send(Item(sent, 0, 0), timeout=30)
                sent += 1
            until(lambda losses=losses: runtime.get_telemetry(echo).restarts == losses)  # type: ignore[misc]
            until(lambda first=first: runtime._tier.ring.pid not in (None, first))  # type: ignore[misc,union-attr]
        until(lambda: len(got) + len(letters(runtime)) >= sent)
        is_over.set()
        reader.join()
        lost = letters(runtime, "worker_lost")
        assert sorted(got + lost) == list(range(sent))
        assert lost, "each of the workers had messages when it was killed"
        assert runtime.get_summary()["dead_letters"] == {"worker_lost": len(lost)}
        figures = check_balance(runtime, echo, sent)
        assert (figures.processed, figures.discarded, figures.restarts) == (len(got), len(lost), 3)
        assert "SIGKILL" in str(figures.last_error)
        assert runtime.get_kernel_state(echo) is KernelState.ACTIVE


def test_calls_raise_and_the_next_ones_are_answered() -> None:
    silent = make(COUNT, restart="on_failure")
    echo = make(ECHO, restart="on_failure")
    with isolated() as runtime:
        client, other = start(runtime, silent, echo)
        raised: list[BaseException] = []

        def call() -> None:
            try:
                client.call(Item(1, 0, 0), timeout=30)
            except ActorFailedError as error:
                raised.append(error)

        async def main() -> None:
            call = asyncio.create_task(runtime.send_and_receive(silent, Item(2, 0, 0), timeout=30))
            await asyncio.sleep(0.05)
            kill(runtime)
            with pytest.raises(ActorFailedError, match=r"it is started again.*SIGKILL"):
                await call

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: processed(runtime, silent) == 1)
        runtime.run(main())
        thread.join()
        assert len(raised) == 1
        assert "it is started again" in str(raised[0])
        assert other.call(Item(3, 0, 0), timeout=30).id == 3
        # What it had counted is gone.
        assert runtime.get_state(silent)["count"].tolist() == [0]


def test_a_wild_handler_costs_the_worker_only() -> None:
    wild = make(WILD, restart="on_failure")
    echo = make(ECHO)
    with isolated() as runtime:
        client, other = start(runtime, wild, echo)
        first = pid_of(runtime)
        assert client.call(Item(1, 0, 0), timeout=20).id == 1
        assert other.call(Item(1, 0, 0), timeout=20).id == 1
        with pytest.raises(ActorFailedError, match="the worker process was lost; it is started again") as raised:
            client.call(Item(2, 0, 13), timeout=60)
        assert "exited with code" not in str(raised.value), "the error of the kernel is the reason"
        assert "0x10" in str(raised.value) or gp.current_device().kind == "cuda"
        assert client.call(Item(3, 0, 0), timeout=60).id == 3
        assert pid_of(runtime) != first
        assert letters(runtime) == [2]
        assert runtime.get_telemetry(wild).restarts == 1
        # Without restarts it is over, and says why.
        assert runtime.get_kernel_state(echo) is KernelState.FAILED
        with pytest.raises(ActorFailedError, match="its restart is 'never'"):
            other.call(Item(4, 0, 0), timeout=20)
        [other] = start(runtime, echo)
        assert other.call(Item(5, 0, 0), timeout=20).id == 5
        check_balance(runtime, wild, 3)


@pytest.mark.cuda
def test_a_wild_handler_leaves_the_device_to_this_process() -> None:
    wild = make(WILD, restart="on_failure")
    with isolated() as runtime:
        [client] = start(runtime, wild)
        for n in range(3):
            assert client.call(Item(n, 0, 0), timeout=60).id == n
            with pytest.raises(ActorFailedError, match="worker process was lost"):
                client.call(Item(100 + n, 0, 13), timeout=60)
            assert gp.sum(gp.ones(1000)).item() == 1000
        assert client.call(Item(4, 0, 0), timeout=60).id == 4
        assert runtime.get_telemetry(wild).restarts == 3


def test_restarts_have_a_limit() -> None:
    echo = make(restart="on_failure", max_restarts=1)
    with isolated() as runtime:
        [client] = start(runtime, echo)
        kill(runtime)
        until(lambda: runtime.get_telemetry(echo).restarts == 1)
        assert client.call(Item(1, 0, 0), timeout=30).id == 1
        kill(runtime)
        until(lambda: runtime.get_kernel_state(echo) is KernelState.FAILED)
        with pytest.raises(ActorFailedError, match="not started again after 1 restarts in 60 s"):
            client.send(Item(2, 0, 0))
        # Launched again it has a new worker.
        [client] = start(runtime, echo)
        assert client.call(Item(3, 0, 0), timeout=30).id == 3


def test_abort_ends_a_handler_that_does_not_return() -> None:
    spin = make("while (*(volatile long long*)&state.count == 0) {}", restart="on_failure")
    echo = make(ECHO, restart="on_failure")
    with isolated() as runtime:
        client, other = start(runtime, spin, echo)
        client.send(Item(1, 0, 0))
        with pytest.raises(TimeoutError):  # noqa: PT012
            while True:
                runtime.run(runtime.deactivate(spin, timeout=0.3))
                # It had not begun.
                runtime.run(runtime.reactivate(spin))
        runtime.abort()
        assert other.call(Item(2, 0, 0), timeout=60).id == 2
        until(lambda: letters(runtime, "worker_lost") == [1])
        assert "abort()" in str(runtime.get_telemetry(spin).last_error)
        assert runtime.get_kernel_state(spin) is KernelState.ACTIVE


def test_what_was_paused_is_paused_in_the_next_worker() -> None:
    paused, waiting = make(restart="on_failure"), make(restart="on_failure")
    with isolated() as runtime:
        launch(runtime, paused, waiting)
        runtime.run(runtime.activate(paused))
        runtime.run(runtime.deactivate(paused))
        first = runtime.get_actor_number(waiting)
        kill(runtime)
        until(lambda: runtime.get_telemetry(waiting).restarts == 1)
        clients = [runtime.client(paused), runtime.client(waiting)]
        for client in clients:
            client.send(Item(1, 0, 0), timeout=30)
            with pytest.raises(TimeoutError):
                client.receive(timeout=0.1)
        assert runtime.get_actor_number(waiting) == first
        runtime.run(runtime.reactivate(paused))
        runtime.run(runtime.activate(waiting))
        for client in clients:
            assert client.receive(timeout=30).id == 1


def test_refusals_while_there_is_no_worker() -> None:
    one = make(restart="on_failure", backpressure="reject")
    with isolated() as runtime:
        [client] = start(runtime, one)
        runtime.abort()
        with pytest.raises(MailboxFullError):
            client.send(Item(1, 0, 0))
        until(lambda: runtime._tier.ring.link.process is not None)
        assert client.call(Item(2, 0, 0), timeout=30).id == 2


def test_two_runtimes_have_two_workers() -> None:
    echo = make(restart="on_failure")
    with isolated() as runtime, isolated() as other:
        [mine], [theirs] = start(runtime, echo), start(other, echo)
        assert pid_of(runtime) != pid_of(other)
        kill(runtime)
        assert theirs.call(Item(1, 0, 0), timeout=30).id == 1
        until(lambda: runtime.get_telemetry(echo).restarts == 1)
        assert mine.call(Item(2, 0, 0), timeout=30).id == 2
        assert other.get_telemetry(echo).restarts == 0
