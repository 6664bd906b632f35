"""Kernels that go wrong on the CPU device: the report says what, where in the source, and which thread."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import pygpukit as gp

pytestmark = pytest.mark.nvrtc

unix = pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")


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


@pytest.fixture
def ended(run_python: Callable[..., str], repository: Path) -> Callable[..., str]:
    """Run a program that presses Ctrl-C when it waits for a kernel, and return what it prints."""

    def run(program: str, **environ: str) -> str:
        # The limit is far off: a kernel that goes on makes the test fail.
        limits = {"PYGPUKIT_KERNEL_TIMEOUT": "600", "PYGPUKIT_QUIET": "1", "PYTHONWARNINGS": "ignore"}
        path = {"PYTHONPATH": str(repository / "tests")}
        return run_python("from ctrl_c import press_ctrl_c\n" + program, **path, **limits, **environ)

    return run


AFTERWARDS = """
except KeyboardInterrupt:
    print("interrupted")
def errors(wait=gp.synchronize):
    found = []
    while True:
        try:
            wait()
            return found
        except gp.KernelFaultError as error:
            found.append(str(error))
"""

WAITS = {
    "device": "gp.synchronize()",
    "stream": "gp.current_stream().synchronize()",
    "event": "event.synchronize()",
    "copy": "x.to_numpy()",
    "item": "x[0].item()",
    "graph": "graph.synchronize()",
    "profile": "kernel.profile(x, grid=2, block=32)",
}


@unix
@pytest.mark.parametrize("streams", ["inline", "deferred:1"])
@pytest.mark.parametrize("wait", WAITS)
def test_ctrl_c_ends_the_kernels_that_are_waited_for(ended: Callable[..., str], wait: str, streams: str) -> None:
    program = f"""
{ENDLESS}
event, graph = gp.Event(), gp.CudaGraph()
with graph.capture():
    kernel(x, grid=1, block=1)
kernel(x, grid=1, block=1)
event.record()
kernel(x, grid=3, block=64)
y = gp.from_numpy(__import__("numpy").arange(3))
{"graph.replay()" if wait == "graph" else ""}
try:
    press_ctrl_c()
    {WAITS[wait]}
{AFTERWARDS}
found = errors()
print(len(found), *(error.replace("\\n", " ") for error in found))
kernel(gp.ones(1, "int32"), grid=1)
print(y.tolist(), gp.add(y, 1).tolist(), errors())
"""
    lines = ended(program, PYGPUKIT_STREAMS=streams).splitlines()
    assert lines[0] == "interrupted"
    assert lines[1].startswith("1 kernel 'k': the kernel was interrupted")
    assert "queued behind it and not run, because the wait for its stream was interrupted: 'k', 'k'" in lines[1]
    # What was copied from the host is there, and the device is as good as new.
    assert lines[2:] == ["[0, 1, 2] [1, 2, 3] []"]


@unix
def test_ctrl_c_ends_a_counted_kernel(ended: Callable[..., str]) -> None:
    program = f"""
{ENDLESS.replace("kernel(x, grid=2, block=32)", "")}
try:
    press_ctrl_c()
    kernel.profile(x, grid=2, block=32)
{AFTERWARDS}
print(errors(), kernel.profile(gp.ones(1, "int32"), grid=1, block=32).threads)
"""
    assert ended(program) == "interrupted\n[] 32\n"


@unix
def test_ctrl_c_leaves_kernels_of_other_streams(ended: Callable[..., str]) -> None:
    program = f"""
{ENDLESS}
mine, other, late = gp.Stream(), gp.Stream(), gp.Stream()
with late:
    y, z = gp.zeros(1, "int32"), gp.zeros(1, "int32")
kernel(y, grid=1, block=1, stream=other)
kernel(z, grid=1, block=1, stream=mine)
try:
    press_ctrl_c()
    mine.synchronize()
{AFTERWARDS}
found = errors(mine.synchronize)
print(len(found), "the kernel was interrupted" in found[0], mine.query(), other.query())
with late:
    y.fill(1)
print(errors(other.synchronize), gp.default_stream().query())
with late:
    x.fill(1)
print(errors())
"""
    assert ended(program) == "interrupted\n1 True True False\n[] False\n[]\n"


@unix
def test_ctrl_c_on_the_device_ends_the_kernels_of_all_streams(ended: Callable[..., str]) -> None:
    program = f"""
{ENDLESS}
streams = [gp.Stream() for _ in range(3)]
for stream in streams:
    kernel(x, grid=1, block=1, stream=stream)
    kernel(x, grid=1, block=1, stream=stream)
try:
    press_ctrl_c()
    gp.synchronize()
{AFTERWARDS}
print(len(errors()))
"""
    assert ended(program) == "interrupted\n4\n"


@unix
def test_ctrl_c_ends_a_launch_of_very_many_blocks(ended: Callable[..., str]) -> None:
    program = f"""
