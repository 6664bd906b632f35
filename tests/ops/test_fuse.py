"""Fused functions give the bits of their operators one after the other: every operator, type, layout and reduction."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pygpukit as gp
from pygpukit.ops.elementwise.rows import supported
from pygpukit.ops.elementwise.table import TABLE
from pygpukit.ops.units import ALL_TYPES

DEVICES = ["cpu", pytest.param("emulated", marks=pytest.mark.nvrtc), pytest.param("cuda", marks=pytest.mark.cuda)]
KERNELS = DEVICES[1:]
REDUCTIONS = ("sum", "mean", "max", "min", "prod", "any", "all")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        yield


def values(kind: str, shape: tuple[int, ...], seed: int = 1) -> gp.GPUArray:
    rng = np.random.default_rng(seed)
    to = gp.to_numpy_dtype(kind)
    if to.kind == "b":
        host = rng.integers(0, 2, shape)
    elif to.kind in "iu":
        host = rng.integers(0 if to.kind == "u" else -9, 10, shape)
    elif to.kind == "c":
        host = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    else:
        host = rng.standard_normal(shape) * 3
    return gp.from_numpy(host.astype(to))


def assert_same_bits(function: Callable[..., Any], *args: Any, context: Any = "") -> None:
    """The fused function gives what the function gives, in shape, type and every bit."""
    eager, fused = function(*args), gp.fuse(function)(*args)
    assert isinstance(eager, tuple) == isinstance(fused, tuple)
    pairs = zip(eager, fused, strict=True) if isinstance(eager, tuple) else [(eager, fused)]
    for i, (want, got) in enumerate(pairs):
        assert got.shape == want.shape, context
        assert got.dtype is want.dtype, context
        assert got.to_numpy().tobytes() == want.to_numpy().tobytes(), (context, i, got, want)


def all_operators(kind: str, names: list[str]) -> Callable[..., Any]:
    """Every operator defined for a type, each followed by a sum: a product before it must not be fused with it."""

    def function(x: Any, y: Any, z: Any) -> tuple[Any, ...]:
        results = []
        for name in names:
            made = getattr(gp, name)(*(x, y, z)[: TABLE[name].arity])
            joined = gp.logical_xor if made.dtype is gp.bool_ else gp.add
            results.append(joined(made, z))
        return tuple(results)

    return function


def defined(kind: str) -> list[str]:
    return [name for name, row in TABLE.items() if row.public and name != "copy" and gp.dtype(kind) in supported(row)]


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_every_operator_on_the_cpu_device(kind: str) -> None:
    x, y, z = (values(kind, (131,), seed) for seed in range(3))
    names = defined(kind)
    for at in range(0, len(names), 25):
        assert_same_bits(all_operators(kind, names[at : at + 25]), x, y, z)


@pytest.mark.parametrize("device", KERNELS)
@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("float32", "silu gelu sigmoid exp tanh div lerp clamp pow log1p sub mul"),
        ("float64", "silu gelu exp square"),
        ("float16", "silu exp mul add copysign"),
        ("bfloat16", "gelu mul reciprocal"),
        ("complex64", "mul square div exp abs"),
        ("int32", "mul floor_divide pow left_shift neg"),
        ("uint8", "add mul invert"),
        ("bool", "add logical_not maximum"),
        ("float8_e5m2", "mul exp"),
    ],
)
def test_operators_in_kernels(kind: str, names: str, device: str) -> None:
    with gp.device(device):
        x, y, z = (values(kind, (1301,), seed) for seed in range(3))
        assert_same_bits(all_operators(kind, [n for n in names.split() if n in defined(kind)]), x, y, z)


@pytest.mark.parametrize("device", DEVICES)
def test_layouts(device: str) -> None:
    def function(x: Any, y: Any, scale: Any) -> Any:
        return gp.maximum(gp.tanh(x) * scale - y, 0) + abs(y)

    fused = gp.fuse(function)
    with gp.device(device):
        x, row = values("float32", (37, 70)), values("float32", (70,), 2)
        column, one = values("float32", (37, 1), 3), values("float32", (), 4)
        cube, wide = values("float32", (5, 1, 70), 5), values("float32", (36, 72), 6)
        for a, b in [
            (x, x), (x, row), (column, row), (x, one), (one, x), (x.T, x.T), (x[::2, 3:], row[3:]),
            (x[::-1, ::-2], one), (x[1:, 1:], x[1:, 1:]), (cube, x), (one, one), (x[:0], row), (row[1:], row[:-1]),
            (x[:, :1], x[:1]), (wide, wide[0]), (wide[:, :64], column[:36]), (wide[::2], wide[1::2]),
            (wide.reshape(9, 4, 72), wide[:9, :1].reshape(9, 1, 1)), (wide[:, 1:69], wide[0, :68]),
        ]:  # fmt: skip
            for scale in (2.5, 3):
                want, got = function(a, b, scale), fused(a, b, scale)
                assert got.shape == want.shape
                assert got.to_numpy().tobytes() == want.to_numpy().tobytes(), (a.strides, b.strides, scale)
        if device != "cpu":
            variants = [fused.explain(a, b, 1.0).splitlines() for a, b in [(x, x), (wide, wide[0]), (x, row)]]
            assert [[line[7:12] for line in lines if "runs" in line] for lines in variants] == [
                ["dense"], ["vecto"], ["strid"]
            ]  # fmt: skip
        # Larger than the blocks of the CPU device, in every way they are made.
        if device == "cpu":
            large = values("float32", (130, 7, 90))
            for a, b in [
                (large, large),
                (large, row[:7].reshape(7, 1)),
                (large.T, large.T),
                (large[:, ::2], large[0, 0]),
            ]:
                assert_same_bits(function, a, b, 0.5)
            assert_same_bits(function, values("float32", (3, 70_001)), values("float32", (3, 1)), 0.5)


@pytest.mark.parametrize("device", DEVICES)
def test_types_are_numpys(device: str) -> None:
    with gp.device(device):
        half, single, whole = values("float16", (33,)), values("float32", (33,)), values("int16", (33,))
        assert_same_bits(lambda x: x * 0.1 + 1, half)
        assert_same_bits(lambda x, y: (x * 3 + y) / 2, half, whole)
        assert_same_bits(lambda x, s: (x * s, x + np.float32(s), s - x), half, 0.3)
        assert_same_bits(lambda x, s: x * s, half, np.float64(0.1))
        assert_same_bits(lambda x, y: gp.where(x > y, x, 0.25), single, whole)
        assert_same_bits(lambda c, x: gp.where(c, x, -x), True, single)
        assert_same_bits(lambda x: x.astype("int32").astype("float16") + x, single)
        assert_same_bits(lambda x: (x > 0) & (x < 2) | (x == 7), whole)
        assert_same_bits(lambda x: -(x**2) // 3 % 5, whole)
        assert_same_bits(lambda x, s: x * s, single, 1j)
        assert_same_bits(lambda x, s: gp.conj(x) + s, values("complex128", (33,)), 0.1 + 2j)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "kind", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32", "uint8", "int64", "bool"]
)
def test_numbers_are_rounded_as_in_operators(kind: str, device: str) -> None:
    floats = [
        0.1,
        -0.0,
        1e-7,
        3e-46,
        65519.9,
        1e39,
        2.0**-24 * 1.5,
        240.1,
        float("inf"),
        float("nan"),
        1 + 2**-9 + 2**-40,
    ]
    numbers = floats if kind.startswith(("float", "bfloat")) else [0, 1, 255 if kind != "bool" else True]
    if kind == "int64":
        numbers += [-(2**63), 2**63 - 1]
    with gp.device(device):
        x = gp.zeros(3, kind)
        mask = x > 0
        fused = gp.fuse(lambda c, x, s: gp.where(c, x, s))
        for s in numbers:
            want = gp.where(mask, x, s)
            got = fused(mask, x, s)
            assert got.dtype is want.dtype
            assert got.to_numpy().tobytes() == want.to_numpy().tobytes(), s
        if kind == "uint8":
            for bad in (256, -1, 10**50):
                for function in (fused.function, fused):
                    with pytest.raises(OverflowError):
                        function(mask, x, bad)


CASES = [((9, 1300), (1300,)), ((1300, 9), (1300, 1)), ((5, 40, 33), (40, 1)), ((3, 4, 5, 6), (4, 1, 6))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("shape", "other"), CASES)
def test_reductions_in_every_form(shape: tuple[int, ...], other: tuple[int, ...], device: str) -> None:
    with gp.device(device):
        x, y = values("float32", shape), values("float32", other, 2)
        every = [None, 0, -1, (0, -1), tuple(range(1, len(shape)))] + [(0, 2)] * (len(shape) > 2)
        for axis in every:
            for keep in (False, True) if axis == 0 else (False,):
                assert_same_bits(lambda x, y: gp.sum(gp.silu(x) * y, axis, keepdims=keep), x, y, context=(axis, keep))  # noqa: B023
        assert_same_bits(lambda x: gp.mean(x * x, 0), x.reshape(-1, shape[-1]).T)


@pytest.mark.parametrize("device", DEVICES)
def test_other_reductions(device: str) -> None:
    with gp.device(device):
        in_kernels = [("sum", "float16"), ("mean", "int8"), ("max", "float16"), ("all", "uint8")]
        in_numpy = [(n, k) for n in REDUCTIONS for k in ALL_TYPES if n != "prod" or not k.startswith("float8")]
        for name, kind in in_numpy if device == "cpu" else in_kernels:
            x = values(kind, (33, 45))
            for axis in (0, 1):
                assert_same_bits(lambda x: getattr(gp, name)(gp.maximum(x, 0), axis=axis), x, context=(name, kind))  # noqa: B023
        x = values("float32", (20_000,))
        # More than a chunk, a result of another type, more types of elements than one, and nothing to reduce.
        assert_same_bits(lambda x: gp.sum(x * 0.5), x)
        assert_same_bits(lambda x: gp.sum(x, dtype="float64"), x)
        assert_same_bits(lambda x, y: (x > y).sum(), x, values("float16", (20_000,)))
        assert_same_bits(lambda x: (x + 1).prod(), x[:0])
        assert_same_bits(lambda x: (x + 1).sum(axis=0), gp.zeros((0, 4)))
        assert_same_bits(lambda x: gp.mean(x + 1), gp.asarray(2.0))
        with pytest.raises(ValueError, match="no elements"):
            gp.fuse(lambda x: gp.max(x + 1))(x[:0])
        into = gp.zeros((45, 2))[:, 0]
        fused = gp.fuse(lambda x: gp.sum(x * x, axis=0))
        assert fused(values("float32", (33, 45)), out=into) is into
        assert into.to_numpy().tobytes() == fused(values("float32", (33, 45))).to_numpy().tobytes()


UNARY = ["neg", "abs", "exp", "tanh", "silu", "gelu", "sigmoid", "square", "floor", "relu", "log1p", "sign"]
BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "copysign", "less", "atan2"]
OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(UNARY), st.integers(0, 99)),
    st.tuples(st.sampled_from(BINARY), st.integers(0, 99), st.integers(0, 99)),
    st.tuples(st.sampled_from(["add", "mul"]), st.integers(0, 99), st.sampled_from([0.5, 3, -1.25])),
    st.tuples(st.sampled_from(["where"]), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
)


def random_chain(steps: list[tuple[Any, ...]], cast: str) -> Callable[..., Any]:
    def function(*arrays: Any) -> Any:
        made = list(arrays)
        for name, *operands in steps:
            found = [made[-1 - o % len(made)] if isinstance(o, int) and o < 100 else o for o in operands]
            try:
                made.append(getattr(gp, name)(*found))
            except gp.DTypeError:
                made.append(gp.add(found[0].astype(cast), 1))
        return made[-1] + made[-2]

    return function


def check_chain(steps: list[tuple[Any, ...]], kinds: list[str], cast: str) -> None:
    arrays = [values(kind, (67,) if i else (3, 67), i) for i, kind in enumerate(kinds)]
    assert_same_bits(random_chain(steps, cast), *arrays)


CHAINS = given(
    st.lists(OPERATIONS, min_size=2, max_size=9),
    st.lists(st.sampled_from(["float32", "float16", "float64", "int32", "bool", "bfloat16"]), min_size=2, max_size=3),
    st.sampled_from(["float32", "float16"]),
)


@CHAINS
@settings(max_examples=60, derandomize=True)
def test_random_chains_on_the_cpu_device(steps: list[tuple[Any, ...]], kinds: list[str], cast: str) -> None:
    check_chain(steps, kinds, cast)


@pytest.mark.nvrtc
@CHAINS
@settings(max_examples=12, derandomize=True)
def test_random_chains_in_kernels(steps: list[tuple[Any, ...]], kinds: list[str], cast: str) -> None:
    with gp.device("emulated"):
        check_chain(steps, kinds, cast)


@pytest.mark.parametrize("device", DEVICES)
def test_chains_of_500_operators(device: str) -> None:
    def function(x: Any) -> Any:
        for i in range(250):
            x = x * 1.001 + i % 7
        return x

    with gp.device(device):
        assert_same_bits(function, values("float32", (301,)))


@pytest.mark.parametrize("device", DEVICES)
def test_many_arrays(device: str) -> None:
    with gp.device(device):
        arrays = [values("float32", (19,), i) for i in range(31)]
        add_all = gp.fuse(lambda *arrays: functools.reduce(gp.add, arrays))
        assert_same_bits(add_all.function, *arrays)
        with pytest.raises(gp.ShapeError, match="33 arrays, over 32"):
            add_all(*arrays, arrays[0] + 1)
