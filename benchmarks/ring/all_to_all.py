"""Device actors that pass tokens to pseudo-random others: every message comes exactly once, and nobody stands still.

python benchmarks/ring/all_to_all.py --seconds 120 --actors 1000 --json benchmarks/results/h200-ring-all-to-all.json
python benchmarks/ring/all_to_all.py --seconds 0 --ring 100000

The host walks the same ways, so it knows what each actor must have got. A mailbox has room for all tokens of a round:
no actor ever waits for another, and none can wait in a circle.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report

# A round that takes longer has come to a standstill.
PATIENCE = 120.0

STEP = 6364136223846793005
SHIFT = 1442695040888963407

# The next actor is in the upper bits of a linear congruential generator, whose lower ones are not random enough.
WANDER = """
__device__ void handle(const Token& in, Token& out, State& state, Context& ctx) {
    unsigned long long way = in.way * STEPull + SHIFTull;
    if (ctx.lane == 0) {
        state.seen[0] += 1;
        state.seen[1] += (long long)(in.way >> 32);
        out.id = in.id;
        out.way = way;
        out.first = in.first;
        out.count = in.count;
        out.hops = in.hops - 1;
    }
    if (in.hops == 0) ctx.send(in);
    else ctx.send_to(in.first + (unsigned)((way >> 32) % in.count), out);
}
""".replace("STEP", str(STEP)).replace("SHIFT", str(SHIFT))

AROUND = """
__device__ void handle(const Token& in, Token& out, State& state, Context& ctx) {
    if (ctx.lane == 0) {
        state.seen[0] += 1;
        out = in;
        out.hops = in.hops - 1;
    }
    unsigned next = ctx.id() + 1 - in.first;
    if (in.hops == 0) ctx.send(in);
    else ctx.send_to(in.first + (next == in.count ? 0u : next), out);
}
"""


@message
class Token:
    """Where the actors' numbers begin, how many there are, and how far to go."""

    id: gp.int64
    way: gp.uint64
    first: gp.uint32
    count: gp.uint32
    hops: gp.int32
    unused: gp.int32


class Crowd:
    """Actors of one source, placed together."""

    def __init__(self, runtime: RingKernelRuntime, name: str, source: str, count: int, room: int) -> None:
        self.runtime, self.count = runtime, count

        def function() -> None: ...

        function.__doc__ = source
        options: dict[str, Any] = {
            "input_type": Token,
            "output_type": Token,
            "device": "gpu",
            "state": {"seen": gp.int64[2]},
            "block_size": 32,
            "dedicated": False,
        }
        kernels = [
            ring_kernel(kernel_id=f"{name}{i}", input_queue_size=room, output_queue_size=room, **options)(function)
            for i in range(count)
        ]
        self.ids = [kernel.kernel_id for kernel in kernels]

        async def begin() -> None:
            await asyncio.gather(*(runtime.launch(kernel) for kernel in kernels))
            await asyncio.gather(*(runtime.activate(one) for one in self.ids))

        began = time.perf_counter()
        runtime.run(begin())
        self.seconds = time.perf_counter() - began
        self.first = runtime.get_actor_number(self.ids[0])
        numbers = [runtime.get_actor_number(one) for one in self.ids]
        if numbers != list(range(self.first, self.first + count)):
            raise SystemExit("the actors' numbers are not consecutive")
        self.clients = [runtime.client(one) for one in self.ids]

    def tokens(self, ids: np.ndarray[Any, Any], ways: np.ndarray[Any, Any], hops: int) -> np.ndarray[Any, Any]:
        """Messages that begin here."""
        rows = np.zeros(len(ids), Token.dtype)
        rows["id"], rows["way"], rows["first"], rows["count"], rows["hops"] = ids, ways, self.first, self.count, hops
        return rows

    def collect(self, expected: int, rows: int) -> np.ndarray[Any, Any]:
        """What came out, until that is all or nothing has come for too long; then whatever is there beyond it."""
        found: list[np.ndarray[Any, Any]] = []
        got, until = 0, time.monotonic() + PATIENCE
        while got < expected and time.monotonic() < until:
            for client in self.clients:
                part = client.receive_batch(rows, timeout=0)
                if len(part):
                    found.append(part)
                    got += len(part)
                    until = time.monotonic() + PATIENCE
        for client in self.clients:
            found.append(client.receive_batch(rows, timeout=0))
        return np.concatenate(found)

    def seen(self) -> np.ndarray[Any, Any]:
        """The states of all actors."""
        return np.stack([self.runtime.get_state(one)["seen"].to_numpy() for one in self.ids])

    def told(self, expected: int) -> tuple[int, int]:
        """Messages received and processed, as telemetry has it; the device shows it a moment later."""
        until = time.monotonic() + 5
        while True:
            figures = [self.runtime.get_telemetry(one) for one in self.ids]
            found = sum(one.received for one in figures), sum(one.processed for one in figures)
            if found == (expected, expected) or time.monotonic() > until:
                return found
            time.sleep(0.005)


