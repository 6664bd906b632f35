"""Types of sums, the form a layout is summed in, and the stages of a long axis; tests/gpu runs the kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.problem import Tensor
from pygpukit.ops.reduce.rows import CHUNK, collapse, stages, sum_type
from pygpukit.ops.size import Trace, hint
from pygpukit.ops.units import ALL_TYPES


def test_types_are_numpys() -> None:
    for name in ALL_TYPES:
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            assert sum_type(dtype(name)).name == name
        else:
            assert to_numpy_dtype(sum_type(dtype(name))) == np.ones(2, name).sum().dtype
    with pytest.raises(DTypeError, match="float32"):
        gp.sum(gp.ones(4), dtype="int32")
    with pytest.raises(ShapeError, match="out of range"):
        gp.sum(gp.ones(4), axis=1)
    with pytest.raises(ShapeError, match="twice"):
        gp.sum(gp.ones((4, 4)), axis=(0, -2))


@given(st.integers(1, 50), st.integers(1, 2**36), st.integers(1, 70))
def test_stages_chain_their_partial_sums(outer: int, n: int, inner: int) -> None:
    trace = Trace()
    sizes = tuple(trace.variable(x) for x in (outer, n, inner))
    x = Tensor("input", 0, dtype("bfloat16"), sizes)
    out = Tensor("output", 0, dtype("bfloat16"), (sizes[0], sizes[2]))
    made = stages(x, out, sizes, (n * inner, inner, 1))
    pointers = [[a.tensor for a in step.arguments[:2]] for step in made.launches]  # type: ignore[union-attr]
    partials = [s.tensor for s in made.scratch]
    assert [p[1] for p in pointers] == [x, *partials]
    assert [p[0] for p in pointers] == [*partials, out]
    length = n
    for step, partial in zip(made.launches, [*partials, None], strict=True):
        chunks = -(-length // CHUNK)
        assert [hint(a.value) for a in step.arguments[2:6]] == [outer, length, inner, chunks]  # type: ignore[union-attr]
        assert partial is None or hint(partial.size) == outer * chunks * inner
        assert step.entry in step.unit.source
        length = chunks
    assert length == 1


def test_one_plan_serves_every_length_with_as_many_stages() -> None:
    guards = {}
    for n in (5, 4096, 4097, 70_000):
        trace = Trace()
        size = trace.variable(n)
        x = Tensor("input", 0, dtype("float32"), (size,))
        made = stages(x, Tensor("output", 0, dtype("float32"), ()), (1, size, 1), (1, 1, 1))
        guards[n] = (len(made.launches), tuple(trace.guards), tuple(trace.nodes))
    assert guards[5] == guards[4096]
    assert guards[4097] == guards[70_000]
    assert (guards[5][0], guards[4097][0]) == (1, 2)


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_collapse_describes_the_same_elements(shape: list[int], data: Any) -> None:
    order = data.draw(st.permutations(range(len(shape))))
    base = np.arange(int(np.prod(shape))).reshape([shape[i] for i in order])
    x = base.transpose(np.argsort(order))
    first = data.draw(st.integers(0, len(shape) - 1))
    axes = tuple(range(first, data.draw(st.integers(first, len(shape) - 1)) + 1))
    form = collapse(x.shape, [s // x.itemsize for s in x.strides], axes)
    if form is None:
        return
    (outer, n, inner), (so, sn, si) = form
    grid = np.arange(outer)[:, None, None] * so + np.arange(n)[:, None] * sn + np.arange(inner) * si
    np.testing.assert_array_equal(base.ravel()[grid].sum(1).ravel(), x.sum(axes).ravel())


def test_collapse_refuses_what_has_no_single_stride() -> None:
    assert collapse((2, 3, 4), (12, 4, 1), (0, 2)) is None
    assert collapse((2, 3, 4), (100, 4, 1), (2,)) is None
    assert collapse((2, 3, 4), (12, 4, 1), (0, 1, 2)) == ((1, 24, 1), (1, 1, 1))
