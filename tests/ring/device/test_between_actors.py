"""Messages from one device actor to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from device_actors import (
    COUNT,
    ECHO,
    PASS,
    PICKY,
    Item,
    Other,
    check_balance,
    letters,
    make,
    new_id,
    numbered,
    start,
    until,
)

import pygpukit as gp
from pygpukit.ring import KernelState, RingKernelRuntime, message

BURST = """
    for (int i = 0; i < %d; i++) {
        if (ctx.lane == 0) { out = in; out.value = i; }
        ctx.sync();
        ctx.send("next", out);
    }
"""


@pytest.mark.parametrize("mixed", [False, True])
def test_a_chain_of_five(dedicated: bool, mixed: bool) -> None:
    ids = [new_id("stage") for _ in range(5)]
    for at, (one, after) in enumerate(zip(ids, [*ids[1:], None], strict=True)):
        own = dedicated ^ (mixed and at % 2 == 1)
        make(PASS if after else ECHO, to=after, kernel_id=one, dedicated=own, queue_size=64, output_queue_size=512)
    with RingKernelRuntime() as runtime:
        first, *_, last = start(runtime, *ids)
        assert first.send_batch(numbered(400), timeout=30) == 400
        got = last.receive_batch(400, timeout=30)
        assert np.array_equal(got["id"], np.arange(400))
        assert (got["hops"] == 5).all()
        for one in ids:
            assert check_balance(runtime, one, 400).sent == 400
        assert runtime.dead_letters() == []


def test_fan_out_and_fan_in(dedicated: bool) -> None:
    middle = [new_id("middle") for _ in range(3)]
    end = make(ECHO, dedicated=dedicated)
    for one in middle:
        make(PASS, to=end, kernel_id=one, dedicated=dedicated)
    sends = "".join(f'if (in.id % 3 == {at}) ctx.send("{one}", out);\n' for at, one in enumerate(middle))
    first = make(f"if (ctx.lane == 0) out = in;\n{sends}", dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, *_, last = start(runtime, first, *middle, end)
        assert client.send_batch(numbered(600), timeout=30) == 600
        got = last.receive_batch(600, timeout=30)
        assert sorted(got["id"]) == list(range(600))
        # Of each way the order is kept.
        for at in range(3):
            assert np.array_equal(got["id"][got["id"] % 3 == at], np.arange(at, 600, 3))
        assert [check_balance(runtime, one, 200).processed for one in middle] == [200, 200, 200]


def test_requests_and_replies(dedicated: bool) -> None:
    """The asker keeps the number that `send` gave; the reply has it as its correlation."""
    answerer, asker = new_id("answerer"), new_id("asker")
    make(
        "if (ctx.lane == 0) { out = in; out.value = 2 * in.value; out.hops = 1; } ctx.reply(out);",
        kernel_id=answerer,
        dedicated=dedicated,
    )
    make(
        f"""
    if (in.hops == 0) {{
        if (ctx.lane == 0) out = in;
        unsigned long long number = ctx.send("{answerer}", out);
        if (ctx.lane == 0) state.number = number;
    }} else {{
        if (ctx.lane == 0) {{ out = in; out.hops = ctx.header().correlation == state.number ? 7 : -1; }}
        ctx.send(out);
    }}
    """,
        kernel_id=asker,
        dedicated=dedicated,
        state={"number": gp.uint64},
    )
    with RingKernelRuntime() as runtime:
        client, direct = start(runtime, asker, answerer)
        for n in range(50):
            client.send(Item(n, 0, n))
            got = client.receive(timeout=20)
            assert (got.id, got.value, got.hops) == (n, 2 * n, 7)
        # From the host a reply is an answer.
        assert direct.call(Item(1, 0, 21), timeout=20).value == 42


def test_sending_to_a_number(dedicated: bool) -> None:
    targets = [make(ECHO, dedicated=dedicated) for _ in range(3)]
    body = "if (ctx.lane == 0) out = in; ctx.send_to(in.value, out);"
    router = make(body, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, *ends = start(runtime, router, *targets)
        for n, (one, end) in enumerate(zip(targets, ends, strict=True)):
            client.send(Item(n, 0, runtime.get_actor_number(one)))
            assert end.receive(timeout=20).id == n
        client.send(Item(99, 0, 12345))
        until(lambda: letters(runtime, "unknown_destination") == [99])


def test_a_ring_of_tokens(dedicated: bool) -> None:
    """Every token goes round until its hops are used up: to oneself, and over a neighbour."""
    body = """
    if (ctx.lane == 0) { out = in; out.hops -= 1; }
    if (in.hops == 0) ctx.send(out);
    else ctx.send("next", out);
    """
    alone, left, right = new_id("alone"), new_id("left"), new_id("right")
    make(body, kernel_id=alone, to=alone, dedicated=dedicated)
    make(body, kernel_id=left, to=right, dedicated=dedicated)
    make(body, kernel_id=right, to=left, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        one, two, three = start(runtime, alone, left, right)
        for n in range(10):
            one.send(Item(n, 50, 0))
            two.send(Item(n, 51, 0))
        assert sorted(one.receive(timeout=30).id for _ in range(10)) == list(range(10))
        assert sorted(three.receive(timeout=30).id for _ in range(10)) == list(range(10))
        check_balance(runtime, alone, 510)
        check_balance(runtime, left, 260)
        check_balance(runtime, right, 260)


def test_a_name_that_is_launched_later(dedicated: bool) -> None:
    later = new_id("later")
    early = make(PASS, to=later, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, early)
        client.send(Item(1, 0, 0))
        until(lambda: letters(runtime, "unknown_destination") == [1])
        make(ECHO, kernel_id=later, dedicated=dedicated)
        [end] = start(runtime, later)
        client.send(Item(2, 0, 0))
        assert end.receive(timeout=20).id == 2
        assert letters(runtime) == [1]
        until(lambda: check_balance(runtime, early, 2).sent == 1)


@pytest.mark.parametrize("fails", [False, True], ids=["terminated", "failed"])
def test_a_name_whose_actor_has_ended(dedicated: bool, fails: bool) -> None:
    """The sender is told what became of it, also when the ring was built anew since, and until it is there again."""
    end = make(PICKY, dedicated=dedicated)
    first = make(PASS, to=end, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, first, end)
        if fails:
            last.send(Item(0, 0, -1))
            until(lambda: runtime.get_kernel_state(end) is KernelState.FAILED)
        else:
            runtime.run(runtime.terminate(end))
        reason = "failed" if fails else "terminated"
        client.send(Item(1, 0, 1))
        until(lambda: letters(runtime, reason)[-1:] == [1])
        start(runtime, make(COUNT, dedicated=dedicated))
        client.send(Item(2, 0, 1))
        until(lambda: letters(runtime, reason)[-1:] == [2])
        [last] = start(runtime, end)
        client.send(Item(3, 0, 1))
        assert last.receive(timeout=20).id == 3
        assert letters(runtime) == ([0] if fails else []) + [1, 2]


def test_a_message_of_another_type(dedicated: bool) -> None:
    end = make(COUNT, input_type=Other, output_type=None, dedicated=dedicated)
    wrong = make(PASS, to=end, dedicated=dedicated)
    right = make(
        '__shared__ Other made; if (ctx.lane == 0) { made.id = in.id; made.x = 0.5; } ctx.send("next", made);',
        to=end,
        dedicated=dedicated,
    )
    with RingKernelRuntime() as runtime:
        one, two, _ = start(runtime, wrong, right, end)
        one.send(Item(5, 0, 0))
        until(lambda: letters(runtime, "wrong_type") == [5])
        two.send(Item(6, 0, 0))
        until(lambda: runtime.get_telemetry(end).processed == 1)
        assert runtime.get_telemetry(end).received == 1


def test_large_messages_between_actors(dedicated: bool) -> None:
    cls: Any = message(type("Wide", (), {"__annotations__": {"id": gp.int64, "x": gp.float32[1000]}}))
    end = make(
        "for (int i = ctx.lane; i < 1000; i += ctx.width) out.x[i] = in.x[i] + 1; "
        "if (ctx.lane == 0) out.id = in.id; ctx.send(out);",
        input_type=cls,
        output_type=cls,
        dedicated=dedicated,
        queue_size=8,
        block_size=64,
    )
    first = make(
        "for (int i = ctx.lane; i < 1000; i += ctx.width) out.x[i] = 2 * in.x[i]; "
        'if (ctx.lane == 0) out.id = in.id; ctx.send("next", out);',
        to=end,
        input_type=cls,
        output_type=cls,
        dedicated=dedicated,
        queue_size=8,
        block_size=64,
    )
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, first, end)
        for n in range(30):
            client.send(cls(n, np.arange(1000) + n), timeout=20)
            got = last.receive(timeout=20)
            assert got.id == n
            assert np.array_equal(got.x, 2 * (np.arange(1000, dtype=np.float32) + n) + 1)


def test_many_sends_of_one_handler(dedicated: bool) -> None:
    """A handler that sends more than its receiver has room for waits with the next message, and loses nothing."""
    end = make(ECHO, dedicated=dedicated, queue_size=4, output_queue_size=1024)
    burst = make(
        BURST % 16,
        to=end,
        dedicated=dedicated,
        queue_size=64,
    )
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, burst, end)
        assert client.send_batch(numbered(40), timeout=20) == 40
        got = last.receive_batch(640, timeout=30)
        assert np.array_equal(got["id"], np.repeat(np.arange(40), 16))
        assert np.array_equal(got["value"], np.tile(np.arange(16), 40))
        assert runtime.dead_letters() == []


def test_more_sends_than_can_wait_are_dead_letters(dedicated: bool) -> None:
    end = make(COUNT, dedicated=dedicated, queue_size=4)
    burst = make(
        BURST % 200,
        to=end,
        dedicated=dedicated,
    )
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, burst, end)
        runtime.run(runtime.deactivate(end))
        client.send(Item(1, 0, 0))
        until(lambda: len(letters(runtime, "outbox_full")) > 0)
        runtime.run(runtime.reactivate(end))
        until(lambda: runtime.get_telemetry(end).processed + len(letters(runtime, "outbox_full")) == 200)


def test_a_handler_that_takes_long_keeps_nobody_waiting() -> None:
    """Two blocks for all: what one of them is busy with must not delay those that the other could serve."""
    wait = """
    while (in.value != 0 && *(volatile long long*)in.id == 0) __nanosleep(100);
    if (ctx.lane == 0) out = in;
    ctx.send(out);
    """
    write = "if (ctx.lane == 0) { out = in; *(volatile long long*)in.id = 1; } ctx.send(out);"
    slow, opens, *others = (make(text, dedicated=False) for text in (wait, write, *4 * [ECHO]))
    flag = gp.zeros(1, dtype=gp.int64)
    # It does not leave the device in the middle, for which it would wait.
    with RingKernelRuntime(workers=2, time_slice=None) as runtime:
        gate, opener, *clients = start(runtime, slow, opens, *others)
        for _ in range(2):
            # Actors do not wait for what was begun on a stream.
            flag.fill(0)
            assert flag.to_numpy()[0] == 0
            # So that it is where it was served last, and what comes next is seen there.
            gate.call(Item(flag.ptr, 0, 0), timeout=20)
            gate.send(Item(flag.ptr, 0, 1))
            for n, client in enumerate(clients):
                assert client.call(Item(n, 0, 0), timeout=20).id == n
            with pytest.raises(TimeoutError):
                gate.receive(timeout=0.01)
            opener.call(Item(flag.ptr, 0, 0), timeout=20)
            gate.receive(timeout=20)
