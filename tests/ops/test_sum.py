"""Types and accuracy of sums, the form a layout is reduced in, and the launches of a long axis."""

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
from pygpukit.ops.reduce.kernels import chunk, launches
from pygpukit.ops.reduce.layout import Form, collapse, form
from pygpukit.ops.reduce.table import TABLE, accumulator, sum_type
from pygpukit.ops.size import Trace, hint
from pygpukit.ops.units import ALL_TYPES


def test_types_are_numpys() -> None:
    for name in ALL_TYPES:
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            assert sum_type(dtype(name)).name == name
        else:
            assert to_numpy_dtype(sum_type(dtype(name))) == np.ones(2, name).sum().dtype
    with pytest.raises(DTypeError, match="complex64"):
        gp.sum(gp.ones(4, "complex64"), dtype="float32")
    with pytest.raises(np.exceptions.AxisError, match="out of bounds"):
        gp.sum(gp.ones(4), axis=1)
    with pytest.raises(ShapeError, match="twice"):
        gp.sum(gp.ones((4, 4)), axis=(0, -2))


@given(st.integers(1, 50), st.integers(1, 2**34), st.integers(1, 70))
def test_a_long_axis_is_reduced_to_partial_results_first(outer: int, n: int, inner: int) -> None:
    trace = Trace()
    sizes = tuple(trace.variable(x) for x in (outer, n, inner))
    kind = dtype("bfloat16")
    x = Tensor("input", 0, kind, sizes)
    out = Tensor("output", 0, kind, (sizes[0], sizes[2]))
    found = form(x, (1,))
    assert found is not None
    made = launches(TABLE["sum"], x, out, dtype("float32"), found)
    first, *rest = made.launches
    assert first.arguments[2].tensor is x  # type: ignore[union-attr]
    assert bool(rest) == (n > chunk(kind))
    counts = [-(-n // chunk(kind))]
    if counts[0] > 4096:
        counts.append(-(-counts[0] // 2048))
    if counts[-1] > 4096:
        counts.append(-(-counts[-1] // 2048))
    partials = [s.tensor for s in made.scratch]
    assert len(partials) == len(rest) == (len(counts) if rest else 0)
    steps = [first, *rest]
    for count, partial, step, reader in zip(counts, partials, steps, rest, strict=False):
        assert hint(partial.size) == 4 * outer * inner * count
        assert step.arguments[1].tensor is reader.arguments[2].tensor is partial  # type: ignore[union-attr]
    assert made.launches[-1].arguments[0].tensor is out  # type: ignore[union-attr]
    assert all(step.entry in step.unit.source for step in made.launches)  # type: ignore[union-attr]


def test_one_plan_serves_every_length_with_as_many_launches() -> None:
    guards = {}
    for n in (5, 4096, 4097, 100_000, 140_000, 2**24, 2**24 + 1, 2**28, 2**30):
        trace = Trace()
        size = trace.variable(n)
        x = Tensor("input", 0, dtype("float32"), (size,))
        found = Form((), 1, size, 0, (0, 1))
        made = launches(TABLE["sum"], x, Tensor("output", 0, dtype("float32"), ()), dtype("float32"), found)
        guards[n] = (len(made.launches), tuple(trace.guards), tuple(trace.nodes))
    assert guards[5] == guards[4096]
    assert guards[4097] == guards[100_000]
    assert guards[140_000] == guards[2**24]
    assert guards[2**24 + 1] == guards[2**28]
    assert [guards[n][0] for n in (5, 4097, 140_000, 2**30)] == [1, 2, 2, 3]


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.cuda),
                                    pytest.param("emulated", marks=pytest.mark.nvrtc)])  # fmt: skip
def test_errors_are_within_their_bounds(device: str) -> None:
    """The bound of the kernel's header, and for variances what two passes in double precision give."""
    rng = np.random.default_rng(8)
    eps = float(np.finfo(np.float32).eps) / 2
    with gp.device(device):
        for n in (100, 4096, 150_001):
            for values in (rng.random(n), rng.standard_normal(n), 1000 + rng.standard_normal(n)):
                host = values.astype(np.float32)
                x = gp.from_numpy(host)
                exact = host.astype(np.float64)
                bound = (67 + n / 2**33) * eps * np.abs(exact).sum()
                assert abs(gp.sum(x).item() - exact.sum()) <= bound
                assert abs(gp.mean(x).item() - exact.mean()) <= bound / n + eps * abs(exact.mean())
                # A mean that is 1000 deviations away leaves the variance its digits but three.
                spread = 4 * (67 + 10) * eps * (1 + abs(exact.mean()) / exact.std())
                assert abs(gp.var(x).item() / exact.var() - 1) <= spread


@pytest.mark.parametrize("device", [pytest.param("cuda", marks=pytest.mark.cuda),
                                    pytest.param("emulated", marks=pytest.mark.nvrtc)])  # fmt: skip
def test_very_many_partial_results_are_folded_twice(device: str) -> None:
    host = np.ones(1024 * 4096 + 5000, np.complex128)
    host[[0, 2_100_000, -1]] = 3 + 2j
    with gp.device(device):
        assert gp.sum(gp.from_numpy(host)).item() == host.sum()


def test_wider_types_are_summed_in() -> None:
    assert accumulator(dtype("float32"), dtype("float64")) is gp.float64
    assert accumulator(dtype("int32"), dtype("float32")) is gp.float64
    assert accumulator(dtype("float32"), dtype("complex64")) is gp.complex64
    x = gp.from_numpy(np.full(2**20, 1 + 2**-20, np.float32))
    assert gp.sum(x, dtype="float64").item() == float(np.float32(1 + 2**-20)) * 2**20


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


@pytest.mark.nvrtc
def test_bits_depend_on_length_and_type_alone() -> None:
    """By rows, by columns of any number of neighbours, alone, with steps, and with two axes that are one in length."""
    rng = np.random.default_rng(9)
    with gp.device("emulated"):
        for name, kind in (("sum", "float32"), ("var", "float32"), ("max", "bfloat16")):
            for n in (7, 200, 2050, 9001):
                host = rng.standard_normal((14, n)).astype(gp.to_numpy_dtype(kind))
                function = getattr(gp, name)
                want = function(gp.from_numpy(host), axis=1).to_numpy()
                assert function(gp.from_numpy(host[3])).to_numpy().tobytes() == want[3].tobytes()
                for width in (1, 12, 13, 14):
                    columns = gp.from_numpy(np.ascontiguousarray(host[:width].T))
                    assert function(columns, axis=0).to_numpy().tobytes() == want[:width].tobytes()
                wide = gp.from_numpy(np.repeat(host, 2, axis=1))[:, ::2]
                assert function(wide, axis=1).to_numpy().tobytes() == want.tobytes()
                if n == 2050:
                    padded = np.zeros((14, 41, 53), host.dtype)
                    padded[:, :, :50] = host.reshape(14, 41, 50)
                    view = gp.from_numpy(padded)[:, :, :50]
                    assert function(view, axis=(1, 2)).to_numpy().tobytes() == want.tobytes()
