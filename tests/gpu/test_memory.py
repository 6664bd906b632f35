"""Device memory: pools against the driver's own figures, the real limit, and runs without a pool."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import pygpukit as gp

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("cuda")]

MIB = 1 << 20
# What else the driver may take or give back meanwhile.
SLACK = 64 * MIB


def free() -> int:
    return gp.current_device().memory_info()[0]


@pytest.mark.pool
def test_large_arrays_come_from_the_device_and_go_back() -> None:
    gp.synchronize()
    gp.memory.trim()
    before = free()
    pool = gp.memory.MemoryPool(name="large")
    with pool:
        arrays = [gp.zeros(256 * MIB // 4) for _ in range(4)]
    gp.synchronize()
    assert pool.used == 1024 * MIB
    assert before - free() == pytest.approx(1024 * MIB, abs=SLACK)
    del arrays
    assert pool.used == 0
    assert pool.cached == 1024 * MIB
    assert before - free() == pytest.approx(1024 * MIB, abs=SLACK)
    gp.synchronize()
    pool.trim()
    assert pool.cached == 0
    assert abs(before - free()) <= SLACK


@pytest.mark.pool
def test_statistics_count_what_happens() -> None:
    pool = gp.memory.MemoryPool("64MiB", name="counted")
    with pool:
        small = [gp.zeros(1000) for _ in range(10)]
        large = gp.zeros(3 * MIB)
    stats = pool.stats()
    assert stats["allocations"] == stats["live"] == 11
    assert stats["misses"] == 2, "one slab and one large block"
    assert stats["used"] == 10 * 4096 + 12 * MIB
    assert stats["peak"] == stats["used"]
    assert stats["available"] == 64 * MIB - stats["used"]
    assert stats["reserved"] == stats["used"] + stats["cached"]
    assert pool.top_holders(1)[0][0] == 12 * MIB
    del small, large
    with pool:
        gp.zeros(1000)
        gp.zeros(3 * MIB)
    stats = pool.stats()
    assert stats["misses"] == 2
    assert stats["hit_rate"] == pytest.approx(11 / 13)
    assert stats["used"] == stats["live"] == 0
    assert stats["frees"] == 13


def test_nested_quotas_on_the_device() -> None:
    outer = gp.memory.MemoryPool("32MiB", name="outer")
    with outer:
        inner = gp.memory.MemoryPool("1GiB", name="inner")
        with inner:
            held = gp.zeros(6 * MIB)
            with pytest.raises(gp.OutOfMemoryError, match=r"'outer'.*24\.0 MiB.*32\.0 MiB"):
                gp.zeros(3 * MIB)
            del held
            gp.zeros(7 * MIB)
    assert outer.stats()["peak"] == 28 * MIB


@pytest.mark.pool
def test_steady_state_asks_the_driver_for_nothing() -> None:
    rng = np.random.default_rng(4)
    sizes = [int(n) for n in np.exp(rng.uniform(np.log(100), np.log(4e6), 200))]
    pool = gp.memory.MemoryPool(name="steady")
    misses = set()
    with pool:
        for _ in range(3):
            x = [gp.empty(n, "uint8") for n in sizes]
            misses.add(pool.stats()["misses"])
            del x
            for n in sizes:
                gp.empty(n, "uint8").fill(1)
    assert misses == {pool.stats()["misses"]}
    gp.synchronize()
    assert pool.used == 0


@pytest.mark.pool
def test_memory_of_a_closed_pool_is_given_back_with_its_last_array() -> None:
    gp.synchronize()
    gp.memory.trim()
    before = free()
    pool = gp.memory.MemoryPool(name="closing")
    with pool:
        x, y = gp.ones(64 * MIB), gp.ones(64 * MIB)
    del y
    pool.close()
    with pool, pytest.raises(ValueError, match="closed"):
        gp.zeros(10)
    assert (x[:1000] + x[-1000:]).to_numpy().sum() == 2000
    del x
    gp.synchronize()
    del pool
    gp.memory.trim()
    assert abs(before - free()) <= SLACK


FILL_THE_DEVICE = """
import pygpukit as gp
GIB = 1 << 30
total = gp.current_device().memory_info()[1]
x = gp.ones(1000)
x + x
gp.synchronize()
before = gp.current_device().memory_info()[0]
held = []
size = 4 * GIB
while size >= GIB // 4:
    try:
        held.append(gp.empty(size, "uint8"))
    except gp.OutOfMemoryError as error:
        refused, size = error, size // 2
assert isinstance(refused, MemoryError)
assert sum(y.nbytes for y in held) > before - 2 * GIB, "it gave up early"
assert "requested 256.0 MiB" in str(refused), refused
assert "free of" in str(refused), refused
assert "4.0 GiB" in str(refused), refused

# What was refused did no harm, and small arrays still fit.
assert (x + x).to_numpy().sum() == 2000
held[0][:10].fill(7)
assert held[0][:10].tolist() == [7] * 10

# Memory that was freed but is still being used is waited for.
size = held[-1].nbytes
for _ in range(20):
    held[-1].fill(1)
del held[-1]
with gp.Stream():
    again = gp.empty(size, "uint8").fill(2)
    assert again[-5:].tolist() == [2] * 5
del again

# A request for more than there is, and room again once the arrays are gone.
try:
    gp.empty(2 * total, "uint8")
except gp.OutOfMemoryError:
    print("refused")
held.clear()
y = gp.empty(before // 4 * 3, "uint8")
y[-5:].fill(3)
assert y[-5:].tolist() == [3] * 5
del y
gp.synchronize()
gp.memory.trim()
assert abs(before - gp.current_device().memory_info()[0]) < 64 << 20
print("recovered")
"""


@pytest.mark.pool
def test_the_real_limit(run_cuda: Callable[..., str]) -> None:
    assert run_cuda(FILL_THE_DEVICE).split() == ["refused", "recovered"]


WITHOUT_A_POOL = """
import numpy as np
import pygpukit as gp
rng = np.random.default_rng(0)
a = rng.standard_normal((300, 300)).astype("f")
streams = [gp.Stream() for _ in range(3)]
x = gp.from_numpy(a)
gp.synchronize()
for i in range(30):
    with streams[i % 3]:
        y = x * 2.0 + x
        z = gp.matmul(y, x.T)
        total = gp.sum(y).item()
    assert np.array_equal(y.to_numpy(stream=streams[i % 3]), a * np.float32(2) + a)
assert gp.memory.stats()["cached"] == 0, gp.memory.stats()
graph = gp.CudaGraph()
with graph.capture():
    w = gp.exp(x) - x
graph.replay()
assert np.array_equal(w.to_numpy(), (gp.exp(x) - x).to_numpy())
big = [gp.full(n, 1, "int8") for n in (1, 255, 4097, 10_000_001)]
assert [int(gp.sum(b).item()) for b in big] == [1, 255, 4097, 10_000_001]
live = gp.memory.stats()["live"]
del big
gp.synchronize()
assert gp.memory.stats()["live"] == live - 4
print("done")
"""


@pytest.mark.pool
def test_without_a_pool(run_cuda: Callable[..., str]) -> None:
    assert run_cuda(WITHOUT_A_POOL, PYGPUKIT_POOL="none").split() == ["done"]
