"""Kernels that go wrong on the CPU device: the report says what, where in the source, and which thread."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc


@pytest.fixture(autouse=True)
def cpu() -> Iterator[None]:
    with gp.device("cpu"):
        yield


def fault(source: str, *args: object, **launch: object) -> str:
    kernel = gp.jit(source)
    try:
        kernel(*args, **launch)
        gp.synchronize()
    except gp.KernelFaultError as error:
        return str(error)
    pytest.fail("the kernel ended as if nothing were wrong")


def test_a_null_pointer() -> None:
    text = fault(
        """
extern "C" __global__ void k(int* x, long long address) {
    int* p = (int*)address;
    if (x[threadIdx.x] == 0)
        p[threadIdx.x] = 1;
}""",
        gp.from_numpy(np.array([1, 0, 1, 1], np.int32)),
        0,
        grid=1,
        block=4,
    )
    assert re.match(r"kernel 'k': write of 4 bytes at 0x4 \(a null pointer\), which is in no allocation", text)
    assert "--> k.cu:5\n   |         p[threadIdx.x] = 1;\n  thread [1, 0, 0] of block [0, 0, 0]" in text
    assert "PTX line" in text
    assert "st.global" in text


def test_far_outside_of_memory() -> None:
    text = fault(
        'extern "C" __global__ void k(int* x, long long far) { x[far] = 1; }', gp.zeros(4, "int32"), 1 << 40, grid=1
    )
    assert "which is in no allocation" in text


def test_misaligned() -> None:
    text = fault('extern "C" __global__ void k(char* x) { *(int*)(x + 2) = 1; }', gp.zeros(16, "int8"), grid=1, block=1)
    assert "misaligned write of 4 bytes" in text


def test_shared_memory_ends() -> None:
    source = """
extern "C" __global__ void k(int* x, int at) {
    __shared__ int tile[32];
    tile[threadIdx.x] = 1;
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x + at];
}"""
    text = fault(source, gp.zeros(32, "int32"), 1, grid=1, block=32)
    assert "read of 4 bytes at offset 128 of shared memory, which has 128 bytes" in text
    assert "k.cu:6" in text
    assert "thread [31, 0, 0]" in text


def test_too_much_shared_memory() -> None:
    kernel = gp.jit('extern "C" __global__ void k() { extern __shared__ int s[]; s[0] = 1; }')
    with pytest.raises(gp.KernelLaunchError, match="bytes of dynamic shared memory; this device allows"):
        kernel(grid=1, shared=1 << 20)


def test_divergent_barriers_and_deadlocks() -> None:
    source = """
extern "C" __global__ void k(int* x) {
    if (threadIdx.x < 16)
        __syncthreads();
    else
        while (atomicAdd(x, 0) == 0) {}
}"""
    with pytest.raises(gp.KernelFaultError, match=r"divergent barrier|deadlock"):
        gp.jit(source.replace("while (atomicAdd(x, 0) == 0) {}", 'asm volatile("barrier.sync 1;");'))(
            gp.zeros(1, "int32"), grid=1, block=32
        )
    text = fault(
        """
extern "C" __global__ void k(int* x) {
    if (threadIdx.x < 32) asm volatile("barrier.sync 1, 64;");
    else asm volatile("barrier.sync 2, 64;");
}""",
        gp.zeros(1, "int32"),
        grid=1,
        block=64,
    )
    assert "deadlock: every warp of the block waits" in text
    assert "waits at barrier 2, where 32 of 64 threads have arrived (k.cu:4)" in text


def test_traps_and_assertions() -> None:
    assert "the kernel executed a trap" in fault('extern "C" __global__ void k() { __trap(); }', grid=1, block=1)
    text = fault(
        """
extern "C" __device__ void __assertfail(const char*, const char*, unsigned, const char*, size_t);
extern "C" __global__ void k(int n) {
    if ((int)threadIdx.x >= n) __assertfail("threadIdx.x < n", "k.cu", 4, "k", 1);
}""",
        3,
        grid=1,
        block=8,
    )
    assert "assertion failed: threadIdx.x < n, in k at k.cu:4" in text
    assert "thread [3, 0, 0]" in text


def test_endless_recursion() -> None:
    text = fault(
        """
__device__ __noinline__ int down(volatile int* x, int n) {
    int a[64];
    a[n % 64] = *x;
    return down(x, n + 1) + a[n % 64];
}
extern "C" __global__ void k(int* x) { *x = down(x, 0); }""",
        gp.zeros(1, "int32"),
        grid=1,
        block=1,
    )
    assert "stack overflow" in text


def test_the_device_is_as_good_as_new_afterwards() -> None:
    x = gp.ones(8)
    fault('extern "C" __global__ void k(float* x, long long far) { x[far] = 1; }', x, 1 << 40, grid=1, block=1)
    assert (x + 1).tolist() == [2.0] * 8
    gp.jit('extern "C" __global__ void k(float* x) { x[threadIdx.x] += 1; }')(x, grid=1, block=8)
    assert x.tolist() == [2.0] * 8


ENDLESS = '''
import pygpukit as gp
kernel = gp.jit("""extern "C" __global__ void k(volatile int* x) { while (*x == 0) {} }""")
x = gp.zeros(1, "int32")
kernel(x, grid=2, block=32)
'''


def test_endless_kernels_are_ended_by_the_limit(run_python: Callable[..., str]) -> None:
    program = ENDLESS + "try:\n    gp.synchronize()\nexcept gp.KernelFaultError as error:\n    print(error)\n"
    out = run_python(program, PYGPUKIT_KERNEL_TIMEOUT="1", PYGPUKIT_QUIET="1")
    assert "kernel 'k': the kernel had not ended after 1 s; PYGPUKIT_KERNEL_TIMEOUT sets this limit" in out
    assert "k.cu:1" in out


def test_ctrl_c_ends_an_endless_kernel() -> None:
    program = (
        ENDLESS
        + """
try:
    print("launched", flush=True)
    gp.synchronize()
except KeyboardInterrupt:
    print("interrupted")
try:
    gp.synchronize()
except gp.KernelFaultError as error:
    print(error)
"""
    )
    child = subprocess.Popen(
        [sys.executable, "-u", "-W", "ignore", "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline().strip() == "launched"
    # It is about to wait, or waits already.
    time.sleep(0.5)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=60)
    assert "interrupted" in out
    assert "the kernel was interrupted" in out


def test_what_is_not_supported_is_said_at_load() -> None:
    text = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry k() {
    .reg .b32 %r<3>;
    mov.u32 %r1, 0;
    tex.2d.v4.f32.s32 {%r1, %r1, %r1, %r1}, [t, {%r1, %r1}];
    ret;
}"""
    with pytest.raises(gp.DeviceError, match=r"PTX line 8: instruction 'tex\.2d\.v4\.f32\.s32' is not supported"):
        gp.load_ptx(text)
    with pytest.raises(gp.DeviceError, match=r"PTX line 7: found `mov\.`, expected an instruction"):
        gp.load_ptx(text[: text.index("mov.u32") + 4])
