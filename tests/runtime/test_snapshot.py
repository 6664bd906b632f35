"""Snapshots of memory: pools, segments, and the lines that made large arrays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pygpukit as gp

MIB = 1 << 20


def test_a_snapshot_shows_pools_and_holders(tmp_path: Path) -> None:
    outer = gp.memory.MemoryPool(quota=64 * MIB, enable_eviction=True, name="outer")
    with outer:
        inner = gp.memory.MemoryPool(enable_eviction=True, name="inner", reserve=MIB)
        with inner:
            x = gp.zeros((4, MIB))
            small = [gp.zeros(10) for _ in range(3)]
    x.pin()
    taken = gp.memory.snapshot()
    pools = {pool["name"]: pool for pool in taken.pools}
    assert pools["inner"]["parent"] == pools["outer"]["id"]
    assert pools["inner"]["reserve"] == MIB
    assert pools["outer"]["quota"] == 64 * MIB
    mine = [segment for segment in taken.segments if segment["pool"] == pools["inner"]["id"]]
    array, slab = sorted(mine, key=lambda segment: -segment["bytes"])
    assert (array["kind"], array["pinned"], array["place"]) == ("array", True, "device")
    # A kernel that was checked before keeps arrays apart from then on, which takes some more.
    assert 16 * MIB <= array["bytes"] <= 18 * MIB
    assert array["label"] == "float32 (4, 1048576)"
    assert (slab["kind"], slab["live"]) == ("slab", len(small))
    x.unpin()
    assert x.evict()
    path = tmp_path / "memory.json"
    later = gp.memory.snapshot()
    assert json.loads(later.to_json(path)) == json.loads(path.read_text())
    table = later.table()
    assert "float32 (4, 1048576)" in table
    assert "host" in table
    assert "3 blocks of " in table
    assert len(gp.memory.snapshot().table(count=1).splitlines()) <= len(table.splitlines())


def test_followed_arrays_name_the_line_that_made_them() -> None:
    assert not gp.memory.follow()
    try:
        with gp.memory.MemoryPool(quota=16 * MIB, name="followed"):
            x = gp.ones((2, MIB))  # the line that is named
            lines = Path(__file__).read_text(encoding="utf-8").splitlines()
            here = f"test_snapshot.py:{next(i for i, text in enumerate(lines, 1) if 'that is named' in text)}"
            labels = [segment["label"] or "" for segment in gp.memory.snapshot().segments]
            assert any(label.endswith(here) for label in labels), labels
            with pytest.raises(gp.OutOfMemoryError, match=here):
                gp.zeros(4 * MIB)
    finally:
        assert gp.memory.follow(False)
    assert x.size == 2 * MIB
