"""Arrays that move to the host when memory is short: same results, same addresses, whatever uses them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import pygpukit as gp

MIB = 1 << 20


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


@pytest.fixture
def pool(device: gp.Device) -> gp.memory.MemoryPool:
    return gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="small")


def host(seed: int, n: int = MIB) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).standard_normal(n).astype(np.float32)


def test_twice_the_quota_gives_the_same_result(pool: gp.memory.MemoryPool) -> None:
    hosts = [host(i) for i in range(8)]
    with pool:
        arrays = [gp.from_numpy(h) for h in hosts]
        assert pool.used <= 16 * MIB
        assert pool.stats()["evicted"] >= 16 * MIB
        total = gp.zeros(MIB)
        for _ in range(2):
            for array in arrays:
                total += array * 0.5
    expected = np.zeros(MIB, np.float32)
    for _ in range(2):
        for h in hosts:
            expected += h * np.float32(0.5)
    np.testing.assert_array_equal(total.to_numpy(), expected)
    for array, h in zip(arrays, hosts, strict=True):
        np.testing.assert_array_equal(array.to_numpy(), h)
    stats = pool.stats()
    assert stats["evictions"] > 0
    assert stats["restores"] > 0


def test_evict_and_come_back(pool: gp.memory.MemoryPool) -> None:
    with pool:
        x = gp.from_numpy(host(1))
    view = x[100:200]
    assert x.is_resident
    assert x.evict()
    assert not x.is_resident
    assert not view.is_resident
    assert pool.used == 0
    np.testing.assert_array_equal(view.to_numpy(), host(1)[100:200])
    assert x.is_resident
    x.evict()
    x.prefetch()
    assert x.is_resident


def test_arrays_whose_address_is_known_stay(pool: gp.memory.MemoryPool) -> None:
    with pool:
        x = gp.from_numpy(host(1))
    x.evict()
    address = x.ptr
    assert x.is_resident
    assert not x.evict()
    assert x.ptr == address
    with (
        pool,
        pytest.raises(gp.OutOfMemoryError, match=r"Not evicted: \d\.0 MiB exported, because their address was read"),
    ):
        gp.zeros(4 * MIB)


def test_pins_count(pool: gp.memory.MemoryPool) -> None:
    with pool:
        x = gp.from_numpy(host(1))
    x.pin()
    x.pin()
    x.unpin()
    assert not x.evict()
    x.unpin()
    assert x.evict()
    with pytest.raises(ValueError, match="not pinned"):
        x.unpin()
    with gp.pinned(x):
        assert x.is_resident
        assert not x.evict()
    assert x.evict()


def test_arrays_of_other_pools_do_not_move() -> None:
    x = gp.zeros(MIB)
    x.pin()
    x.unpin()
    x.prefetch()
    with pytest.raises(ValueError, match="does not evict"):
        x.evict()


def test_graphs_replay_after_their_memory_was_away(pool: gp.memory.MemoryPool) -> None:
    with pool:
        x = gp.from_numpy(host(1))
        graph = gp.CudaGraph()
        with graph.capture():
            middle = x * 2
            result = middle + 1
            del middle
        graph.replay()
        expected = host(1) * np.float32(2) + np.float32(1)
        np.testing.assert_array_equal(result.to_numpy(), expected)
        for _ in range(3):
            filler = [gp.full(2 * MIB, 7.0) for _ in range(2)]
            assert not x.is_resident
            del filler
            x[:] = host(2)
            graph.replay()
            np.testing.assert_array_equal(result.to_numpy(), host(2) * np.float32(2) + np.float32(1))
            x[:] = host(1)
            graph.replay()
            np.testing.assert_array_equal(result.to_numpy(), expected)


def test_a_graph_keeps_the_address_of_an_array_dropped_while_away(pool: gp.memory.MemoryPool) -> None:
    with pool:
        x = gp.from_numpy(host(1, MIB // 2))
        graph = gp.CudaGraph()
        with graph.capture():
            middle = x * 2
            result = middle + 1
        graph.replay()
        assert middle.evict()
        del middle
        others = [gp.full(MIB // 2, float(i)) for i in range(3)]
        graph.replay()
        np.testing.assert_array_equal(result.to_numpy(), host(1, MIB // 2) * np.float32(2) + np.float32(1))
        for i, other in enumerate(others):
            assert (other.to_numpy() == i).all()


def test_kernels_find_their_arrays(pool: gp.memory.MemoryPool) -> None:
    kernel = gp.jit("""extern "C" __global__ void twice(float* x, int n) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < n) x[i] *= 2;
    }""")
    with pool:
        arrays = [gp.from_numpy(host(i)) for i in range(6)]
        for array in arrays:
            kernel(array, MIB)
        for i, array in enumerate(arrays):
            np.testing.assert_array_equal(array.to_numpy(), host(i) * np.float32(2))


def test_small_arrays_move_with_their_neighbours() -> None:
    pool = gp.memory.MemoryPool(quota=4 * MIB, enable_eviction=True)
    with pool:
        small = [gp.full(1000, float(i)) for i in range(100)]
        large = gp.zeros(MIB)
    assert not small[0].is_resident
    for i, array in enumerate(small):
        assert array.to_numpy()[0] == i
    assert not large.is_resident
    assert large.to_numpy().sum() == 0


def test_threads_share_a_quota(pool: gp.memory.MemoryPool, device: gp.Device) -> None:
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with pool, gp.Stream():
                arrays = [gp.from_numpy(host(seed * 10 + i, MIB // 2)) for i in range(6)]
                for _ in range(5):
                    for array in arrays:
                        array += 1.0
                for i, array in enumerate(arrays):
                    expected = host(seed * 10 + i, MIB // 2)
                    for _ in range(5):
                        expected = expected + np.float32(1)
                    np.testing.assert_array_equal(array.to_numpy(), expected)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_one_operation_needs_its_arrays_at_once(pool: gp.memory.MemoryPool) -> None:
    with pool:
        x = gp.zeros(2 * MIB)
        with pytest.raises(gp.OutOfMemoryError, match="quota of 16"):
            x + gp.zeros(2 * MIB)
        assert (x + 1.0).to_numpy()[0] == 1


def test_a_lower_quota_and_a_closed_pool(pool: gp.memory.MemoryPool) -> None:
    with pool:
        arrays = [gp.full(MIB, float(i)) for i in range(4)]
    pool.set_quota(8 * MIB)
    assert pool.used == 8 * MIB
    pool.close()
    for i, array in enumerate(arrays):
        assert array.to_numpy()[5] == i


def test_a_pool_says_whether_it_evicts() -> None:
    assert gp.memory.MemoryPool(enable_eviction=True).enable_eviction
    assert not gp.memory.MemoryPool().enable_eviction
    assert gp.memory.MemoryPool(enable_eviction=True, reserve="1MiB").reserve == MIB


def test_eviction_needs_addresses_that_stay(device: gp.Device) -> None:
    program = "import pygpukit as gp; gp.memory.MemoryPool(enable_eviction=True)"
    environment = {**os.environ, "PYGPUKIT_DEVICE": device.kind, "PYGPUKIT_POOL": "none"}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert "ValueError: pool 'pool' cannot evict" in run.stderr
