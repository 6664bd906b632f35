"""Device actors with warps and blocks in a random order, and with their races looked for."""

from __future__ import annotations

import time

from device_actors import BATCH, ECHO, PICKY, Item, count_of, letters, make, new_id, numbered, start, until

from pygpukit.ring import RingKernelRuntime

# To the other while there are hops left.
RALLY = """
    if (ctx.lane == 0) { out = in; out.hops = in.hops - 1; state.count += 1; }
    if (in.hops == 0) ctx.send(out);
    else ctx.send("next", out);
"""


def test_parks_and_pauses(schedule: int, dedicated: bool) -> None:
    rally(dedicated, 1)


def test_parks_and_pauses_of_groups(schedule: int) -> None:
    rally(True, 2)


def rally(dedicated: bool, blocks: int) -> None:
    left, right = new_id("left"), new_id("right")
    # Two warps and one.
    make(RALLY, to=right, kernel_id=left, dedicated=dedicated, block_size=64, grid_size=blocks)
    make(RALLY, to=left, kernel_id=right, dedicated=dedicated, block_size=32, grid_size=blocks)
    with RingKernelRuntime() as runtime:
        clients = start(runtime, left, right)
        link = runtime._tier.ring.link
        found: list[int] = []
        for turn in range(6):
            for n in range(10):
                clients[n % 2].send(Item(10 * turn + n, n, 0), timeout=30)
            if turn % 2:
                link.park()
                link.resume()
            else:
                one = (left, right)[turn // 2 % 2]
                runtime.run(runtime.deactivate(one, timeout=30))
                runtime.run(runtime.reactivate(one))
        end = time.monotonic() + 30
        while len(found) < 60 and time.monotonic() < end:
            for client in clients:
                found += client.receive_batch(60, timeout=0.01)["id"].tolist()
        assert sorted(found) == list(range(60))
        assert link.status()["parks"] >= 3
        for one in (left, right):
            runtime.run(runtime.deactivate(one, timeout=30))
        assert count_of(runtime, left) + count_of(runtime, right) == 6 * sum(n + 1 for n in range(10))
        assert runtime.dead_letters() == []


def test_results_wait_for_the_host(schedule: int, dedicated: bool) -> None:
    """What does not fit is kept and delivered later: all warps must see alike that something waits."""
    echo = make(ECHO, dedicated=dedicated, block_size=64, output_queue_size=2)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, echo)
        client.send_batch(numbered(40), timeout=30)
        assert [client.receive(timeout=30).id for _ in range(40)] == list(range(40))


def test_deadlines_and_failures(schedule: int, dedicated: bool) -> None:
    picky = make(PICKY, dedicated=dedicated, block_size=64, restart="on_failure", max_restarts=100)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, picky)
        now = time.monotonic()
        for n in range(30):
            # Those in the middle become late about when they are looked at.
            deadline = now + 600 if n % 3 == 0 else time.monotonic() + 0.002 * (n % 3 - 1)
            client.send(Item(n, 0, -1 if n % 5 == 0 else 1, deadline=deadline), timeout=30)
        found: list[int] = []

        def is_complete() -> bool:
            found.extend(client.receive_batch(30, timeout=0)["id"].tolist())
            return len(found) + len(letters(runtime)) == 30

        until(is_complete)
        assert sorted([*found, *letters(runtime)]) == list(range(30))
        assert set(letters(runtime, "failed")) >= {0, 15}
        assert set(found) >= {3, 6, 9, 12, 18, 21, 24, 27}


def test_runs_of_messages(schedule: int) -> None:
    batch = make(BATCH, block_size=64)
    with RingKernelRuntime() as runtime:
        [client] = start(runtime, batch)
        for first in range(0, 200, 50):
            client.send_batch(numbered(50, first), timeout=30)
            runtime._tier.ring.link.park()
            runtime._tier.ring.link.resume()
        assert client.receive_batch(200, timeout=30)["id"].tolist() == list(range(200))


def test_the_oldest_make_room(schedule: int, dedicated: bool) -> None:
    target = make(ECHO, dedicated=dedicated, queue_size=4, backpressure="drop_oldest", block_size=64)
    source = make(ECHO.replace("ctx.send(", 'ctx.send("next", '), to=target, dedicated=dedicated)
    with RingKernelRuntime() as runtime:
        clients = start(runtime, source, target)
        for n in range(40):
            clients[n % 2].send(Item(n, 0, 0), timeout=30)
        found: list[int] = []

        def is_complete() -> bool:
            found.extend(clients[1].receive_batch(40, timeout=0)["id"].tolist())
            return len(found) + len(letters(runtime)) == 40

        until(is_complete)
        assert sorted([*found, *letters(runtime)]) == list(range(40))


def test_ending(schedule: int, dedicated: bool) -> None:
    """Drained, and at once with messages left."""
    first, second = (make(dedicated=dedicated, block_size=64) for _ in range(2))
    with RingKernelRuntime() as runtime:
        clients = start(runtime, first, second)
        for client in clients:
            client.send_batch(numbered(20), timeout=30)
        runtime.run(runtime.terminate(first, timeout=30))
        runtime.run(runtime.terminate(second, drain=False, timeout=30))
        found = clients[1].receive_batch(20, timeout=0)["id"].tolist()
        until(lambda: len(letters(runtime)) + len(found) >= 20)
        assert sorted([*letters(runtime), *found]) == list(range(20))
        assert clients[0].receive_batch(20, timeout=0)["id"].tolist() == list(range(20))
