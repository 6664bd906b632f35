"""Timers: device actors that are called without a message of anybody."""

from __future__ import annotations

import time
from typing import Any

import pytest
from device_actors import BATCH, Item, count_of, letters, make, numbered, processed, start, until

import pygpukit as gp
from pygpukit.errors import RingError
from pygpukit.ring import KernelState, RingKernelRuntime

# Ticks are counted in the state, and other messages are given back with how many there were. `wrong` ones are not zero.
TICKS = """
    if (ctx.is_tick()) {
        if (ctx.lane == 0) {
            state.count += 1;
            const bool is_zero = in.id == 0 && in.hops == 0 && in.value == 0;
            state.wrong += !is_zero || ctx.correlation() != 0 || ctx.source() == ring::HOST;
        }
        return;
    }
    if (ctx.lane == 0) { out = in; out.value = (int)state.count; out.hops = (int)state.wrong; }
    ctx.send(out);
"""
STATE = {"count": gp.int64, "wrong": gp.int64}


def timer(body: str = TICKS, **options: Any) -> str:
    return make(body, **{"every": 0.001, "state": STATE, **options})


def ticks(runtime: RingKernelRuntime, kernel_id: str) -> int:
    return runtime.get_telemetry(kernel_id).ticks


@pytest.mark.parametrize("width", [32, 64])
def test_ticks_between_messages(dedicated: bool, width: int) -> None:
    one = timer(dedicated=dedicated, block_size=width)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, one)
        counts = []
        for n in range(5):
            got = client.call(Item(n, 5, 5), timeout=30)
            assert (got.id, got.hops) == (n, 0)
            counts.append(got.value)
            before = ticks(runtime, one)
            until(lambda before=before: ticks(runtime, one) > before + 2)
        assert counts == sorted(counts)
        assert counts[-1] > counts[0]
        runtime.run(runtime.deactivate(one, timeout=30))
        # Those that are in the mailbox now are taken later.
        taken = count_of(runtime, one)
        figures = runtime.get_telemetry(one)
        assert figures.ticks - 1 <= taken <= figures.ticks
        assert figures.received == figures.ticks + 5
        assert figures.processed == taken + 5
        assert runtime.dead_letters() == []


