"""Chains in real time: the bits of the whole array, late blocks, deadlines that are refused, feeders that stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_chain import RATE, everything, run, sound

import pygpukit as gp
import pygpukit.audio as A
from pygpukit.audio.chain import host
from pygpukit.audio.chain.timing import EDGES, Timing
from pygpukit.errors import DeadlineRefusedError, ParameterError, RingError
from pygpukit.ring import RingKernelRuntime
from pygpukit.ring import device as ring_device
from pygpukit.scheduler import Scheduler

DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    with gp.device(request.param):
        yield request.param


def blocks_of(y: Any, size: int) -> list[Any]:
    return [np.ascontiguousarray(y[:, i : i + size]) for i in range(0, y.shape[1], size)]


class Slow:
    """What delays the blocks of chains that are computed with NumPy: seconds for each, and whether they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.delays: list[float] = []
        self.goes_on = threading.Event()
        self.goes_on.set()
        run_block = host.HostChain.run

        def delayed(chain: Any, x: Any, values: Any) -> Any:
            if self.delays:
                time.sleep(self.delays.pop(0))
            assert self.goes_on.wait(60)
            return run_block(chain, x, values)

        monkeypatch.setattr(host.HostChain, "run", delayed)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def test_blocks_in_real_time_have_the_bits_of_the_whole(device: str) -> None:
    chain, y = everything(2, 32), sound(320, 2)
    y[0, 40] = np.nan
    with chain.realtime(on_late="wait") as rt:
        parts = []
        for i, block in enumerate(blocks_of(y, 32)):
            out = np.empty((2, 32), np.float32) if i % 2 else None
            made = rt.process(block, out=out)
            assert out is None or made is out
            parts.append(made)
        rest = rt.flush()
        stats = rt.stats()
    got = np.concatenate([*parts, rest], axis=1)
    want = run(chain, np.concatenate([y, np.zeros((2, rest.shape[1]), np.float32)], axis=1))
    assert got.tobytes() == want.tobytes()
    assert rest.shape == (2, chain.latency)
    assert stats["blocks"] == 10 + -(-chain.latency // 32)
    assert stats["not_finite"] == 1
    assert stats["skipped"] == 0
    assert stats["histogram"][1].sum() == stats["blocks"]
    assert 0 < stats["device_p50"] <= stats["device_max"]
    assert 0 < stats["p50"] <= stats["p99"] <= stats["max"]
    assert stats["period"] == stats["deadline"] == 32 / RATE


def test_parameters_change_between_blocks_as_in_a_stream(device: str) -> None:
    chain, y = A.Chain(RATE, block=32) | A.Gate(-40) | A.Compressor(-30), sound(128)
    stream, parts = chain.stream(), []
    with chain.realtime(on_late="wait") as rt:
        for i, block in enumerate(blocks_of(y, 32)):
            if i == 2:
                rt.change(1, threshold=-10.0, makeup=6.0)
                stream.change(1, threshold=-10.0, makeup=6.0)
            parts.append((rt.process(block[0]), stream.push(gp.asarray(block[0])).to_numpy()))
        with pytest.raises(ParameterError, match="does not exist"):
            rt.change(0, lookahead=3)
    for got, want in parts:
        assert got.shape == (32,)
        assert got.tobytes() == want.tobytes()


def test_late_blocks_follow_on_late_and_are_counted(slow: Slow) -> None:
    gains = {"bypass": None, "silence": 0.0, "repeat": 2.0, "raise": None}
    for on_late in gains:
        chain = A.Chain(1000, block=64) | A.Convolve([2.0]) | A.Limiter(20, lookahead=0.01)
        with gp.device("cpu"), chain.realtime(on_late=on_late, deadline=0.05) as rt:
            parts: list[Any] = []
            y = np.arange(5 * 64, dtype=np.float32).reshape(5, 64) / 320
            for i, block in enumerate(y):
                slow.delays = [0.12] if i == 2 else []
                if on_late == "raise" and i == 2:
                    with pytest.raises(TimeoutError, match="deadline is 50 ms"):
                        rt.process(block)
                    parts.append(None)
                else:
                    made = rt.process(block)
                    parts.append(made.copy())
                    # What was returned is the caller's.
                    made[:] = 7
                if i == 2:
                    time.sleep(0.1)
            stats = rt.stats()
        want = np.concatenate([np.zeros(10), 2.0 * y.reshape(-1)])[: y.size].reshape(5, 64)
        # A machine that stands still makes other blocks late.
        if stats["late"] == 1:
            for i in (0, 1, 3, 4):
                np.testing.assert_allclose(parts[i], want[i], atol=1e-6, err_msg=f"{on_late} {i}")
            if on_late == "bypass":
                np.testing.assert_array_equal(parts[2], np.concatenate([y[1, -10:], y[2, :-10]]))
            elif on_late == "silence":
                assert not parts[2].any()
            elif on_late == "repeat":
                np.testing.assert_array_equal(parts[2], parts[1])
        assert stats["late"] >= 1
        assert stats["blocks"] == 5
        assert stats["skipped"] == 0


def test_an_actor_that_stands_still_loses_nothing_that_it_took(slow: Slow) -> None:
    chain = A.Chain(1000, block=16) | A.Convolve([1.0])
    with gp.device("cpu"), chain.realtime(on_late="silence", deadline=0.002) as rt:
        slow.goes_on.clear()
        made = [rt.process(np.full(16, i + 1, np.float32)) for i in range(12)]
        stats = rt.stats()
        # Eight are with it, and further ones are not given to it.
        assert (stats["late"], stats["skipped"], stats["processed"]) == (12, 4, 0)
        assert not np.array(made).any()
        slow.goes_on.set()
        sent, last = 0, np.zeros(16)
        while not last.any() and sent < 1000:
            time.sleep(0.01)
            last = rt.process(np.full(16, 99, np.float32))
            sent += 1
        stats = rt.stats()
        assert stats["processed"] == 12 + sent - stats["skipped"]
    np.testing.assert_allclose(last, 99, rtol=1e-5)


def test_a_feeder_that_stops_is_a_gap_and_no_late_block() -> None:
    chain = A.Chain(1000, block=16) | A.Highpass(50)
    y = sound(96)
    with gp.device("cpu"), chain.realtime(on_late="wait") as rt:
        parts = [rt.process(block) for block in blocks_of(y[:, :48], 16)]
        before = rt.stats()["gaps"]
        time.sleep(0.1)
        parts += [rt.process(block) for block in blocks_of(y[:, 48:], 16)]
        assert rt.stats()["gaps"] > before
    with gp.device("cpu"):
        assert np.concatenate(parts, axis=1).tobytes() == run(chain, y).tobytes()


def test_a_closed_chain_says_so(device: str) -> None:
    chain = A.Chain(RATE, block=16) | A.Gate()
    rt = chain.realtime(on_late="wait")
    rt.process(np.zeros(16, np.float32))
    rt.close()
    rt.close()
    with pytest.raises(RingError, match="was closed"):
        rt.process(np.zeros(16, np.float32))
    assert rt.stats()["blocks"] == 1
    rt.reset_stats()
    assert rt.stats()["blocks"] == rt.stats()["histogram"][1].sum() == 0
    # The deadline was given back.
    with chain.realtime(on_late="wait", cost=0.0005):
        pass


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"deadline": 1.0}, DeadlineRefusedError, "deadline 1000 ms > period 2 ms of 16 samples"),
        ({"deadline": 0.001, "cost": 0.0015}, DeadlineRefusedError, "cost 1.5 ms of a block > deadline 1 ms"),
        ({"deadline": float("nan")}, ParameterError, "deadline is nan"),
        ({"deadline": 0}, ParameterError, "deadline is 0"),
        ({"cost": -1}, ParameterError, "cost is -1"),
        ({"on_late": "panic"}, ParameterError, "on_late is 'panic'"),
    ],
)
def test_a_deadline_that_cannot_be_held_is_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with gp.device("cpu"), pytest.raises(error, match=text):
        (A.Chain(8000, block=16) | A.Gate()).realtime(**options)


