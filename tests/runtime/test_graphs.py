"""Graphs: capture, replay, parameters, fork and join, misuse, and memory that lives as long as it must."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.elementwise.table import TABLE


def test_nothing_runs_during_a_capture() -> None:
    x = gp.zeros(4)
    graph = gp.CudaGraph()
    assert (graph.is_ready, graph.num_nodes) == (False, 0)
    with graph.capture() as entered:
        assert entered is graph
        gp.add(x, 1.0, out=x)
        gp.mul(x, 2.0, out=x)
        assert not graph.is_ready
    assert (graph.is_ready, graph.num_nodes) == (True, 2)
    assert x.tolist() == [0] * 4
    for wanted in (2, 6, 14):
        graph.replay()
        assert x.tolist() == [wanted] * 4


@pytest.mark.parametrize("kind", ["float32", "float64", "bfloat16"])
def test_a_replay_gives_the_bits_of_the_calls(kind: str) -> None:
    host = np.random.default_rng(0).uniform(0.2, 0.9, 257).astype(gp.to_numpy_dtype(kind))
    x = gp.from_numpy(host)
    names = [n for n, row in TABLE.items() if row.arity == 1 and row.public and "f" in row.kinds and n != "acosh"]

    def program(x: gp.GPUArray) -> list[gp.GPUArray]:
        results = [getattr(gp, name)(x) for name in names]
        y = gp.add(results[0], results[1])
        return [*results, gp.sum(y), gp.matmul(x, y), x[::2] * y[::2], y.astype("float16")]

    eager = [r.to_numpy().tobytes() for r in program(x)]
    graph = gp.CudaGraph()
    with graph.capture():
        recorded = program(x)
    for _ in range(3):
        graph.replay()
        assert [r.to_numpy().tobytes() for r in recorded] == eager


def test_inputs_are_read_at_each_replay() -> None:
    x, y = gp.zeros(3), gp.zeros(3)
    graph = gp.CudaGraph()
    with graph.capture(gp.Stream()):
        gp.add(x, 10.0, out=y)
    for value in (1.0, 2.0, 3.0):
        x.fill(value)
        graph.replay()
        graph.synchronize()
        assert y.tolist() == [value + 10] * 3


def test_host_data_is_kept_by_the_recording() -> None:
    graph = gp.CudaGraph()
    with graph.capture():
        x = gp.from_numpy(np.arange(1000.0))
        y = gp.add(x, gp.full(1000, 2.5, "float64"))
    gc.collect()
    graph.replay()
    assert y.tolist() == (np.arange(1000.0) + 2.5).tolist()


def test_parameters() -> None:
    graph = gp.CudaGraph()
    scale = graph.parameter("scale", gp.float32, 2.0)
    shift = graph.parameter("shift", gp.int64)
    assert (scale.shape, scale.dtype, shift.item(), scale.item()) == ((), gp.float32, 0, 2)
    x = gp.ones(4)
    with graph.capture():
        y = gp.add(gp.mul(x, scale), shift)
    graph.replay()
    assert y.tolist() == [2] * 4
    graph.replay(scale=3, shift=10)
    assert y.tolist() == [13] * 4
    graph.replay(shift=1)
    assert y.tolist() == [4] * 4
    with pytest.raises(gp.GraphError, match=r"no parameter 'bias'.*scale, shift"):
        graph.replay(bias=1)
    with pytest.raises(gp.GraphError, match="Python number"):
        graph.replay(scale="2")  # type: ignore[arg-type]
    with pytest.raises(OverflowError):
        graph.replay(shift=2**63)


def test_many_parameters_of_every_type() -> None:
    graph = gp.CudaGraph()
    kinds = [
        gp.dtype(n) for n in ("bool", "int8", "uint16", "float16", "bfloat16", "float8_e5m2", "float64", "complex128")
    ]
    # More than one chunk of the block: earlier addresses must not move.
    parameters = [graph.parameter(f"p{i}", kinds[i % len(kinds)], 1) for i in range(600)]
    with graph.capture():
        results = [gp.add(p, p) for p in parameters]
    graph.replay(**{f"p{i}": 0 for i in range(0, 600, 2)})
    wanted = [0 if i % 2 == 0 else 1 if i % len(kinds) == 0 else 2 for i in range(600)]
    assert [r.item() for r in results] == wanted


def test_parameters_that_cannot_be() -> None:
    graph = gp.CudaGraph()
    graph.parameter("a", gp.float32)
    with pytest.raises(gp.GraphError, match="already has a parameter named 'a'"):
        graph.parameter("a", gp.int8)
    with pytest.raises(gp.GraphError, match="'stream'"):
        graph.parameter("stream", gp.float32)
    with pytest.raises(gp.GraphError, match="Python number"):
        graph.parameter("b", gp.float32, "x")  # type: ignore[arg-type]
    with graph.capture(), pytest.raises(gp.GraphError, match="before the capture"):
        graph.parameter("c", gp.float32)
    with pytest.raises(gp.GraphError, match="before the capture"):
        graph.parameter("c", gp.float32)


@pytest.mark.parametrize(
    ("what", "call"),
    [
        ("to_numpy", lambda x, s, e: x.to_numpy()),
        ("item", lambda x, s, e: x[0].item()),
        ("bool", lambda x, s, e: bool(x[0])),
        ("print", lambda x, s, e: repr(x)),
        ("stream", lambda x, s, e: s.synchronize()),
        ("event", lambda x, s, e: e.synchronize()),
        ("device", lambda x, s, e: gp.synchronize()),
        ("graph", lambda x, s, e: gp.CudaGraph().synchronize()),
    ],
)
def test_waiting_during_a_capture_is_refused(what: str, call: Callable[..., Any]) -> None:
    x, s, event = gp.ones(4), gp.Stream(), gp.Event()
    event.record()
    graph = gp.CudaGraph()
    with graph.capture(), pytest.raises(gp.GraphError, match="while a graph is being captured"):
        call(x, s, event)
    assert graph.is_ready
    assert x.tolist() == [1] * 4


def test_an_outside_event_cannot_be_waited_for_nor_an_inside_one_later() -> None:
    outside, inside, s = gp.Event(), gp.Event(), gp.Stream()
    outside.record()
    graph = gp.CudaGraph()
    with graph.capture(s):
        with pytest.raises(gp.GraphError, match="outside the capture"):
            s.wait(outside)
        inside.record(s)
    with pytest.raises(gp.GraphError, match="Record it again"):
        gp.default_stream().wait(inside)
    for call in (inside.query, inside.synchronize, lambda: inside.elapsed_ms(inside)):
        with pytest.raises(gp.GraphError, match="captured"):
            call()
    inside.record()
    gp.default_stream().wait(inside)
    assert inside.query() in (True, False)


def test_an_exception_ends_the_capture_and_the_thread_goes_on() -> None:
    x, graph = gp.ones(3), gp.CudaGraph()

    def fail() -> None:
        with graph.capture(gp.Stream()):
            gp.add(x, 1.0, out=x)
            with gp.Stream():
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not graph.is_ready
    assert gp.current_stream().id == gp.default_stream().id
    assert gp.add(x, 1.0).tolist() == [2] * 3
    with pytest.raises(gp.GraphError, match="empty"):
        graph.replay()
    # The same object can be captured after all.
    with graph.capture():
        gp.add(x, 1.0, out=x)
    graph.replay()
    assert x.tolist() == [2] * 3


def test_a_refused_call_leaves_the_recording_as_it_was() -> None:
    x, graph = gp.ones(3), gp.CudaGraph()
    with graph.capture():
        for wrong in (lambda: gp.add(x, gp.ones(4)), lambda: gp.bitwise_and(x, 1), lambda: gp.add(x, "1")):
            with pytest.raises((TypeError, ValueError)):
                wrong()
        nodes = gp.add(x, 1.0)
    graph.replay()
    assert nodes.tolist() == [2] * 3


def test_misuse() -> None:
    graph, other = gp.CudaGraph(), gp.CudaGraph()
    with pytest.raises(gp.GraphError, match="no capture"):
        graph.end_capture()
    with pytest.raises(gp.GraphError, match="empty"):
        graph.replay()
    graph.synchronize()
    graph.begin_capture()
    for wrong in (graph.begin_capture, other.begin_capture, other.capture().__enter__):
        with pytest.raises(gp.GraphError, match="already captures"):
            wrong()
    with pytest.raises(gp.GraphError, match="no capture"):
        other.end_capture()
    s = gp.Stream()
    with s, pytest.raises(gp.GraphError, match="still open"):
        graph.end_capture()
    graph.end_capture()
    with pytest.raises(gp.GraphError, match="reset"):
        graph.begin_capture()
    graph.reset()
    assert not graph.is_ready
    graph.begin_capture()
    graph.end_capture()
    graph.replay()


def test_another_thread_neither_records_nor_ends_the_capture() -> None:
    x, y, graph = gp.zeros(3), gp.zeros(3), gp.CudaGraph()
    gp.synchronize()
    seen: list[Any] = []

    def elsewhere() -> None:
        gp.add(y, 1.0, out=y)
        gp.synchronize()
        seen.append(y.tolist())
        try:
            graph.end_capture()
        except gp.GraphError as error:
            seen.append(str(error))

    with graph.capture():
        gp.add(x, 1.0, out=x)
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    assert seen[0] == [1] * 3
    assert "another thread" in seen[1]
    assert graph.num_nodes == 1


def test_fork_and_join_over_streams() -> None:
    for seed in (None, 1, 2, 3):
        with gp.device(native.open_cpu(1 << 26, seed, True)):
            main, side = gp.Stream(), gp.Stream()
            x = gp.arange(6, dtype="float32")
            gp.synchronize()
            graph = gp.CudaGraph()
            with graph.capture(main):
                a = gp.add(x, 1.0)
                fork = main.record()
                side.wait(fork)
                with side:
                    b = gp.mul(a, 2.0)
                    temporary = gp.mul(b, 100.0)
                    del temporary
                    join = side.record()
                c = gp.mul(a, 3.0)
                main.wait(join)
                d = gp.add(b, c)
            host = np.arange(6, dtype=np.float32)
            for _ in range(3):
                x += 1.0
                host += 1
                graph.replay()
                assert d.tolist() == ((host + 1) * 5).tolist()
                # Bit-equal to the calls themselves.
                a = gp.add(x, 1.0)
                assert d.to_numpy().tobytes() == gp.add(gp.mul(a, 2.0), gp.mul(a, 3.0)).to_numpy().tobytes()


def test_a_stream_can_wait_for_another_inside() -> None:
    one, two, graph, x = gp.Stream(), gp.Stream(), gp.CudaGraph(), gp.ones(3)
    with graph.capture(one):
        y = gp.add(x, 1.0)
        two.wait(one)
        with two:
            z = gp.add(y, 1.0)
        one.wait(two)
    graph.replay()
    assert z.tolist() == [3] * 3


def test_arrays_of_a_recording_live_as_long_as_it_needs_them() -> None:
    graph = gp.CudaGraph()
    x, out = gp.full(5000, 4.0), gp.zeros(5000)
    with graph.capture():
        gp.add(gp.mul(x, 2.0), 1.0, out=out)
    del x
    gc.collect()
    gp.synchronize()
    gp.memory.trim()
    others = [gp.full(5000, float(i)) for i in range(10)]
    graph.replay()
    assert set(out.tolist()) == {9}
    assert [o[0].item() for o in others] == list(range(10))


def test_an_array_outlives_its_graph() -> None:
    graph = gp.CudaGraph()
    with graph.capture():
        y = gp.add(gp.ones(300_000), 1.0)
    graph.replay()
    del graph
    gc.collect()
    gp.memory.trim()
    others = [gp.zeros(300_000) for _ in range(3)]
    assert set(y.tolist()) == {2}
    assert others[0][0].item() == 0


def test_a_graph_dropped_while_its_replay_is_queued() -> None:
    for seed in range(10):
        with gp.device(native.open_cpu(1 << 27, seed, True)):
            out, graph = gp.zeros(1 << 16), gp.CudaGraph()
            gp.synchronize()
            with graph.capture():
                t = gp.full(1 << 16, 5.0)
                gp.add(t, 1.0, out=out)
                del t
            s = gp.Stream()
            s.wait(gp.current_stream())
            graph.replay(s)
            graph.reset()
            del graph
            gc.collect()
            gp.memory.trim()
            others = [gp.full(1 << 16, float(i)) for i in range(6)]
            assert set(out.to_numpy(stream=s).tolist()) == {6}
            assert [o[0].item() for o in others] == list(range(6))


def test_temporaries_share_memory_within_a_capture() -> None:
    x = gp.ones(1 << 18)
    pool = gp.memory.MemoryPool()
    graph = gp.CudaGraph()
    with pool, graph.capture():
        y = x
        for _ in range(50):
            y = gp.add(y, 1.0)
    # Fifty temporaries of 1 MiB, of which two live at a time.
    assert pool.used < 8 << 20
    graph.replay()
    assert set(y.tolist()) == {51}


def test_recording_respects_the_quota() -> None:
    pool, graph = gp.memory.MemoryPool("1MiB"), gp.CudaGraph()
    with pool, pytest.raises(gp.OutOfMemoryError, match="quota"), graph.capture():
        gp.zeros(1 << 20)
    assert not graph.is_ready


def test_a_graph_recorded_into_another_keeps_its_memory() -> None:
    x, inner, outer = gp.ones(1 << 18), gp.CudaGraph(), gp.CudaGraph()
    with inner.capture():
        t = gp.add(x, 1.0)
        gp.mul(t, 2.0, out=x)
    del t
    with outer.capture():
        inner.replay()
        gp.add(x, 1.0, out=x)
    assert outer.num_nodes == 3
    inner.reset()
    del inner
    gc.collect()
    gp.synchronize()
    gp.memory.trim()
    others = [gp.zeros(1 << 18) for _ in range(4)]
    for _ in range(2):
        outer.replay()
    # (1 + 1) * 2 + 1 = 5, (5 + 1) * 2 + 1 = 13
    assert set(x.tolist()) == {13}
    assert all(not o[7].item() for o in others)


def test_replays_nest_twice() -> None:
    x, graphs = gp.zeros(1000), [gp.CudaGraph() for _ in range(3)]
    with graphs[0].capture():
        gp.add(gp.add(x, 1.0), 0.0, out=x)
    for outer, inner in ((1, 0), (2, 1)):
        with graphs[outer].capture():
            graphs[inner].replay()
            graphs[inner].replay()
    last = graphs.pop()
    graphs.clear()
    gc.collect()
    gp.memory.trim()
    last.replay()
    assert set(x.tolist()) == {4}


def test_a_graph_belongs_to_its_device() -> None:
    graph = gp.CudaGraph()
    with graph.capture():
        gp.add(gp.ones(3), 1.0)
    with gp.device(native.open_cpu(1 << 24, None, True)), pytest.raises(gp.GraphError, match="another device"):
        graph.replay()


@given(seed=st.integers(0, 2**32), program=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=20))
@settings(max_examples=30)
def test_any_recorded_program_replays_as_it_would_run(seed: int, program: list[tuple[int, int]]) -> None:
    def run(arrays: list[Any], add: Callable[..., Any], scale: Callable[..., Any]) -> list[Any]:
        for a, b in program:
            arrays[a] = add(arrays[a], arrays[b]) if (a + b) % 2 else scale(arrays[b])
        return arrays

    host = [np.arange(5, dtype=np.int64) + i for i in range(4)]
    with gp.device(native.open_cpu(1 << 26, seed, True)):
        inputs = [gp.from_numpy(h) for h in host]
        graph = gp.CudaGraph()
        with graph.capture():
            recorded = run(list(inputs), gp.add, lambda x: gp.mul(x, 3))
        wanted = run(list(host), np.add, lambda x: x * 3)
        for _ in range(2):
            graph.replay()
            gp.synchronize()
            assert [r.tolist() for r in recorded] == [w.tolist() for w in wanted]


def test_threads_replay_their_own_graphs() -> None:
    failures: list[BaseException] = []

    def work(value: float) -> None:
        try:
            with gp.Stream():
                x, graph = gp.full(100, value), gp.CudaGraph()
                with graph.capture():
                    y = gp.mul(gp.add(x, 1.0), 2.0)
                for _ in range(20):
                    graph.replay()
                    assert set(y.tolist()) == {(value + 1) * 2}
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
