"""A random program over arrays that move to the host, with NumPy as the model of what they hold."""

from __future__ import annotations

import gc
import os
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import pygpukit as gp

MIB = 1 << 20
# More arrays than any quota here has room for.
MOST = 14

Values = np.ndarray[Any, np.dtype[np.uint32]]


@dataclass(eq=False)
class Memory:
    """What the arrays over one block of memory share."""

    # The stream that used it last; the next use waits for it.
    stream: gp.Stream
    known: bool = True
    pins: int = 0
    transfer: Callable[[bool], str] | None = None


@dataclass(eq=False)
class Entry:
    """An array and what it must hold: a view of the array is a view of its model too."""

    array: gp.GPUArray
    expected: Values
    memory: Memory
    address: int | None = None
    exported: int | None = None


@dataclass(eq=False)
class Recorded:
    """A captured graph, and the models of what it uses. The arrays themselves may be gone."""

    graph: gp.CudaGraph
    models: list[Values]
    memories: list[Memory]
    replays: int = 0


@dataclass
class Pools:
    """Nested quotas, with and without eviction."""

    outer: gp.memory.MemoryPool
    inner: gp.memory.MemoryPool
    still: gp.memory.MemoryPool
    free: gp.memory.MemoryPool
    # What a pool may use: its quota, or what it had when that was lowered.
    most: dict[str, int] = field(default_factory=dict)

    @classmethod
    def make(cls) -> Pools:
        outer = gp.memory.MemoryPool(quota=20 * MIB, enable_eviction=True, name="outer")
        with outer:
            inner = gp.memory.MemoryPool(quota=10 * MIB, enable_eviction=True, guarantee=4 * MIB, name="inner")
            still = gp.memory.MemoryPool(quota=4 * MIB, name="still")
        return cls(outer, inner, still, gp.memory.MemoryPool(enable_eviction=True, name="free"))

    def all(self) -> list[gp.memory.MemoryPool]:
        return [self.outer, self.inner, self.still, self.free]

    def check(self, quiet: bool) -> None:
        """Quotas hold, and the counts agree with each other; those of two pools when nothing moves meanwhile."""
        for pool in self.all():
            stats = pool.stats()
            used, quota = stats["used"], stats["quota"]
            if quota is not None:
                allowed = max(quota, self.most.get(pool.name, 0))
                assert used <= allowed, f"pool {pool.name} uses {used} of {quota} bytes, {allowed} were allowed"
                self.most[pool.name] = used if used > quota else 0
            assert stats["live"] == stats["allocations"] - stats["frees"]
            assert 0 <= stats["cached"] <= stats["reserved"], stats
        assert not quiet or self.outer.used >= self.inner.used + self.still.used

    def check_empty(self) -> None:
        """Every array is gone: so is the memory, here and on the host."""
        for pool in self.all():
            pool.trim()
            stats = pool.stats()
            left = {key: stats[key] for key in ("used", "live", "evicted", "reserved", "cached")}
            if pool is self.outer:
                left["used"] -= self.inner.guarantee
            assert not any(left.values()), f"pool {pool.name} has something left: {left}"
        held = self.inner.stats()["held"]
        assert held == self.inner.guarantee, f"{held} bytes are held for a guarantee of {self.inner.guarantee}"


