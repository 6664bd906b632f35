"""`gp.module`: kernels that share variables, and the variables as arrays."""

from __future__ import annotations

import gc
import warnings
from typing import Any

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc

SOURCE = """
namespace dsp { __constant__ float taps[2][4]; }
__device__ unsigned int counter = 7;
struct Pair { int a; float b; };
__device__ Pair pair;
extern "C" __global__ void bump(int n) { atomicAdd(&counter, n); pair.a = 4; }
__global__ void filter(float* x) { x[threadIdx.x] *= dsp::taps[1][threadIdx.x]; }
template <class T> __global__ void read(T* out) { out[0] = counter; }
"""


@pytest.fixture
def module() -> Any:
    return gp.module(SOURCE, kernels=["read<int>"])


def test_kernels_share_variables(module: Any) -> None:
    out = gp.zeros(1, "int32")
    for _ in range(2):
        module.bump(3, grid=2, block=1)
    module.kernel("read<int>")(out, grid=1, block=1)
    assert out.item() == 7 + 12
    assert module["counter"].item() == 19
    module["counter"] = 100
    module.bump(1, grid=1, block=1)
    assert module["counter"].item() == 101


def test_constant_memory_can_be_set(module: Any) -> None:
    module["dsp::taps"] = np.arange(8, dtype=np.float32).reshape(2, 4)
    x = gp.ones(4)
    module.filter(x, grid=1, block=4)
    assert x.tolist() == [4, 5, 6, 7]
    module["taps"][1, :2] = 9.0
    module.filter(x, grid=1, block=4)
    assert x.tolist() == [36, 45, 36, 49]


def test_a_variable_is_an_array(module: Any) -> None:
    taps = module["taps"]
    assert (taps.shape, taps.dtype.name) == ((2, 4), "float32")
    assert (module["pair"].shape, module["pair"].dtype.name) == ((8,), "uint8")
    assert module.variable("pair", dtype="int32").shape == (2,)
    assert module.variable("taps", shape=(4, 2)).shape == (4, 2)
    # One kernel's argument may be another one's variable.
    module.filter(taps.view("float32"), grid=1, block=4)
    gp.add(taps, 1.0, out=taps)
    assert module["taps"].tolist() == [[1.0] * 4] * 2
    assert list(module) == ["dsp::taps", "counter", "pair"]
    assert "counter" in module
    assert "bump" not in module


def test_modules_of_one_source_have_variables_of_their_own(module: Any) -> None:
    other = gp.module(SOURCE)
    other.bump(1, grid=1, block=1)
    assert (other["counter"].item(), module["counter"].item()) == (8, 7)


def test_a_variable_outlives_its_module(module: Any) -> None:
    module.bump(1, grid=1, block=1)
    counter = module["counter"]
    view = module["taps"][1]
    del module
    gc.collect()
    assert counter.item() == 8
    view[...] = 2.0
    assert view.tolist() == [2.0] * 4


def test_work_that_is_queued_keeps_the_memory() -> None:
    from pygpukit import _pygpukit_rust as native

    with gp.device(native.open_cpu(1 << 26, 1, True)):
        for round_number in range(5):
            module = gp.module(SOURCE)
            counter = module["counter"]
            for _ in range(3):
                gp.add(counter, 1, out=counter)
            out = gp.empty_like(counter)
            gp.add(counter, 0, out=out)
            del module, counter
            gc.collect()
            assert out.item() == 10, round_number


def test_in_a_graph(module: Any) -> None:
    graph, counter = gp.CudaGraph(), module["counter"]
    graph.begin_capture()
    module.bump(1, grid=4, block=1)
    gp.add(counter, 10, out=counter)
    graph.end_capture()
    del module, counter
    gc.collect()
    graph.replay()
    graph.replay()
    gp.synchronize()


def test_checked(module: Any) -> None:
    checked = gp.module(SOURCE + "__global__ void past(int* out) { *out = dsp::taps[0][8 + *out]; }", check=True)
    checked.bump(1, grid=1, block=1)
    assert checked["counter"].item() == 8
    taps = checked["taps"]
    taps[...] = 1.0
    checked.filter(taps, grid=1, block=4)
    with pytest.raises(gp.KernelFaultError, match=r"read of .*taps"):
        checked.past(gp.zeros(1, "int32"), grid=1, block=1)


@pytest.mark.parametrize(
    ("use", "error", "text"),
    [
        (lambda m: m["count"], KeyError, "no variable 'count'.*did you mean 'counter'"),
        (lambda m: m["bump"], KeyError, "no variable 'bump'"),
        (lambda m: m.counter, AttributeError, r"it is a variable: use module\['counter'\]"),
        (lambda m: m.bumb, AttributeError, "no kernel 'bumb': it has bump, filter, read<int>.*did you mean 'bump'"),
        (lambda m: m.kernel("read<float>"), gp.KernelCompileError, r"kernels=\[...\]"),
        (lambda m: m.variable("taps", shape=7), ValueError, r"has 32 bytes, but shape \[7\] of float32 has 28"),
        (lambda m: m.variable("counter", dtype="float64"), ValueError, "has 4 bytes, which is no multiple of float64"),
    ],
)
def test_errors(module: Any, use: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        use(module)


def test_errors_of_making_one() -> None:
    with pytest.raises(TypeError, match=r"use kernels=\['read<int>'\]"):
        gp.module(SOURCE, kernels="read<int>")
    with pytest.raises(gp.KernelCompileError, match="no __global__ function"):
        gp.module("__device__ int x;")
    with pytest.raises(gp.KernelCompileError, match="no kernel 'none'"):
        gp.module(SOURCE, kernels=["none<int>"])
    with pytest.raises(ValueError, match="seed=1 is for check='fuzz'"):
        gp.module(SOURCE, seed=1)


KERNEL = 'extern "C" __global__ void {name}(int* x) {{ x[0] = 1; }}\n'


@pytest.mark.parametrize(
    ("source", "warns"),
    [
        ("__device__ int n;\n" + KERNEL.format(name="a") + KERNEL.format(name="b"), True),
        ("__device__ int n;\n" + KERNEL.format(name="a"), False),
        (
            "__constant__ int n; __device__ const int t = 2;\n" + KERNEL.format(name="a") + KERNEL.format(name="b"),
            False,
        ),
        ("__device__ int f() { return 1; }\n" + KERNEL.format(name="a") + KERNEL.format(name="b"), False),
    ],
)
def test_jit_warns_where_kernels_might_want_to_share(source: str, warns: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp.jit(source, func="a")
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == warns
    if warns:
        assert "2 kernels and the variable 'n' (line 1)" in texts[0]
        assert "gp.module(source)" in texts[0]
        assert caught[0].filename == __file__
