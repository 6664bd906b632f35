"""Streams and events: order, waits, queries, timing and misuse, inline and deferred."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit import _pygpukit_rust as native


def deferred(seed: int) -> gp.Device:
    """A CPU device of its own whose work is put off as long as is legal."""
    return native.open_cpu(1 << 28, seed, True)


def test_work_runs_in_order_on_one_stream() -> None:
    x = gp.zeros(8, "int32")
    with gp.Stream():
        for i in range(50):
            gp.mul(x, 3, out=x)
            gp.add(x, i, out=x)
        got = x.to_numpy()
    wanted = 0
    for i in range(50):
        wanted = (wanted * 3 + i + 2**31) % 2**32 - 2**31
    assert set(got.tolist()) == {wanted}


def test_the_current_stream_nests_and_comes_back() -> None:
    default = gp.default_stream()
    assert gp.current_stream().id == default.id
    outer, inner = gp.Stream(), gp.Stream()
    assert len({default.id, outer.id, inner.id}) == 3
    with outer as entered:
        assert entered is outer
        assert gp.current_stream().id == outer.id
        with inner:
            assert gp.current_stream().id == inner.id
            assert gp.default_stream().id == default.id
        assert gp.current_stream().id == outer.id
    with pytest.raises(RuntimeError), outer:
        raise RuntimeError
    assert gp.current_stream().id == default.id


def test_the_stream_argument_is_for_one_call() -> None:
    s = gp.Stream()
    before, mine = s.sequence, gp.current_stream().sequence
    x = gp.from_numpy(np.ones(4, np.float32), stream=s)
    y = gp.add(x, x, stream=s)
    z = gp.matmul(y, y, stream=s)
    w = gp.sum(y, stream=s)
    assert s.sequence >= before + 4
    assert gp.current_stream().sequence == mine
    assert (z.to_numpy(stream=s).item(), w.to_numpy(stream=s).item()) == (16, 8)


def test_numbers_count_submissions() -> None:
    s = gp.Stream()
    start = s.sequence
    with s:
        x = gp.zeros(4)
        gp.add(x, 1.0)
    assert s.sequence == start + 2
    s.synchronize()
    assert s.query()


def test_priorities() -> None:
    high, low, number = gp.Stream("high"), gp.Stream(priority="low"), gp.Stream(0)
    assert high.priority < number.priority <= low.priority
    assert gp.Stream(-1000).priority == high.priority
    assert gp.Stream(1000).priority == low.priority
    for wrong, error in (("urgent", ValueError), (1.5, TypeError), ([], TypeError)):
        with pytest.raises(error, match="priority must be"):
            gp.Stream(wrong)  # type: ignore[arg-type]


def test_streams_are_handed_out_again() -> None:
    ids = set()
    for _ in range(12):
        s = gp.Stream(-3)
        ids.add(s.id)
        with s:
            gp.zeros(3)
        del s
        gc.collect()
    assert len(ids) < 5


def test_events() -> None:
    event = gp.Event()
    assert event.query()
    event.synchronize()
    s = gp.Stream()
    with s:
        x = gp.zeros(4)
        event.record()
    made = s.record()
    assert isinstance(made, gp.Event)
    assert s.record(made) is made
    event.synchronize()
    made.synchronize()
    assert event.query()
    assert made.query()
    assert x.to_numpy(stream=s).tolist() == [0] * 4


def test_time_between_events() -> None:
    start, end = gp.Event(), gp.Event(timing=True)
    for wrong in (gp.Event(timing=False), gp.Event()):
        start.record()
        start.synchronize()
        with pytest.raises(ValueError, match=r"timing=False|never recorded"):
            start.elapsed_ms(wrong)
    start.record()
    gp.add(gp.ones(1000), 1.0)
    end.record()
    end.synchronize()
    assert start.elapsed_ms(end) >= 0
    assert end.elapsed_ms(start) <= 0


def test_waiting_for_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match="Event or a Stream"):
        gp.Stream().wait(3)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(8))
def test_a_missing_wait_shows_when_work_is_deferred(seed: int) -> None:
    def run(wait: bool) -> set[float]:
        seen = set()
        for attempt in range(10):
            with gp.device(deferred(seed * 100 + attempt)):
                producer, consumer = gp.Stream(), gp.Stream()
                x = gp.zeros(4)
                gp.synchronize()
                with producer:
                    gp.add(x, 1.0, out=x)
                    done = producer.record()
                if wait:
                    consumer.wait(done)
                with consumer:
                    y = gp.mul(x, 10.0)
                    seen.add(y.to_numpy()[0])
        return seen

    assert run(wait=True) == {10}
    assert 0 in run(wait=False)


def test_deferred_work_has_not_run_until_it_is_waited_for() -> None:
    with gp.device(deferred(1)):
        x = gp.zeros(4)
        gp.synchronize()
        ran: list[int] = []
        native.submit_host(lambda: ran.append(1), [], [x])
        assert not ran
        gp.synchronize()
        assert ran == [1]


def test_asking_again_and_again_comes_to_an_end() -> None:
    with gp.device(deferred(2)):
        for _ in range(5):
            gp.add(gp.ones(4), 1.0)
        event = gp.current_stream().record()
        asked = 0
        while not event.query():
            asked += 1
            assert asked < 10_000
        asked = 0
        while not gp.current_stream().query():
            asked += 1
            assert asked < 10_000


# What a random program does: on stream s, array d becomes f(array a); or stream s waits for stream t.
operations = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=30
)


@given(program=operations, seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_programs_with_all_their_waits_give_the_same_in_any_legal_order(
    program: list[tuple[int, int, int, int]], seed: int
) -> None:
    host = [np.full(3, i, np.int64) for i in range(5)]
    with gp.device(deferred(seed)):
        streams = [gp.Stream() for _ in range(4)]
        arrays = [gp.from_numpy(h) for h in host]
        gp.synchronize()
        # The last stream that wrote each array, and the events of its readers since.
        events: list[list[Any]] = [[] for _ in arrays]
        for s, target, source, kind in program:
            stream = streams[s]
            for event in {id(e): e for e in (*events[target], *events[source])}.values():
                stream.wait(event)
            with stream:
                if kind == 0:
                    gp.add(arrays[source], arrays[target], out=arrays[target])
                elif kind == 1:
                    # A new array takes the old one's place; the old memory is reused while work may still read it.
                    arrays[target] = gp.mul(arrays[source], 3)
                else:
                    temporary = gp.sub(arrays[source], 1)
                    gp.maximum(temporary, arrays[target], out=arrays[target])
                    del temporary
                done = stream.record()
            events[target] = [done]
            events[source].append(done)
            a, b = host[source], host[target]
            host[target] = a + b if kind == 0 else a * 3 if kind == 1 else np.maximum(a - 1, b)
        gp.synchronize()
        assert [x.tolist() for x in arrays] == [h.tolist() for h in host]


@given(seed=st.integers(0, 2**32), streams=st.integers(1, 4))
@settings(max_examples=25)
def test_memory_is_reused_in_stream_order(seed: int, streams: int) -> None:
    with gp.device(deferred(seed)):
        made = [gp.Stream() for _ in range(streams)]
        results = []
        for i in range(60):
            with made[i % streams]:
                x = gp.full(64, float(i))
                y = gp.add(x, 1.0)
                # Freed here, while nothing of it has run.
                del x
                results.append((i % streams, gp.mul(y, 2.0)))
                del y
        values = [r.to_numpy(stream=made[s])[0] for s, r in results]
        assert values == [2.0 * (i + 1) for i in range(60)]


@pytest.mark.parametrize("name", ["sum", "matmul"])
def test_results_made_for_another_stream_are_ordered_on_it(name: str) -> None:
    for seed in range(20):
        with gp.device(deferred(seed)):
            s, a = gp.Stream(), gp.ones((16, 16))
            gp.synchronize()
            x = gp.full((16, 16) if name == "matmul" else 16, 2.0, "float32")
            t = gp.add(x, 1.0)
            y = gp.mul(t, 2.0)
            # The memory of t is free for this stream, but not yet for another one.
            del t
            r = gp.matmul(a, a, stream=s) if name == "matmul" else gp.sum(a, 0, stream=s)
            assert set(y.to_numpy().reshape(-1).tolist()) == {6}
            assert set(r.to_numpy(stream=s).reshape(-1).tolist()) == {16}


def test_an_array_dropped_while_queued_work_uses_it() -> None:
    for seed in range(10):
        with gp.device(deferred(seed)):
            s = gp.Stream()
            x = gp.full(1 << 18, 3.0)
            gp.synchronize()
            y = gp.add(x, 1.0, stream=s)
            del x
            # Would take the same memory if the queue were not respected.
            others = [gp.full(1 << 18, float(i)) for i in range(4)]
            gp.memory.trim()
            assert set(y.to_numpy(stream=s).tolist()) == {4}
            assert [o.to_numpy()[0] for o in others] == [0, 1, 2, 3]


def test_what_a_queued_function_raises_comes_out_of_the_wait() -> None:
    with gp.device(deferred(5)):
        x = gp.zeros(4)

        def fail() -> None:
            raise LookupError("from the queue")

        native.submit_host(fail, [], [x])
        with pytest.raises(LookupError, match="from the queue"):
            gp.synchronize()
        # The stream goes on.
        assert gp.add(x, 1.0).tolist() == [1] * 4


def test_exceptions_of_queued_functions_reach_the_thread_that_ran_them() -> None:
    wrong: list[BaseException] = []

    def work(kind: type[Exception]) -> None:
        with gp.device(deferred(3)):
            x = gp.zeros(1)

            def fail() -> None:
                raise kind(kind.__name__)

            for _ in range(100):
                native.submit_host(fail, [], [x])
                try:
                    gp.synchronize()
                except kind:
                    continue
                except BaseException as error:
                    wrong.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in (LookupError, ArithmeticError, OSError, EOFError)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong


def test_many_threads_use_one_stream() -> None:
    s = gp.Stream()
    x = gp.zeros(1, "int64")
    s.synchronize()
    gp.synchronize()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(50):
                with s:
                    y = gp.ones(100, "int64")
                assert gp.sum(y, stream=s).to_numpy(stream=s).item() == 100
        except BaseException as error:
            failures.append(error)

    with s:
        x += 1
    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures
    assert x.to_numpy(stream=s).item() == 1


def test_named_streams() -> None:
    with gp.StreamManager() as manager:
        copies = manager.get("copies", "high")
        assert manager.get("copies") is copies
        assert manager.get("work").id != copies.id
        assert manager.names == ("copies", "work")
        gp.add(gp.ones(3), 1.0, stream=copies)
        manager.synchronize()
        assert copies.query()
    assert manager.names == ()
    assert repr(copies).startswith("<Stream")
