"""Topics: messages to all device actors that subscribe."""

from __future__ import annotations

from typing import Any

import pytest
from device_actors import (
    BATCH,
    COUNT,
    ECHO,
    Item,
    Other,
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

from pygpukit.ring import KernelState, RingKernelRuntime, ring_kernel

# Tells the host how many it was sent to.
PUBLISH = """
    if (ctx.lane == 0) { out = in; state.count += 1; }
    unsigned sent = ctx.publish("topic", out);
    ctx.sync();
    if (ctx.lane == 0) out.value = (int)sent;
    ctx.send(out);
"""


def publisher(topic: str, body: str = PUBLISH, **options: Any) -> str:
    return make(body.replace('"topic"', f'"{topic}"'), **options)


@pytest.mark.parametrize("width", [32, 96])
def test_all_who_take_the_type(dedicated: bool, width: int) -> None:
    topic = new_id("topic")
    ends = [make(ECHO, topics=[topic, "another"], dedicated=dedicated) for _ in range(3)]
    others = [
        make(COUNT, input_type=Other, output_type=None, topics=[topic], dedicated=dedicated),
        make(COUNT, topics=["another"], dedicated=dedicated),
        make(COUNT, dedicated=dedicated),
    ]
    first = publisher(topic, dedicated=dedicated, block_size=width)
    with RingKernelRuntime() as runtime:
        client, *clients = start(runtime, first, *ends, *others)
        client.send_batch(numbered(60), timeout=30)
        assert client.receive_batch(60, timeout=30)["value"].tolist() == [3] * 60
        for one, end in zip(ends, clients, strict=False):
            assert end.receive_batch(60, timeout=30)["id"].tolist() == list(range(60))
            check_balance(runtime, one, 60)
        until(lambda: runtime.get_telemetry(first).sent == 4 * 60)
        check_balance(runtime, first, 60)
        assert [processed(runtime, one) for one in others] == [0, 0, 0]
        assert runtime.dead_letters() == []


def test_nobody_publishes_to_itself(dedicated: bool) -> None:
    topic = new_id("topic")
    # What comes from the other is not published again.
    body = 'if (ctx.source() != ring::HOST) { if (ctx.lane == 0) state.count += 1; return; } ctx.publish("topic", in);'
    left, right = (publisher(topic, body, topics=[topic], dedicated=dedicated) for _ in range(2))
    with RingKernelRuntime() as runtime:
        one, two = start(runtime, left, right)
        for n in range(10):
            one.send(Item(n, 0, 0))
        for n in range(3):
            two.send(Item(n, 0, 0))
        until(lambda: processed(runtime, left) == processed(runtime, right) == 13)
        for each, expected in ((left, 3), (right, 10)):
            runtime.run(runtime.deactivate(each, timeout=30))
            assert count_of(runtime, each) == expected


def test_several_topics_of_one_handler(dedicated: bool) -> None:
    """Handlers are shared whatever their topics and names are."""
    even, odd, direct = new_id("even"), new_id("odd"), new_id("direct")
    body = """
    if (in.id %% 2 == 0) ctx.publish("%s", in);
    else ctx.publish("%s", in);
    ctx.send("next", in);
    """
    ends = [make(ECHO, topics=topics, dedicated=dedicated) for topics in ([even], [odd], [even, odd])]
    first = make(body % (even, odd), to=direct, dedicated=dedicated)
    second = make(body % (odd, even), to=direct, dedicated=dedicated)
    make(COUNT, kernel_id=direct, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, swapped, *clients, _ = start(runtime, first, second, *ends, direct)
        assert len(runtime._tier.ring.program.handlers) == 3
        client.send_batch(numbered(20), timeout=30)
        for end, expected in zip(clients, (range(0, 20, 2), range(1, 20, 2), range(20)), strict=True):
            assert end.receive_batch(len(expected), timeout=30)["id"].tolist() == list(expected)
        swapped.send_batch(numbered(20), timeout=30)
        for end, expected in zip(clients, (range(1, 20, 2), range(0, 20, 2), range(20)), strict=True):
            assert end.receive_batch(len(expected), timeout=30)["id"].tolist() == list(expected)
        until(lambda: processed(runtime, direct) == 40)


def test_subscribers_that_come_and_go(dedicated: bool) -> None:
    topic = new_id("topic")
    first = publisher(topic, dedicated=dedicated)
    early, late, last = (make(ECHO, topics=[topic], dedicated=dedicated) for _ in range(3))
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, first)
        assert client.call(Item(0, 0, 0), timeout=30).value == 0
        one, two = start(runtime, early, late)
        assert client.call(Item(1, 0, 0), timeout=30).value == 2
        assert [one.receive(timeout=30).id, two.receive(timeout=30).id] == [1, 1]
        runtime.run(runtime.terminate(early, timeout=30))
        # Known on the device at once, without a relaunch.
        assert client.call(Item(2, 0, 0), timeout=30).value == 1
        assert two.receive(timeout=30).id == 2
        [three] = start(runtime, last)
        assert client.call(Item(3, 0, 0), timeout=30).value == 2
        assert [two.receive(timeout=30).id, three.receive(timeout=30).id] == [3, 3]
        # One that ended comes back under its id.
        [one] = start(runtime, early)
        assert client.call(Item(4, 0, 0), timeout=30).value == 3
        assert one.receive(timeout=30).id == 4
        assert runtime.dead_letters() == []


def test_a_subscriber_that_failed_is_none(dedicated: bool) -> None:
    topic = new_id("topic")
    first = publisher(topic, dedicated=dedicated)
    fails = make("ctx.fail();", topics=[topic], dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, _ = start(runtime, first, fails)
        assert client.call(Item(1, 0, 0), timeout=30).value == 1
        until(lambda: runtime.get_kernel_state(fails) is KernelState.FAILED)
        assert client.call(Item(2, 0, 0), timeout=30).value == 0
        assert letters(runtime) == [1]


def test_each_has_its_own_policy(dedicated: bool) -> None:
    topic = new_id("topic")
    options = {"queue_size": 4, "dedicated": dedicated, "topics": [topic]}
    ends = {policy: make(ECHO, backpressure=policy, **options) for policy in ("reject", "drop_new", "block")}
    first = publisher(topic, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, *clients = start(runtime, first, *ends.values())
        for one in ends.values():
            runtime.run(runtime.deactivate(one, timeout=30))
        for n in range(5):
            client.send(Item(n, 0, 0))
        # The fifth waits with the publisher, for the one that blocks.
        until(lambda: letters(runtime, "rejected") == [4])
        until(lambda: letters(runtime, "dropped_new") == [4])
        for one in ends.values():
            runtime.run(runtime.reactivate(one))
        for end, count in zip(clients, (4, 4, 5), strict=True):
            assert end.receive_batch(count, timeout=30)["id"].tolist() == list(range(count))
        assert len(runtime.dead_letters()) == 2


def test_many_subscribers() -> None:
    topic = new_id("topic")
    ends = [make(COUNT, topics=[topic], dedicated=False, queue_size=8) for _ in range(70)]
    gone = [make(COUNT, topics=[topic], dedicated=False, queue_size=8) for _ in range(3)]
    first = publisher(topic, block_size=64)
    with RingKernelRuntime() as runtime:
        client, *_ = start(runtime, first, *gone[:1], *ends, *gone[1:])
        for one in gone:
            runtime.run(runtime.terminate(one, timeout=30))
        assert client.call(Item(1, 0, 0), timeout=30).value == 70
        until(lambda: all(processed(runtime, one) == 1 for one in ends))
        assert runtime.dead_letters() == []


@pytest.mark.parametrize("isolation", [None, "process"])
def test_a_type_that_only_subscribers_have(dedicated: bool, isolation: str | None) -> None:
    topic = new_id("topic")
    body = """
    __shared__ Other made;
    if (ctx.lane == 0) { made.id = in.id; made.x = 0.5 * in.value; }
    ctx.publish("topic", made);
    """
    end = make(
        "if (ctx.lane == 0) { out.id = in.id; out.value = (int)(2 * in.x); } ctx.send(out);",
        input_type=Other,
        topics=[topic],
        dedicated=dedicated,
    )
    first = publisher(topic, body, dedicated=dedicated)
    with RingKernelRuntime(isolation=isolation) as runtime:
        # The subscriber comes later, and with it the type.
        [client] = start(runtime, first)
        [last] = start(runtime, end)
        client.send(Item(3, 0, 21))
        got = last.receive(timeout=30)
        assert (got.id, got.value) == (3, 21)


def test_batches_subscribe() -> None:
    topic = new_id("topic")
    end = make(BATCH, topics=[topic])
    first = publisher(topic)
    with RingKernelRuntime() as runtime:
        client, last = start(runtime, first, end)
        client.send_batch(numbered(30), timeout=30)
        assert last.receive_batch(30, timeout=30)["id"].tolist() == list(range(30))


def test_the_host_publishes_to_both_tiers(dedicated: bool) -> None:
    topic = new_id("topic")
    on_device = make(ECHO, topics=[topic], dedicated=dedicated)
    wrong = make(COUNT, input_type=Other, output_type=None, topics=[topic], dedicated=dedicated)

    @ring_kernel(kernel_id=new_id("host"), input_type=Item, output_type=Item, topics=[topic])
    def on_host(ctx: Any) -> None:
        while not ctx.should_terminate:
            one = ctx.receive()
            ctx.send(one, to=on_device)
            # From a host actor, to both tiers; not to itself.
            assert ctx.publish(topic, Item(one.id + 1, 0, 0)) == 1

    with RingKernelRuntime() as runtime:
        [last, _] = start(runtime, on_device, wrong)
        runtime.run(runtime.launch(on_host))
        runtime.run(runtime.activate(on_host.kernel_id))
        assert runtime.run(runtime.publish(topic, Item(5, 0, 0))) == 2
        assert sorted(last.receive(timeout=30).id for _ in range(3)) == [5, 5, 6]
        assert runtime.run(runtime.publish(topic, Other(5, 0.5))) == 1
        until(lambda: processed(runtime, wrong) == 1)
        runtime.run(runtime.terminate(on_device, timeout=30))
        assert runtime.run(runtime.publish(topic, Item(7, 0, 0))) == 1
    assert letters(runtime, "terminated") == [7]


def test_publishing_in_a_random_order(schedule: int, dedicated: bool) -> None:
    """Parked and paused meanwhile, to subscribers of both kinds, of which one ends."""
    topic = new_id("topic")
    first = publisher(topic, block_size=64, dedicated=dedicated)
    ends = [make(ECHO, topics=[topic], dedicated=own, block_size=32) for own in (True, False)]
    leaves = make(COUNT, topics=[topic], dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        client, *clients, _ = start(runtime, first, *ends, leaves)
        link = runtime._tier.ring.link
        for turn in range(4):
            client.send_batch(numbered(10, 10 * turn), timeout=30)
            if turn == 1:
                runtime.run(runtime.terminate(leaves, timeout=30))
            elif turn == 2:
                runtime.run(runtime.deactivate(ends[0], timeout=30))
                runtime.run(runtime.reactivate(ends[0]))
            else:
                link.park()
                link.resume()
        for end in clients:
            assert end.receive_batch(40, timeout=30)["id"].tolist() == list(range(40))
        sent = client.receive_batch(40, timeout=30)["value"].tolist()
        assert set(sent) <= {2, 3}
        assert sent == sorted(sent, reverse=True)
        # One that was on its way when its receiver ended is a dead letter.
        until(lambda: processed(runtime, leaves) + len(letters(runtime, "terminated")) == sent.count(3))
