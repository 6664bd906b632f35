"""Levels of determinism: which variant runs under which, and where a level holds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import OPERATORS, STRENGTH, Determinism, Operator, Parameter, Variant, promises, register

LEVELS = ("batch_invariant", "run_to_run", "not_guaranteed")


def adding(number: float) -> Callable[[Problem], Callable[..., None]]:
    """A variant whose result tells that it ran."""

    def compose(p: Problem) -> Callable[..., None]:
        def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
            results[0][...] = given[0] + number

        return run

    return compose


def operator(name: str, *classes: Determinism) -> Callable[..., Any]:
    """An operator with a variant for each of these, which adds 0, 1, 2, ..."""
    return register(
        Operator(
            name=name,
            parameters=(Parameter("x"),),
            infer=lambda p: [Result(p["x"].shape, p["x"].dtype)],
            reference=lambda x: x,
            variants=tuple(
                Variant(f"adds {i}", own, lambda p: None, compose=adding(i)) for i, own in enumerate(classes)
            ),
            doc="A number that tells the variant.",
            public=False,
        )
    )


@pytest.fixture(scope="module")
def three() -> Iterator[Callable[..., Any]]:
    """The fastest variant first, as the weakest; under each level another one runs."""
    function = operator("determinism_three", "not_guaranteed", "run_to_run", "batch_invariant")
    yield function
    del OPERATORS["determinism_three"]


def which(function: Callable[..., Any]) -> int:
    return int(function(gp.zeros(2)).to_numpy()[0])


def test_the_first_variant_that_promises_enough_runs(three: Callable[..., Any]) -> None:
    # Twice: the second time from the plans of the first.
    for _ in range(2):
        assert which(three) == 2
        for level, number in (("batch_invariant", 2), ("run_to_run", 1), ("not_guaranteed", 0)):
            with gp.deterministic(level):
                assert gp.get_deterministic() == level
                assert which(three) == number
    assert gp.get_deterministic() == "batch_invariant"


def test_a_level_is_part_of_the_class_of_a_plan(three: Callable[..., Any]) -> None:
    which(three)
    before = native.plan_classes()
    with gp.deterministic("run_to_run"):
        which(three)
        which(three)
    assert native.plan_classes() <= before + 1


def test_explain_says_why(three: Callable[..., Any]) -> None:
    with gp.deterministic("run_to_run"):
        walk = gp.explain(three, gp.zeros(2))
    assert walk.variant == "adds 1"
    assert walk.asked == "run_to_run"
    assert walk.refused == (("adds 0", "is not_guaranteed, and run_to_run is asked"),)


def test_an_operator_that_promises_less_runs_by_its_strongest_variant() -> None:
    function = operator("determinism_weak", "not_guaranteed", "run_to_run", "run_to_run")
    try:
        assert which(function) == 1
        walk = gp.explain(function, gp.zeros(2))
        assert (walk.variant, walk.determinism, walk.asked) == ("adds 1", "run_to_run", "batch_invariant")
        assert "runs adds 1 (run_to_run; no way that is batch_invariant accepts)" in str(walk)
        with gp.deterministic("not_guaranteed"):
            assert which(function) == 0
    finally:
        del OPERATORS["determinism_weak"]


@pytest.mark.parametrize("own", LEVELS)
@pytest.mark.parametrize("asked", LEVELS)
def test_strength(own: Determinism, asked: Determinism) -> None:
    assert promises(own, asked) == (LEVELS.index(own) <= LEVELS.index(asked))
    assert STRENGTH == LEVELS


def test_a_wrong_level_is_named() -> None:
    for call in (gp.deterministic, gp.set_deterministic):
        with pytest.raises(ValueError, match=r"no level of determinism 'fast'; use 'batch_invariant'"):
            call("fast")


def test_a_block_is_one_of_its_thread_and_a_default_of_all(three: Callable[..., Any]) -> None:
    def elsewhere() -> tuple[str, int]:
        found: list[tuple[str, int]] = []
        thread = threading.Thread(target=lambda: found.append((gp.get_deterministic(), which(three))))
        thread.start()
        thread.join()
        return found[0]

    with gp.deterministic("not_guaranteed"):
        assert elsewhere() == ("batch_invariant", 2)
    gp.set_deterministic("run_to_run")
    try:
        assert gp.get_deterministic() == "run_to_run"
        assert elsewhere() == ("run_to_run", 1)
        with gp.deterministic("batch_invariant"):
            assert which(three) == 2
    finally:
        gp.set_deterministic("batch_invariant")


def test_other_contexts_keep_the_level(three: Callable[..., Any]) -> None:
    stream = gp.Stream()
    with gp.deterministic("run_to_run"):
        with stream:
            assert which(three) == 1
        with gp.device("emulated"):
            assert gp.get_deterministic() == "run_to_run"
        with gp.memory.MemoryPool(), gp.deterministic("not_guaranteed"):
            assert which(three) == 0
        assert int(three(gp.zeros(2), stream=stream).to_numpy()[0]) == 1


def test_blocks_are_left_in_reverse_order() -> None:
    outer, inner = gp.deterministic("run_to_run"), gp.deterministic("not_guaranteed")
    with outer, inner:
        with pytest.raises(gp.errors.GraphError, match="reverse order"):
            outer.__exit__(None, None, None)
        assert gp.get_deterministic() == "not_guaranteed"


def test_a_coroutine_keeps_its_own(three: Callable[..., Any]) -> None:
    async def work(level: str, number: int) -> None:
        with gp.deterministic(level):
            for _ in range(3):
                await asyncio.sleep(0)
                assert which(three) == number

    async def main() -> None:
        pairs = (("run_to_run", 1), ("not_guaranteed", 0), ("batch_invariant", 2))
        await asyncio.gather(*(gp.with_context(work(*pair)) for pair in pairs))

    asyncio.run(main())


def test_a_graph_keeps_the_level_it_was_captured_with(three: Callable[..., Any]) -> None:
    x, out = gp.zeros(2), gp.zeros(2)
    graph = gp.CudaGraph()
    with gp.deterministic("not_guaranteed"), graph.capture():
        three(x, out=out)
    graph.replay()
    graph.synchronize()
    assert out.tolist() == [0.0, 0.0]
    x[...] = 5.0
    with gp.deterministic("run_to_run"):
        graph.replay()
        graph.synchronize()
    assert out.tolist() == [5.0, 5.0]
