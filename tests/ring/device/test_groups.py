"""Actors with several blocks."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from device_actors import (
    ECHO,
    PASS,
    Item,
    check_balance,
    count_of,
    letters,
    make,
    new_id,
    numbered,
    processed,
    start,
    until,
)
from workers import isolated

import pygpukit as gp
from pygpukit.errors import RingError, UndeliveredError
from pygpukit.ring import RingKernelRuntime, message


@message
class Wide:
    id: gp.int64
    x: gp.int32[256]


# Every thread does its part of the result, and after the barrier reads what another block has written.
SPREAD = """
    for (int i = ctx.lane; i < 256; i += ctx.width) out.x[i] = in.x[i] + 1000 * (int)(1 + ctx.lane / ctx.threads());
    ctx.sync();
    const int there = (ctx.lane + ctx.threads()) % ctx.width;
    if (there < 256) atomicAdd((unsigned long long*)&state.sum, (unsigned long long)out.x[there]);
    ctx.sync();
    if (ctx.lane == 0) { out.id = in.id; state.count += 1; }
    ctx.send(out);
"""


def make_wide(blocks: int, threads: int, body: str = SPREAD, **options: Any) -> str:
    return make(
        body,
        input_type=Wide,
        output_type=Wide,
        grid_size=blocks,
        block_size=threads,
        state={"count": gp.int64, "sum": gp.int64},
        **options,
    )


@pytest.mark.parametrize(("blocks", "threads"), [(2, 32), (3, 64), (5, 32), (2, 160)])
def test_all_threads_work_on_a_message(blocks: int, threads: int) -> None:
    wide, echo = make_wide(blocks, threads), make()
    data = np.arange(256, dtype=np.int32)
    with RingKernelRuntime() as runtime:
        client, other = start(runtime, wide, echo)
        lane = np.arange(256) % (blocks * threads)
        for n in range(10):
            answer = client.call(Wide(n, data), timeout=20)
            assert answer.id == n
            assert np.array_equal(answer.x, data + 1000 * (1 + lane // threads))
            assert other.call(Item(n, 0, 0), timeout=20).id == n
        runtime.run(runtime.deactivate(wide))
        state = runtime.get_state(wide)
        assert state["count"].item() == 10
        assert state["sum"].item() == 10 * answer.x[: blocks * threads].sum()
        check_balance(runtime, wide, 10)


def test_a_chain_over_groups() -> None:
    """Sends of a group, to one and from one, beside actors with one block and with shared ones."""
    last, third, second, first = (new_id() for _ in range(4))
    make(ECHO, kernel_id=last, grid_size=2, queue_size=64)
    make(PASS, kernel_id=third, to=last, dedicated=False, queue_size=64)
    make(PASS, kernel_id=second, to=third, grid_size=3, block_size=64, queue_size=64)
    make(PASS, kernel_id=first, to=second, dedicated=True, queue_size=64)
    with RingKernelRuntime() as runtime:
        end, *_, begin = start(runtime, last, third, second, first)
        assert begin.send_batch(numbered(200), timeout=30) == 200
        got = end.receive_batch(200, timeout=30)
        assert np.array_equal(got["id"], np.arange(200))
        assert (got["hops"] == 4).all()
        for one in (last, second):
            check_balance(runtime, one, 200)
            assert count_of(runtime, one) == 200


def test_numbers_of_messages_and_topics_are_those_of_all_blocks() -> None:
    """What `send` returns and who subscribes is the same in every block."""
    topic = new_id("topic")
    heard = [make(ECHO, topics=[topic]) for _ in range(2)]
    body = f"""
    if (ctx.lane == 0) out = in;
    const unsigned many = ctx.publish("{topic}", out);
    if (ctx.lane == ctx.width - 1) out.hops = (int)many;
    ctx.sync();
    const unsigned long long number = ctx.send(out);
    if (ctx.lane == ctx.width - 1) state.count = (long long)number;
    """
    group = make(body, grid_size=3)
    with RingKernelRuntime() as runtime:
        *ends, client = start(runtime, *heard, group)
        for n in range(3):
            answer = client.call(Item(n, 0, 0), timeout=20)
            assert (answer.id, answer.hops) == (n, 2)
            assert [end.receive(timeout=20).id for end in ends] == [n, n]
        runtime.run(runtime.deactivate(group))
        assert runtime.get_state(group)["count"].item() & 0xFFFF == 8


def test_failures_and_deadlines() -> None:
    body = """
    if (in.value < 0) { ctx.fail(); return; }
    if (ctx.lane == ctx.width - 1) { out = in; state.count += 1; }
    ctx.send(out);
    """
    picky = make(body, grid_size=2, restart="on_failure", max_restarts=5)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, picky)
        assert client.call(Item(1, 0, 5), timeout=20).id == 1
        with pytest.raises(UndeliveredError, match="failed"):
            client.call(Item(2, 0, -1), timeout=20)
        assert client.call(Item(3, 0, 5), timeout=20).id == 3
        late = Item(4, 0, 5)
        late.deadline = time.monotonic() - 1
        client.send(late)
        until(lambda: letters(runtime, "expired") == [4])
        assert client.call(Item(5, 0, 5), timeout=20).id == 5
        # The state began anew with the failure.
        assert count_of(runtime, picky) == 2


def test_parking_and_growing_under_load() -> None:
    group = make(ECHO, grid_size=3, queue_size=64)
    done = threading.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            n = 0
            while not done.is_set():
                assert client.call(Item(n, 0, 0), timeout=30).id == n
                n += 1
        except BaseException as error:
            errors.append(error)

    with RingKernelRuntime() as runtime:
        [client] = start(runtime, group)
        thread = threading.Thread(target=work)
        thread.start()
        link = runtime._tier.ring.link
        for _ in range(5):
            before = processed(runtime, group)
            until(lambda before=before: processed(runtime, group) > before or errors)
            link.park()
            link.resume()
        # Its blocks have other numbers when one before it has ended and others have come.
        [early] = start(runtime, make(ECHO, grid_size=2))
        assert early.call(Item(7, 0, 0), timeout=20).id == 7
        runtime.run(runtime.terminate(early.kernel_id))
        [after] = start(runtime, make(ECHO, grid_size=2))
        assert after.call(Item(8, 0, 0), timeout=20).id == 8
        done.set()
        thread.join()
        assert errors == []
        runtime.run(runtime.terminate(group, timeout=20))


def test_in_a_process_of_its_own() -> None:
    wide = make_wide(3, 64)
    with isolated() as runtime:
        [client] = start(runtime, wide)
        answer = client.call(Wide(1, np.zeros(256, np.int32)), timeout=30)
        assert sorted(set(answer.x.tolist())) == [1000, 2000, 3000]


def test_more_blocks_than_there_are() -> None:
    group = make(ECHO, grid_size=100_000)
    with RingKernelRuntime() as runtime, pytest.raises(RingError, match=r"need 100000 blocks of their own, and \d+ of"):
        start(runtime, group)
