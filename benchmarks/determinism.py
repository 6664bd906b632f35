"""What makes results differ from run to run or from batch to batch, reproduced one cause at a time.

Each cause prints what was seen. Some need a GPU; without one they are named and left out.

    python benchmarks/determinism.py
    python benchmarks/determinism.py --only atomics
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

import pygpukit as gp

SPLIT = """
__global__ void product(float* c, const float* a, const float* b, int n, int k, int splits) {
    int row = blockIdx.x, column = threadIdx.x;
    float sum = 0.0f;
    for (int s = 0; s < splits; ++s) {
        float part = 0.0f;
        for (int i = s * (k / splits); i < (s + 1) * (k / splits); ++i)
            part = fmaf(a[row * k + i], b[i * n + column], part);
        sum += part;
    }
    c[row * n + column] = sum;
}
"""

ATOMIC = """
__global__ void total(float* sum, const float* x, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) atomicAdd(sum, x[i]);
}
"""

PARTIAL = """
__global__ void partial(unsigned long long address, const float* x, int n) {
    float *scratch = reinterpret_cast<float*>(address), sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    scratch[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
"""

GATHER = """
__global__ void gather(float* out, unsigned long long address, int n) {
    float sum = 0.0f;
    for (int i = 0; i < n; ++i) sum += reinterpret_cast<const float*>(address)[i];
    *out = sum;
}
"""

FIRST = "__global__ void first(float* out, const float* x) { *out = *x; }"
FIRST_AT = """
__global__ void first_at(float* out, unsigned long long x) { *out = *reinterpret_cast<const float*>(x); }
"""

BATCHES = (1, 2, 3, 8, 17, 33, 64, 128, 257, 1024)


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> gp.GPUArray:
    """Normal numbers on the device."""
    return gp.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(gp.to_numpy_dtype(dtype)))


def grouped(digests: dict[int, str]) -> str:
    """How many kinds of bits of a row there are, and the batches of each."""
    groups: dict[str, list[int]] = {}
    for batch, digest in digests.items():
        groups.setdefault(digest, []).append(batch)
    shown = "; ".join("M " + ", ".join(map(str, batches)) for batches in groups.values())
    return f"row 0 has {len(groups)} kinds of bits ({shown})" if len(groups) > 1 else "row 0 has one kind of bits"


def split_sums(cuda: bool) -> Iterator[str]:
    """Sums split by the number of rows: the bits of row 0 follow the batch."""
    if cuda:
        from pygpukit.core.cublaslt import missing, plan_product

        if (reason := missing()) is not None:
            yield f"left out: {reason}"
            return
        for n, k in ((4096, 4096), (3584, 18944)):
            a, w = numbers(BATCHES[-1], k, dtype="bfloat16"), numbers(n, k, seed=1, dtype="bfloat16")
            for workspace in (32 << 20, 0):
                digests = {}
                for m in BATCHES:
                    out = gp.empty((m, n), "bfloat16")
                    plan = plan_product(m, n, k, gp.bfloat16, transpose_b=True, workspace=workspace)
                    room = gp.empty(plan.workspace, "uint8") if plan.workspace else None
                    plan.run(out, a[:m], w, workspace=room)
                    digests[m] = gp.fingerprint(out[0])
                yield f"cuBLASLt {n} x {k} bfloat16, workspace of {workspace >> 20} MiB: {grouped(digests)}"
        return
    a, b = numbers(17, 256), numbers(256, 32, seed=1)
    kernel, digests = gp.jit(SPLIT), {}
    for m in (1, 2, 3, 8, 17):
        c = gp.zeros((m, 32))
        # As many parts as keep 16 blocks busy.
        kernel(c, a[:m].contiguous(), b, 32, 256, max(1, 16 // m), grid=m, block=32)
        digests[m] = gp.fingerprint(c[0])
    yield f"a kernel that splits k by the rows: {grouped(digests)}"
    with gp.device("emulated"):
        x, y = numbers(17, 256), numbers(256, 32, seed=1)
        digests = {m: gp.fingerprint(gp.matmul(x[:m].contiguous(), y)[0]) for m in digests}
    yield f"gp.matmul's kernel: {grouped(digests)}"


def atomics(cuda: bool) -> Iterator[str]:
    """A sum by atomics is in the order in which blocks happen to run."""
    size, runs = (1 << 22, 100) if cuda else (4096, 12)
    x, seen = numbers(size), set()
    for run in range(runs):
        # The emulator runs warps in an order of its own, unless it is given a seed.
        kernel = gp.jit(ATOMIC) if cuda else gp.jit(ATOMIC, check="fuzz", seed=run)
        total = gp.zeros(1)
        kernel(total, x, size, grid=528 if cuda else 8, block=256 if cuda else 64)
        seen.add(float(total.to_numpy()[0]))
    spread = max(seen) - min(seen)
    yield f"atomicAdd over {size} numbers, {runs} runs: {len(seen)} different sums, {spread:.3g} apart"
    same = {gp.fingerprint(gp.sum(x)) for _ in range(runs)}
    yield f"gp.sum: {len(same)} kind of bits"


def workspace(cuda: bool) -> Iterator[str]:
    """Two streams with one buffer of partial sums: each may read the other's."""
    blocks, threads, size, runs = 264, 256, 1 << 22, 200
    partial, gather = gp.jit(PARTIAL), gp.jit(GATHER)
    pair = [(numbers(size, seed=seed), gp.zeros(1), gp.Stream()) for seed in (1, 2)]
    for shared in (False, True):
        one = gp.zeros(blocks * threads)
        scratch = [one, one if shared else gp.zeros(blocks * threads)]
        gp.synchronize()

        def step(i: int, scratch: list[gp.GPUArray] = scratch) -> None:
            x, out, stream = pair[i]
            # By address: what the runtime does not know of it cannot order.
            partial(scratch[i].ptr, x, size, grid=blocks, block=threads, stream=stream)
            gather(out, scratch[i].ptr, blocks * threads, grid=1, block=1, stream=stream)

        want = []
        for i in (0, 1):
            step(i)
            gp.synchronize()
            want.append(gp.fingerprint(pair[i][1]))
        wrong = 0
        for _ in range(runs):
            step(0)
            step(1)
            gp.synchronize()
            wrong += sum(gp.fingerprint(pair[i][1]) != want[i] for i in (0, 1))
        yield f"{'one buffer for two streams' if shared else 'a buffer each'}: {wrong} of {2 * runs} sums are wrong"


def averages(cuda: bool) -> Iterator[str]:
    """8-bit weights: the mean error says all is well, and some rows choose another token."""
    rows, width, vocabulary = (512, 1024, 8192) if cuda else (128, 256, 2048)
    x, w = numbers(rows, width), numbers(width, vocabulary, seed=1) / float(np.sqrt(width))
    exact = gp.matmul(x, w)
    short = gp.matmul(x, w.astype(gp.float8_e4m3).astype(gp.float32))
    one, two = exact.to_numpy(), short.to_numpy()
    error = float(np.linalg.norm(one - two) / np.linalg.norm(one))
    means = abs(float(one.mean()) - float(two.mean()))
    moved = int((one.argmax(1) != two.argmax(1)).sum())
    yield f"float8 weights: the mean of the logits is off by {means:.1e}, their relative error is {error:.1%}"
    yield f"the largest logit is another one in {moved} of {rows} rows"


def legacy_stream(cuda: bool) -> Iterator[str]:
    """A copy on the legacy stream waits for every blocking stream: right by luck, and late."""
    gp.synchronize()
    driver = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *args: Any) -> None:
        status = getattr(driver, name)(*args)
        if status:
            raise RuntimeError(f"{name} failed with {status}")

    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxPushCurrent_v2", context)
    busy, own = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(busy), 0)
    call("cuStreamCreate", ctypes.byref(own), 1)
    work, target, host = gp.zeros(1 << 30, "uint8"), gp.zeros(1 << 20, "uint8"), gp.empty_pinned(1 << 20, np.uint8)
    gp.synchronize()
    took = {}
    for name, stream in (("its own stream", own), ("the legacy stream", ctypes.c_void_p(0))):
        for _ in range(40):
            call("cuMemsetD32Async", ctypes.c_uint64(work.ptr), 1, ctypes.c_size_t(1 << 28), busy)
        begin = time.perf_counter()
        call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(target.ptr),
            ctypes.c_void_p(host.ctypes.data),
            ctypes.c_size_t(1 << 20),
            stream,
        )
        call("cuStreamSynchronize", stream)
        took[name] = time.perf_counter() - begin
        call("cuStreamSynchronize", busy)
    call("cuStreamDestroy_v2", busy)
    call("cuStreamDestroy_v2", own)
    call("cuCtxPopCurrent_v2", ctypes.byref(context))
    call("cuDevicePrimaryCtxRelease_v2", device)
    yield "1 MiB to the device beside 40 GiB of writes: " + ", ".join(
        f"on {k} {v * 1e3:.2f} ms" for k, v in took.items()
    )


