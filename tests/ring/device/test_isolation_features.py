"""Topics, timers and the watchdog of device actors in a worker process, also after it was lost.

A worker serves actors with blocks of their own and those that share them by the program that other tests run in this
process, so that each test here has one of the two.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
import time
from typing import Any

import pytest
from actors import run
from device_actors import (
    COUNT,
    ECHO,
    Item,
    Other,
    check_balance,
    launch,
    letters,
    make,
    new_id,
    numbered,
    processed,
    start,
    until,
)
from test_timers import TICKS, ticks, timer
from test_topics import publisher
from test_watchdog import LIMIT, SLOW, warnings
from workers import isolated, kill, pid_of

from pygpukit.errors import ActorFailedError
from pygpukit.ring import KernelState, RingKernelRuntime, ring_kernel

pytestmark = pytest.mark.usefixtures("quiet")

AGAIN = {"restart": "on_failure"}

# Does not return from messages above 0.
ENDLESS = "while (in.value > 0 && *(volatile long long*)&state.count >= 0) {}" + ECHO


def lose(runtime: RingKernelRuntime, kernel_id: str) -> None:
    """Kill the worker, and wait until there is another one."""
    losses = runtime.get_telemetry(kernel_id).restarts
    kill(runtime)
    until(lambda: runtime.get_telemetry(kernel_id).restarts == losses + 1)
    until(lambda: runtime.status()["up"])


@pytest.mark.parametrize("dedicated", [True])
def test_topics_of_actors_and_of_the_host(dedicated: bool) -> None:
    topic = new_id("topic")
    first = publisher(topic, dedicated=dedicated)
    one, two, late = (make(ECHO, topics=[topic], dedicated=dedicated) for _ in range(3))
    other = make(COUNT, input_type=Other, output_type=None, topics=[topic], dedicated=dedicated)

    @ring_kernel(kernel_id=new_id("host"), input_type=Item, output_type=Item, topics=[topic])
    def on_host(ctx: Any) -> None:
        while not ctx.should_terminate:
            got = ctx.receive()
            # From a host actor, to those in the worker.
            ctx.publish(topic, Item(got.id + 1, 0, 0))

    with isolated() as runtime:
        client, *ends, _ = start(runtime, first, one, two, other)
        assert client.call(Item(1, 0, 0), timeout=30).value == 2
        assert [end.receive(timeout=30).id for end in ends] == [1, 1]
        assert runtime.run(runtime.publish(topic, Item(2, 0, 0))) == 2
        assert [end.receive(timeout=30).id for end in ends] == [2, 2]
        assert runtime.run(runtime.publish(topic, Other(2, 0.5))) == 1
        until(lambda: processed(runtime, other) == 1)
        runtime.run(runtime.terminate(two, timeout=30))
        ends = [ends[0], *start(runtime, late)]
        assert client.call(Item(3, 0, 0), timeout=30).value == 2
        assert [end.receive(timeout=30).id for end in ends] == [3, 3]
        runtime.run(runtime.launch(on_host))
        runtime.run(runtime.activate(on_host.kernel_id))
        assert runtime.run(runtime.publish(topic, Item(4, 0, 0))) == 3
        for end in ends:
            assert sorted(end.receive(timeout=30).id for _ in range(2)) == [4, 5]
        check_balance(runtime, one, 5)
        assert runtime.dead_letters() == []


@pytest.mark.parametrize("dedicated", [False])
def test_subscribers_after_a_loss(dedicated: bool) -> None:
    topic = new_id("topic")
    first = publisher(topic, dedicated=dedicated, **AGAIN)
    stays, ended = (make(ECHO, topics=[topic], dedicated=dedicated, **AGAIN) for _ in range(2))
    fails = make(ECHO, topics=[topic], dedicated=dedicated)
    with isolated() as runtime:
        client, end, *_ = start(runtime, first, stays, ended, fails)
        assert client.call(Item(1, 0, 0), timeout=30).value == 3
        assert end.receive(timeout=30).id == 1
        runtime.run(runtime.terminate(ended, timeout=30))
        lose(runtime, first)
        until(lambda: runtime.get_kernel_state(fails) is KernelState.FAILED)
        assert client.call(Item(2, 0, 0), timeout=30).value == 1
        assert runtime.run(runtime.publish(topic, Item(3, 0, 0))) == 1
        assert [end.receive(timeout=30).id for _ in range(2)] == [2, 3]
        # Launched again it subscribes again, in this worker and in the next.
        start(runtime, fails)
        assert client.call(Item(4, 0, 0), timeout=30).value == 2
        lose(runtime, first)
        until(lambda: runtime.get_kernel_state(fails) is KernelState.FAILED)
        assert client.call(Item(5, 0, 0), timeout=30).value == 1
        assert letters(runtime) == []


def test_publishing_while_subscribers_are_lost() -> None:
    """Those that are lost for good are left out, and the others get what is published."""
    topic = new_id("topic")
    stays, fails = make(COUNT, topics=[topic], **AGAIN), make(COUNT, topics=[topic])
    with isolated() as runtime:
        start(runtime, stays, fails)
        kill(runtime)
        for n in range(50):
            assert runtime.run(runtime.publish(topic, Item(n, 0, 0), timeout=30)) in (1, 2)
        until(lambda: runtime.get_kernel_state(fails) is KernelState.FAILED)
        assert runtime.run(runtime.publish(topic, Item(50, 0, 0), timeout=30)) == 1
        check_balance(runtime, stays, 51)


@pytest.mark.parametrize("dedicated", [True])
def test_ticks_and_messages(dedicated: bool) -> None:
    one, never = timer(dedicated=dedicated), timer(dedicated=dedicated, every=None)
    with isolated() as runtime:
        client, _ = start(runtime, one, never)
        for n in range(5):
            got = client.call(Item(n, 5, 5), timeout=30)
            assert (got.id, got.hops) == (n, 0)
            before = ticks(runtime, one)
            until(lambda before=before: ticks(runtime, one) > before + 2)
        runtime.run(runtime.deactivate(one, timeout=30))
        taken, figures = int(runtime.get_state(one)["count"][0]), runtime.get_telemetry(one)
        assert figures.ticks - 1 <= taken <= figures.ticks
        assert figures.received == figures.ticks + 5
        assert figures.processed == taken + 5
        assert ticks(runtime, never) == 0
        assert runtime.dead_letters() == []


def test_missed_ticks() -> None:
    """Nobody receives what the actor makes of them: it is full here, and in the worker."""
    body = "if (ctx.lane == 0) { out = in; out.id = ++state.count; } ctx.reply(out);"
    one = timer(body, output_queue_size=2)
    with isolated() as runtime:
        [client] = start(runtime, one)
        until(lambda: runtime.get_telemetry(one).missed_ticks > 20)
        given = ticks(runtime, one)
        missed = runtime.get_telemetry(one).missed_ticks
        until(lambda: runtime.get_telemetry(one).missed_ticks > missed + 20)
        assert ticks(runtime, one) == given
        assert [client.receive(timeout=30).id for _ in range(20)] == list(range(1, 21))


@pytest.mark.parametrize("dedicated", [False])
def test_timers_after_a_loss(dedicated: bool) -> None:
    one, paused = (timer(dedicated=dedicated, **AGAIN) for _ in range(2))
    with isolated() as runtime:
        [client, _] = start(runtime, one, paused)
        until(lambda: ticks(runtime, paused) > 2)
        runtime.run(runtime.deactivate(paused, timeout=30))
        until(lambda: ticks(runtime, one) > 10)
        before, rest = ticks(runtime, one), ticks(runtime, paused)
        lose(runtime, one)
        # They are counted on.
        assert ticks(runtime, one) >= before
        until(lambda: ticks(runtime, one) > before + 10)
        assert client.call(Item(1, 0, 0), timeout=30).id == 1
        assert ticks(runtime, paused) == rest
        runtime.run(runtime.reactivate(paused))
        until(lambda: ticks(runtime, paused) > rest + 2)


def test_timers_that_were_stopped_stay_so() -> None:
    """Of a worker that is lost while the runtime ends."""
    one = timer(TICKS, **AGAIN)
    with isolated() as runtime:
        [client] = start(runtime, one)
        until(lambda: ticks(runtime, one) > 2)
        runtime._tier.stop_timers()
        lose(runtime, one)
        assert client.call(Item(1, 0, 0), timeout=30).id == 1
        rest = ticks(runtime, one)
        time.sleep(0.1)
        assert ticks(runtime, one) <= rest + 1


@pytest.mark.parametrize("dedicated", [True])
def test_a_handler_that_takes_long_is_named(dedicated: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pygpukit.ring")
    slow, other = make(SLOW, dedicated=dedicated), make(ECHO, dedicated=dedicated)
    with isolated(time_slice=None, watchdog=LIMIT) as runtime:
        client, fine = start(runtime, slow, other)
        assert (runtime.status()["stuck"], runtime.status()["stuck_actors"]) == (False, [])
        client.send(Item(1, 0, 1500))
        until(lambda: runtime.status()["stuck_actors"] == [slow])
        assert runtime.get_telemetry(slow).stuck
        assert not runtime.get_telemetry(other).stuck
        assert fine.call(Item(5, 0, 0), timeout=20).id == 5
        until(lambda: len(warnings(caplog, slow)) == 1)
        assert "which ends the worker process" in warnings(caplog, slow)[0]
        assert client.receive(timeout=30).id == 1
        until(lambda: not runtime.status()["stuck"])
        until(lambda: not runtime.get_telemetry(slow).stuck)
        until(lambda: any("returned after all" in one.getMessage() for one in caplog.records))
        assert len(warnings(caplog, slow)) == 1


def test_nobody_looks_without_a_watchdog(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pygpukit.ring")
    slow = make(SLOW)
    with isolated(time_slice=None, watchdog=None) as runtime:
        [client] = start(runtime, slow)
        client.send(Item(1, 0, 800))
        while (got := client.receive_batch(1, timeout=0)).size == 0:
            assert not runtime.status()["stuck"]
        assert got["id"].tolist() == [1]
        assert warnings(caplog, slow) == []


@pytest.mark.parametrize("dedicated", [False])
def test_abort_when_a_handler_is_stuck(dedicated: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pygpukit.ring")
    endless = make(ENDLESS, dedicated=dedicated, **AGAIN)
    with isolated(watchdog=LIMIT) as runtime:
        [client] = start(runtime, endless)
        first = pid_of(runtime)
        client.send(Item(1, 0, 1))
        until(lambda: runtime.status()["stuck_actors"] == [endless])
        runtime.abort()
        assert client.call(Item(2, 0, 0), timeout=30).id == 2
        assert pid_of(runtime) != first
        until(lambda: letters(runtime, "worker_lost") == [1])
        assert (runtime.status()["stuck"], runtime.status()["stuck_actors"]) == (False, [])
        figures = runtime.get_telemetry(endless)
        assert (figures.stuck, figures.restarts) == (False, 1)
        # The next worker is watched as the first one was, and nobody said that the handler returned.
        client.send(Item(3, 0, 1))
        until(lambda: len(warnings(caplog, endless)) == 2)
        runtime.abort()
        until(lambda: letters(runtime, "worker_lost") == [1, 3])
        assert not any("returned after all" in one.getMessage() for one in caplog.records)


def test_abort_while_a_launch_waits_for_a_stuck_handler() -> None:
    endless, echo = make(ENDLESS, **AGAIN), make(ECHO)
    with isolated(watchdog=LIMIT) as runtime:
        [client] = start(runtime, endless)
        client.send(Item(1, 0, 1))
        until(lambda: runtime.status()["stuck_actors"] == [endless])
        raised: list[BaseException] = []

        def launch_it() -> None:
            try:
                launch(runtime, echo)
            except ActorFailedError as error:
                raised.append(error)

        thread = threading.Thread(target=launch_it)
        thread.start()
        until(lambda: runtime._tier.ring._moving.locked())  # type: ignore[union-attr]
        time.sleep(0.1)
        runtime.abort()
        thread.join()
        assert "while actors were launched" in str(raised[0])
        assert client.call(Item(2, 0, 0), timeout=30).id == 2
        [other] = start(runtime, echo)
        assert other.call(Item(3, 0, 0), timeout=30).id == 3


def test_abort_ends_a_worker_that_stands_still() -> None:
    echo = make(ECHO, **AGAIN)
    with isolated() as runtime:
        [client] = start(runtime, echo)
        assert client.call(Item(1, 0, 0), timeout=30).id == 1
        known = runtime.status()
        os.kill(pid_of(runtime), signal.SIGSTOP)
        # It says nothing, so what it said last is told.
        assert runtime.status()["launches"] >= known["launches"] > 0
        client.send(Item(2, 0, 0))
        runtime.abort()
        assert client.call(Item(3, 0, 0), timeout=30).id == 3
        until(lambda: letters(runtime, "worker_lost") == [2])


def test_the_status_of_a_runtime() -> None:
    echo = make(ECHO, **AGAIN)
    runtime = isolated()
    nothing = runtime.status()
    assert nothing == RingKernelRuntime().status()
    with runtime:
        start(runtime, echo)
        until(lambda: runtime.status()["up"])
        status = runtime.status()
        assert status["launches"] >= 1
        until(lambda: runtime.status()["beats"] != status["beats"])
        lose(runtime, echo)
        assert runtime.status()["launches"] >= 1
    assert runtime.status() == nothing


def test_sending_to_one_that_is_being_launched() -> None:
    async def main() -> None:
        echo = make(ECHO)
        async with isolated() as runtime:
            launching = asyncio.create_task(runtime.launch(echo))
            await asyncio.sleep(0)
            call = asyncio.create_task(runtime.send_and_receive(echo, Item(1, 0, 0), timeout=30))
            assert await runtime.send(echo, Item(2, 0, 0), timeout=30)
            await launching
            await runtime.activate(echo)
            assert (await call).id == 1
            assert (await runtime.receive(echo, timeout=30)).id == 2

    run(main())


def test_batches_after_ticks() -> None:
    """Results of ticks are not those of messages: none of these is taken for done with."""
    body = "if (ctx.lane == 0) { out = in; out.value = ctx.is_tick(); } ctx.send(out);"
    one = timer(body, queue_size=16)
    with isolated() as runtime:
        [client] = start(runtime, one)
        got: list[int] = []
        sender = threading.Thread(target=lambda: client.send_batch(numbered(200), timeout=50))
        sender.start()
        while len(got) < 200:
            rows = client.receive_batch(16, timeout=0.05)
            got += rows["id"][rows["value"] == 0].tolist()
        sender.join()
        assert got == list(range(200))
