"""Arrays shared with torch, CuPy and JAX on a GPU: values, memory, streams and lifetimes."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.ops.units import ALL_TYPES

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("cuda")]

# Large enough that work on it takes longer than the calls that follow.
LARGE = 1 << 24


@pytest.fixture
def torch() -> Any:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return torch


@pytest.fixture
def cupy() -> Any:
    return pytest.importorskip("cupy")


@pytest.fixture
def jax() -> Any:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    return jax


def host(name: str = "float32", shape: tuple[int, ...] = (3, 4, 5)) -> np.ndarray[Any, Any]:
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(gp.to_numpy_dtype(name))


# -- torch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in ALL_TYPES if n not in ("uint16", "uint32", "uint64")])
def test_torch_both_ways(torch: Any, name: str) -> None:
    x = gp.from_numpy(host(name))
    try:
        t = torch.from_dlpack(x[:, ::2])
    except (BufferError, RuntimeError) as error:
        if not name.startswith("float8"):
            raise
        pytest.skip(f"this torch takes no {name}: {error}")
    assert t.data_ptr() == x.ptr
    assert tuple(t.shape) == (3, 2, 5)
    assert tuple(t.stride()) == (20, 10, 1)
    y = gp.from_dlpack(t)
    assert y.dtype is x.dtype
    assert y.ptr == x.ptr
    assert y.to_numpy().tobytes() == x[:, ::2].to_numpy().tobytes()


def test_torch_waits_for_our_work_and_we_for_torchs(torch: Any) -> None:
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            x = gp.zeros(LARGE)
            for _ in range(20):
                gp.add(x, 1.0, out=x)
            t = torch.from_dlpack(x)
            for _ in range(20):
                t += 1.0
            y = gp.from_dlpack(t)
            z = y + 1.0
        assert z.to_numpy().min() == z.to_numpy().max() == 41.0


def test_torch_keeps_our_memory_and_we_torchs(torch: Any) -> None:
    t = torch.from_dlpack(gp.full(LARGE, 3.0, "float32"))
    gc.collect()
    others = [gp.zeros(LARGE) for _ in range(3)]
    assert float(t.sum()) == 3.0 * LARGE
    x = gp.from_dlpack(torch.full((LARGE,), 5.0, device="cuda"))
    gc.collect()
    theirs = [torch.zeros(LARGE, device="cuda") for _ in range(3)]
    assert float(gp.max(x)) == float(gp.min(x)) == 5.0
    del others, theirs


def test_memory_that_torch_gives_back_early_is_not_reused_early(torch: Any) -> None:
    for _ in range(20):
        x = gp.full(LARGE, 1.0, "float32")
        t = torch.from_dlpack(x)
        for _ in range(10):
            t = t * 1.0
        total = torch.from_dlpack(x).sum()
        del x, t
        for _ in range(3):
            gp.full(LARGE, 7.0, "float32")
        assert float(total) == LARGE


def test_torch_memory_is_used_in_a_graph(torch: Any) -> None:
    t = torch.zeros(1000, device="cuda")
    x = gp.from_dlpack(t)
    graph = gp.CudaGraph()
    with graph.capture():
        gp.add(x, 1.0, out=x)
    for _ in range(3):
        graph.replay()
    gp.synchronize()
    assert float(t.sum()) == 3000.0


def test_asarray_takes_torch_tensors(torch: Any) -> None:
    t = torch.arange(6, device="cuda").reshape(2, 3)
    assert gp.asarray(t).ptr == t.data_ptr()
    x = gp.asarray(torch.arange(6).reshape(2, 3))
    assert x.device.kind == "cuda"
    assert x.tolist() == t.tolist()
    with pytest.raises(BufferError, match="copy=False"):
        gp.from_dlpack(t, device="cpu", copy=False)


def test_exported_arrays_are_not_evicted(torch: Any) -> None:
    with gp.memory.MemoryPool(enable_eviction=True):
        x = gp.ones(LARGE)
        gp.synchronize()
        t = torch.from_dlpack(x)
        assert not x.evict()
        del t
        torch.cuda.synchronize()
        gp.synchronize()
        gp.from_dlpack(torch.zeros(1, device="cuda"))
        assert x.evict()


# -- CuPy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "int8", "uint64", "bool", "complex128", "float16"])
def test_cupy_both_ways(cupy: Any, name: str) -> None:
    x = gp.from_numpy(host(name))
    for array in (cupy.from_dlpack(x.T), cupy.asarray(x.T)):
        assert array.data.ptr == x.ptr
        np.testing.assert_array_equal(cupy.asnumpy(array), host(name).T)
        assert gp.from_dlpack(array).ptr == x.ptr


def test_the_cuda_array_interface_orders_streams(cupy: Any) -> None:
    x = gp.zeros(LARGE)
    for _ in range(20):
        gp.add(x, 1.0, out=x)
    with cupy.cuda.Stream(non_blocking=True):
        array = cupy.asarray(x)
        array += 1

        class Interface:
            __cuda_array_interface__ = array.__cuda_array_interface__

        y = gp.asarray(Interface())
    z = y + 1.0
    assert z.to_numpy().min() == z.to_numpy().max() == 22.0


# -- JAX ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["float32", "int8", "bool", "bfloat16", "complex64"])
def test_jax_both_ways(jax: Any, name: str) -> None:
    x = gp.from_numpy(host(name))
    theirs = jax.numpy.from_dlpack(x)
    assert np.asarray(theirs).tobytes() == host(name).tobytes()
    made = jax.numpy.asarray(host(name))
    y = gp.from_dlpack(made)
    assert y.dtype is x.dtype
    assert y.to_numpy().tobytes() == host(name).tobytes()
