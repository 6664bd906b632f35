"""What CUDA C++ offers, on the CPU device: each kernel is compiled by NVRTC and run by the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    with gp.device("cpu"):
        yield


def test_first_contact() -> None:
    x = gp.zeros((64, 64), dtype="float32")
    y = gp.ones((64, 64), dtype="float32")
    kernel = gp.jit(
        """extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] *= factor; }""",
        func="scale",
    )
    z = gp.add(x, y)
    kernel(z, factor=0.5, n=z.size)
    assert (z.to_numpy() == 0.5).all()
    stream = gp.Stream()
    stream.wait(gp.current_stream())
    kernel(z, 0.5, z.size, grid=(16,), block=(256,), shared=0, stream=stream)
    stream.synchronize()
    assert (z.to_numpy() == 0.25).all()


def test_functions_are_called_and_call_themselves() -> None:
    kernel = gp.jit("""
    __device__ __noinline__ int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
    extern "C" __global__ void k(int* x) { x[threadIdx.x] = fib(threadIdx.x % 13); }
    """)
    x = gp.zeros(70, "int32")
    kernel(x, grid=1, block=70)
    want = [0, 1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]
    assert x.tolist() == [want[i % 13] for i in range(70)]


def test_pointers_to_functions_and_virtual_functions() -> None:
    kernel = gp.jit("""
    __device__ float square(float x) { return x * x; }
    __device__ float cube(float x) { return x * x * x; }
    __device__ float (*const table[])(float) = {square, cube};
    struct Shape { __device__ virtual ~Shape() {} __device__ virtual float area() const = 0; };
    struct Square : Shape { float s; __device__ float area() const { return s * s; } };
    struct Box : Shape { float a, b; __device__ float area() const { return a * b; } };
    extern "C" __global__ void k(float* x, float* y) {
        int i = threadIdx.x;
        Square s; s.s = i;
        Box b; b.a = i; b.b = 2;
        const Shape* shape = i % 3 ? (const Shape*)&s : (const Shape*)&b;
        y[i] = shape->area();
        x[i] = table[i % 2](x[i]);
    }
    """)
    x, y = gp.arange(64, dtype="float32"), gp.zeros(64)
    kernel(x, y, grid=1, block=64)
    n = np.arange(64, dtype=np.float32)
    np.testing.assert_array_equal(x.to_numpy(), np.where(n % 2, n**3, n**2))
    np.testing.assert_array_equal(y.to_numpy(), np.where(n % 3, n**2, 2 * n))


def test_structs_constants_globals_and_local_arrays() -> None:
    kernel = gp.jit("""
    struct Config { int n; double scale; float weights[3]; };
    __constant__ float table[4] = {1, 2, 3, 4};
    __device__ int counter = 5;
    extern "C" __global__ void k(float* x, Config c, int* seen) {
        int i = threadIdx.x;
        float local[8];
        for (int j = 0; j < 8; j++) local[j] = j * c.weights[j % 3];
        if (i < c.n) x[i] = local[i % 8] * (float)c.scale + table[i % 4];
        *seen = atomicAdd(&counter, 1) >= 0 ? counter : -1;
    }
    """)
    record = np.zeros(1, np.dtype([("n", "i4"), ("", "i4"), ("scale", "f8"), ("w", "f4", 3), ("end", "i4")]))
    record["n"], record["scale"], record["w"] = 50, 0.5, [1, 10, 100]
    x, seen = gp.zeros(64), gp.zeros(1, "int32")
    kernel(x, record.tobytes(), seen, grid=1, block=64)
    i = np.arange(64)
    local = (i % 8) * np.array([1, 10, 100])[i % 8 % 3]
    np.testing.assert_array_equal(x.to_numpy(), np.where(i < 50, local * 0.5 + 1 + i % 4, 0))
    assert seen.item() == 69


def test_blocks_of_three_dimensions_and_dynamic_shared_memory() -> None:
    kernel = gp.jit("""
    extern "C" __global__ void k(int* x) {
        extern __shared__ int values[];
        int t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
        int b = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
        values[t] = t * 1000 + b;
        __syncthreads();
        int size = blockDim.x * blockDim.y * blockDim.z;
        x[b * size + t] = values[size - 1 - t];
    }
    """)
    x = gp.zeros(6 * 105, "int32")
    kernel(x, grid=(1, 2, 3), block=(3, 5, 7), shared=4 * 105)
    want = [(104 - t) * 1000 + b for b in range(6) for t in range(105)]
    assert x.tolist() == want


def test_half_types_of_our_headers() -> None:
    kernel = gp.jit("""
    #include "pygpukit/f16.cuh"
    #include "pygpukit/bf16.cuh"
    extern "C" __global__ void k(pgk::f16* x, pgk::bf16* y, int n) {
        int i = threadIdx.x;
        if (i >= n) return;
        x[i] = pgk::Narrow<pgk::f16>::from(widen(x[i]) * 3.0f);
        y[i] = pgk::Narrow<pgk::bf16>::from(widen(y[i]) + 0.1f);
    }
    """)
    host = np.linspace(-5, 5, 37).astype(np.float32)
    x, y = gp.from_numpy(host.astype(np.float16)), gp.from_numpy(host).astype("bfloat16")
    before = y.to_numpy().astype(np.float32)
    kernel(x, y, 37, grid=1, block=64)
    np.testing.assert_array_equal(x.to_numpy(), (host.astype(np.float16).astype(np.float32) * 3).astype(np.float16))
    np.testing.assert_allclose(y.to_numpy().astype(np.float32), before + 0.1, rtol=2**-8)


def test_printing(run_python: Callable[..., str]) -> None:
    program = '''
import pygpukit as gp
kernel = gp.jit(r"""
extern "C" int printf(const char*, ...);
extern "C" __global__ void k(int n) {
    if (threadIdx.x < n)
        printf("thread %d of %s: %5.2f 0x%llx %c%%\\n", threadIdx.x, "k", threadIdx.x / 4.0, 1ull << 40, 'z');
}""")
kernel(3, grid=1, block=32)
gp.synchronize()
'''
    out = run_python(program, PYGPUKIT_QUIET="1")
    assert out == "".join(f"thread {i} of k: {i / 4:5.2f} 0x10000000000 z%\n" for i in range(3))


def test_printing_of_short_numbers_and_of_no_text(run_python: Callable[..., str]) -> None:
    program = '''
import pygpukit as gp
kernel = gp.jit(r"""
extern "C" int printf(const char*, ...);
extern "C" __global__ void k(long long address, int n) {
    const char* text = (const char*)address;
    printf("%s|%8s|%hhd|%hd|%hu|%hhx|%d\\n", text, text, n, n, n, n, n);
}""")
kernel(0, 0x12345 - 0x100, grid=1, block=1)
gp.synchronize()
'''
    assert run_python(program, PYGPUKIT_QUIET="1") == "(null)|  (null)|69|8773|8773|45|74309\n"


def test_waiting_blocks_and_the_host() -> None:
    """A kernel that runs until the host says stop, while blocks hand a value around."""
    kernel = gp.jit("""
    extern "C" __global__ void ring(volatile int* flag, volatile int* turn, int* rounds) {
        int me = blockIdx.x, all = gridDim.x, count = 0;
        while (!*flag) {
            if (*turn % all == me) { count++; __threadfence(); *turn = *turn + 1; }
            __nanosleep(100);
        }
        rounds[me] = count;
    }
    """)
    flag, turn, rounds = (gp.zeros(n, "int32") for n in (1, 1, 5))
    stream = gp.Stream()
    kernel(flag, turn, rounds, grid=5, block=1, stream=stream)
    assert not stream.query()
    flag.fill(1)
    stream.synchronize()
    total = turn.item()
    assert total >= 5
    assert sum(rounds.tolist()) == total


@pytest.mark.parametrize("arch", ["80", "90a"])
def test_architectures(run_python: Callable[..., str], arch: str) -> None:
    program = '''
import pygpukit as gp
kernel = gp.jit("""
extern "C" __global__ void k(int* x) { x[0] = __CUDA_ARCH__; }
""")
x = gp.zeros(1, "int32")
kernel(x, grid=1, block=1)
print(x.item(), kernel.arch)
'''
    out = run_python(program, PYGPUKIT_EMULATED_ARCH=arch, PYGPUKIT_QUIET="1")
    assert out.split() == [arch.removesuffix("a") + "0", arch]
