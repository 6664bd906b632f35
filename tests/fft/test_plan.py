"""Plans of transforms: radices, steps, tables of roots; carried out here with NumPy in place of kernels."""

from __future__ import annotations

import fft_cases
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pygpukit.dtypes import dtype
from pygpukit.fft import plan
from pygpukit.ops.registry import load


def by_passes(x: fft_cases.Array, radices: tuple[int, ...]) -> fft_cases.Array:
    """The passes as the kernels make them, with their table."""
    n, table, done = x.size, plan.pass_roots(radices), 1
    for r in radices:
        b = np.arange(n // r)
        v = np.stack([x[b + k * (n // r)] for k in range(r)])
        if done > 1:
            bits = (r - 1).bit_length()
            powers, table = table[: bits * done].reshape(bits, done), table[bits * done :]
            for k in range(1, r):
                for s in range(bits):
                    if k >> s & 1:
                        v[k] *= powers[s][b % done]
        v = np.fft.fft(v, axis=0)
        out = np.empty_like(x)
        for k in range(r):
            out[b % done + (k + b // done * r) * done] = v[k]
        x, done = out, done * r
    return x


@settings(max_examples=60, derandomize=True)
@given(st.integers(1, 16384).filter(plan.is_smooth), st.booleans(), st.booleans())
def test_the_passes_of_a_plan_make_the_transform(n: int, wide: bool, columns: bool) -> None:
    n = n if not wide or n <= 8192 else n // 2 if plan.is_smooth(n // 2) else 8192
    shape = plan.shape_of(n, wide, columns)
    assert plan.is_plan(shape)
    assert max(shape.radices) <= 16
    assert shape.lanes * shape.rows <= 1024
    assert shape.shared <= 96 << 10
    x = fft_cases.values((n,), "complex128")
    want = np.fft.fft(x)
    assert np.linalg.norm(by_passes(x, shape.radices) - want) <= 1e-14 * np.linalg.norm(want)


@settings(max_examples=60, derandomize=True)
@given(st.integers(2, 2**26), st.booleans())
def test_steps_are_lengths_of_columns(n: int, wide: bool) -> None:
    lengths = plan.steps(n, wide)
    if lengths is not None:
        assert np.prod(lengths, dtype=np.int64) == n
        assert max(lengths) <= (1024 if wide else 2048)
    assert (plan.steps(2 * n, wide) is None) or plan.is_smooth(n)


@settings(max_examples=60, derandomize=True)
@given(st.integers(1, 2**31), st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=20))
def test_roots(n: int, turns: list[int]) -> None:
    got = plan.roots(turns, n)
    exact = [np.exp(-2j * np.pi * float((t % n) / n)) for t in turns]
    assert np.abs(got - exact).max() <= 1e-15 * 8
    shift, table = plan.two_level(n) if n <= 2**20 else (0, np.ones(1))
    if n <= 2**20:
        t = np.array([t % n for t in turns])
        assert np.abs(table[t >> shift] * table[(1 << shift) + t % (1 << shift)] - got).max() <= 1e-15


def test_roots_of_quarters_are_exact() -> None:
    assert plan.roots(np.arange(8), 8).tolist()[::2] == [1, -1j, -1, 1j]


def test_a_convolution_with_a_chirp_is_a_transform() -> None:
    for n in (17, 1009):
        m = plan.convolution_length(n)
        assert m >= 2 * n - 1
        table = plan.chirp(n, m)
        x = fft_cases.values((n,), "complex128")
        got = np.fft.ifft(np.fft.fft(x * table[:n], m) * table[n:] * m)[:n] * table[:n]
        assert np.abs(got - np.fft.fft(x)).max() <= 1e-12


def test_bundles_hold_common_lengths() -> None:
    names = {u.name for op in load().values() if op.name.startswith("fft") for u in op.units(["float32", "float64"])}
    assert {"pgk_fft_c2c_1024_f32", "pgk_fft_p2h_400_f32", "pgk_fft_h2p_512_f32", "pgk_fft_c2c_4096_f64"} <= names
    assert len(names) < 40
    unit, shape = plan.unit(400, dtype("float32"), "PACKED", "HALF")
    assert shape.n == 200
    assert unit.entries == (unit.name,)
