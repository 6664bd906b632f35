"""Memory that is held for a pool, on the host's budget and on the device, whatever others do."""

from __future__ import annotations

import numpy as np
import pytest

import pygpukit as gp

MIB = 1 << 20
# A little less than 4 MiB of float32: where kernels were checked before, arrays are kept apart.
N = MIB - 1000


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


def test_a_guarantee_is_held_from_the_beginning_to_the_end() -> None:
    around = gp.memory.MemoryPool(quota="96MiB", name="around")
    with around:
        safe = gp.memory.MemoryPool(guarantee="64MiB", name="safe")
        other = gp.memory.MemoryPool(name="other")
    assert safe.guarantee == around.used == 64 * MIB
    assert safe.stats()["held"] == 64 * MIB
    with other:
        hog = gp.zeros(8 * N)
        with pytest.raises(gp.OutOfMemoryError, match=r"pool 'around' uses 96.0 MiB of its quota of 96.0 MiB"):
            gp.zeros(1)
    with safe:
        arrays = [gp.full(2 * N, float(i), dtype="float32") for i in range(8)]
        assert safe.stats()["held"] == 0
        assert around.used == 96 * MIB
        assert [array[-1].item() for array in arrays] == list(range(8))
        with pytest.raises(gp.OutOfMemoryError):
            gp.zeros(N)
    del hog, arrays
    safe.close()
    assert around.used == safe.guarantee == 0
    del safe, other, around
    gp.memory.trim()


def test_a_guarantee_that_cannot_be_held_is_refused() -> None:
    pool = gp.memory.MemoryPool(quota="8MiB")
    with pool:
        x = gp.zeros(N)
        with pytest.raises(gp.OutOfMemoryError, match=r"requested 6.0 MiB, but pool 'pool' uses 4.0 MiB"):
            gp.memory.MemoryPool(guarantee=5 * MIB)
        with pytest.raises(ValueError, match=r"guarantee of 4194304 bytes .* above its quota of 2097152 bytes"):
            gp.memory.MemoryPool(quota="2MiB", guarantee="4MiB")
    assert pool.used == 4 * MIB
    assert x.is_resident
    with pytest.raises(ValueError, match="a lot"):
        gp.memory.MemoryPool(guarantee="a lot")


def test_others_evict_down_to_a_guarantee_and_no_further() -> None:
    card = gp.memory.MemoryPool(quota="32MiB", enable_eviction=True, name="card")
    with card:
        safe = gp.memory.MemoryPool(enable_eviction=True, guarantee="16MiB", name="safe")
        plain = gp.memory.MemoryPool(enable_eviction=True, name="plain")
    with safe:
        kept = [gp.full(N, float(i), dtype="float32") for i in range(6)]
    with plain:
        others = [gp.full(N, 100.0 + i, dtype="float32") for i in range(8)]
    assert sum(array.is_resident for array in kept) == 4
    for i, array in enumerate(kept):
        np.testing.assert_array_equal(array.to_numpy(), np.full(N, i, np.float32))
    for i, array in enumerate(others):
        np.testing.assert_array_equal(array.to_numpy(), np.full(N, 100 + i, np.float32))


def test_a_host_quota_bounds_what_is_evicted() -> None:
    pool = gp.memory.MemoryPool(quota="8MiB", enable_eviction=True, host_quota="4MiB", name="bounded")
    assert pool.host_quota == 4 * MIB
    with pool:
        arrays = [gp.full(N, float(i), dtype="float32") for i in range(3)]
        assert pool.stats()["host"] == 4 * MIB
        with pytest.raises(gp.OutOfMemoryError, match=r"uses 4.0 MiB of its host quota of 4.0 MiB. Raise host_quota"):
            gp.zeros(N)
    arrays.pop()
    assert [array[-1].item() for array in arrays] == [0.0, 1.0]


def test_page_locked_memory_is_made_ahead_of_need() -> None:
    gp.memory.trim_pinned()
    before = gp.memory.pinned_stats()
    held = before["used"] + before["cached"]
    assert gp.memory.prepin(held + 6 * MIB) == 6 * MIB
    assert gp.memory.prepin(held + 6 * MIB) == 0
    after = gp.memory.pinned_stats()
    assert after["cached"] == before["cached"] + 6 * MIB
    with pytest.raises(gp.OutOfMemoryError, match="PYGPUKIT_PINNED_LIMIT"):
        gp.memory.prepin(after["limit"] + 1)
    gp.memory.trim_pinned()
