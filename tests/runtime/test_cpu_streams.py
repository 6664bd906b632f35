"""Streams of the CPU device that several threads share: order, re-entry, errors, and reads that fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native


@pytest.fixture(params=["inline", "deferred"])
def cpu(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    """A CPU device of its own, made current."""
    device = native.open_cpu(1 << 28, None if request.param == "inline" else 7, True)
    with gp.device(device):
        yield device


def run_threads(count: int, work: Callable[[int], None], device: gp.Device) -> None:
    """Run `work(index)` on several threads at once and raise what one of them raised."""
    failures: list[BaseException] = []
    barrier = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            with gp.device(device):
                barrier.wait()
                work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Held:
    """Keeps a stream busy on another thread until it is let go."""

    def __init__(self, device: gp.Device, x: gp.GPUArray, stream: gp.Stream) -> None:
        started, self._release = threading.Event(), threading.Event()
        self.error: BaseException | None = None

        def hold() -> None:
            started.set()
            self._release.wait()

        def run() -> None:
            try:
                with gp.device(device):
                    native.submit_host(hold, [], [x], stream)
            except BaseException as error:
                self.error = error

        self._thread = threading.Thread(target=run)
        self._thread.start()
        started.wait()

    def let_go(self) -> None:
        self._release.set()
        self._thread.join()


@pytest.mark.parametrize("size", [1, 20_000])
def test_updates_from_threads_are_not_lost(cpu: gp.Device, size: int) -> None:
    for _ in range(5):
        x = gp.zeros(size)

        def work(_: int, x: gp.GPUArray = x) -> None:
            for _ in range(60):
                gp.add(x, 1.0, out=x)

        run_threads(4, work, cpu)
        assert set(x.to_numpy().tolist()) == {240}


def test_threads_read_what_they_wrote(cpu: gp.Device) -> None:
    def work(index: int) -> None:
        for step in range(40):
            value = float(index * 1000 + step)
            x = gp.full(100, value)
            assert set(gp.add(x, 1.0).to_numpy().tolist()) == {value + 1}

    run_threads(4, work, cpu)


def test_a_host_function_submits_to_its_own_stream(cpu: gp.Device) -> None:
    x = gp.zeros(4)
    order: list[str] = []

    def outer() -> None:
        native.submit_host(lambda: order.append("inner"), [], [x])
        gp.add(x, 1.0, out=x)
        order.append("outer")

    native.submit_host(outer, [], [x])
    gp.synchronize()
    assert order == ["outer", "inner"]
    assert x.tolist() == [1] * 4


@pytest.fixture
def inline() -> Iterator[gp.Device]:
    """An inline CPU device of its own, made current."""
    device = native.open_cpu(1 << 28, None, True)
    with gp.device(device):
        yield device


def test_work_behind_another_threads_is_not_finished(inline: gp.Device) -> None:
    stream, other = gp.Stream(), gp.Stream()
    x = gp.zeros(4)
    held = Held(inline, x, stream)
    try:
        gp.add(x, 1.0, out=x, stream=stream)
        done = stream.record()
        other.wait(done)
        y = gp.mul(x, 3.0, stream=other)
        assert not stream.query()
        assert not done.query()
        assert not other.query()
    finally:
        held.let_go()
    assert held.error is None
    assert y.to_numpy(stream=other).tolist() == [3] * 4
    assert done.query()


def test_a_read_waits_for_the_thread_that_runs_the_stream(inline: gp.Device) -> None:
    x = gp.zeros(4)
    held = Held(inline, x, gp.default_stream())
    gp.add(x, 1.0, out=x)
    timer = threading.Timer(0.05, held.let_go)
    timer.start()
    assert x.to_numpy().tolist() == [1] * 4
    timer.join()
    assert held.error is None


@pytest.mark.parametrize("ask", ["synchronize", "to_numpy", "query"])
def test_an_error_in_work_that_another_thread_ran(inline: gp.Device, ask: str) -> None:
    x = gp.zeros(4)
    stream = gp.default_stream()
    held = Held(inline, x, stream)

    def fail() -> None:
        raise LookupError("from the queue")

    native.submit_host(fail, [], [x])
    gp.add(x, 1.0, out=x)
    held.let_go()
    # It was not the error of the thread that ran it.
    assert held.error is None
    with pytest.raises(LookupError, match="from the queue"):
        x.to_numpy() if ask == "to_numpy" else getattr(stream, ask)()
    assert x.to_numpy().tolist() == [1] * 4


def test_a_read_that_failed_does_not_write_later() -> None:
    failed = 0
    for seed in range(30):
        with gp.device(native.open_cpu(1 << 28, seed, True)):
            x = gp.full(4, 5.0, "float32")
            y, other = gp.zeros(4), gp.Stream()
            gp.synchronize()

            def fail() -> None:
                raise LookupError("elsewhere")

            # Something before it, so that it may fail while the copy is queued.
            for _ in range(seed % 4):
                gp.add(y, 1.0, out=y, stream=other)
            native.submit_host(fail, [], [y], other)
            target = np.zeros(4, np.float32)
            try:
                native.read_buffer(x, target.view(np.uint8))
            except LookupError:
                failed += 1
                gp.synchronize()
                assert target.tolist() == [0] * 4
            else:
                assert target.tolist() == [5] * 4
                with pytest.raises(LookupError):
                    gp.synchronize()
    assert failed
