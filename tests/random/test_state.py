"""The place in the sequence: what a draw uses up, state, copies, spawning, threads, and draws in graphs."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.random import Philox4x32
from pygpukit.random.generator import Generator


def test_a_draw_begins_with_a_new_block() -> None:
    whole = gp.random.default_rng(1).random(24, "float32").tolist()
    rng = gp.random.default_rng(1)
    assert rng.random(8, "float32").tolist() + rng.random(16, "float32").tolist() == whole
    rng = gp.random.default_rng(1)
    assert rng.random(10, "float32").tolist() == whole[:10]
    assert rng.random(10, "float32").tolist() == whole[12:22]
    rng = gp.random.default_rng(1)
    rng.random((5, 0)), rng.integers(5, size=0), rng.poisson(2.0, 0)
    assert rng.random(24, "float32").tolist() == whole


def test_offsets_are_counted_in_blocks() -> None:
    def used(draw: str, *args: object, **options: object) -> int:
        rng = gp.random.default_rng(1)
        getattr(rng, draw)(*args, **options)
        place: int = rng.bit_generator.state["state"]["offset"]
        return place

    assert used("random", 9) == 5
    assert used("random", 9, "float32") == 3
    assert used("normal", size=9, dtype="float16") == 3
    assert used("integers", 100, size=9) == 3
    assert used("integers", 2**33, size=9) == 5
    assert used("poisson", 4.0, 9) == 9
    assert used("permutation", 9) == 5


def test_blocks_past_2_to_the_32_and_the_end(device: str) -> None:
    rng = gp.random.default_rng(1)
    state = rng.bit_generator.state
    for offset in (2**32 - 2, 2**63 - 2, 2**64 - 2):
        state["state"]["offset"] = offset
        rng.bit_generator.state = state
        x = rng.random(16, "float32").to_numpy()
        with gp.device("cpu"):
            other = gp.random.default_rng(1)
            blocks = []
            for i in range(4):
                state["state"]["offset"] = (offset + i) % 2**64
                other.bit_generator.state = state
                blocks.append(other.random(4, "float32").to_numpy())
        np.testing.assert_array_equal(x, np.concatenate(blocks))
    assert rng.bit_generator.state["state"]["offset"] == 2


def test_state_copies_and_pickles() -> None:
    rng = gp.random.default_rng([1, 2])
    rng.random(5)
    state = rng.bit_generator.state
    twins: list[Generator] = [pickle.loads(pickle.dumps(rng)), copy.deepcopy(rng)]
    want = rng.normal(size=5).tolist()
    assert [twin.normal(size=5).tolist() for twin in twins] == [want, want]
    # As in NumPy a shallow copy shares its bit generator.
    assert copy.copy(rng).bit_generator is rng.bit_generator
    rng.bit_generator.state = state
    assert rng.normal(size=5).tolist() == want
    other = Philox4x32(0)
    other.state = state
    assert Generator(other).normal(size=5).tolist() == want
    spawned = [g.random(3).tolist() for g in rng.spawn(2)]
    assert [g.random(3).tolist() for g in pickle.loads(pickle.dumps(gp.random.default_rng([1, 2]))).spawn(2)] == spawned
    assert repr(rng) == f"Generator(Philox4x32(key=0x{state['state']['key']:016x}))"


def test_wrong_states_are_refused_and_change_nothing() -> None:
    bits = Philox4x32(1)
    good = bits.state
    place = good["state"]
    with pytest.raises(TypeError):
        bits.state = 3  # type: ignore[assignment]
    for wrong in (
        np.random.PCG64(1).state,
        {**good, "state": {**place, "key": -1}},
        {**good, "state": {**place, "key": 2**64}},
        {**good, "state": {**place, "offset": 2**64}},
        {**good, "state": {**place, "stream": 2**31}},
        {**good, "state": {**place, "replayed": {"cpu:0": -1}}},
    ):
        with pytest.raises(ValueError, match="state"):
            bits.state = wrong
    assert bits.state == good


def test_spawned_and_jumped_generators_are_independent() -> None:
    rng = gp.random.default_rng(1)
    family = [rng, *rng.spawn(3), *rng.spawn(2), Generator(rng.bit_generator.jumped())]
    family.append(Generator(rng.bit_generator.jumped(2)))
    draws = [g.random(2000).to_numpy() for g in family]
    assert len({x.tobytes() for x in draws}) == len(family)
    correlation = np.corrcoef(draws) - np.eye(len(family))
    assert np.abs(correlation).max() < 5 / 2000**0.5
    one, two = (gp.random.default_rng(1).spawn(2) for _ in range(2))
    assert [g.random(3).tolist() for g in one] == [g.random(3).tolist() for g in two]
    again = rng.bit_generator.jumped().jumped()
    assert again.state["state"]["stream"] == 2
    for wrong in (-1, 2**31):
        with pytest.raises(ValueError, match="jump"):
            rng.bit_generator.jumped(wrong)


def test_threads_share_a_generator() -> None:
    rng, results = gp.random.default_rng(1), []

    def work() -> None:
        for _ in range(50):
            results.append(rng.integers(2**62, size=2).to_numpy())

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    values = np.concatenate(results)
    assert np.unique(values).size == values.size == 600
    assert set(values) == set(gp.random.default_rng(1).integers(2**62, size=600).to_numpy())


def captured(rng: Generator) -> tuple[gp.CudaGraph, list[gp.GPUArray]]:
    graph, x = gp.CudaGraph(), gp.from_numpy(np.arange(6.0).reshape(3, 2))
    with graph.capture():
        made = [
            rng.random(5), rng.normal(size=3, dtype="float32"), rng.integers(100, size=9), rng.poisson(20.0, 4),
            rng.permutation(7), rng.permutation(x), rng.gamma(gp.full(2, 0.5)), rng.choice(x, 2, axis=1),
        ]  # fmt: skip
    return graph, made


def test_replays_give_new_numbers(device: str) -> None:
    rng = gp.random.default_rng(7)
    before = rng.random(5).tolist()
    graph, arrays = captured(rng)
    between = rng.random(5).tolist()
    assert between == [gp.random.default_rng(7).random(6).tolist(), gp.random.default_rng(7).random(11).tolist()[6:]][1]
    rounds = []
    for _ in range(3):
        graph.replay()
        rounds.append([x.tolist() for x in arrays])
    for i in range(4):
        assert len({str(made[i]) for made in rounds}) == 3
    assert all(sorted(made[4]) == list(range(7)) for made in rounds)
    assert all(sorted(map(tuple, made[5])) == [(0.0, 1.0), (2.0, 3.0), (4.0, 5.0)] for made in rounds)
    # Draws in the graph are of a stream of their own: none is one of the draws beside it.
    eager = set(before) | set(between) | set(rng.random(200).tolist())
    assert not eager & {value for made in rounds for value in made[0]}
    # Draws of one replay follow each other, and all follow the ones of the replay before.
    assert rounds[0][0] != rounds[1][0]
    # The sequence is that of the seed, on every device.
    with gp.device("cpu"):
        other = gp.random.default_rng(7)
        graph, arrays = captured(other)
        for made in rounds:
            graph.replay()
            close = [np.allclose(x.to_numpy(), want, rtol=1e-12) for x, want in zip(arrays, made, strict=True)]
            assert all(close), close


def test_the_state_includes_replays(device: str) -> None:
    rng = gp.random.default_rng(7)
    graph, out = gp.CudaGraph(), gp.zeros(4)
    with graph.capture():
        rng.random(dtype="float32", out=out)
    graph.replay()
    graph.replay()
    state = pickle.loads(pickle.dumps(rng.bit_generator.state))
    assert list(state["state"]["replayed"].values()) == [2]
    graph.replay()
    third = out.tolist()
    rng.bit_generator.state = state
    graph.replay()
    assert out.tolist() == third
    twin = copy.deepcopy(rng)
    graph.replay()
    fourth = out.tolist()
    other = gp.CudaGraph()
    with other.capture():
        twin.random(dtype="float32", out=out)
    other.replay()
    assert out.tolist() == fourth


def test_a_generator_made_during_a_capture(device: str) -> None:
    graph = gp.CudaGraph()
    with graph.capture():
        rng = gp.random.default_rng(3)
        x = rng.random(4)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(x.tolist())
    assert len({str(values) for values in seen}) == 3
    del rng
    graph.replay()
    assert x.tolist() not in seen


def test_graphs_that_share_a_generator_continue_each_other(device: str) -> None:
    rng = gp.random.default_rng(3)
    graphs, outs = [], []
    for _ in range(2):
        graph = gp.CudaGraph()
        with graph.capture():
            outs.append(rng.random(4, "float32"))
        graphs.append(graph)
    seen = []
    for i in (0, 1, 1, 0):
        graphs[i].replay()
        seen += outs[i].tolist()
    alone = gp.random.default_rng(3)
    graph = gp.CudaGraph()
    with graph.capture():
        want = alone.random(16, "float32")
    graph.replay()
    assert seen == want.tolist()


def test_generators_serve_several_devices() -> None:
    rng = gp.random.default_rng(5)
    values = []
    with gp.device("cpu"):
        values += rng.random(4, "float32").tolist()
    with gp.device("emulated"):
        values += rng.random(4, "float32").tolist()
        x = gp.zeros(4)
    assert values == gp.random.default_rng(5).random(8, "float32").tolist()
    # The device of `out` and of parameters decides.
    rng.random(dtype="float32", out=x)
    assert rng.normal(x).device.kind == x.device.kind