import pygpukit as gp
kernel = gp.jit('extern "C" __global__ void many(int* x) {{ if (blockIdx.x == 1 << 30) x[0] = 1; }}')
x = gp.zeros(1, "int32")
kernel(x, grid=2**31 - 1, block=32)
try:
    press_ctrl_c()
    x.item()
{AFTERWARDS}
print(*errors())
"""
    out = ended(program)
    assert out.startswith("interrupted\nkernel 'many': the kernel was interrupted\n  --> ")
    assert "many.cu:1" in out


@unix
@pytest.mark.parametrize("check", [False, True])
def test_ctrl_c_ends_a_launch(run_python: Callable[..., str], check: bool) -> None:
    program = f"""
import os, signal, threading
import pygpukit as gp
signal.signal(signal.SIGINT, signal.default_int_handler)
source = 'extern "C" __global__ void k(volatile int* x) {{ while (*x == 0) {{}} }}'
kernel, x = gp.jit(source, check={check}), gp.zeros(1, "int32")
kernel(gp.ones(1, "int32"), grid=1)
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    kernel(x, grid=2, block=32)
{AFTERWARDS}
print(errors(), x.tolist())
"""
    assert run_python(program, PYGPUKIT_QUIET="1") == "interrupted\n[] [0]\n"


@unix
def test_a_signal_handler_may_wait_for_the_stream_of_a_launch(run_python: Callable[..., str]) -> None:
    program = '''
import signal
import pygpukit as gp
kernel = gp.jit("""
__device__ long long now() { long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t; }
extern "C" __global__ void k(int* x) {
    for (long long start = now(); now() - start < 150000000;) {}
    *x = 7;
}""")
x = gp.zeros(1, "int32")
signal.signal(signal.SIGALRM, lambda *_: print(x.tolist()))
signal.setitimer(signal.ITIMER_REAL, 0.05)
kernel(x, grid=1, block=1)
print("launched", x.tolist())
'''
    assert run_python(program, PYGPUKIT_QUIET="1") == "[7]\nlaunched [7]\n"


def test_too_much_static_shared_memory_is_said_at_load() -> None:
    source = """extern "C" __global__ void k(float* x) {
    __shared__ float tile[SIZE];
    tile[threadIdx.x] = 1;
    __syncthreads();
    x[threadIdx.x] = tile[threadIdx.x ^ 1];
}"""
    x = gp.zeros(64)
    gp.jit(source.replace("SIZE", "12288"))(x, grid=1, block=64)
    assert x.tolist() == [1.0] * 64
    text = "kernel 'k' has 80000 bytes of static shared memory, and 49152 is the most: 'tile' of 80000"
    with pytest.raises(gp.DeviceError, match=text):
        gp.jit(source.replace("SIZE", "20000"))(x, grid=1, block=64)


def test_the_heap_is_refused_when_it_is_used() -> None:
    text = fault(
        """
extern "C" __global__ void k(int* x) {
    int* p = new int[x[0]];
    x[threadIdx.x] = p[threadIdx.x];
    delete[] p;
}""",
        gp.ones(64, "int32"),
        grid=1,
        block=64,
    )
    assert "call of 'malloc': the CPU device has no heap for kernels" in text
    assert "k.cu:3" in text
    with pytest.raises(gp.DeviceError, match="function '_Z7missingi' has no body in this module"):
        gp.jit("""extern __device__ int missing(int);
        extern "C" __global__ void k(int* x) { x[0] = missing(1); }""")(gp.ones(1, "int32"), grid=1, block=1)


def test_calls_through_pointers_that_do_not_fit() -> None:
    source = """
typedef int (*one)(int);
typedef int (*two)(int, double, double);
__device__ __noinline__ int f(int a) { return a + 1; }
__device__ one table[2] = {f, 0};
extern "C" __global__ void k(int* x, int i) { x[0] = CALL; }"""
    x = gp.zeros(1, "int32")
    gp.jit(source.replace("CALL", "table[i](3)"))(x, 0, grid=1, block=1)
    assert x.item() == 4
    assert "call of 0x0, which is not a function" in fault(source.replace("CALL", "table[i](3)"), x, 1, grid=1, block=1)
    assert "call of '_Z1fi' through a pointer to a function with other parameters or results" in fault(
        source.replace("CALL", "((two)table[i])(3, 1.0, 2.0)"), x, 0, grid=1, block=1
    )


def test_bulk_copies_out_of_bounds(run_python: Callable[..., str]) -> None:
    program = '''
import pygpukit as gp
kernel = gp.jit("""
extern "C" __global__ void k(int* x) {
    __shared__ __align__(128) int s[256];
    __shared__ __align__(8) unsigned long long object;
    unsigned to = __cvta_generic_to_shared(s), at = __cvta_generic_to_shared(&object);
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];"
                 :: "r"(to), "l"(x + 128), "r"(at) : "memory");
}""", check=True)
try:
    kernel(gp.zeros(256, "int32"), grid=1, block=1)
except gp.KernelFaultError as error:
    print(error)
'''
    out = run_python(program, PYGPUKIT_EMULATED_ARCH="90a", PYGPUKIT_QUIET="1")
    assert "out of bounds: bulk copy from x[128], which has 256 elements (512 bytes past its end)" in out


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
    with pytest.raises(gp.DeviceError, match=r"PTX line 2: this is PTX of version 99\.0, and only versions 8 and 9"):
        gp.load_ptx(text.replace("8.0", "99.0"))