def stale_pointer(cuda: bool) -> Iterator[str]:
    """A graph that was given an address replays it when something else lies there."""
    for name, kernel in (("the address", gp.jit(FIRST_AT)), ("the array", gp.jit(FIRST))):
        old, out, graph = gp.ones(1 << 16), gp.zeros(1), gp.CudaGraph()
        gp.synchronize()
        with graph.capture():
            kernel(out, old.ptr if kernel.name == "first_at" else old, grid=1, block=1)
        del old
        # The pool hands the memory out again.
        new = [gp.zeros(1 << 16) for _ in range(4)]
        graph.replay()
        graph.synchronize()
        yield f"a graph that was given {name} reads {out.to_numpy()[0]:g}, where 1 was when it was captured"
        del new


CAUSES: dict[str, tuple[Callable[[bool], Iterator[str]], bool]] = {
    "split sums": (split_sums, False),
    "atomics": (atomics, False),
    "workspace reuse": (workspace, True),
    "averages": (averages, False),
    "legacy stream": (legacy_stream, True),
    "stale pointer": (stale_pointer, False),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CAUSES, help="one cause")
    options = parser.parse_args()
    cuda = gp.current_device().kind == "cuda"
    print(f"on {gp.current_device().name}")
    for name, (show, needs_gpu) in CAUSES.items():
        if options.only not in (None, name):
            continue
        print(f"{name}: {(show.__doc__ or '').strip()}")
        if needs_gpu and not cuda:
            print("  left out: needs a GPU")
            continue
        with nullcontext() if cuda else gp.device("cpu"):
            for line in show(cuda):
                print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
