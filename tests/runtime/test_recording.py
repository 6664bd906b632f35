"""Recorded memory: events that add up, JSON that reads back, tables, pictures, peaks and the report of leaks."""

from __future__ import annotations

import gc
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.core.recording import KINDS, Event, load
from pygpukit.core.timeline import Balance, Timeline, byte_axis, time_axis

MIB = 1 << 20


def busy(rounds: int = 3) -> gp.memory.Recording:
    """A recording with two pools, moves, a refusal and a changed quota."""
    with gp.memory.record() as recording:
        outer = gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="busy outer")
        with outer:
            inner = gp.memory.MemoryPool(quota=8 * MIB, enable_eviction=True, name="in<n>er & co")
            arrays = [gp.full(MIB, float(i), "float32") for i in range(6)]
            with inner:
                arrays += [gp.full(MIB, float(i), "float32") for i in range(3)]
                small = [gp.zeros(10) for _ in range(3)]
            for _ in range(rounds):
                for array in arrays:
                    array += 1
            with inner, pytest.raises(gp.OutOfMemoryError):
                gp.zeros(4 * MIB)
            inner.set_quota(4 * MIB)
            inner.set_quota(None)
        assert arrays[2].to_numpy()[0] == 2 + rounds
        del array, arrays, small
        gp.synchronize()
    return recording


@pytest.fixture(scope="module")
def recording() -> gp.memory.Recording:
    return busy()


def test_events_add_up(recording: gp.memory.Recording) -> None:
    names = {name: pool for pool, name in recording.pools.items()}
    outer, inner = names["busy outer"], names["in<n>er & co"]
    assert recording.parents[inner] == outer
    balance = Balance()
    below: Counter[int] = Counter()
    for event in recording.events:
        change, _ = balance.apply(event)
        below[outer] += change if event.pool == inner else 0
        if event.pool in (outer, inner) and event.kind != "return":
            assert event.used == balance.device[event.pool] + below[event.pool]
            assert event.used <= (16 if event.pool == outer else 8) * MIB
        assert min(balance.device[event.pool], balance.host[event.pool]) >= 0
    assert balance.device[outer] == balance.device[inner] == balance.host[outer] == balance.host[inner] == 0
    kinds = Counter(event.kind for event in recording.events)
    assert min(kinds["evict"], kinds["restore"]) > 3
    assert kinds["refuse"] == kinds["unlimit"] == 1
    assert recording.peak[outer] == 16 * MIB
    assert 4 * MIB <= recording.peak[inner] <= 8 * MIB
    assert [event.time for event in recording.events] == sorted(event.time for event in recording.events)
    assert recording.events[-1].time <= recording.seconds * 1e9


def test_what_was_there_before_counts() -> None:
    pool = gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="before")
    with pool:
        here, away = gp.ones(MIB), gp.ones(2 * MIB)
    assert away.evict()
    recording = gp.memory.record()
    away.prefetch()
    del here
    recording.stop()
    recording.stop()
    (number,) = (number for number, name in recording.pools.items() if name == "before")
    mine = [(event.kind, event.on_host, event.bytes) for event in recording.events if event.pool == number]
    assert mine == [
        ("held", False, 4 * MIB),
        ("held", True, 8 * MIB),
        ("quota", False, 16 * MIB),
        ("restore", True, 8 * MIB),
        ("free", False, 4 * MIB),
    ]
    assert recording.peak[number] == 12 * MIB
    assert away.size == 2 * MIB


def test_threads_record_together() -> None:
    def work() -> None:
        for size in range(1, 200):
            gp.empty(size * 10)

    before = gp.memory.get_default_pool().used
    with gp.memory.record() as recording:
        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    balance = Balance()
    for event in recording.events:
        balance.apply(event)
    kinds = Counter(event.kind for event in recording.events)
    assert kinds["allocate"] == kinds["free"] == 4 * 199
    gc.collect()
    assert sum(balance.device.values()) == before


def test_one_recording_at_a_time() -> None:
    recording = gp.memory.record()
    with pytest.raises(ValueError, match="still running"):
        _ = recording.events
    assert "running" in repr(recording)
    with pytest.raises(ValueError, match="already"):
        gp.memory.record()
    del recording
    gc.collect()
    with gp.memory.record() as recording:
        pass
    assert "events" in repr(recording)


def test_a_limit_drops_and_says_so() -> None:
    with gp.memory.record(limit=10) as recording:
        for _ in range(20):
            gp.empty(10)
    assert recording.dropped >= 30
    assert f"{recording.dropped} more" in recording.table()
    assert "later events are missing" in Timeline(recording).subtitle