class Rounds:
    """Tokens in rounds, and what each actor must have seen after them."""

    def __init__(self, crowd: Crowd, tokens: int, hops: int, seed: int) -> None:
        self.crowd, self.tokens, self.hops = crowd, tokens, hops
        self.rng = np.random.default_rng(seed)
        self.expected = np.zeros((crowd.count, 2), np.int64)
        self.rounds = self.delivered = self.lost = self.doubled = self.wrong = 0
        self.seconds = 0.0

    def go(self) -> None:
        """One round: send the tokens, walk beside them, and compare."""
        crowd, count = self.crowd, self.crowd.count
        ids = np.arange(self.tokens) + self.rounds * self.tokens
        ways = self.rng.integers(0, 1 << 64, self.tokens, np.uint64, endpoint=False)
        starts = np.sort(self.rng.integers(0, count, self.tokens))
        rows = crowd.tokens(ids, ways, self.hops)
        edges = np.searchsorted(starts, np.arange(count + 1))
        began = time.perf_counter()
        for at in np.unique(starts):
            part = rows[edges[at] : edges[at + 1]]
            if crowd.clients[at].send_batch(part, timeout=PATIENCE) != len(part):
                raise SystemExit(f"{crowd.ids[at]} had no room for {len(part)} tokens within {PATIENCE:g} s")
        out = crowd.collect(self.tokens, self.tokens)
        self.seconds += time.perf_counter() - began
        ends = self._walk(starts, ways)
        times = np.bincount(out["id"] - ids[0], minlength=self.tokens) if len(out) else np.zeros(self.tokens, int)
        self.lost += int((times == 0).sum())
        self.doubled += int(np.maximum(times - 1, 0).sum())
        self.wrong += int((out["way"] != ends[out["id"] - ids[0]]).sum() + (out["hops"] != 0).sum())
        self.rounds += 1
        self._compare()

    def _walk(self, at: np.ndarray[Any, Any], ways: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Go the tokens' ways, and return how they look at the end."""
        count = self.crowd.count
        high = np.uint64(32)
        for left in range(self.hops, -1, -1):
            self.expected[:, 0] += np.bincount(at, minlength=count)
            # Sums of doubles below 2**53 are exact.
            self.expected[:, 1] += np.bincount(at, (ways >> high).astype(np.float64), count).astype(np.int64)
            if left:
                ways = ways * np.uint64(STEP) + np.uint64(SHIFT)
                at = ((ways >> high) % np.uint64(count)).astype(np.int64)
        return ways

    def _compare(self) -> None:
        """The actors' states and figures with what must be there."""
        crowd = self.crowd
        total = self.rounds * self.tokens * (self.hops + 1)
        assert int(self.expected[:, 0].sum()) == total
        received, processed = crowd.told(total)
        seen = crowd.seen()
        self.delivered = int(seen[:, 0].sum())
        difference = seen[:, 0] - self.expected[:, 0]
        self.lost += int(np.maximum(-difference, 0).sum())
        self.doubled += int(np.maximum(difference, 0).sum())
        self.wrong += int((seen[:, 1] != self.expected[:, 1]).sum()) + abs(received - total) + abs(processed - total)
        self.wrong += sum(crowd.runtime.get_summary()["dead_letters"].values())

    @property
    def is_right(self) -> bool:
        """Is everything where it should be so far?"""
        return not (self.lost or self.doubled or self.wrong)


def all_to_all(report: Report, options: argparse.Namespace) -> None:
    """Rounds until the time is over, or something is wrong."""
    with RingKernelRuntime() as runtime:
        crowd = Crowd(runtime, "wanderer", WANDER, options.actors, options.tokens)
        print(f"  -- {options.actors} actors after {crowd.seconds:.1f} s", flush=True)
        rounds = Rounds(crowd, options.tokens, options.hops, options.seed)
        end, progress = time.monotonic() + options.seconds, time.monotonic() + 10
        while time.monotonic() < end and rounds.is_right:
            rounds.go()
            if time.monotonic() > progress:
                progress += 10
                print(f"  -- {rounds.rounds} rounds, {rounds.delivered} messages", flush=True)
    name = f"{options.actors} actors all-to-all"
    rate = rounds.delivered / rounds.seconds if rounds.seconds else 0.0
    extra = {"rounds": rounds.rounds, "tokens": options.tokens, "hops": options.hops, "seconds": rounds.seconds}
    report.add(f"{name}: messages delivered", rounds.delivered, 1.0, "", 1, at_least=True, **extra)
    report.add(f"{name}: messages/s", rate, 1.0, "1/s", 1, at_least=True)
    report.add(f"{name}: messages lost", rounds.lost, 1.0, "", 0)
    report.add(f"{name}: messages doubled", rounds.doubled, 1.0, "", 0)
    report.add(f"{name}: wrong states, figures and dead letters", rounds.wrong, 1.0, "", 0)


def around(report: Report, options: argparse.Namespace) -> None:
    """One token once around a ring of actors."""
    count = options.ring
    with RingKernelRuntime() as runtime:
        crowd = Crowd(runtime, "ring", AROUND, count, 2)
        began = time.perf_counter()
        crowd.clients[0].send_batch(crowd.tokens(np.arange(1), np.zeros(1, np.uint64), count), timeout=PATIENCE)
        # It comes out where it went in.
        out = crowd.clients[0].receive_batch(1, timeout=PATIENCE)
        seconds = time.perf_counter() - began
        expected = np.ones(count, np.int64)
        expected[0] = 2
        received, _ = crowd.told(count + 1)
        wrong = int((crowd.seen()[:, 0] != expected).sum()) + abs(received - count - 1)
        wrong += sum(runtime.get_summary()["dead_letters"].values())
    report.add(f"ring of {count} actors: tokens lost", 1 - len(out), 1.0, "", 0)
    report.add(f"ring of {count} actors: wrong states, figures and dead letters", wrong, 1.0, "", 0)
    report.add(f"ring of {count} actors: hop in us (stretch)", seconds / count * 1e6, 1.0, "us", 100, seconds=seconds)
    report.add(f"ring of {count} actors: launch and activate in s (stretch)", crowd.seconds, 1.0, "s", 300)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120.0, help="of rounds, all to all; 0 for none")
    parser.add_argument("--actors", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=2048, help="of a round; a mailbox has room for all of them")
    parser.add_argument("--hops", type=int, default=256, help="of a token")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ring", type=int, default=0, help="also send a token around so many actors")
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    report = Report()
    if options.seconds:
        all_to_all(report, options)
    if options.ring:
        around(report, options)
    given = f"--seconds {options.seconds:g} --actors {options.actors} --tokens {options.tokens} --hops {options.hops}"
    return report.finish(options.json, f"python benchmarks/ring/all_to_all.py {given} --ring {options.ring}")


if __name__ == "__main__":
    sys.exit(main())