class Program:
    """A sequence of steps that a seed decides. The same seed gives the same steps on every device.

    With `pools` of somebody else, other threads use them at the same time, and quotas stay as they are.
    """

    def __init__(self, seed: int, pools: Pools | None = None) -> None:
        self.chance = random.Random(seed)
        self.shared = pools is not None
        self.pools = pools or Pools.make()
        self.streams = [gp.Stream() for _ in range(3)]
        self.entries: list[Entry] = []
        self.graphs: list[Recorded] = []
        self.closed: list[gp.memory.MemoryPool] = []
        self.log: list[str] = []
        self.checksum = 0
        self.refused = 0
        steps: list[tuple[int, Callable[[], str | None]]] = [
            (16, self.allocate), (6, self.upload), (14, self.add), (6, self.combine), (6, self.part), (4, self.copy),
            (3, self.narrow), (8, self.evict), (5, self.prefetch), (3, self.pin), (5, self.unpin), (1, self.export),
            (10, self.free), (3, self.capture), (9, self.replay), (2, self.drop_graph), (5, self.start), (7, self.end),
            (8, self.read), (1, self.close), (1, self.collect), (2, self.trim),
        ]  # fmt: skip
        if not self.shared:
            steps.append((4, self.quota))
        self.weights = [weight for weight, _ in steps]
        self.steps = [step for _, step in steps]
        self.where: Any = None
        if gp.is_nvrtc_available():
            self.where = gp.jit("""extern "C" __global__ void where_is(const unsigned* x, long long* address) {
                *address = (long long) x;
            }""")

    def run(self, steps: int) -> int:
        """Run this many steps and check everything at the end; a checksum of what was read."""
        for _ in range(steps):
            self.step()
        self.finish()
        return self.checksum

    def step(self) -> None:
        """One step of the program; running out of memory is allowed, and then nothing may have changed."""
        step = self.chance.choices(self.steps, self.weights)[0]
        self.log.append(step.__name__)
        try:
            said = step()
        except gp.OutOfMemoryError:
            self.refused += 1
            said = "refused"
        self.log[-1] += f" {said}" if said else " (nothing)"
        if not self.shared:
            self.pools.check(quiet=all(entry.memory.transfer is None for entry in self.entries))
        if len(self.log) % 25 == 0:
            self.check_all()

    def finish(self) -> None:
        """Check everything once more, and that nothing is left when everything is dropped."""
        for memory in {id(entry.memory): entry.memory for entry in self.entries}.values():
            while memory.pins:
                next(entry for entry in self.entries if entry.memory is memory).array.unpin()
                memory.pins -= 1
        if not self.shared:
            for pool in self.pools.all() + self.closed:
                pool.set_quota(None)
        self.check_all(last=True)
        self.entries.clear()
        self.graphs.clear()
        self.closed.clear()
        gc.collect()
        gp.synchronize()
        if not self.shared:
            self.pools.check_empty()

    # What the steps choose from. A random number is drawn whatever there is, so that programs differ little.

    def pick(self, wanted: Callable[[Entry], bool] = lambda entry: True) -> Entry | None:
        found = [entry for entry in self.entries if entry.memory.transfer is None and wanted(entry)]
        number = self.chance.random()
        return found[int(number * len(found))] if found else None

    def known(self) -> Entry | None:
        return self.pick(lambda entry: entry.memory.known)

    def pool(self) -> gp.memory.MemoryPool:
        return self.chance.choices(self.pools.all(), [6, 5, 1, 2])[0]

    def size(self) -> int:
        small = self.chance.random() < 0.4
        return self.chance.randint(1, 40_000) if small else self.chance.randint(265_000, 1_000_000)

    def values(self, count: int) -> Values:
        return np.arange(count, dtype=np.uint32) * np.uint32(self.chance.randint(1, 1 << 30))

    def stream_for(self, *memories: Memory) -> gp.Stream:
        """A stream that goes on after the last uses of these blocks."""
        stream = self.chance.choice(self.streams)
        for memory in memories:
            if memory.stream is not stream:
                stream.wait(memory.stream)
            memory.stream = stream
        return stream

    def keep(self, array: gp.GPUArray, expected: Values, stream: gp.Stream) -> Entry:
        entry = Entry(array, expected, Memory(stream))
        self.entries.append(entry)
        return entry

    def room(self) -> bool:
        return len(self.entries) < MOST

    # Steps.

    def allocate(self) -> str | None:
        if not self.room():
            return None
        stream, pool, size = self.chance.choice(self.streams), self.pool(), self.size()
        value = self.chance.randint(0, 1 << 30)
        with pool, stream:
            array = gp.full(size, value, "uint32")
        self.keep(array, np.full(size, value, np.uint32), stream)
        return f"{size} in {pool.name}"

    def upload(self) -> str | None:
        if not self.room():
            return None
        stream, pool, values = self.chance.choice(self.streams), self.pool(), self.values(self.size())
        with pool, stream:
            array = gp.from_numpy(values)
        self.keep(array, values, stream)
        return f"{values.size} in {pool.name}"

    def add(self) -> str | None:
        entry, number = self.known(), self.chance.randint(1, 100)
        if entry is None:
            return None
        with self.stream_for(entry.memory):
            entry.array += number
        entry.expected += np.uint32(number)
        return f"{number}"

    def combine(self) -> str | None:
        """A new array of two others, one of them not contiguous."""
        a, b, pool = self.known(), self.known(), self.pool()
        if a is None or b is None or not self.room():
            return None
        n = min((a.expected.size + 1) // 2, b.expected.size)
        stream = self.stream_for(a.memory, b.memory)
        with pool, stream:
            array = a.array[::2][:n] + b.array[:n]
        self.keep(array, a.expected[::2][:n] + b.expected[:n], stream)
        return f"{n} in {pool.name}"

    def part(self) -> str | None:
        entry, number = self.known(), self.chance.random()
        if entry is None:
            return None
        start = int(number * entry.expected.size)
        with self.stream_for(entry.memory):
            entry.array[start:] ^= 0x55
        entry.expected[start:] ^= np.uint32(0x55)
        return f"from {start}"

    def copy(self) -> str | None:
        """Between two arrays that exist."""
        a, b = self.known(), self.known()
        if a is None or b is None or a.memory is b.memory:
            return None
        n = min(a.expected.size, b.expected.size)
        with self.stream_for(a.memory, b.memory):
            b.array[:n] = a.array[:n]
        b.expected[:n] = a.expected[:n]
        return f"{n}"

    def narrow(self) -> str | None:
        """A view takes the place of its array, or stands beside it."""
        entry, beside = self.pick(), self.chance.random() < 0.5
        if entry is None or entry.expected.size < 2:
            return None
        middle = entry.expected.size // 2
        view = Entry(entry.array[middle:], entry.expected[middle:], entry.memory)
        if beside and self.room():
            self.entries.append(view)
        else:
            self.entries[self.entries.index(entry)] = view
        return "beside" if beside else "instead"

    def evict(self) -> str | None:
        if not self.entries:
            return None
        entry = self.chance.choice(self.entries)
        try:
            moved = entry.array.evict()
        except ValueError as error:
            if "does not evict" not in str(error):
                raise
            return "refused"
        if moved and entry.memory.transfer is None and not self.shared:
            assert not entry.array.is_resident
        assert not (moved and (entry.memory.pins or entry.exported)), "a pinned array moved"
        return f"{moved}"

    def prefetch(self) -> str | None:
        entry = self.pick()
        if entry is None:
            return None
        entry.array.prefetch()
        return f"{entry.expected.size}"

    def pin(self) -> str | None:
        entry = self.pick()
        if entry is None or sum(e.memory.pins > 0 for e in self.entries) > 2:
            return None
        entry.array.pin()
        entry.memory.pins += 1
        assert entry.array.is_resident
        return f"{entry.expected.size}"

    def unpin(self) -> str | None:
        entry = self.pick(lambda entry: entry.memory.pins > 0)
        if entry is None:
            return None
        entry.array.unpin()
        entry.memory.pins -= 1
        return f"{entry.expected.size}"

    def export(self) -> str | None:
        entry = self.pick()
        if entry is None:
            return None
        pointer = entry.array.ptr
        assert entry.exported in (None, pointer)
        entry.exported = pointer
        return f"{entry.expected.size}"

    def free(self) -> str | None:
        if not self.entries:
            return None
        entry = self.entries.pop(self.chance.randrange(len(self.entries)))
        return f"{entry.expected.size}"

    def capture(self) -> str | None:
        """Two arrays change in place, and a third lives in the graph's own memory."""
        a, b, pool = self.known(), self.known(), self.pool()
        if a is None or b is None or a.memory is b.memory or not self.room() or len(self.graphs) > 2:
            return None
        n = min(a.expected.size, b.expected.size)
        stream = self.chance.choice(self.streams)
        graph = gp.CudaGraph()
        with pool, stream, graph.capture():
            a.array += 3
            middle = a.array * 2
            result = middle + 1
            del middle
            b.array[:n] += result[:n]
        entry = self.keep(result, np.zeros(a.expected.size, np.uint32), stream)
        entry.memory.known = False
        models, memories = [a.expected, b.expected, entry.expected], [a.memory, b.memory, entry.memory]
        self.graphs.append(Recorded(graph, models, memories))
        return f"{a.expected.size}, {b.expected.size} in {pool.name}"

    def replay(self) -> str | None:
        usable = [g for g in self.graphs if g.memories[0].known and g.memories[1].known]
        usable = [g for g in usable if all(memory.transfer is None for memory in g.memories)]
        number = self.chance.random()
        if not usable:
            return None
        recorded = usable[int(number * len(usable))]
        a, b, result = recorded.models
        with self.stream_for(*recorded.memories):
            recorded.graph.replay()
        a += np.uint32(3)
        result[:] = a * np.uint32(2) + np.uint32(1)
        n = min(a.size, b.size)
        b[:n] += result[:n]
        recorded.memories[2].known = True
        recorded.replays += 1
        return f"{recorded.replays}"

    def drop_graph(self) -> str | None:
        if not self.graphs:
            return None
        recorded = self.graphs.pop(self.chance.randrange(len(self.graphs)))
        return f"after {recorded.replays}"

    def start(self) -> str | None:
        """A transfer that goes on during the next steps."""
        entry, down = self.known(), self.chance.random() < 0.5
        if entry is None or sum(e.memory.transfer is not None for e in self.entries) > 2:
            return None
        memory, array, expected = entry.memory, entry.array, entry.expected
        stream = self.stream_for(entry.memory)
        values = self.values(expected.size)
        host = gp.empty_pinned(expected.size, "uint32") if self.chance.random() < 0.3 else np.empty_like(expected)
        host[:] = values
        if down:
            transfer = gp.copy_to_host(array, host, stream=stream)
        else:
            transfer = gp.copy_to_device(host, array, stream=stream)

        def end(cancel: bool) -> str:
            memory.transfer = None
            cancelled = cancel and transfer.cancel()
            try:
                transfer.wait()
            except (gp.TransferCancelledError, gp.OutOfMemoryError) as error:
                if isinstance(error, gp.TransferCancelledError) and not cancelled:
                    raise
                # Only what an upload should have written is not known now.
                if not down:
                    memory.known = False
                    array.fill(5)
                    expected[:] = 5
                    memory.known = True
                return f"cancelled {'down' if down else 'up'}"
            if down:
                np.testing.assert_array_equal(host, expected)
            else:
                expected[:] = values
            return "down" if down else "up"

        memory.transfer = end
        return f"{'down' if down else 'up'} {expected.size}"

    def end(self) -> str | None:
        moving = [entry.memory for entry in self.entries if entry.memory.transfer is not None]
        number, cancel = self.chance.random(), self.chance.random() < 0.4
        if not moving:
            return None
        transfer = moving[int(number * len(moving))].transfer
        assert transfer is not None
        return transfer(cancel)

    def read(self) -> str | None:
        entry = self.known()
        if entry is None:
            return None
        self.check(entry)
        return f"{entry.expected.size}"

    def close(self) -> str | None:
        """A pool that is closed while arrays of it are on the device and on the host."""
        if len(self.entries) + 2 > MOST:
            return None
        stream = self.chance.choice(self.streams)
        with self.pools.outer:
            pool = gp.memory.MemoryPool(quota=4 * MIB, enable_eviction=True, guarantee=2 * MIB, name="closed")
        made = []
        with pool, stream:
            for value in (1, 2):
                made.append((gp.full(700_000, value, "uint32"), np.full(700_000, value, np.uint32)))
        pool.close()
        self.closed.append(pool)
        for array, expected in made:
            self.keep(array, expected, stream)
        return "with two arrays"

    def collect(self) -> str:
        gc.collect()
        return "garbage"

    def trim(self) -> str:
        self.pool().trim()
        return "a pool"

    def quota(self) -> str:
        pool, mib = self.chance.choice([self.pools.outer, self.pools.inner]), self.chance.randint(6, 28)
        before = pool.used
        pool.set_quota(mib * MIB)
        # What is pinned stays, above the quota.
        self.pools.most[pool.name] = before
        return f"{pool.name} {mib} MiB"

    # Looking.

    def check(self, entry: Entry) -> None:
        with self.stream_for(entry.memory):
            found = entry.array.to_numpy()
        np.testing.assert_array_equal(found, entry.expected)
        self.checksum = zlib.crc32(found.tobytes(), self.checksum)
        if self.where is not None:
            stream = self.stream_for(entry.memory)
            with stream:
                address = gp.empty(1, "int64")
                self.where(entry.array, address, grid=1, block=1)
                at = int(address.item())
            assert entry.address in (None, at), f"an array moved from {entry.address:#x} to {at:#x}"
            assert entry.exported in (None, at), "the address is not the one that was exported"
            entry.address = at

    def check_all(self, last: bool = False) -> None:
        """Check every array; until the last time, pins may leave no room for some of them."""
        for entry in self.entries:
            try:
                if entry.memory.transfer is not None:
                    entry.memory.transfer(False)
                if entry.memory.known:
                    self.check(entry)
            except gp.OutOfMemoryError:
                if last and not self.shared:
                    raise
                self.refused += 1


def run(seed: int, steps: int) -> Program:
    """Run a program from its seed; a failure says how to repeat it up to the step that failed."""
    program = Program(seed)
    try:
        program.run(steps)
    except BaseException as error:
        count = len(program.log)
        variables = {name: os.environ[name] for name in ("PYGPUKIT_STREAMS",) if name in os.environ}
        variables["PYGPUKIT_DEVICE"] = gp.current_device().kind
        settings = " ".join(f"{name}={value}" for name, value in variables.items())
        error.add_note(
            "The last steps were:\n  " + "\n  ".join(program.log[-12:]) + "\nRepeat it with:\n"
            f"  {settings} python tests/gpu/eviction_stress.py --seed {seed} --steps {count}"
        )
        raise
    return program
