"""The CPU device's NumPy views: kept by their arrays, keeping the memory, and what operators do with them."""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.array.bridge import host_view
from pygpukit.ops.elementwise.reference import apply, prepare
from pygpukit.ops.elementwise.table import TABLE

NAMES = ["bool", "int8", "uint16", "int64", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex128"]


@pytest.fixture(autouse=True)
def on_the_cpu_device() -> None:
    if gp.zeros(1).device.kind != "cpu":
        pytest.skip("only arrays of the CPU device have NumPy views")


at_once = pytest.mark.skipif(
    os.environ.get("PYGPUKIT_STREAMS", "").startswith("deferred"), reason="views of work that waits are not kept"
)


@pytest.mark.parametrize("name", NAMES)
def test_a_view_has_the_type_the_layout_and_the_values(name: str) -> None:
    host = (np.arange(60).reshape(3, 4, 5) % 7).astype(gp.to_numpy_dtype(name))
    x = gp.from_numpy(host)
    gp.synchronize()
    for key in (..., (slice(None, None, -1), 1), (slice(None), None, slice(1, 4, 2)), (2, 3, 4), (slice(0, 0),)):
        view = host_view(x[key])
        assert type(view) is np.ndarray
        assert view.dtype == host.dtype
        assert view.shape == host[key].shape
        assert view.tolist() == np.asarray(host[key]).tolist()
        if view.size:
            assert view.flags.aligned
            assert x[key].strides == view.strides
            assert view.flags.c_contiguous == x[key].flags.c_contiguous


@at_once
def test_a_view_is_made_once_for_each_flag() -> None:
    x = gp.zeros(4)
    view = host_view(x)
    assert host_view(x) is view
    x.setflags(write=False)
    assert not host_view(x).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        gp.add(x, 1.0, out=x)
    x.setflags(write=True)
    assert host_view(x) is view
    assert view.flags.writeable
    gp.add(x, 1.0, out=x)
    gp.synchronize()
    assert view.tolist() == [1.0] * 4


@at_once
def test_a_view_keeps_the_memory_and_not_the_array() -> None:
    pool = gp.memory.MemoryPool()
    with pool:
        x = gp.full(1000, 3.0, "float32")
        gp.synchronize()
        before = pool.used
        view, array = host_view(x), weakref.ref(x)
        del x
        # No cycle: the array goes without the collector.
        assert array() is None
        others = [gp.zeros(1000) for _ in range(4)]
        gp.synchronize()
        assert view.tolist() == [3.0] * 1000
        del others
        assert pool.used == before
        del view
        assert pool.used == 0


def test_operators_bring_an_evicted_array_back_before_they_use_its_view() -> None:
    with gp.memory.MemoryPool(enable_eviction=True):
        x = gp.full(1 << 20, 2.0, "float32")
        y = x + 1.0
        gp.synchronize()
        host_view(x), host_view(y)
        assert x.evict()
        assert y.evict()
        assert not x.is_resident
        z = gp.mul(x, y)
        gp.add(z, 1.0, out=z)
        assert (z.to_numpy() == 7.0).all()
        assert x.is_resident


@pytest.mark.parametrize("name", ["add", "maximum", "pow", "where", "exp"])
def test_operators_do_not_warn(name: str) -> None:
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38], np.float32)
    x, y = gp.from_numpy(np.repeat(special, 7)), gp.from_numpy(np.tile(special, 7))
    operands = [x, x, y][3 - TABLE[name].arity :]

    def work() -> None:
        getattr(gp, name)(*operands)
        gp.div(x, y)
        gp.log(x)
        gp.div(x, 0.0)

    failed: list[BaseException] = []

    def on_a_thread() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(all="raise"):
            work()
            gp.synchronize()
            # Work inside work, on this thread and another.
            native.submit_host(work, [], [gp.zeros(1)])
            gp.synchronize()
            thread = threading.Thread(target=on_a_thread)
            thread.start()
            thread.join()
            gp.synchronize()
            assert np.geterr()["divide"] == "raise"
    assert not failed


def test_an_error_of_a_function_is_raised_and_the_stream_goes_on() -> None:
    x = gp.zeros(3)

    def fail() -> None:
        raise LookupError("from a host function")

    def submit() -> None:
        native.submit_host(fail, [], [x])
        gp.synchronize()

    with pytest.raises(LookupError, match="from a host function"):
        submit()
    assert (x + 1).tolist() == [1.0] * 3


def test_a_graph_replays_calls_of_functions() -> None:
    x, y = gp.zeros(5), gp.ones(5)
    graph = gp.CudaGraph()
    with graph.capture():
        z = gp.add(x, y)
        gp.mul(z, 2.0, out=x)
    for expected in (2.0, 6.0, 14.0):
        graph.replay()
        assert x.tolist() == [expected] * 5


