"""Launches refused before they reach a device, each with the parameter's name; and what the compiler refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

PARAMS = [("x", "*f32"), ("factor", "f32"), ("n", "i32"), ("config", "struct")]


PTX = b"""
.version 8.0
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 x, .param .f32 factor, .param .u32 n, .param .align 8 .b8 config[8]) {
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [factor];
    st.global.u32 [%rd1], %r1;
    ret;
}
"""

PLAIN = b".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry f(.param .u32 n) { ret; }"


@pytest.fixture
def kernel() -> gp.Kernel:
    return native.load_kernel(PTX, "scale", "scale", PARAMS)


@pytest.fixture
def x() -> gp.GPUArray:
    return gp.zeros((4, 4))


STRUCT = bytes(8)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda k, x: k(x, 0.5), "missing n, config; its parameters are"),
        (lambda k, x: k(x, 0.5, config=STRUCT), "missing n;"),
        (lambda k, x: k(x, 0.5, 4, STRUCT, 5), "takes 4 arguments but 5 were given"),
        (lambda k, x: k(), "missing x, factor, n, config"),
        (lambda k, x: k(x, 0.5, 4, STRUCT, m=5), "no parameter is named 'm'"),
        (lambda k, x: k(x, 0.5, 4, STRUCT, n=5), "parameter 'n' is given twice"),
        (lambda k, x: k(x.view("int32"), 0.5, 4, STRUCT), r"parameter 'x' is float\*, but the array has dtype int32"),
        (
            lambda k, x: k(x.T[1:], 0.5, 4, STRUCT),
            r"'x' is a raw pointer, .*\(3, 4\) is not contiguous; pass x.contiguous",
        ),
        (lambda k, x: k(np.zeros(4, "f4"), 0.5, 4, STRUCT), r"'x' .* takes a GPUArray, not ndarray; use .*from_numpy"),
        (lambda k, x: k(x.ptr, 0.5, 4, STRUCT), "'x' .* takes a GPUArray, not int"),
        (lambda k, x: k(None, 0.5, 4, STRUCT), "'x' .* takes a GPUArray, not NoneType"),
        (lambda k, x: k(x, "a", 4, STRUCT), r"'factor' \(float\) takes a number, not str"),
        (lambda k, x: k(x, x, 4, STRUCT), "'factor' .* takes a number, not GPUArray"),
        (lambda k, x: k(x, 1j, 4, STRUCT), "'factor' is float32, which cannot hold 1j"),
        (lambda k, x: k(x, 1, 4.5, STRUCT), "'n' is int32, which cannot hold 4.5"),
        (lambda k, x: k(x, 1, float("nan"), STRUCT), "'n' is int32, which cannot hold nan"),
        (lambda k, x: k(x, 1, 2**31, STRUCT), "'n' is int32, which cannot hold 2147483648"),
        (lambda k, x: k(x, 1, 2**70, STRUCT), "'n' is int32, which cannot hold 1180591620717411303424"),
        (lambda k, x: k(x, 1, 4, bytes(7)), "'config' is a struct of 8 bytes, but 7 were given"),
        (lambda k, x: k(x, 1, 4, 7), "'config' is a struct of 8 bytes; pass its bytes"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=2048), r"block \[2048, 1, 1\] is out of range: .* between 1 and 1024"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=(64, 32)), r"block \[64, 32, 1\] has 2048 threads; .* allows 1024"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=(1, 1, 65)), "dimension 2 must be between 1 and 64"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=0), "out of range"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=-1), "out of range"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=()), "one to three dimensions, not 0"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=(1, 1, 1, 1)), "one to three dimensions, not 4"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=1.5), "block must be an int or up to three of them"),
        (lambda k, x: k(x, 1, 4, STRUCT, grid="4"), "grid must be an int or up to three of them, not '4'"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=(1, "2")), r"up to three of them, not \(1, '2'\)"),
        (lambda k, x: k(x, 1, 4, STRUCT, shared="4"), "shared must be a number of bytes, not '4'"),
        (lambda k, x: k(x, 1, 4, STRUCT, cluster="2"), "cluster must be .*, not '2'"),
        (lambda k, x: k(x, 1, 4, STRUCT, uses="x"), "uses must be .*, not 'x'"),
        (lambda k, x: k(x, 1, 4, STRUCT, cooperative="no"), "cooperative must be True or False, not 'no'"),
        (lambda k, x: k(x, 1, 4, STRUCT, grid=(1, 65536)), "dimension 1 must be between 1 and 65535"),
        (lambda k, x: k(x, 1, 4, STRUCT, grid=2**31), "dimension 0 must be between 1 and 2147483647"),
        (lambda k, x: k(x, 1, 4, STRUCT, grid=2**70), "grid must be an int"),
        (lambda k, x: k(x, 1, 4, STRUCT, block=(2**62, 4)), "out of range"),
        (lambda k, x: k(x, 1, 4, STRUCT, shared=1 << 20), "1048576 bytes of dynamic shared memory; this device allows"),
        (lambda k, x: k(x, 1, 4, STRUCT, shared=-1), "shared must be a number of bytes"),
    ],
)
def test_before_the_launch(kernel: gp.Kernel, x: gp.GPUArray, call: Callable[..., Any], text: str) -> None:
    before = gp.current_stream().sequence
    with pytest.raises(gp.KernelLaunchError, match=text) as caught:
        call(kernel, x)
    assert "kernel 'scale'" in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert gp.current_stream().sequence == before


def test_another_device(kernel: gp.Kernel) -> None:
    there = gp.zeros(4, device=native.open_cpu(1 << 24, None, True))
    with pytest.raises(gp.KernelLaunchError, match="'x' lives on another device"):
        kernel(there, 1, 4, STRUCT)


def test_no_array_to_cover() -> None:
    plain = native.load_kernel(PLAIN, "f", "f", [("n", "i32")])
    with pytest.raises(gp.KernelLaunchError, match="give grid="):
        plain(3)
    with pytest.raises(gp.KernelLaunchError, match="its parameters are not known"):
        native.load_kernel(PLAIN, "f", "f", None)(3)
    with pytest.raises(gp.KernelLaunchError, match="'n' has unknown type 'i33'"):
        native.load_kernel(PLAIN, "f", "f", [("n", "i33")])
    with pytest.raises(TypeError):
        plain(3, grid=1, stream="s")


def test_a_refused_launch_leaves_no_trace(kernel: gp.Kernel, x: gp.GPUArray) -> None:
    with pytest.raises(gp.KernelLaunchError):
        kernel(x, 0.5, 4, STRUCT, grid=0)
    kernel(x, 0.5, 4, STRUCT)
    assert x[0].tolist() == [0.5, 0, 0, 0]
    graph = gp.CudaGraph()
    graph.begin_capture()
    gp.add(x, 1.0, out=x)
    kernel(x, 0.25, 4, STRUCT)
    graph.end_capture()
    graph.replay()
    assert x[0].tolist() == [0.25, 1, 1, 1]


def test_what_a_kernel_tells_about_itself(kernel: gp.Kernel) -> None:
    assert kernel.name == "scale"
    assert kernel.params == [("x", "float*"), ("factor", "float"), ("n", "int"), ("config", "struct")]
    assert repr(kernel) == "<Kernel scale(float* x, float factor, int n, struct config)>"
    assert 0 < kernel.occupancy(256) <= 1
    for block in (0, 4096):
        with pytest.raises(gp.KernelLaunchError, match="block must be between"):
            kernel.occupancy(block)


SOURCE = """// One value per thread.
extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factory;
}
"""


@pytest.mark.nvrtc
def test_a_compile_error_shows_the_line() -> None:
    with pytest.raises(gp.KernelCompileError) as caught:
        gp.jit(SOURCE, func="scale")
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.line == 4
    assert "x[i] *= factory;" in str(error)
    assert '"factory" is undefined' in error.log
    assert error.source == SOURCE
    assert any(option.startswith("--gpu-architecture=") for option in error.options)


@pytest.mark.nvrtc
@pytest.mark.parametrize(
    ("source", "func", "text"),
    [
        (SOURCE.replace("factory;\n", "factor\n"), None, "expected a"),
        ("#include <nowhere.h>\n" + SOURCE, None, "nowhere.h"),
        (SOURCE.replace("factory", "factor"), "other", "other"),
        ("int f() { return 1; }", None, "kernel"),
        ("", None, "kernel"),
        ('extern "C" __global__ void a(int n) {} extern "C" __global__ void b(int n) {}', None, "a.*b"),
    ],
)
def test_other_refusals(source: str, func: str | None, text: str) -> None:
    with pytest.raises((gp.KernelCompileError, ValueError), match=text):
        gp.jit(source, func=func)


@pytest.mark.nvrtc
def test_a_compiled_kernel_has_the_signature_of_its_source() -> None:
    kernel = gp.jit(SOURCE.replace("factory", "factor"))
    assert kernel.params == [("x", "float*"), ("factor", "float"), ("n", "int")]
    assert gp.jit(SOURCE.replace("factory", "factor")) is kernel
    with pytest.raises(gp.KernelLaunchError, match="missing n"):
        kernel(gp.zeros(4), 0.5)
