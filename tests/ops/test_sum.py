"""Sums: the kernels on the host against NumPy, the same bits whatever the layout, and the plans' arithmetic."""

from __future__ import annotations

import ctypes
from typing import Any

import host_kernels
import numpy as np
import op_cases
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pygpukit.dtypes import dtype, to_numpy_dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops import reduction
from pygpukit.ops.reduction import CHUNK, collapse, sum_plan, sum_type
from pygpukit.ops.source import read
from pygpukit.ops.units import ALL_TYPES, builtin_units

needs_gxx = pytest.mark.skipif(host_kernels.GXX is None, reason="needs g++ to compile kernels for the host")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All sum kernels in one library."""
    units = [u for u in builtin_units() if u.name.startswith("pgk_sum_")]
    kernel = read("reduce.cu")
    instances = [u.source.removeprefix(kernel) for u in units]
    entries = [e for u in units for e in u.entries]
    return host_kernels.build(tmp_path_factory.mktemp("sum"), "sum", [kernel, *instances], entries, parallel=True)


def run(kernels: ctypes.CDLL, x: op_cases.Array, axis: int) -> op_cases.Array:
    strides = [s // x.itemsize for s in x.strides]
    form = collapse(x.shape, strides, (axis,))
    assert form is not None
    made = sum_plan(*form, dtype(x.dtype))
    out = np.zeros(form[0][0] * form[0][2], to_numpy_dtype(made.out))
    buffers = {"x": x, "out": out}
    buffers |= {s.name: np.full(s.size, 77, to_numpy_dtype(s.dtype)) for s in made.scratch}
    for call in made.calls:
        host_kernels.run_call(kernels, call, buffers)
    return out


@needs_gxx
@pytest.mark.parametrize("name", ALL_TYPES)
def test_sums_match_numpy(name: str, kernels: ctypes.CDLL) -> None:
    x = op_cases.values(name, 3 * 300, 5).reshape(3, 300)
    if x.dtype.kind not in "biu":
        # Small enough for the sum of every type, and finite.
        x = np.where(np.abs(x.astype(np.complex128)) < 4, x, np.zeros_like(x))
    got, want = run(kernels, x, 1), reduction.reference(x, 1)
    assert got.dtype == want.dtype
    if x.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    # Both add in float32 or wider, in another order, and round to the result type at the end.
    wide = np.abs(x.astype(np.complex128)).sum(1)
    rounding = {"float8_e4m3fn": 2**-3, "float8_e5m2": 2**-2, "bfloat16": 2**-7, "float16": 2**-10}.get(name, 1e-6)
    apart = np.abs(got.astype(np.complex128) - want.astype(np.complex128))
    assert (apart <= 1e-6 * wide + rounding * np.abs(want.astype(np.complex128))).all()


@needs_gxx
@pytest.mark.parametrize("n", [0, 1, 3, 127, 128, 129, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_bits_depend_on_the_length_alone(n: int, kernels: ctypes.CDLL) -> None:
    rng = np.random.default_rng(n)
    rows = rng.standard_normal((9, n)).astype(np.float32)
    want = run(kernels, rows, 1)
    np.testing.assert_allclose(want, rows.astype(np.float64).sum(1), rtol=1e-4, atol=1e-4)
    columns = np.ascontiguousarray(rows.T)
    shifted = np.zeros((9, n + 1), np.float32)[:, 1:]
    shifted[:] = rows
    for other, axis in ((columns, 0), (rows[:, ::-1].copy()[:, ::-1], 1), (shifted, 1)):
        assert run(kernels, other, axis).tobytes() == want.tobytes()
    for row in range(9):
        assert run(kernels, rows[row : row + 1], 1).tobytes() == want[row : row + 1].tobytes()


@needs_gxx
def test_a_long_axis_takes_several_stages(kernels: ctypes.CDLL) -> None:
    x = np.ones(2 * CHUNK + 1, np.int8)
    assert run(kernels, x, 0).tolist() == [2 * CHUNK + 1]
    y = np.full((2, 2 * CHUNK, 9), 2, np.uint8)
    assert run(kernels, y, 1).tolist() == [4 * CHUNK] * 18


def test_types_are_numpys() -> None:
    for name in ALL_TYPES:
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
            assert sum_type(dtype(name)).name == name
        else:
            assert to_numpy_dtype(sum_type(dtype(name))) == np.ones(2, name).sum().dtype
    with pytest.raises(DTypeError, match="float32"):
        sum_plan((1, 4, 1), (4, 1, 1), dtype("float32"), dtype("int32"))
    with pytest.raises(ShapeError, match="positive"):
        sum_plan((0, 4, 1), (4, 1, 1), dtype("float32"))


@given(st.integers(1, 50), st.integers(0, 2**36), st.integers(1, 70))
def test_plans_chain_their_buffers(outer: int, n: int, inner: int) -> None:
    made = sum_plan((outer, n, inner), (n * inner, inner, 1), dtype("bfloat16"))
    assert [c.arguments[1] for c in made.calls] == ["x", *(s.name for s in made.scratch)]
    assert [c.arguments[0] for c in made.calls] == [*(s.name for s in made.scratch), "out"]
    for call in made.calls:
        _, _, o, length, i, chunks, *_ = call.arguments
        assert isinstance(length, int)
        assert isinstance(chunks, int)
        assert (o, i) == (outer, inner)
        assert chunks == max(1, -(-length // CHUNK))
        assert call.entry in call.source
    assert made.calls[-1].arguments[5] == 1


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