@given(data=st.data())
@settings(max_examples=40, derandomize=True)
def test_large_operands_in_any_order(data: st.DataObject) -> None:
    shape = data.draw(st.sampled_from([(256, 300), (1 << 16, 2), (3, 150, 150), (70, 1, 1100), (1, 65536)]))
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    host = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)
    turned = host.transpose(axes)
    x = gp.from_numpy(host).transpose(axes)
    # The last axis, all of it or a row that is broadcast, in order or reversed.
    key = data.draw(st.sampled_from([..., (..., slice(None, None, -1)), (..., slice(0, 1)), 0]))
    y, other = gp.from_numpy(np.ascontiguousarray(turned))[key], turned[key]
    for operator in ("add", "maximum", "less"):
        got = getattr(gp, operator)(x, y)
        assert got.is_contiguous
        assert np.array_equal(got.to_numpy(), TABLE[operator].numpy(turned, other))
    assert np.array_equal((x * 3.0).to_numpy(), turned * np.float32(3.0))
    assert np.array_equal(gp.sigmoid(x).to_numpy(), TABLE["sigmoid"].numpy(turned))
    assert np.array_equal(x.copy().to_numpy(), turned)
    gp.add(x, x, out=x)
    assert np.array_equal(x.to_numpy(), turned + turned)


@pytest.mark.parametrize("kind", ["bool", "uint8", "bfloat16", "float64", "complex64", "complex128"])
def test_large_elements_of_any_size_are_copied_by_tiles(kind: str) -> None:
    host = np.random.default_rng(5).integers(0, 100, (3, 270, 310)).astype(gp.to_numpy_dtype(kind))
    x = gp.from_numpy(host)
    for axes in ((0, 2, 1), (2, 1, 0), (2, 0, 1)):
        turned = x.transpose(axes)
        assert turned.copy().to_numpy().tobytes() == np.ascontiguousarray(host.transpose(axes)).tobytes()
        wide = turned.astype("complex128").to_numpy()
        assert np.array_equal(wide, host.transpose(axes).astype("complex128"))
    part = x[:, 1:-1, ::-2].transpose(2, 1, 0)
    assert part.copy().to_numpy().tobytes() == np.ascontiguousarray(host[:, 1:-1, ::-2].transpose(2, 1, 0)).tobytes()
    target = gp.zeros((3, 310, 540), kind)
    target[:, :, 100:370] = x.transpose(0, 2, 1)
    assert np.array_equal(target[:, :, 100:370].to_numpy(), host.transpose(0, 2, 1))
    assert not target[:, :, :100].to_numpy().any()


@given(data=st.data())
@settings(max_examples=60, derandomize=True)
def test_scalars_are_rounded_as_kernels_round_them(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["add", "sub", "mul", "less", "maximum", "copysign", "where", "clamp"]))
    kind = data.draw(st.sampled_from(["int8", "int64", "float32", "float64", "complex64", "bfloat16"]))
    row = TABLE[name]
    numbers = st.one_of(st.booleans(), st.integers(-100, 100), st.floats(-1e6, 1e6, width=64))
    scalar = data.draw(numbers)
    host = data.draw(hnp.arrays(np.int8, 5, elements=st.integers(-9, 9))).astype(gp.to_numpy_dtype(kind))
    x = gp.from_numpy(host)
    operands: list[Any] = [x] * row.arity
    plain: list[Any] = [host] * row.arity
    place = data.draw(st.integers(0, row.arity - 1))
    operands[place], plain[place] = scalar, scalar
    try:
        got = getattr(gp, name)(*operands)
    except gp.DTypeError:
        return
    # The same operator, never by a ufunc of its own types.
    out = np.empty(5, gp.to_numpy_dtype(got.dtype))
    apply(name, tuple(plain), out)
    assert got.to_numpy().tobytes() == out.tobytes()


def test_a_ufunc_is_called_directly_only_at_the_types_of_the_kernel() -> None:
    f32, f64, i32, b = (gp.dtype(name) for name in ("float32", "float64", "int32", "bool"))
    assert prepare("add", (f32, "float"), f32) == (np.add, True)
    assert prepare("less", (i32, i32), b) == (np.less, True)
    assert prepare("add", (b, b), b) == (np.add, True)
    # Casts to the common type are NumPy's own.
    assert prepare("add", (f32, i32), f64) == (np.add, True)
    for name, inputs, out in [
        ("add", (f32, f32), f64),
        ("add", (gp.bfloat16, gp.bfloat16), gp.bfloat16),
        ("exp", (gp.complex64,), gp.complex64),
        ("pow", (i32, i32), i32),
        ("relu", (f32,), f32),
    ]:
        assert not prepare(name, inputs, out)[1], name