def test_the_scheduler_refuses_what_others_have_taken() -> None:
    chain = A.Chain(8000, block=160) | A.Gate()
    with gp.device("cpu"):
        scheduler = Scheduler()
        with scheduler.task(policy="guaranteed", deadline=0.02, period=0.02, cost=0.017):
            with pytest.raises(DeadlineRefusedError, match=r"was rejected: .* > .*; asked: cost 5 ms in each 20 ms"):
                chain.realtime(cost=0.005, scheduler=scheduler)
            with chain.realtime(scheduler=scheduler) as rt:
                assert rt.stats()["cost"] is None
        with chain.realtime(cost=0.005, scheduler=scheduler):
            rows = [row for row in scheduler.status()["tasks"] if row["name"] == "audio chain"]
            assert len(rows) == 1
            assert rows[0]["policy"] == "guaranteed"
        # It asks nothing, and is given nothing.
        full = scheduler.task(policy="guaranteed", deadline=0.02, period=0.02, cost=0.017)
        with full, chain.realtime(cost=0.005, scheduler=scheduler, reserve=False) as rt:
            assert [row["name"] for row in scheduler.status()["tasks"]] == ["block"]
            assert rt.process(np.zeros(160, np.float32)).shape == (160,)
        assert scheduler.shutdown(timeout=5)


