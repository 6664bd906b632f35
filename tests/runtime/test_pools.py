"""Pools as Python sees them: quotas, nesting, closing, threads, statistics, and a device that is full."""

from __future__ import annotations

import gc
import re
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

MIB = 1 << 20


@pytest.fixture
def small() -> Iterator[gp.Device]:
    """A CPU device with 64 MiB of memory, made the current one."""
    with gp.device(native.open_cpu(64 * MIB, None, True)) as device:
        yield device


def test_arrays_come_from_the_pool_that_is_entered() -> None:
    outer, inner = gp.memory.MemoryPool(name="outer"), gp.memory.MemoryPool("64MiB", name="inner")
    with outer as entered:
        assert entered is outer
        x = gp.zeros(1000)
        with inner:
            y = gp.zeros((512, 512))
            assert gp.memory.get_default_pool().name == "inner"
        z = gp.add(x, 1.0)
    assert gp.memory.get_default_pool().name == "default"
    assert outer.used >= x.nbytes + z.nbytes
    assert inner.used >= y.nbytes
    assert outer.stats()["live"] == 2
    del x, z
    assert outer.used == 0


def test_pools_made_inside_one_count_against_it() -> None:
    parent = gp.memory.MemoryPool(quota=4 * MIB, name="parent")
    with parent:
        child = gp.memory.MemoryPool(name="child")
        lonely = gp.memory.MemoryPool(quota="100MiB", name="generous")
    with child:
        x = gp.empty(2 * MIB, "uint8")
    assert child.used == parent.used == x.nbytes
    assert child.available <= 2 * MIB
    with lonely, pytest.raises(gp.OutOfMemoryError, match=r"pool 'parent' uses 2.0 MiB of its quota of 4.0 MiB"):
        gp.empty(3 * MIB, "uint8")
    del x
    with lonely:
        y = gp.empty(3 * MIB, "uint8")
    assert parent.used >= y.nbytes


@given(st.lists(st.tuples(st.integers(1, 300_000), st.booleans()), max_size=40))
@settings(max_examples=40)
def test_the_quota_is_never_exceeded(requests: list[tuple[int, bool]]) -> None:
    quota = 1 * MIB
    pool = gp.memory.MemoryPool(quota=quota)
    held: list[gp.GPUArray] = []
    with pool:
        for size, keep in requests:
            try:
                x = gp.empty(size, "uint8")
            except gp.OutOfMemoryError:
                assert pool.used + size > quota * 3 // 4
            else:
                if keep:
                    held.append(x)
                elif held:
                    held.pop(0)
            assert sum(h.nbytes for h in held) <= pool.used <= quota
    x = None
    held.clear()
    assert pool.used == 0
    assert pool.stats()["live"] == 0
    assert pool.stats()["peak"] <= quota


def test_the_quota_holds_under_threads() -> None:
    pool = gp.memory.MemoryPool(quota=2 * MIB)
    over: list[int] = []
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            held = []
            with pool:
                for i in range(300):
                    try:
                        held.append(gp.empty(1000 * (1 + (i * seed) % 200), "uint8"))
                    except gp.OutOfMemoryError:
                        held.clear()
                    if pool.used > 2 * MIB:
                        over.append(pool.used)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 3, 7, 11)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not over
    assert not failures, failures
    assert pool.used == 0


def test_a_changed_quota() -> None:
    pool = gp.memory.MemoryPool()
    assert pool.quota is None
    with pool:
        x = gp.empty(3 * MIB, "uint8")
        pool.set_quota(2 * MIB)
        with pytest.raises(gp.OutOfMemoryError, match=r"quota of 2\.0 MiB"):
            gp.empty(1, "uint8")
        assert pool.available == 0
        assert x.fill(1).tolist()[:2] == [1, 1]
        del x
        assert gp.empty(1000, "uint8").size == 1000
        pool.set_quota(None)
        assert gp.empty(8 * MIB, "uint8").nbytes == 8 * MIB


