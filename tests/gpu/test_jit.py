"""Kernels of one's own on the device: arguments, templates, structs, launch shapes, shared memory, and refusals."""

from __future__ import annotations

import struct
import threading
from typing import Any

import numpy as np
import pytest
from gpu_kernels import SCALE

import pygpukit as gp

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("cuda")]

SCALARS = """extern "C" __global__ void scalars(double* out, bool b, signed char i8, unsigned char u8, short i16,
        double f64, unsigned short u16, int i32, unsigned int u32, float f32, long long i64, unsigned long long u64,
        char last) {
    const double values[] = {double(b), double(i8), double(u8), double(i16), f64, double(u16), double(i32), double(u32),
                             double(f32), double(i64), double(u64), double(last)};
    out[threadIdx.x] = values[threadIdx.x];
}"""
SHAPES = """extern "C" __global__ void shapes(int* seen, int* shape) {
    const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
    const unsigned threads = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(seen + block * threads + thread, 1);
    if (block == 0 && thread == 0) {
        const unsigned all[] = {gridDim.x, gridDim.y, gridDim.z, blockDim.x, blockDim.y, blockDim.z};
        for (int i = 0; i < 6; ++i) shape[i] = all[i];
    }
}"""
REVERSE = """extern "C" __global__ void reverse(float* x, int n) {
    extern __shared__ float kept[];
    for (int i = threadIdx.x; i < n; i += blockDim.x) kept[i] = x[i];
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = kept[n - 1 - i];
}"""
PTX = """
.version 7.0
.target sm_80
.address_size 64
.visible .entry triple(.param .u64 x, .param .u32 n) {
    .reg .b32 %r<6>;
    .reg .b64 %rd<4>;
    .reg .pred %p<2>;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra done;
    cvta.to.global.u64 %rd1, %rd1;
    mul.wide.u32 %rd2, %r2, 4;
    add.u64 %rd3, %rd1, %rd2;
    ld.global.u32 %r3, [%rd3];
    mul.lo.u32 %r4, %r3, 3;
    st.global.u32 [%rd3], %r4;
done:
    ret;
}
"""


def test_arguments_by_position_and_by_name() -> None:
    scale = gp.jit(SCALE)
    x = gp.ones(1000)
    scale(x, 2.0, 1000)
    scale(x, n=1000, factor=2.0)
    scale(n=x.size, x=x, factor=np.float32(2))
    scale(x, 2, np.int64(1000))
    assert (x.to_numpy() == 16).all()
    assert [name for name, _ in scale.params] == ["x", "factor", "n"]
    assert gp.jit(SCALE) is scale
    assert gp.jit(SCALE, func="scale").params == scale.params


def test_the_grid_covers_the_first_array() -> None:
    scale = gp.jit(SCALE)
    for n in (1, 255, 256, 257, 100_003):
        x = gp.ones(n)
        scale(x, 3.0, n)
        scale(x, 2.0, n, block=(96,))
        scale(x, 2.0, n, grid=None, block=None)
        assert (x.to_numpy() == 12).all()


def test_scalars_of_every_width_arrive_whole() -> None:
    kernel = gp.jit(SCALARS)
    values = [True, -(2**7), 2**8 - 1, -(2**15), 1e300, 2**16 - 1, -(2**31), 2**32 - 1, -1.5, -(2**53), 2**53, 65]
    out = gp.zeros(len(values), "float64")
    kernel(out, *values, grid=1, block=len(values))
    assert out.tolist() == [float(v) for v in values]
    for position, name in ((2, "i8"), (7, "i32"), (8, "u32")):
        wrong = [*values]
        wrong[position - 1] = -(2**40)
        with pytest.raises(gp.KernelLaunchError, match=f"'{name}'"):
            kernel(out, *wrong, grid=1, block=len(values))