@pytest.mark.parametrize(
    ("block", "text"),
    [
        (lambda: np.zeros(16), "block is float64"),
        (lambda: [0.0] * 16, "block is list"),
        (lambda: np.zeros(16, np.int16), "block is int16"),
        (lambda: np.zeros(15, np.float32), r"block has shape \(15,\); the chain takes \(1, 16\)"),
        (lambda: np.zeros((2, 16), np.float32), r"block has shape \(2, 16\)"),
    ],
)
def test_a_block_of_another_kind_is_refused(block: Callable[[], Any], text: str) -> None:
    with gp.device("cpu"), (A.Chain(8000, block=16) | A.Gate()).realtime(on_late="wait") as rt:
        with pytest.raises(ParameterError, match=text):
            rt.process(block())
        with pytest.raises(ParameterError, match="out is float64"):
            rt.process(np.zeros(16, np.float32), out=np.zeros(16))
        assert rt.process(np.zeros(16, np.float32)).shape == (16,)


def test_a_block_that_no_message_holds_is_refused() -> None:
    with gp.device("cpu"), pytest.raises(ParameterError, match="in real time use blocks of up to 505"):
        (A.Chain(48000, channels=2, block=1024) | A.Gate()).realtime()
    with gp.device("cpu"), (A.Chain(48000, channels=2, block=505) | A.Gate()).realtime(on_late="wait") as rt:
        assert rt.process(np.zeros((2, 505), np.float32)).shape == (2, 505)


def test_a_picture_needs_no_block(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with gp.device("cpu"), (A.Chain(8000, block=16) | A.Gate()).realtime(on_late="wait") as rt:
        rt.save_plot(tmp_path / "none.png")
        rt.process(np.zeros(16, np.float32))
        rt.save_plot(tmp_path / "one.svg", "a title")
    assert (tmp_path / "none.png").stat().st_size > 1000
    assert "</svg>" in (tmp_path / "one.svg").read_text()


def test_times_are_counted_in_decades() -> None:
    timing = Timing(0.001, 0.002)
    for i, took in enumerate([1e-7, 5e-4, 5e-4, 2e-3, 100.0]):
        timing.note(float(i), took, took > 0.001)
    timing.note_device(3000)
    figures = timing.figures()
    counts = figures["histogram"][1]
    assert counts[0] == counts[-1] == 1
    assert counts.sum() == 5
    assert len(counts) == len(EDGES) - 1
    assert counts[np.searchsorted(EDGES, 5e-4, side="right") - 1] == 2
    assert (figures["blocks"], figures["late"], figures["max"], figures["p50"]) == (5, 2, 100.0, 5e-4)
    assert figures["gaps"] == 4
    assert figures["device_max"] == 3e-6


@pytest.mark.nvrtc
def test_the_handlers_threads_do_not_race(monkeypatch: pytest.MonkeyPatch) -> None:
    def fuzzed(source: str, **options: Any) -> Any:
        return gp.jit(source, **options, check="fuzz", seed=3)

    monkeypatch.setattr(ring_device, "jit", fuzzed)
    with gp.device("emulated"):
        chain, y = everything(2, 32), sound(96, 2)
        with chain.realtime(on_late="wait") as rt:
            got = np.concatenate([rt.process(block) for block in blocks_of(y, 32)], axis=1)
            assert rt.stats()["processed"] == 3
        assert got.tobytes() == run(chain, y).tobytes()


@pytest.mark.nvrtc
def test_a_device_actor_lives_on_the_sms_of_its_task() -> None:
    with gp.device("emulated"):
        if gp.get_device_info()["sm_count"] < 2:
            pytest.skip("one processor cannot be divided into lanes")
        scheduler = Scheduler()
        chain, y = A.Chain(RATE, block=160) | A.Gate(-30), sound(320)
        with chain.realtime(cost=0.001, on_late="wait", scheduler=scheduler) as rt:
            parts = [rt.process(block) for block in blocks_of(y, 160)]
            (row,) = [row for row in scheduler.status()["tasks"] if row["name"] == "audio chain"]
            assert row["mode"] == "own lane"
        assert np.concatenate(parts, axis=1).tobytes() == run(chain, y).tobytes()
        for options in ({"task": object()}, {"sms": 1}, {"isolation": "process"}):
            with scheduler.task() as task, pytest.raises(RingError, match="task is a running task of a scheduler"):
                RingKernelRuntime(**{"task": task, **options})
        assert scheduler.shutdown(timeout=5)
