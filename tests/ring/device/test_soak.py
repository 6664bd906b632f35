"""Everything at once on the device: in the end every message is in one place."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any

import pytest
from device_actors import Item, launch, make, new_id, start

from pygpukit.errors import MailboxFullError, RingError
from pygpukit.ring import RingKernelRuntime

# A message goes on while it has hops left, one of two ways; then it is the output of where it is.
WANDER = """
    if (ctx.lane == 0) { out = in; out.hops = in.hops - 1; state.count += 1; }
    if (in.hops == 0) ctx.send(out);
    else if ((in.id + in.hops) & 1) ctx.send("first", out);
    else ctx.send("second", out);
"""
COUNT = 1200


class World:
    """A random graph of actors, threads that send into it, and threads that take what comes out."""

    def __init__(self, runtime: RingKernelRuntime, seed: int) -> None:
        self.rng = random.Random(seed)
        self.runtime = runtime
        self.ids = [new_id("wanderer") for _ in range(8)]
        for one in self.ids:
            first, second = self.rng.choices(self.ids, k=2)
            # Actors that wait for each other in a circle need room for all there is.
            policy = self.rng.choice(["block", "block", "reject", "drop_oldest", "drop_new"])
            make(
                WANDER.replace('"first"', f'"{first}"').replace('"second"', f'"{second}"'),
                kernel_id=one,
                dedicated=self.rng.choice([True, False]),
                block_size=self.rng.choice([1, 32, 64]),
                backpressure=policy,
                input_queue_size=2048 if policy == "block" else self.rng.choice([2, 8, 64]),
                output_queue_size=4096,
            )
        self.later = [self.ids.pop(), self.ids.pop()]
        self.clients: dict[str, Any] = dict(zip(self.ids, start(runtime, *self.ids), strict=True))
        self.refused: list[int] = []
        self.errors: list[BaseException] = []
        self.done = threading.Event()

    def send(self, at: int, seed: int) -> None:
        rng = random.Random(seed)
        try:
            for n in range(at, at + COUNT // 3):
                client = self.clients[rng.choice(self.ids)]
                try:
                    client.send(Item(n, rng.randrange(12), 0), timeout=30)
                except MailboxFullError:
                    self.refused.append(n)
                if n % 16 == 0:
                    time.sleep(0.001)
        except BaseException as error:
            self.errors.append(error)

    def disturb(self) -> None:
        """One thing of many."""
        runtime, rng = self.runtime, self.rng
        what = rng.randrange(4)
        one = rng.choice(self.ids)
        if what == 0:
            link = runtime._tier.ring.link
            link.park()
            time.sleep(rng.random() * 0.002)
            link.resume()
        elif what in (1, 2):
            runtime.run(runtime.deactivate(one))
            time.sleep(rng.random() * 0.005)
            runtime.run(runtime.reactivate(one))
        elif self.later:
            new = self.later.pop()
            launch(runtime, new)
            runtime.run(runtime.activate(new))
            self.clients[new] = runtime.client(new)

    def collect(self) -> list[int]:
        """Ids of what came out so far."""
        found: list[int] = []
        for client in list(self.clients.values()):
            found += client.receive_batch(4096, timeout=0)["id"].tolist()
        return found


def _soak(seed: int) -> None:
    with RingKernelRuntime(dead_letters=100_000) as runtime:
        world = World(runtime, seed)
        threads = [threading.Thread(target=world.send, args=(10_000 * at, seed + at)) for at in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            world.disturb()
        for thread in threads:
            thread.join()
        assert world.errors == []
        found: list[int] = []
        end = time.monotonic() + 30
        while len(found) + len(runtime.dead_letters()) + len(world.refused) < COUNT and time.monotonic() < end:
            found += world.collect()
            time.sleep(0.002)
        found += world.collect()
        figures = runtime.get_all_telemetry()
        letters = [letter.message.id for letter in runtime.dead_letters()]
    every = Counter([*found, *letters, *world.refused])
    expected = {n for at in range(3) for n in range(10_000 * at, 10_000 * at + COUNT // 3)}
    assert [n for n in expected if n not in every] == [], figures
    assert [n for n, times in every.items() if times > 1] == []
    assert set(every) == expected


@pytest.mark.parametrize("seed", range(4))
def test_every_message_is_in_one_place(seed: int) -> None:
    _soak(seed)


def test_random_schedules(schedule: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same with warps and blocks in a random order."""
    monkeypatch.setattr(f"{__name__}.COUNT", 150)
    _soak(schedule)


def test_ending_in_the_middle(dedicated: bool) -> None:
    """Actors that end while messages go round: those are dead letters, and none is lost."""
    left, right = new_id("left"), new_id("right")
    make(WANDER.replace('"first"', f'"{right}"').replace('"second"', f'"{right}"'), kernel_id=left, dedicated=dedicated)
    make(WANDER.replace('"first"', f'"{left}"').replace('"second"', f'"{left}"'), kernel_id=right, dedicated=dedicated)
    with RingKernelRuntime(dead_letters=100_000) as runtime:
        one, two = start(runtime, left, right)
        for n in range(200):
            one.send(Item(n, 1000, 0))
        runtime.run(runtime.terminate(right, drain=False, timeout=20))
        with pytest.raises(RingError):
            two.send(Item(1, 0, 0))
        end = time.monotonic() + 20
        while len(runtime.dead_letters()) < 200 and time.monotonic() < end:
            time.sleep(0.002)
        assert sorted(letter.message.id for letter in runtime.dead_letters()) == list(range(200))