def test_structs_by_value() -> None:
    kernel = gp.jit(
        """struct Affine { float slope; int pad; double offset; };
        extern "C" __global__ void affine(float* x, const Affine by, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) x[i] = static_cast<float>(x[i] * by.slope + by.offset);
        }"""
    )
    x = gp.ones(500)
    by = struct.pack("<fid", 2.0, 0, 0.5)
    kernel(x, by, 500)
    assert (x.to_numpy() == 2.5).all()
    kernel(x, np.frombuffer(by, np.uint8), n=500)
    assert (x.to_numpy() == 5.5).all()
    with pytest.raises(gp.KernelLaunchError, match=r"by.*16 bytes"):
        kernel(x, by[:8], 500)


def test_templates_namespaces_and_macros() -> None:
    source = """namespace mine {
    template <typename T, int N> __global__ void add(T* x, T value) {
        int i = blockIdx.x * blockDim.x + threadIdx.x;
        if (i < SIZE) for (int k = 0; k < N; ++k) x[i] += value;
    }
    }"""
    for name, dtype in (("float", "float32"), ("double", "float64"), ("long long", "int64")):
        kernel = gp.jit(source, func=f"mine::add<{name}, 3>", defines={"SIZE": 100})
        x = gp.ones(100, dtype)
        kernel(x, 2)
        assert x.tolist() == [7] * 100
        with pytest.raises(gp.KernelLaunchError, match="int8"):
            kernel(gp.ones(100, "int8"), 2)


def test_headers_of_the_user_and_of_the_package() -> None:
    kernel = gp.jit(
        """#include "pygpukit/bf16.cuh"
        #include "factor.h"
        extern "C" __global__ void widen(float* out, const pgk::bf16* x, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) out[i] = pgk::widen(x[i]) * FACTOR;
        }""",
        headers={"factor.h": "#define FACTOR 4.0f\n"},
    )
    x = gp.asarray([0.5, -1.25, 3.0], "bfloat16")
    out = gp.zeros(3)
    kernel(out, x, 3)
    assert out.tolist() == [2.0, -5.0, 12.0]


@pytest.mark.parametrize(
    ("grid", "block"), [((3, 5, 7), (4, 2, 8)), ((2,), (1, 1, 64)), (11, 33), ((1, 7000, 2), 1), (70_000, (3, 5))]
)
def test_grids_of_three_dimensions(grid: tuple[int, ...] | int, block: tuple[int, ...] | int) -> None:
    full_grid, full_block = ((*((d,) if isinstance(d, int) else d), 1, 1)[:3] for d in (grid, block))
    seen = gp.zeros(int(np.prod(full_grid) * np.prod(full_block)), "int32")
    shape = gp.zeros(6, "int32")
    gp.jit(SHAPES)(seen, shape, grid=grid, block=block)
    assert shape.tolist() == [*full_grid, *full_block]
    assert (seen.to_numpy() == 1).all()


@pytest.mark.parametrize("n", [1_000, 12_288, 12_289, 40_000])
def test_dynamic_shared_memory_beyond_48_kib(n: int) -> None:
    kernel = gp.jit(REVERSE)
    limit = gp.get_device_info()["shared_per_block_optin"]
    if 4 * n > limit:
        pytest.skip(f"this device allows {limit} bytes per block")
    x = gp.arange(n, dtype="float32")
    kernel(x, n, grid=1, block=512, shared=4 * n)
    assert (x.to_numpy() == np.arange(n)[::-1]).all()
    assert kernel.occupancy(512, 4 * n) <= kernel.occupancy(512)


