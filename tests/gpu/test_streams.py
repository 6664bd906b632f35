"""Streams and events on the device: order, waits between streams, priorities, and memory reused in stream order."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from gpu_kernels import COPY_WHEN_SET, SCALE, SPIN

import pygpukit as gp

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("cuda")]

N = 10_000
BUSY_NS = 30_000_000


class Gate:
    """Work that keeps a stream waiting until another stream opens it."""

    def __init__(self, n: int = N) -> None:
        # Loading a kernel waits for those that run, so it is loaded before any does.
        self.kernel = gp.jit(COPY_WHEN_SET)
        self.flag, self.seen = gp.zeros(1, "int32"), gp.zeros(1, "int32")
        self.out = gp.zeros(n)
        gp.synchronize()

    def close(self, stream: gp.Stream, x: gp.GPUArray) -> None:
        """Copy `x` on `stream` once the gate is open."""
        self.kernel(self.out, x, self.seen, self.flag, x.size, grid=1, block=256, stream=stream)

    def open(self, stream: gp.Stream) -> None:
        with stream:
            self.flag.fill(1)

    def check(self, stream: gp.Stream, value: float) -> None:
        """What was copied, after the gate was opened in time."""
        got = self.out.to_numpy(stream=stream)
        assert self.seen.to_numpy(stream=stream)[0] == 1, "the other stream did not run beside the waiting kernel"
        np.testing.assert_array_equal(got, np.full(self.out.size, value, np.float32))


@pytest.mark.concurrent
def test_streams_run_beside_each_other() -> None:
    first, second = gp.Stream(), gp.Stream()
    gate, x = Gate(), gp.full(N, 2.0, "float32")
    y = x + x
    gp.synchronize()
    gate.close(first, x)
    event = first.record()
    assert not first.query()
    assert not event.query()
    with pytest.raises(ValueError, match="synchronize"):
        event.elapsed_ms(event)
    # Everything else goes on: operators, allocation, transfers both ways.
    with second:
        np.testing.assert_array_equal((x + y).to_numpy(), np.full(N, 6, np.float32))
        np.testing.assert_array_equal(gp.from_numpy(np.arange(N)).to_numpy(), np.arange(N))
    second.synchronize()
    assert second.query()
    assert not event.query()
    gate.open(second)
    event.synchronize()
    assert event.query()
    gate.check(first, 2)
    assert first.query()


@pytest.mark.parametrize("how", ["event", "stream"])
def test_a_stream_waits_for_another(how: str) -> None:
    spin, scale = gp.jit(SPIN), gp.jit(SCALE)
    first, second = gp.Stream(), gp.Stream()
    x = gp.ones(N)
    gp.add(x, x)
    gp.synchronize()
    for step in range(5):
        with first:
            spin(BUSY_NS // 5, grid=1, block=1)
            scale(x, 2.0, N)
        second.wait(first.record() if how == "event" else first)
        with second:
            y = x + x
        # And back: the next step must not begin before this one has been read.
        first.wait(second)
        assert (y.to_numpy(stream=second) == 2.0 ** (step + 2)).all()


@pytest.mark.concurrent
def test_a_wait_covers_only_what_came_before_it() -> None:
    first, second, third = gp.Stream(), gp.Stream(), gp.Stream()
    gate, x = Gate(), gp.full(N, 3.0, "float32")
    y = x + x
    gp.synchronize()
    with first:
        z = y + x
    event = first.record()
    gate.close(first, x)
    second.wait(event)
    with second:
        # Were it to wait for all of `first`, it would wait for the gate, which nobody has opened.
        assert (gp.add(z, x).to_numpy() == 12).all()
    gate.open(third)
    gate.check(first, 3)


def test_diamonds_of_streams() -> None:
    rng = np.random.default_rng(0)
    streams = [gp.Stream() for _ in range(4)]
    host = rng.standard_normal(100_003).astype(np.float32)
    x = gp.from_numpy(host)
    total, want = x, host
    for _ in range(20):
        parts = []
        for i, stream in enumerate(streams):
            stream.wait(gp.default_stream())
            with stream:
                parts.append(total * (0.1 * (i + 1)))
        for stream in streams:
            gp.default_stream().wait(stream)
        total = gp.add(gp.add(parts[0], parts[1]), gp.add(parts[2], parts[3]))
        w = [want * np.float32(0.1 * (i + 1)) for i in range(4)]
        want = (w[0] + w[1]) + (w[2] + w[3])
    np.testing.assert_array_equal(total.to_numpy(), want)


def test_events_measure_the_device() -> None:
    spin = gp.jit(SPIN)
    start, middle, end = (gp.Event() for _ in range(3))
    start.record()
    spin(BUSY_NS, grid=1, block=1)
    middle.record()
    end.record()
    end.synchronize()
    assert start.elapsed_ms(middle) > BUSY_NS / 1e6 / 2
    assert start.elapsed_ms(end) >= start.elapsed_ms(middle)
    with pytest.raises(ValueError, match="timing"):
        start.elapsed_ms(gp.Event(timing=False))


def test_priorities() -> None:
    high, normal, low = (gp.Stream(p) for p in ("high", "normal", "low"))
    assert high.priority < normal.priority <= low.priority
    assert gp.Stream(-1000).priority == high.priority
    assert gp.Stream(1000).priority == low.priority
    x = gp.ones(N)
    gp.synchronize()
    for stream in (high, normal, low):
        with stream:
            assert gp.current_stream().id == stream.id
            assert (x + x).to_numpy().sum() == 2 * N


@pytest.mark.concurrent
@pytest.mark.parametrize("n", [1000, 3_000_000])
@pytest.mark.parametrize("home", ["reader", "writer"])
def test_memory_in_use_is_not_given_to_another_stream(n: int, home: str) -> None:
    reader, writer = gp.Stream(), gp.Stream()
    gate = Gate(n)
    pool = gp.memory.MemoryPool(name="reuse")
    with pool, reader if home == "reader" else writer:
        x = gp.full(n, 7.0, "float32")
    gp.synchronize()
    gate.close(reader, x)
    # Dropped while the reader waits at the gate; the writer then takes all the memory of that size it can get.
    del x
    with pool, writer:
        held = [gp.full(n, -1.0 - i, "float32") for i in range(4)]
    gate.open(writer)
    gate.check(reader, 7)
    for i, y in enumerate(held):
        assert (y.to_numpy() == -1.0 - i).all()
    # Once the reader is done, the writer may have it.
    misses = pool.stats()["misses"]
    with pool, writer:
        gp.full(n, 1.0, "float32")
    assert pool.stats()["misses"] == misses


@pytest.mark.pool
@pytest.mark.parametrize("n", [1000, 3_000_000])
def test_a_stream_reuses_its_own_memory_at_once(n: int) -> None:
    stream, other = gp.Stream(), gp.Stream()
    gate = Gate(n)
    pool = gp.memory.MemoryPool(name="reuse")
    with pool, stream:
        x = gp.full(n, 7.0, "float32")
    gp.synchronize()
    gate.close(stream, x)
    del x
    before = pool.stats()["misses"]
    with pool, stream:
        y = gp.full(n, -1.0, "float32")
    assert pool.stats()["misses"] == before
    gate.open(other)
    gate.check(stream, 7)
    assert (y.to_numpy() == -1).all()


@pytest.mark.parametrize("n", [1000, 3_000_000])
def test_recycled_memory_is_safe_on_another_stream(n: int) -> None:
    """A stream reuses its memory at once; another stream that uses the new array must wait for the old work."""
    first, second, third = gp.Stream(), gp.Stream(), gp.Stream()
    gate = Gate(n)
    pool = gp.memory.MemoryPool(name="reuse")
    with pool, first:
        x = gp.full(n, 7.0, "float32")
    gp.synchronize()
    gate.close(first, x)
    del x
    with pool, first:
        y = gp.empty(n)
    with second:
        y.fill(-1.0)
    gate.open(third)
    gate.check(first, 7)
    assert (y.to_numpy(stream=second) == -1).all()


def test_results_dropped_at_once_do_not_disturb_what_is_queued() -> None:
    """Temporaries die long before their kernels have run."""
    spin = gp.jit(SPIN)
    host = np.random.default_rng(1).standard_normal(50_021).astype(np.float32)
    x = gp.from_numpy(host)
    streams = [gp.Stream() for _ in range(3)]
    want = host
    for _ in range(30):
        want = want * np.float32(0.5) + host
    results = []
    for stream in streams:
        stream.wait(gp.default_stream())
        with stream:
            spin(BUSY_NS // 10, grid=1, block=1)
            y = x
            for _ in range(30):
                y = y * 0.5 + x
            results.append(y)
    del y
    for stream, result in zip(streams, results, strict=True):
        np.testing.assert_array_equal(result.to_numpy(stream=stream), want)


def test_threads_have_streams_of_their_own() -> None:
    host = np.random.default_rng(2).standard_normal(20_011).astype(np.float32)
    x = gp.from_numpy(host)
    gp.synchronize()
    device = gp.current_device()
    failures: list[BaseException] = []

    def work(factor: float) -> None:
        try:
            with gp.device(device), gp.Stream() as stream:
                y = x
                for _ in range(50):
                    y = y * factor + x
                want = host
                for _ in range(50):
                    want = want * np.float32(factor) + host
                np.testing.assert_array_equal(y.to_numpy(), want)
                stream.synchronize()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(0.1 * i,)) for i in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
