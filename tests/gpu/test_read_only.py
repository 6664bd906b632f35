"""Read-only arrays: every way to write is refused, views inherit, and a second eviction copies nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.array.bridge import host_view

MIB = 1 << 20


@pytest.fixture(autouse=True)
def on_device(device: gp.Device) -> gp.Device:
    return device


def frozen(n: int = 8) -> gp.GPUArray:
    x = gp.from_numpy(np.arange(n, dtype=np.float32))
    x.setflags(write=False)
    return x


def assign(x: gp.GPUArray) -> None:
    x[2:4] = 7


def assign_array(x: gp.GPUArray) -> None:
    x[::2] = np.ones(4, np.float32)


def assign_column(x: gp.GPUArray) -> None:
    x[::2] = 7


def add_in_place(x: gp.GPUArray) -> None:
    x += 1


def a_parameter_of_a_graph(x: gp.GPUArray) -> None:
    with gp.CudaGraph().capture():
        gp.add(x, 1.0, out=x)


WRITES: dict[str, Callable[[gp.GPUArray], object]] = {
    "out": lambda x: gp.add(x, x, out=x),
    "out of mixed types": lambda x: gp.add(x.astype("float64"), 1, out=x),
    "in place": add_in_place,
    "sum": lambda x: gp.sum(gp.ones((3, 8)), axis=0, out=x),
    "matmul": lambda x: gp.matmul(gp.ones((1, 4)), gp.ones((4, 8)), out=x.reshape(1, 8)),
    "assignment": assign,
    "assignment of an array": assign_array,
    "assignment with a step": assign_column,
    "fill": lambda x: x.fill(3),
    "copy_to_device": lambda x: gp.copy_to_device(np.ones(8, np.float32), out=x),
    "copy_many": lambda x: gp.copy_many([(np.ones(8, np.float32), x)]),
    "copy_dense": lambda x: native.copy_dense(x, gp.ones(8)),
    "write_buffer": lambda x: native.write_buffer(x, np.ones(32, np.uint8)),
    "submit_host": lambda x: native.submit_host(lambda: None, [], [x]),
    "capture": a_parameter_of_a_graph,
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_every_way_to_write_is_refused(write: Callable[[gp.GPUArray], object]) -> None:
    x = frozen()
    with pytest.raises(ValueError, match=r"is read-only; write to a copy \(x\.copy\(\)\)"):
        write(x)
    assert x.tolist() == list(range(8))
    # The same calls are good otherwise.
    x.setflags(write=True)
    write(x)
    gp.synchronize()


@pytest.mark.nvrtc
def test_kernels_write_through_pointers_that_are_not_const() -> None:
    kernel = gp.jit('extern "C" __global__ void k(float* y, const float* x) { y[threadIdx.x] = x[threadIdx.x] + 1; }')
    x = frozen(32)
    with pytest.raises(gp.KernelLaunchError, match=r"parameter 'y' \(float\*\) may be written, but the array"):
        kernel(x, gp.ones(32), grid=1, block=32)
    y = gp.zeros(32)
    kernel(y, x, grid=1, block=32)
    assert y.tolist() == list(range(1, 33))


def test_an_array_becomes_read_only_while_writes_to_it_wait(run_python: Callable[..., str]) -> None:
    program = """
import pygpukit as gp
x = gp.zeros(4)
gp.add(x, 1.0, out=x)
x.setflags(write=False)
print(x.tolist())
"""
    assert run_python(program, PYGPUKIT_STREAMS="deferred:1") == "[1.0, 1.0, 1.0, 1.0]\n"


def test_views_inherit_and_cannot_be_made_writeable() -> None:
    x = gp.from_numpy(np.arange(8, dtype=np.float32))
    before = x[:4]
    x.setflags(write=False)
    views = [x[1:3], x.reshape(2, 4), x.T, x.view("int32"), x[None], x._broadcast_to([2, 8]), x[::2].reshape(4)[1:]]
    for view in views:
        assert not view.flags.writeable
        with pytest.raises(ValueError, match="it is a view of a read-only array"):
            view.setflags(write=True)
    with pytest.raises(ValueError, match="read-only"):
        views[0].fill(0)
    # As in NumPy a view made before keeps its flag, copies are writeable, and the owner may change its mind.
    assert before.flags.writeable
    before.fill(5)
    assert x.copy().flags.writeable
    assert (x + 1).flags.writeable
    x.flags.writeable = True
    x[0] = 9
    assert x.tolist()[:2] == [9, 5]
    assert not views[0].flags.writeable


def test_flags_have_the_names_of_numpy() -> None:
    x = gp.zeros((2, 3))
    host = np.zeros((2, 3), np.float32)
    for array, same in ((x, host), (x.T, host.T), (x[:, :2], host[:, :2]), (x[0], host[0])):
        for name in ("writeable", "c_contiguous", "f_contiguous"):
            assert getattr(array.flags, name) == getattr(same.flags, name)
            assert array.flags[name.upper()] == same.flags[name.upper()]
    x.flags["WRITEABLE"] = False
    x.setflags()
    assert not x.flags.writeable
    assert "WRITEABLE : False" in repr(x.flags)
    with pytest.raises(KeyError, match="no flag is named 'OWNDATA'"):
        x.flags["OWNDATA"]
    with pytest.raises(KeyError, match="cannot be set"):
        x.flags["C_CONTIGUOUS"] = True


def test_the_numpy_view_of_the_cpu_device_is_read_only(device: gp.Device) -> None:
    if device.kind == "cuda":
        pytest.skip("arrays of a GPU have no NumPy view")
    x = frozen()
    view = host_view(x)
    assert not view.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    assert host_view(x.copy()).flags.writeable


def test_loaded_weights_are_read_only(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(np.arange(100, dtype=np.float32).tobytes())
    x = gp.load_raw(path, 0, 100, "float32")
    assert not x.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        x += 1
    y = gp.load_raw(path, 0, 100, "float32", writeable=True)
    y += x
    assert y.tolist() == [2 * i for i in range(100)]


def test_a_second_eviction_of_read_only_memory_copies_nothing() -> None:
    pool = gp.memory.MemoryPool(quota=16 * MIB, enable_eviction=True, name="weights")
    values = np.random.default_rng(3).integers(0, 1 << 32, MIB, dtype=np.uint32)
    with pool:
        w = gp.from_numpy(values)
        w.setflags(write=False)
        start = pool.stats()
        assert w.evict()
        first = pool.stats()
        # Arrays that other tests left may leave the device with it.
        assert first["copied_out_bytes"] - start["copied_out_bytes"] >= 4 * MIB
        graph = gp.CudaGraph()
        with graph.capture():
            total = gp.bitwise_xor(w, 0)
        for round_ in range(1, 4):
            # Used by eager work and in a graph.
            graph.replay()
            np.testing.assert_array_equal(total.to_numpy(), values)
            np.testing.assert_array_equal(w.to_numpy(), values)
            assert w.evict()
            stats = pool.stats()
            assert stats["copied_out_bytes"] == first["copied_out_bytes"]
            assert stats["evictions_without_copy"] - first["evictions_without_copy"] == round_
        np.testing.assert_array_equal(w.to_numpy(), values)
        del graph, total
        # What is written since is copied again.
        w.setflags(write=True)
        w[0] = 1
        assert w.evict()
        assert pool.stats()["copied_out_bytes"] > first["copied_out_bytes"]
        assert w.tolist()[:1] == [1]