def test_table_and_json(recording: gp.memory.Recording, tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    assert json.loads(recording.to_json(path)) == json.loads(path.read_text())
    again = gp.memory.Recording.from_json(path)
    for name in ("device", "pools", "parents", "events", "seconds", "dropped", "peak"):
        assert getattr(again, name) == getattr(recording, name)
    assert again.table() == recording.table() == load(path).table()
    lines = recording.table().splitlines()
    (outer,) = (line for line in lines if line.startswith("busy outer"))
    assert outer.split()[2:4] == ["16.0", "MiB"]
    assert len(recording.table(count=1).splitlines()) < len(lines)


def svgs(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]


def test_the_page_stands_alone(recording: gp.memory.Recording, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    path = tmp_path / "picture.html"
    recording.plot(path)
    page = path.read_bytes().decode("ascii")
    assert not re.search(r"<script|<link|src=|href=|https?:|@import|url\(", page)
    assert "in&lt;n&gt;er &amp; co" in page
    assert "<n>" not in page
    for text in ("MiB on the device", "MiB on the host", "quota of busy outer (16.0 MiB)", "refused", "time ("):
        assert text in page
    device, host, rows = svgs(page)
    numbers = [
        float(n)
        for svg in (device, host, rows)
        for path in svg.iter("path")
        for n in re.findall(r"[\d.]+", path.attrib["d"])
    ]
    assert all(0 <= number <= 900 for number in numbers)
    moves = [event for event in recording.events if event.kind in ("evict", "restore")]
    marks = [path.attrib["d"].count("M") for path in rows.iter("path") if "stroke-width" in path.attrib]
    assert sum(marks) == len(moves)
    with pytest.raises(gp.errors.MissingPackageError, match=r"pygpukit\[plot\]"):
        recording.plot(tmp_path / "picture.png")
    assert not (tmp_path / "picture.png").exists()


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_matplotlib_draws_it(recording: gp.memory.Recording, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"picture{suffix}"
    recording.plot(path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert len(data) > 10_000
    with pytest.raises(ValueError, match="not supported"):
        recording.plot(tmp_path / "picture.doc")


def test_a_recording_of_nothing_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    empty = {"device": "d", "nanoseconds": 0, "dropped": 0, "pools": [], "columns": list(Event._fields), "events": []}
    path = tmp_path / "empty.json"
    path.write_text(json.dumps(empty))
    recording = gp.memory.Recording.from_json(path)
    for name in ("empty.html", "empty.png"):
        recording.plot(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 500
    assert "0 events" in recording.table()


def made(
    tmp_path: Path, events: list[tuple[Any, ...]], pools: int = 1, nanoseconds: int = 10**9
) -> gp.memory.Recording:
    """A recording from its events, as a file brings it."""
    content = {
        "device": "made up",
        "nanoseconds": nanoseconds,
        "dropped": 0,
        "pools": [{"id": i + 1, "name": f"p{i + 1}", "parent": None if i == 0 else 1} for i in range(pools)],
        "columns": list(Event._fields),
        "events": events,
    }
    path = tmp_path / "made.json"
    path.write_text(json.dumps(content))
    return gp.memory.Recording.from_json(path)


def test_many_events_are_sampled_with_their_peaks(tmp_path: Path) -> None:
    events: list[tuple[Any, ...]] = []
    for i in range(5000):
        events.append((i * 200_000, "allocate", False, 1 + i % 12, i * 256, MIB if i == 2500 else 1024, 0))
        events.append((i * 200_000 + 50, "free", False, 1 + i % 12, i * 256, MIB if i == 2500 else 1024, 0))
    timeline = Timeline(made(tmp_path, events, pools=12))
    assert len(timeline.times) <= 2100
    assert timeline.times == sorted(timeline.times)
    assert timeline.top == MIB
    assert len(timeline.bands) == 9
    assert timeline.bands[-1].name == "4 other pools"
    assert all(values[-1] == 0 for values in (band.values for band in timeline.bands))


def test_many_moves_become_rates(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    events: list[tuple[Any, ...]] = [(i, "allocate", False, 1, i << 21, 2 * MIB, 0) for i in range(100)]
    events += [(i * 10**6, "evict", False, 1, i << 21, 2 * MIB, 0) for i in range(100)]
    events += [(i * 10**6 + 10**8, "restore", True, 1, i << 21, 2 * MIB, 0) for i in range(100)]
    recording = made(tmp_path, sorted(events))
    timeline = Timeline(recording)
    assert not timeline.rows
    assert sum(span[2] for span in timeline.rates) == sum(span[3] for span in timeline.rates) == 200 * MIB
    for name in ("rates.html", "rates.png"):
        recording.plot(tmp_path / name)
    assert "MiB moved" in (tmp_path / "rates.html").read_text()


def test_rows_follow_a_segment(tmp_path: Path) -> None:
    events = [
        (10, "allocate", False, 1, 4096, 4 * MIB, 0),
        (20, "evict", False, 1, 4096, 4 * MIB, 0),
        (40, "restore", True, 1, 4096, 4 * MIB, 0),
        (60, "free", False, 1, 4096, 4 * MIB, 0),
        (70, "restore", True, 1, 8192, 2 * MIB, 0),
    ]
    first, second = Timeline(made(tmp_path, events, nanoseconds=100)).rows
    assert [(round(a * 1e9), round(b * 1e9), host) for a, b, host in first.bars] == [
        (10, 20, False),
        (20, 40, True),
        (40, 60, False),
    ]
    assert [(round(a * 1e9), round(b * 1e9), host) for a, b, host in second.bars] == [(0, 70, True), (70, 100, False)]


def test_quota_lines_stand_on_what_lies_below(tmp_path: Path) -> None:
    events = [
        (0, "quota", False, 2, 0, 4096, 0),
        (10, "allocate", False, 1, 256, 1024, 0),
        (20, "allocate", False, 2, 512, 2048, 0),
        (30, "quota", False, 2, 0, 3072, 0),
        (40, "unlimit", False, 2, 0, 0, 0),
    ]
    timeline = Timeline(made(tmp_path, events, pools=2, nanoseconds=50))
    (line,) = timeline.quotas
    assert line.values == [4096, 5120, 5120, 4096, None, None]
    assert line.label == "quota of p2 (changing)"
    assert timeline.top == 5120


def test_the_quota_of_pools_that_are_drawn_together(tmp_path: Path) -> None:
    events: list[tuple[Any, ...]] = [(0, "quota", False, pool, 0, 16 * MIB, 0) for pool in (1, 2)]
    events += [(i, "allocate", False, 2 + i, i << 21, MIB, 0) for i in range(10)]
    timeline = Timeline(made(tmp_path, events, pools=12))
    assert [line.label for line in timeline.quotas] == ["quota of p1 (16.0 MiB)", "quota of p2 (16.0 MiB)"]
    events += [(10, "allocate", False, 1, 99 << 21, MIB // 2, 0)]
    timeline = Timeline(made(tmp_path, events, pools=12))
    assert [line.label for line in timeline.quotas] == ["quota of p1 (16.0 MiB)", "quota of p2 (16.0 MiB)"]


@given(st.integers(1, 2**60), st.integers(2, 6))
def test_byte_axes(top: int, count: int) -> None:
    unit, _, marks = byte_axis(top, count)
    assert marks[0] == 0
    assert 1 <= len(marks) <= count + 1
    assert marks[-1] <= top
    assert unit <= top or unit == 1


@given(st.floats(0, 1e6))
def test_time_axes(seconds: float) -> None:
    factor, unit, ticks = time_axis(seconds)
    assert unit in ("us", "ms", "s")
    assert len(ticks) <= 10
    assert ticks[-1] <= seconds * factor * 1.001


VALUES = st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats() | st.text(max_size=5)
JSON = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8), inner))


@settings(max_examples=200)
@given(
    st.sampled_from(["device", "nanoseconds", "dropped", "pools", "columns", "events", "row", "pool", "all"]),
    JSON,
    st.data(),
)
def test_a_wrong_file_is_a_load_error(
    tmp_path_factory: pytest.TempPathFactory, where: str, value: Any, data: st.DataObject
) -> None:
    pool = {"id": 1, "name": "p", "parent": None}
    row: list[Any] = [5, "allocate", False, 1, 256, 256, 256]
    content: Any = {
        "device": "d",
        "nanoseconds": 10,
        "dropped": 0,
        "pools": [pool],
        "columns": list(Event._fields),
        "events": [row],
    }
    if where == "row":
        row[data.draw(st.integers(0, 6))] = value
    elif where == "pool":
        pool[data.draw(st.sampled_from(sorted(pool)))] = value
    elif where == "all":
        content = value
    else:
        content[where] = value
    folder = tmp_path_factory.getbasetemp()
    path = folder / "wrong.json"
    path.write_text(json.dumps(content))
    try:
        recording = gp.memory.Recording.from_json(path)
    except gp.LoadError as error:
        assert str(path) in str(error)  # noqa: PT017
        return
    recording.table()
    recording.plot(folder / "wrong.html")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("[1, 2]", "not an object"),
        ("[" * 100_000, "no JSON"),
        ('{"pools": []}', "has no 'columns'"),
        ('{"pools": [{"id": 1, "name": "p", "parent": 1}]}', "around it"),
        ('{"pools": [3]}', "a pool is no object"),
        ('{"pools": 3}', "not iterable"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(text)
    with pytest.raises(gp.LoadError, match=reason):
        gp.memory.Recording.from_json(path)
    with pytest.raises(gp.LoadError, match="cannot read"):
        gp.memory.Recording.from_json(tmp_path / "missing.json")


def test_a_snapshot_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.json"
    with gp.memory.MemoryPool(quota=MIB, name="a\x1b[2Jb"):
        x = gp.ones(10)
        taken = gp.memory.snapshot()
    taken.to_json(path)
    again = gp.memory.Snapshot.from_json(path)
    assert again.segments == taken.segments
    assert "a?[2Jb" in again.table()
    content = json.loads(path.read_text())
    for part, key, value in (
        ("pools", "used", -1),
        ("segments", "live", "x"),
        ("segments", "pinned", 0),
        ("pools", "quota", []),
    ):
        wrong = json.loads(json.dumps(content))
        wrong[part][0][key] = value
        path.write_text(json.dumps(wrong))
        with pytest.raises(gp.LoadError, match=r"not a snapshot"):
            gp.memory.Snapshot.from_json(path)
    assert x.size == 10


def test_kinds_are_those_of_the_core(recording: gp.memory.Recording) -> None:
    assert {event.kind for event in recording.events} <= set(KINDS)
    first = next(event for event in recording.events if event.kind == "allocate")
    assert first.bytes == 4 * MIB
    assert first.address > 0


def test_peaks_are_reset() -> None:
    with gp.memory.MemoryPool(name="peaks") as pool:
        x = gp.empty(MIB)
        del x
        assert (pool.used, pool.stats()["peak"]) == (0, 4 * MIB)
        y = gp.empty(10)
        gp.memory.reset_peak()
        assert pool.stats()["peak"] == pool.used == 256
        pool.reset_peak()
        del y
        assert gp.memory.stats()["peak"] == 256


LEAKING = """
import sys
import pygpukit as gp
pool = gp.memory.MemoryPool(name="mine")
kept = gp.zeros((1024, 1024))
with pool:
    many = [gp.zeros((2048, 1024)) for _ in range(25)] + [gp.zeros(10) for _ in range(5)]
circle = [gp.zeros((4096, 1024))]
circle.append(circle)
del circle
sys.stderr = sys.stdout
sys.exit(STATUS)
"""


def test_the_report_at_exit(run_python: Callable[..., str]) -> None:
    text = run_python(LEAKING.replace("STATUS", "0"), PYGPUKIT_LEAKS="1")
    lines = text.splitlines()
    assert lines[0] == "pygpukit: 31 arrays, 204.0 MiB alive at exit on <Device cpu>"
    assert lines[1] == "  pool 'mine': 30 arrays, 200.0 MiB"
    assert lines[2] == "       8.0 MiB  float32 (2048, 1024) made at <string>:7"
    assert "      40.0 MiB  in 5 more" in lines
    assert "       1.2 KiB  in 5 arrays of at most 1 MiB each" in lines
    assert lines[-2:] == [
        "  pool 'default': 1 array, 4.0 MiB",
        "       4.0 MiB  float32 (1024, 1024) made at <string>:5",
    ]
    assert run_python(LEAKING.replace("STATUS", "0")) == ""
    with pytest.raises(AssertionError, match="exit status 3"):
        run_python(LEAKING.replace("STATUS", "3"), PYGPUKIT_LEAKS="1")


def test_nothing_alive_is_said_too(run_python: Callable[..., str]) -> None:
    program = "import sys, pygpukit as gp\nsys.stderr = sys.stdout\nx = gp.ones(10)\nprint(gp.sum(x + x).item())\ndel x"
    assert run_python(program, PYGPUKIT_LEAKS="1").splitlines() == [
        "20.0",
        "pygpukit: no array is alive at exit on <Device cpu>",
    ]
    assert run_python("import sys, pygpukit\nsys.stderr = sys.stdout", PYGPUKIT_LEAKS="1") == ""


def test_a_forked_child_reports_nothing(run_python: Callable[..., str]) -> None:
    program = """
import os, sys, pygpukit as gp
x = gp.ones((1024, 1024))
sys.stderr = sys.stdout
child = os.fork()
if child:
    os.waitpid(child, 0)
"""
    assert run_python(program, PYGPUKIT_LEAKS="1").count("alive at exit") == 1


def test_wrong_arguments_are_named() -> None:
    for limit in (-1, 1 << 64):
        with pytest.raises(ValueError, match=f"the limit must be a number of events .* but it is {limit}"):
            gp.memory.record(limit=limit)
    for call in (gp.memory.record, gp.memory.snapshot):
        with pytest.raises(TypeError, match=r"a Device is needed, .* but it is 5"):
            call(5)  # type: ignore[arg-type]