def test_only_active_ones_are_called(dedicated: bool) -> None:
    one, other = timer(dedicated=dedicated), timer(dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        runtime.run(runtime.launch(one))
        start(runtime, other)
        until(lambda: ticks(runtime, other) > 5)
        assert ticks(runtime, one) == 0
        runtime.run(runtime.activate(one))
        until(lambda: ticks(runtime, one) > 5)
        runtime.run(runtime.deactivate(one, timeout=30))
        rest, missed = ticks(runtime, one), runtime.get_telemetry(one).missed_ticks
        before = ticks(runtime, other)
        until(lambda: ticks(runtime, other) > before + 20)
        assert ticks(runtime, one) == rest
        assert runtime.get_telemetry(one).missed_ticks == missed
        runtime.run(runtime.reactivate(one))
        until(lambda: ticks(runtime, one) > rest + 5)


def test_a_tick_that_was_not_taken_is_not_added_to(dedicated: bool) -> None:
    """Its result waits for the host, so the actor takes no further one."""
    body = "if (ctx.lane == 0) { out = in; out.id = ++state.count; } ctx.reply(out);"
    one = timer(body, output_queue_size=2, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, one)
        # Two in the output, one that waits to get there, and one in the mailbox.
        until(lambda: ticks(runtime, one) == 4)
        missed = runtime.get_telemetry(one).missed_ticks
        until(lambda: runtime.get_telemetry(one).missed_ticks > missed + 20)
        assert ticks(runtime, one) == 4
        assert [client.receive(timeout=30).id for _ in range(10)] == list(range(1, 11))


def test_parking(dedicated: bool) -> None:
    """What would have been due meanwhile is missed, and not made up for."""
    one = timer(dedicated=dedicated, every=0.005)
    with RingKernelRuntime(time_slice=None) as runtime:
        start(runtime, one)
        until(lambda: ticks(runtime, one) > 2)
        link = runtime._tier.ring.link
        link.park()
        before = runtime.get_telemetry(one)
        time.sleep(0.1)
        assert ticks(runtime, one) == before.ticks
        link.resume()
        until(lambda: runtime.get_telemetry(one).missed_ticks > before.missed_ticks)
        # 20 were due, and the first one after it says so.
        assert runtime.get_telemetry(one).missed_ticks >= before.missed_ticks + 15
        until(lambda: ticks(runtime, one) > before.ticks + 3)


def test_a_period_longer_than_a_slice(dedicated: bool) -> None:
    one = timer(dedicated=dedicated, every=0.15)
    with RingKernelRuntime(time_slice=0.03) as runtime:
        start(runtime, one)
        until(lambda: ticks(runtime, one) >= 2)


def test_a_handler_that_fails_with_a_tick(dedicated: bool) -> None:
    again = timer("ctx.fail();", restart="on_failure", max_restarts=3, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        start(runtime, again)
        until(lambda: runtime.get_kernel_state(again) is KernelState.FAILED)
        until(lambda: letters(runtime, "failed") == [0, 0, 0, 0])
        assert ticks(runtime, again) >= 4
        given = ticks(runtime, again)
        time.sleep(0.05)
        # The block may have taken the last one when it told that it failed.
        assert ticks(runtime, again) <= given + 1
        assert letters(runtime) == [0, 0, 0, 0]


@pytest.mark.parametrize("drain", [True, False])
def test_ending(dedicated: bool, drain: bool) -> None:
    """A timer is no reason to go on, and a tick that is left no dead letter."""
    one = timer(dedicated=dedicated, every=1e-6)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, one)
        client.send_batch(numbered(20), timeout=30)
        until(lambda: ticks(runtime, one) > 5)
        runtime.run(runtime.terminate(one, drain=drain, timeout=30))
        given = ticks(runtime, one)
        got = client.receive_batch(20, timeout=0)["id"].tolist()
        until(lambda: len(got) + len(letters(runtime)) >= 20)
        assert sorted(got + letters(runtime)) == list(range(20))
        if drain:
            assert len(got) == 20
        # It may be launched again, and ticks again.
        start(runtime, one)
        until(lambda: ticks(runtime, one) > 3)
        assert given > 5


@pytest.mark.parametrize("isolation", [None, "process"])
def test_the_end_of_the_runtime(dedicated: bool, isolation: str | None) -> None:
    """Timers that always have something to do do not hold it up, and what they sent is handled."""
    end = make(dedicated=dedicated, output_queue_size=1 << 16)
    body = 'if (ctx.lane == 0) { out = in; state.count += 1; } ctx.send("next", out);'
    one = timer(body, to=end, every=1e-6, dedicated=dedicated)
    runtime = RingKernelRuntime(isolation=isolation)
    for each in (end, one):
        runtime.client(each)
    until(lambda: processed(runtime, end) > 20)
    runtime.close(timeout=None)
    assert processed(runtime, end) == processed(runtime, one) == ticks(runtime, one)
    assert runtime.dead_letters() == []


def test_many_timers() -> None:
    ids = [timer(dedicated=False, queue_size=4, every=0.002 * (1 + n % 3)) for n in range(50)]
    with RingKernelRuntime() as runtime:
        start(runtime, *ids)
        until(lambda: all(ticks(runtime, one) > 2 for one in ids))
        for one in ids[::2]:
            runtime.run(runtime.terminate(one, timeout=30))
        later = timer(dedicated=False)
        start(runtime, later)
        before = {one: ticks(runtime, one) for one in ids}
        until(lambda: ticks(runtime, later) > 2)
        until(lambda: all(ticks(runtime, one) > before[one] + 2 for one in ids[1::2]))
        assert all(ticks(runtime, one) == before[one] for one in ids[::2])
        assert runtime.dead_letters() == []


BAD = {
    "a host actor": ({"device": "host"}, r"is a host actor and has no timer: .*ctx.receive\(timeout\)"),
    "no time": ({"every": 0}, "must be seconds from 1e-6 to 1e9, not 0"),
    "too short": ({"every": 1e-9}, "must be seconds from 1e-6 to 1e9"),
    "no number": ({"every": "1 ms"}, "must be seconds from 1e-6 to 1e9, not '1 ms'"),
    "not a number": ({"every": float("nan")}, "must be seconds"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_a_timer(what: str) -> None:
    options, text = BAD[what]
    with pytest.raises(RingError, match=text):
        timer(**options)


def test_batches_have_no_timer() -> None:
    one = timer(BATCH)
    with RingKernelRuntime() as runtime, pytest.raises(RingError, match="and a tick asks for none"):
        runtime.run(runtime.launch(one))


def test_ticks_in_a_random_order(schedule: int, dedicated: bool) -> None:
    one = timer(dedicated=dedicated, block_size=64, every=1e-5)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, one)
        link = runtime._tier.ring.link
        for turn in range(4):
            client.send_batch(numbered(10, 10 * turn), timeout=30)
            if turn % 2:
                link.park()
                link.resume()
            else:
                runtime.run(runtime.deactivate(one, timeout=30))
                runtime.run(runtime.reactivate(one))
        got = client.receive_batch(40, timeout=30)
        assert got["id"].tolist() == list(range(40))
        assert not got["hops"].any()
        assert got["value"].tolist() == sorted(got["value"])
        runtime.run(runtime.terminate(one, timeout=30))
        figures = runtime.get_telemetry(one)
        assert figures.received == figures.processed == figures.ticks + 40
        assert figures.ticks > 0
        assert runtime.dead_letters() == []


def test_a_handler_with_and_without_a_timer() -> None:
    """`every` is the actor's, and not its handler's, which both share."""
    fast, never = timer(), timer(every=None)
    with RingKernelRuntime() as runtime:
        start(runtime, fast, never)
        assert len(runtime._tier.ring.program.handlers) == 1
        until(lambda: ticks(runtime, fast) > 2)
        assert ticks(runtime, never) == 0
