"""Buffers that grow in place: a stable address, charged to pools, evicted, used in graphs, freed in stream order."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

import pygpukit as gp

MIB = 1 << 20
ROW = 1024


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


def make(rows: int = 0, capacity: int = 8192) -> gp.memory.GrowableBuffer:
    """Rows of 4 KiB."""
    return gp.empty_growable((rows, ROW), "float32", capacity=capacity)


def test_content_and_address_stay_while_it_grows() -> None:
    pool = gp.memory.MemoryPool(name="grown")
    with pool:
        buffer = make(10)
        first = buffer.array()
        address = first.ptr
        first.fill(1)
        assert (buffer.rows, buffer.capacity, len(buffer), buffer.shape) == (10, 8192, 10, (10, ROW))
        for rows in (600, 601, 5000):
            buffer.grow(rows)
            assert buffer.array().ptr == address
            buffer.array()[rows - 1].fill(rows)
        assert pool.used >= 5000 * 4096
        assert buffer.reserved >= 5000
    # It belongs to the pool it was made in.
    buffer.grow(6000)
    assert pool.used >= 6000 * 4096
    host = buffer.array().to_numpy()
    assert host.shape == (6000, ROW)
    assert (host[:10] == 1).all()
    assert [host[rows - 1, 7] for rows in (600, 601, 5000)] == [600, 601, 5000]
    assert buffer.array(3).shape == (3, ROW)
    assert buffer.dtype is gp.float32
    assert repr(buffer) == "<GrowableBuffer 6000 of 8192 rows of float32 (1024,)>"
    del first, buffer
    gc.collect()
    assert pool.used == 0


def test_reserve_takes_memory_ahead_and_shrink_gives_it_back() -> None:
    pool = gp.memory.MemoryPool(name="ahead")
    with pool:
        buffer = make(0)
    assert (pool.used, buffer.nbytes, buffer.array().shape) == (0, 0, (0, ROW))
    buffer.reserve(512)
    buffer.reserve(4096)
    assert (pool.used, buffer.rows, buffer.reserved) == (16 * MIB, 0, 4096)
    buffer.grow(4096)
    assert pool.used == 16 * MIB
    x = buffer.array()
    x.fill(2)
    with pytest.raises(ValueError, match=r"cannot shrink while its memory is in use: 1 arrays"):
        buffer.shrink(0)
    assert buffer.rows == 4096
    del x
    buffer.shrink(512)
    assert (pool.used, buffer.rows) == (2 * MIB, 512)
    assert (buffer.array().to_numpy() == 2).all()
    buffer.shrink(0)
    buffer.grow(8192)
    assert pool.used == 32 * MIB


def test_what_cannot_be_is_refused_with_the_numbers() -> None:
    pool = gp.memory.MemoryPool(quota=8 * MIB, name="tight")
    with pool:
        buffer = make(1024)
    for call, text in (
        (lambda: buffer.grow(9000), "cannot grow to 9000 rows: .* has 1024, and a capacity of 8192; make it with"),
        (lambda: buffer.grow(5), "cannot grow to 5 rows: .* has 1024, .*; shrink"),
        (lambda: buffer.reserve(-1), "cannot reserve -1 rows"),
        (lambda: buffer.shrink(1025), "cannot shrink to 1025 rows: the growable buffer has 1024"),
        (lambda: buffer.array(1025), "has 1024 rows, but an array of 1025 was asked for"),
        (lambda: make(2, capacity=1), "a capacity of 1 rows makes no sense"),
        (lambda: gp.empty_growable((2, 0), capacity=9), "makes no sense"),
        (lambda: gp.empty_growable((), capacity=9), "an axis of rows"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(gp.OutOfMemoryError, match=r"pool 'tight' uses 4\.0 MiB of its quota of 8\.0 MiB"):
        buffer.grow(4096)
    assert (buffer.rows, pool.used) == (1024, 4 * MIB)
    buffer.grow(2048)
    array = buffer.array()
    with buffer:
        pass
    buffer.close()
    assert buffer.is_closed
    with pytest.raises(ValueError, match="the growable buffer is closed"):
        buffer.grow(2048)
    # Arrays outlive it.
    array.fill(4)
    assert array[-1, -1].item() == 4


def test_it_moves_to_the_host_as_arrays_do() -> None:
    pool = gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="moving")
    with pool:
        buffer = make(1024)
        x = buffer.array()
        values = np.random.default_rng(1).standard_normal((1024, ROW), np.float32)
        x[:] = values
        graph = gp.CudaGraph()
        with graph.capture():
            y = x * 2.0
        assert x.evict()
        assert not x.is_resident
        # Growth brings it back, and others give way.
        others = [gp.ones((1024, ROW)) for _ in range(3)]
        buffer.grow(2048)
        assert x.is_resident
        buffer.array()[1024:] = values
        assert x.evict()
        graph.replay()
        np.testing.assert_array_equal(y.to_numpy(), values * 2)
        assert x.evict()
        np.testing.assert_array_equal(buffer.array()[1024:].to_numpy(), values)
        assert all(other[-1, -1].item() == 1 for other in others)
        with pytest.raises(gp.OutOfMemoryError, match=r"quota of 16\.0 MiB"):
            buffer.grow(5000)
        np.testing.assert_array_equal(x.to_numpy(), values)


def test_graphs_replay_while_it_grows_and_keep_it_alive() -> None:
    buffer = make(256)
    x = buffer.array()
    x.fill(1)
    graph = gp.CudaGraph()
    with graph.capture():
        gp.add(x, 1.0, out=x)
    for rows in (300, 3000, 8192):
        buffer.grow(rows)
        graph.replay()
    assert x[0, 0].item() == 4
    del x
    with pytest.raises(ValueError, match="recorded commands of graphs hold it"):
        buffer.shrink(0)
    alive = weakref.ref(buffer)
    view = buffer.array(1)
    del buffer
    gc.collect()
    assert alive() is None
    graph.replay()
    assert view[0, 5].item() == 5


def test_memory_is_freed_in_stream_order(device: gp.Device) -> None:
    stream = gp.Stream()
    total = gp.zeros(ROW)
    for round_ in range(4):
        buffer = make(2048, capacity=2048)
        with stream:
            x = buffer.array()
            x.fill(round_ + 1)
            gp.add(x[2047], total, out=total)
        del x, buffer
    stream.synchronize()
    assert total.tolist() == [10] * ROW


@pytest.mark.nvrtc
def test_a_captured_kernel_reads_rows_that_are_added_after_the_capture() -> None:
    """A cache whose address stays: its length is a parameter of the graph, and rows come while it is replayed."""
    kernel = gp.jit(
        """extern "C" __global__ void last(float* out, const float* cache, const int* rows, int width) {
            out[threadIdx.x] = cache[(long long)(*rows - 1) * width + threadIdx.x];
        }"""
    )
    pool = gp.memory.MemoryPool(quota=40 * MIB, enable_eviction=True, name="cache")
    with pool:
        buffer = make(1)
        cache = buffer.array()
        cache.fill(1)
        graph, out = gp.CudaGraph(), gp.zeros(64)
        rows = graph.parameter("rows", gp.int32, 1)
        with graph.capture():
            kernel(out, cache, rows, ROW, grid=1, block=64)
        for n in (2, 700, 701, 4000):
            buffer.grow(n)
            buffer.array()[n - 1].fill(n)
            if n != 701:
                assert cache.evict()
            graph.replay(rows=n)
            assert out.tolist() == [n] * 64
        graph.replay(rows=1)
        assert out.tolist() == [1] * 64


def test_read_only_rows_are_a_parameter_of_a_graph() -> None:
    pool = gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="rows")
    with pool:
        buffer = make(512)
        buffer.array().fill(3)
        rows = buffer.array()
        rows.setflags(write=False)
        graph = gp.CudaGraph()
        x = gp.zeros((512, ROW))
        graph.parameter("x", x)
        with graph.capture():
            y = x * 2.0
        for _ in range(2):
            graph.replay(x=rows)
            assert (y.to_numpy() == 6).all()
            assert rows.evict()
            buffer.grow(buffer.rows + 600)
