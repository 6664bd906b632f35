"""Graphs that share memory: as much as the largest needs, replays in order, results that the next replay overwrites."""

from __future__ import annotations

import gc
import threading

import numpy as np
import pytest

import pygpukit as gp

MIB = 1 << 20
WIDTH = 4096


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


def layers(x: gp.GPUArray) -> gp.GPUArray:
    for _ in range(4):
        x = (x + 1.0) * 2.0
    return x


def wanted(
    host: np.ndarray[tuple[int, int], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    for _ in range(4):
        host = (host + np.float32(1)) * np.float32(2)
    return host


def capture(pool: gp.GraphPool | None, x: gp.GPUArray) -> tuple[gp.CudaGraph, gp.GPUArray]:
    graph = gp.CudaGraph(pool=pool)
    assert graph.pool is pool
    with graph.capture():
        result = layers(x)
    return graph, result


@pytest.mark.parametrize("sizes", [[64, 32, 16, 48], [16, 32, 48, 64]], ids=["largest first", "smallest first"])
def test_memory_is_that_of_the_largest_graph(sizes: list[int]) -> None:
    """With memory of their own graphs of all sizes would need as much as all of them together."""
    inputs = {n: gp.ones((n, WIDTH)) for n in sizes}
    quota = gp.memory.MemoryPool(name="graphs")
    with quota:
        alone = gp.GraphPool()
        kept = capture(alone, inputs[64])
        largest = quota.used
        assert alone.nbytes >= 3 * 64 * WIDTH * 4 - 2 * MIB
    with gp.memory.MemoryPool(name="shared") as memory:
        pool = gp.GraphPool()
        graphs = {n: capture(pool, inputs[n]) for n in sizes}
        assert memory.used == largest
        more = [capture(pool, inputs[n]) for n in sizes for _ in range(3)]
        assert memory.used == largest
    for n in [*sizes, *sizes[::-1]]:
        inputs[n].fill(n)
        graph, result = graphs[n]
        graph.replay()
        np.testing.assert_array_equal(result.to_numpy(), wanted(np.full((n, WIDTH), n, np.float32)))
    del graphs, graph, result, more, pool
    gc.collect()
    assert memory.used == 0
    assert kept[0].is_ready


def test_a_replay_overwrites_the_results_of_the_others() -> None:
    pool = gp.GraphPool()
    x, y = gp.ones((8, WIDTH)), gp.zeros((8, WIDTH))
    first, one = capture(pool, x)
    second, two = capture(pool, y)
    assert one.ptr == two.ptr
    first.replay()
    kept = one.copy()
    second.replay()
    np.testing.assert_array_equal(one.to_numpy(), two.to_numpy())
    np.testing.assert_array_equal(kept.to_numpy(), wanted(np.ones((8, WIDTH), np.float32)))
    np.testing.assert_array_equal(x.to_numpy(), np.ones((8, WIDTH), np.float32))


def test_replays_on_several_streams_are_in_order(device: gp.Device) -> None:
    pool = gp.GraphPool()
    rounds, rows = (30, 256) if device.kind == "cuda" else (4, 2)
    total = gp.zeros((rows, WIDTH))
    graphs = []
    for value in (1.0, 2.0, 3.0):
        x = gp.full((rows, WIDTH), value, "float32")
        graph = gp.CudaGraph(pool=pool)
        with graph.capture():
            # Reads its own temporaries, which have the memory of the other graphs' ones, and what all of them change.
            y = layers(x)
            gp.add(total, y - layers(x) + x, out=total)
        graphs.append(graph)
    streams = [gp.Stream() for _ in graphs]
    gp.synchronize()
    for _ in range(rounds):
        for graph, stream in zip(graphs, streams, strict=True):
            graph.replay(stream)
    gp.synchronize()
    assert (total.to_numpy() == 6 * rounds).all()


def test_threads_that_replay_at_the_same_time(device: gp.Device) -> None:
    pool = gp.GraphPool()
    rows = 64 if device.kind == "cuda" else 2
    total = gp.zeros((rows, WIDTH))
    graphs = []
    for value in (1.0, 2.0):
        x = gp.full((rows, WIDTH), value, "float32")
        graph = gp.CudaGraph(pool=pool)
        with graph.capture():
            gp.add(total, layers(x) - layers(x) + x, out=total)
        graphs.append(graph)
    gp.synchronize()
    failures: list[BaseException] = []

    def work(graph: gp.CudaGraph) -> None:
        try:
            with gp.device(device), gp.Stream():
                for _ in range(10):
                    graph.replay()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(graph,)) for graph in graphs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gp.synchronize()
    assert not failures
    assert (total.to_numpy() == 30).all()


def test_shared_memory_is_evicted_and_comes_back() -> None:
    with gp.memory.MemoryPool(quota=20 * MIB, enable_eviction=True, name="moving") as memory:
        pool = gp.GraphPool()
        x = gp.ones((128, WIDTH))
        graph, result = capture(pool, x)
        other, _ = capture(pool, x[:64])
        for i in range(3):
            x.fill(i)
            other.replay()
            graph.replay()
            filler = [gp.full((256, WIDTH), -1.0, "float32") for _ in range(4)]
            assert memory.stats()["evictions"] > i
            np.testing.assert_array_equal(result.to_numpy(), wanted(np.full((128, WIDTH), i, np.float32)))
            assert all((f.to_numpy() == -1).all() for f in filler)
            del filler


def test_branches_keep_their_memory_apart() -> None:
    pool = gp.GraphPool()
    x = gp.from_numpy(np.arange(1 << 12, dtype=np.float32))
    streams = [gp.Stream() for _ in range(3)]
    gp.synchronize()
    for _ in range(2):
        graph = gp.CudaGraph(pool=pool)
        with graph.capture():
            here = gp.current_stream()
            ends = []
            for i, stream in enumerate(streams):
                stream.wait(here)
                with stream:
                    y = x
                    for _ in range(5):
                        y = y * 2.0 + float(i)
                    ends.append(y)
            for stream in streams:
                here.wait(stream)
            total = ends[0] + ends[1] + ends[2]
        for _ in range(5):
            graph.replay()
        want = sum(np.arange(1 << 12) * 32.0 + 31 * i for i in range(3))
        np.testing.assert_array_equal(total.to_numpy(), want)


def test_what_would_overwrite_itself_is_refused() -> None:
    pool = gp.GraphPool()
    x = gp.ones((8, WIDTH))
    first, result = capture(pool, x)
    second = gp.CudaGraph(pool=pool)
    second.parameter("x", x)
    with second.capture():
        with pytest.raises(gp.GraphError, match="another graph with the same memory is being captured"):
            threaded_capture(pool)
        with pytest.raises(gp.GraphError, match="cannot be used in it: its memory is this graph's too"):
            gp.add(result, 1.0)
        with pytest.raises(gp.GraphError, match="cannot be replayed into one that shares its memory"):
            first.replay()
        y = x + 1.0
    with pytest.raises(gp.GraphError, match="cannot be a parameter of one that shares its memory"):
        second.replay(x=result)
    second.replay(x=result.copy())
    assert y.shape == (8, WIDTH)
    # A capture that fails leaves the memory to the next one.
    with pytest.raises(RuntimeError, match="on purpose"), gp.CudaGraph(pool=pool).capture():
        raise RuntimeError("on purpose")
    third, end = capture(pool, x)
    third.replay()
    np.testing.assert_array_equal(end.to_numpy(), wanted(np.ones((8, WIDTH), np.float32)))


def threaded_capture(pool: gp.GraphPool) -> None:
    """Capture in another thread, and raise here what was raised there."""
    errors: list[BaseException] = []
    current = gp.current_device()

    def work() -> None:
        try:
            with gp.device(current), gp.CudaGraph(pool=pool).capture():
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    for error in errors:
        raise error