@pytest.mark.parametrize(
    ("quota", "error"), [(-1, ValueError), ("lots", ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_quotas_that_are_none(quota: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        gp.memory.MemoryPool(quota)  # type: ignore[arg-type]


def test_sizes_are_texts_too() -> None:
    assert gp.memory.MemoryPool("1.5MiB").quota == 3 * MIB // 2
    assert repr(gp.memory.MemoryPool("1MiB", name="n")) == f"<MemoryPool 'n' used=0 quota={MIB}>"
    assert repr(gp.memory.MemoryPool(name="m")) == "<MemoryPool 'm' used=0 quota=None>"


def test_a_pool_of_no_bytes_still_makes_empty_arrays() -> None:
    with gp.memory.MemoryPool(0):
        assert gp.zeros((0, 3)).size == 0
        with pytest.raises(gp.OutOfMemoryError):
            gp.zeros(1)


def test_closing() -> None:
    pool = gp.memory.MemoryPool(name="closing")
    with pool:
        x = gp.full(1000, 7.0)
        pool.close()
        pool.close()
        with pytest.raises(ValueError, match="'closing' is closed"):
            gp.add(x, 1.0)
        for refused in (lambda: gp.zeros(3), lambda: pool.allocate(10), gp.memory.MemoryPool):
            with pytest.raises(ValueError, match="'closing' is closed"):
                refused()
    # What it has handed out stays good, and its memory goes back with the last of it.
    assert gp.add(x, 1.0).tolist() == [8] * 1000
    assert pool.used > 0
    del x
    gp.synchronize()
    pool.trim()
    assert (pool.used, pool.stats()["reserved"]) == (0, 0)


def test_a_pool_lives_as_long_as_its_arrays() -> None:
    pool = gp.memory.MemoryPool(quota="8MiB", name="gone")
    with pool:
        x = gp.full(100_000, 3.0)
    del pool
    gc.collect()
    others = [gp.zeros(100_000) for _ in range(5)]
    assert set(x.tolist()) == {3}
    assert others[0][0].item() == 0


def test_blocks_that_are_no_arrays() -> None:
    pool = gp.memory.MemoryPool(quota=1 * MIB)
    block = pool.allocate(4096)
    assert (block.nbytes, block.ptr % 256, block.is_freed, pool.used) == (4096, 0, False, 4096)
    pool.free(block)
    block.free()
    assert (block.is_freed, pool.used) == (True, 0)
    kept = pool.allocate(1)
    del kept
    gc.collect()
    assert pool.used == 0
    with pytest.raises(gp.OutOfMemoryError):
        pool.allocate(2 * MIB)
    with pytest.raises(ValueError, match=str(2**70)):
        pool.allocate(2**70)


def test_the_native_module_under_its_published_name() -> None:
    import _pygpukit_rust as rust

    pool = rust.MemoryPool(quota=1 * MIB, enable_eviction=True)
    assert pool.enable_eviction
    assert pool.allocate(4096).nbytes == 4096


def test_statistics() -> None:
    pool = gp.memory.MemoryPool(quota=16 * MIB, name="counted")
    with pool:
        for _ in range(10):
            gp.empty(100_000)
        stats = pool.stats()
    assert (stats["allocations"], stats["frees"], stats["live"]) == (10, 10, 0)
    assert (stats["hits"], stats["misses"]) == (9, 1)
    assert stats["hit_rate"] == pytest.approx(0.9)
    assert stats["name"] == "counted"
    assert stats["peak"] >= 400_000
    assert 400_000 <= stats["reserved"] == stats["cached"]
    assert pool.cached == stats["cached"]
    gp.synchronize()
    pool.trim()
    assert pool.cached == 0
    whole = gp.memory.stats()
    assert 0 <= whole["device_free"] <= whole["device_total"]


def test_the_default_of_a_thread() -> None:
    pool, names = gp.memory.MemoryPool(name="mine"), []

    def work() -> None:
        gp.memory.set_default_pool(pool)
        names.append(gp.memory.get_default_pool().name)
        with gp.Stream():
            names.append(gp.memory.get_default_pool().name)
            kept.append(gp.zeros(100))
        names.append(gp.memory.get_default_pool().name)

    kept: list[gp.GPUArray] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert names == ["mine"] * 3
    assert pool.stats()["live"] == 1
    assert gp.memory.get_default_pool().name == "default"


def test_out_of_memory_says_what_is_needed_to_know(small: gp.Device) -> None:
    # A little less than whole pieces: where kernels were checked before, arrays are kept apart.
    held = [gp.zeros((1023, 1024 * n)) for n in (2, 4, 1)]
    tag = gp.memory.MemoryPool(name="tagged")
    with tag:
        held.append(gp.zeros((1023, 1024 * 3)))
    with pytest.raises(gp.OutOfMemoryError) as caught:
        gp.zeros((1024, 1024 * 12))
    text = str(caught.value)
    assert isinstance(caught.value, MemoryError)
    assert "requested 48.0 MiB" in text
    sizes = [float(m[1]) for m in re.finditer(r"^ +([0-9.]+) MiB", text, re.MULTILINE)]
    assert sizes == [16, 12, 8, 4]
    assert "24.0 MiB free of 64.0 MiB" in text
    assert "pool 'tagged'" in text
    assert "Drop arrays" in text
    assert tag.top_holders()[0][0] == 12 * MIB
    # And the way it advises works.
    del held[1]
    assert gp.zeros((1023, 1024 * 10)).shape == (1023, 1024 * 10)


def test_cached_memory_is_given_up_before_a_request_fails(small: gp.Device) -> None:
    for pool in (gp.memory.MemoryPool(name="a"), gp.memory.MemoryPool(name="b")):
        with pool:
            held = [gp.empty(5 * MIB, "uint8") for _ in range(5)]
            del held
    # 50 MiB lie in two pools; nothing of it is of this size.
    assert gp.empty(60 * MIB, "uint8").nbytes == 60 * MIB


@pytest.mark.parametrize("seed", range(5))
def test_a_full_device_waits_for_work_that_will_free_memory(seed: int) -> None:
    with gp.device(native.open_cpu(64 * MIB, seed, True)):
        other = gp.Stream()
        results = []
        for i in range(12):
            with other:
                x = gp.full(5 * MIB, i, "uint8")
                results.append(gp.sum(x, dtype="int64"))
                del x
            # Memory of the other stream is needed here: its work must have run first.
            y = gp.full(20 * MIB, 1, "uint8")
            del y
        assert [r.to_numpy(stream=other).item() for r in results] == [i * 5 * MIB for i in range(12)]


def test_a_full_device_waits_for_a_function_that_another_thread_runs() -> None:
    # The waiting thread holds the interpreter, which the function needs to finish.
    with gp.device(native.open_cpu(64 * MIB, 1, True)) as device:
        s, started = gp.Stream(), threading.Event()
        with s:
            x = gp.empty(40 * MIB, "uint8")
            steps: list[int] = []

            def slow() -> None:
                started.set()
                deadline = time.monotonic() + 0.1
                while time.monotonic() < deadline:
                    steps.append(1)

            native.submit_host(slow, [x], [])
            del x
        thread = threading.Thread(target=s.synchronize)
        thread.start()
        started.wait()
        assert gp.full(40 * MIB, 2, "uint8")[0].item() == 2
        assert steps
        thread.join()
        assert device.memory_info()[1] == 64 * MIB


def test_every_operator_recovers_after_running_out(small: gp.Device) -> None:
    x = gp.ones(6 * MIB, "float32")
    for call in (
        lambda: gp.add(x, x).astype("float64"),
        lambda: x.astype("complex128"),
        lambda: gp.full(20 * MIB, 2.0),
    ):
        with pytest.raises(gp.OutOfMemoryError):
            call()
        gc.collect()
        assert gp.add(x[:1000], 1.0).tolist() == [2] * 1000
    assert gp.memory.get_default_pool().stats()["live"] == 1


def test_every_array_its_own_allocation(run_python: Callable[..., str]) -> None:
    program = """
import pygpukit as gp
pool = gp.memory.MemoryPool("1MiB")
with pool:
    x = [gp.full(10, float(i)) for i in range(20)]
    y = gp.add(x[3], x[4])
    assert y.tolist() == [7.0] * 10
    assert pool.stats()["live"] == 21, pool.stats()
    x.clear()
    gp.synchronize()
    pool.trim()
    # Nothing is kept for reuse.
    assert pool.cached == 0 and pool.stats()["hits"] == 0, pool.stats()
    try:
        gp.zeros(1 << 20)
    except gp.OutOfMemoryError as error:
        print(type(error).__name__, "quota" in str(error))
"""
    for streams in ("inline", "deferred:3"):
        assert run_python(program, PYGPUKIT_POOL="none", PYGPUKIT_STREAMS=streams) == "OutOfMemoryError True\n"


def test_little_memory_by_the_environment(run_python: Callable[..., str]) -> None:
    program = """
import pygpukit as gp
print(gp.get_device_info()["total_memory"])
try:
    gp.zeros(10_000_000)
except MemoryError as error:
    print(str(error).splitlines()[0])
"""
    total, text = run_python(program, PYGPUKIT_CPU_MEMORY="16MiB").splitlines()
    assert int(total) == 16 * MIB
    assert text.startswith("out of memory: requested 38.1 MiB, ")
    assert text.endswith(" free of 16.0 MiB on the device")


def test_only_arrays_are_pinned() -> None:
    x = gp.zeros(4)
    with pytest.raises(TypeError, match="pinned\\(\\) takes GPUArrays, not ndarray"), gp.pinned(x, x.to_numpy()):  # type: ignore[arg-type]
        pass
    with pytest.raises(ValueError, match="not pinned"):
        x.unpin()


def test_blocks_are_of_one_pool_and_sizes_are_numbers_or_texts() -> None:
    one, two = gp.memory.MemoryPool(name="one"), gp.memory.MemoryPool(name="two")
    block = one.allocate("1MiB")
    assert block.nbytes == MIB
    with pytest.raises(ValueError, match="the block is of pool 'one', not of pool 'two'"):
        two.free(block)
    assert not block.is_freed
    one.free(block)
    one.free(block)
    assert one.used == 0
    for wrong in (-1, "much"):
        with pytest.raises(ValueError, match=str(wrong)):
            one.allocate(wrong)