def test_what_a_kernel_says_about_itself() -> None:
    kernel = gp.jit(
        """extern "C" __global__ void __launch_bounds__(128) tiled(float* x) {
            __shared__ float tile[256];
            tile[threadIdx.x] = x[threadIdx.x];
            __syncthreads();
            x[threadIdx.x] = tile[127 - threadIdx.x];
        }"""
    )
    assert kernel.name == "tiled"
    assert kernel.shared_bytes == 1024
    assert kernel.max_threads == 128
    assert kernel.registers > 0
    assert kernel.local_bytes == 0
    assert kernel.device.kind == "cuda"
    assert kernel.cubin is not None
    assert kernel.cubin[:4] == b"\x7fELF"
    assert kernel.ptx is None
    major, minor = gp.current_device().capability
    assert kernel.arch.startswith(f"{major}{minor}")
    assert 0 < kernel.occupancy(128) <= 1
    with pytest.raises(gp.KernelLaunchError, match="128"):
        kernel(gp.zeros(256), grid=1, block=256)


def test_refusals_come_before_the_launch_and_name_the_parameter() -> None:
    scale = gp.jit(SCALE)
    x = gp.ones((100, 100))
    with gp.device("cpu"):
        elsewhere = gp.ones(100)
    limit = gp.get_device_info()["shared_per_block_optin"]
    refused: list[tuple[str, tuple[object, ...], dict[str, Any]]] = [
        ("missing factor, n", (x,), {}),
        ("missing n", (x, 1.0), {}),
        ("takes 3 arguments", (x, 1.0, 2, 3), {}),
        ("'factr'", (x,), {"factr": 1.0, "n": 1}),
        ("'n' is given twice", (x, 1.0, 2), {"n": 2}),
        ("'x'.*float64", (x.astype("float64"), 1.0, 1), {}),
        ("'x'.*not contiguous", (x.T, 1.0, 1), {}),
        ("'x'.*GPUArray", (np.ones(3, np.float32), 1.0, 1), {}),
        ("'x'.*another device", (elsewhere, 1.0, 1), {}),
        ("'n'.*1.5", (x, 1.0, 1.5), {}),
        ("'factor'", (x, "one", 1), {}),
        ("block.*2048", (x, 1.0, 1), {"block": 2048}),
        ("2048 threads", (x, 1.0, 1), {"block": (64, 32)}),
        ("grid", (x, 1.0, 1), {"grid": 0}),
        ("grid", (x, 1.0, 1), {"grid": (1, 70_000, 1)}),
        ("grid", (x, 1.0, 1), {"grid": (1, 1, 1, 1)}),
        ("block", (x, 1.0, 1), {"block": (1, 1, 65)}),
        ("shared memory", (x, 1.0, 1), {"shared": limit + 1}),
    ]
    before = gp.current_stream().sequence
    for text, args, kwargs in refused:
        with pytest.raises(gp.KernelLaunchError, match=f"scale.*({text})"):
            scale(*args, **kwargs)
    assert gp.current_stream().sequence == before
    # Nothing of it did any harm.
    scale(x, 3.0, x.size)
    assert (x.to_numpy() == 3).all()


def test_a_mistake_in_the_source_is_shown() -> None:
    with pytest.raises(gp.KernelCompileError, match="undefined_name") as caught:
        gp.jit('extern "C" __global__ void broken(float* x) {\n    x[0] = 1.0f;\n    x[1] = undefined_name;\n}')
    assert caught.value.line == 3
    assert "undefined_name" in caught.value.log


def test_ptx_text() -> None:
    kernel = gp.load_ptx(PTX)
    assert kernel.params == [("arg0", "void*"), ("arg1", "int")]
    x = gp.arange(20, dtype="int32")
    kernel(x, 15, grid=1, block=32)
    assert x.tolist() == [3 * i if i < 15 else i for i in range(20)]


def test_launches_from_many_threads() -> None:
    scale = gp.jit(SCALE)
    device = gp.current_device()
    results: dict[int, bool] = {}

    def work(index: int) -> None:
        with gp.device(device), gp.Stream():
            x = gp.ones(10_000)
            for _ in range(100):
                scale(x, 2.0, x.size)
                scale(x, factor=0.5, n=x.size)
            scale(x, float(index), x.size)
            results[index] = bool((x.to_numpy() == index).all())

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(8), True)
