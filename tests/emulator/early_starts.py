"""Kernels that are started early, and touch what the kernels before use: too early, and in order."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KERNELS", "ORDERED", "TOO_EARLY", "Step", "TooEarly"]

# `N` words, 64 threads in a block. All but the ones that are named after their error wait first.
KERNELS = r"""
#define WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#define START_NEXT() asm volatile("griddepcontrol.launch_dependents;")
#define INDEX (blockIdx.x * blockDim.x + threadIdx.x)

extern "C" __global__ void add(float* out, const float* x, const float* w) {
    START_NEXT();
    WAIT();
    out[INDEX] = x[INDEX] + w[INDEX];
}
extern "C" __global__ void read_early(float* out, const float* x, const float* w) {
    float value = x[INDEX];
    WAIT();
    out[INDEX] = value + w[INDEX];
}
extern "C" __global__ void prefetch(float* out, const float* x, const float* w) {
    START_NEXT();
    float weight = w[INDEX];
    WAIT();
    out[INDEX] = x[INDEX] + weight;
}
extern "C" __global__ void write_early(float* out, const float* x, const float* w) {
    out[INDEX] = 0.0f;
    WAIT();
    out[INDEX] += x[INDEX] + w[INDEX];
}
extern "C" __global__ void add_early(float* out, const float* x, const float* w) {
    atomicAdd(out + INDEX, w[INDEX]);
    WAIT();
    atomicAdd(out + INDEX, x[INDEX]);
}
extern "C" __global__ void never(float* out, const float* x, const float* w) {
    START_NEXT();
    out[INDEX] = x[INDEX] + w[INDEX];
}
extern "C" __global__ void first_thread(float* out, const float* x, const float* w) {
    if (threadIdx.x == 0) WAIT();
    __syncthreads();
    out[INDEX] = x[INDEX] + w[INDEX];
}
extern "C" __global__ void first_of_warp(float* out, const float* x, const float* w) {
    if (threadIdx.x == 0) WAIT();
    __syncwarp();
    out[INDEX] = x[INDEX] + w[INDEX];
}
extern "C" __global__ void first_of_cluster(float* out, const float* x, const float* w) {
    if (INDEX == 0) WAIT();
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
    out[INDEX] = x[INDEX] + w[INDEX];
}
extern "C" __global__ void producer(float* out, const float* x, const float* w) {
    __shared__ __align__(8) unsigned long long object;
    unsigned at = __cvta_generic_to_shared(&object);
    if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at) : "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        WAIT();
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" :: "r"(at) : "memory");
    }
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra AGAIN; }"
                 :: "r"(at) : "memory");
    out[INDEX] = x[INDEX] + w[INDEX];
}
extern "C" __global__ void odd_halves(short* out, const float* x, const float* w) {
    WAIT();
    out[2 * INDEX + 1] = (short)(x[INDEX] + w[INDEX]);
}
extern "C" __global__ void even_halves_early(short* out, const float* x, const float* w) {
    out[2 * INDEX] = 1;
    WAIT();
    out[2 * INDEX + 1] = (short)(x[INDEX] + w[INDEX]);
}
extern "C" __global__ void bulk_early(float* out, const float* x, const float* w) {
    __shared__ __align__(128) float tile[64];
    __shared__ __align__(8) unsigned long long object;
    unsigned to = __cvta_generic_to_shared(tile), at = __cvta_generic_to_shared(&object);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(at));
        asm volatile("fence.mbarrier_init.release.cluster;");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 256;" :: "r"(at) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                     :: "r"(to), "l"(x + blockIdx.x * 64), "r"(at) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; AGAIN: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra AGAIN; }"
                 :: "r"(at) : "memory");
    WAIT();
    out[INDEX] = tile[threadIdx.x] + w[INDEX];
}
"""


@dataclass(frozen=True)
class Step:
    """A launch: the kernel, and the arrays it writes, reads, and reads as weights, by their names."""

    kernel: str
    out: str
    x: str
    w: str = "w"
    early: bool = True
    constant: bool = False
    cluster: int = 1


@dataclass(frozen=True)
class TooEarly:
    """Launches of which the last one is too early, and what is said of it."""

    name: str
    steps: tuple[Step, ...]
    words: tuple[str, ...]


FIRST = Step("add", "a", "x", early=False)
_UP = "move griddepcontrol.wait up, before this access, or launch the kernel without programmatic=True"
_CONSTANT = 'declared in uses= as "constant"'

TOO_EARLY = [
    TooEarly(
        "a read before the wait",
        (FIRST, Step("read_early", "b", "a")),
        (
            "kernel 'read_early': early access to global memory: read of x[0] before griddepcontrol.wait, ",
            "when kernel 'add' may not have written it yet\n",
            "|     float value = x[INDEX];",
            "so it may run beside 'add', which writes this at add.cu:9: out[INDEX] = x[INDEX] + w[INDEX];",
            _UP,
            _CONSTANT,
        ),
    ),
    TooEarly(
        "a write before the wait, of what is written",
        (FIRST, Step("write_early", "a", "x")),
        (
            "kernel 'write_early'",
            "write of out[0] before griddepcontrol.wait, when kernel 'add' may not have written it",
            _UP,
        ),
    ),
    TooEarly(
        "a write before the wait, of what is read",
        (FIRST, Step("write_early", "x", "w")),
        ("write of out[0]", "when kernel 'add' may not have read it yet", "which reads this at add.cu:9"),
    ),
    TooEarly(
        "an atomic operation before the wait",
        (FIRST, Step("add_early", "a", "x")),
        ("atomic operation on out[0] before griddepcontrol.wait", "'add' may not have written it yet"),
    ),
    TooEarly(
        "no wait at all",
        (FIRST, Step("never", "b", "a")),
        ("kernel 'never'", "read of x[0]", "has no griddepcontrol.wait: each thread must execute it"),
    ),
    TooEarly(
        "no wait, and only writes",
        (FIRST, Step("never", "x", "w")),
        ("write of out[0]", "may not have read it yet", "has no griddepcontrol.wait"),
    ),
    TooEarly(
        "one thread waits, and another warp is not ordered after it",
        (FIRST, Step("first_of_warp", "b", "a")),
        (
            "read of x[32]",
            "thread [32, 0, 0]",
            "only other threads of the block have waited",
            "__syncthreads() behind it",
        ),
    ),
    TooEarly(
        "a chain of three, whose first kernel is read",
        (FIRST, Step("add", "b", "x"), Step("read_early", "c", "a")),
        ("kernel 'read_early'", "read of x[0]", "when kernel 'add' may not have written it yet"),
    ),
    TooEarly(
        "a chain of three, whose first kernel reads what the last one writes",
        (Step("add", "a", "y", early=False), Step("prefetch", "b", "a", constant=True), Step("write_early", "y", "w")),
        ("kernel 'write_early'", "when kernel 'add' may not have read it yet"),
    ),
    TooEarly(
        "weights that are not declared constant",
        (FIRST, Step("prefetch", "b", "x", "a")),
        ("kernel 'prefetch'", "read of w[0]", "when kernel 'add' may not have written it yet", _CONSTANT),
    ),
    TooEarly(
        "a bulk copy before the wait",
        (FIRST, Step("bulk_early", "b", "a")),
        ("kernel 'bulk_early'", "bulk copy from x[0] before griddepcontrol.wait", "'add' may not have written it yet"),
    ),
    TooEarly(
        "half a word",
        (Step("even_halves_early", "a", "x", early=False), Step("even_halves_early", "a", "x")),
        ("write of out[0]", "when kernel 'even_halves_early' may not have written it yet"),
    ),
]

ORDERED: dict[str, tuple[Step, ...]] = {
    "all wait first": (FIRST, Step("add", "b", "a"), Step("add", "c", "b"), Step("add", "a", "c")),
    "constant weights before the wait": (
        FIRST,
        Step("prefetch", "b", "a", constant=True),
        Step("prefetch", "c", "b", constant=True),
    ),
    # Started in order, because a kernel that may still run writes the weights.
    "constant weights that are written": (FIRST, Step("add", "b", "x"), Step("prefetch", "c", "x", "a", constant=True)),
    "not started early": (FIRST, Step("read_early", "b", "a", early=False), Step("never", "a", "b", early=False)),
    "early behind one that is not, which ends the chain": (
        FIRST,
        Step("add", "b", "x", early=False),
        Step("read_early", "c", "a"),
    ),
    "no wait, and nothing in common but what is read": (FIRST, Step("never", "b", "x")),
    "one thread waits, and the others meet it": (FIRST, Step("first_thread", "b", "a")),
    "one thread waits, and the others of its cluster meet it": (FIRST, Step("first_of_cluster", "b", "a", cluster=2)),
    "one thread waits, and arrives at an mbarrier object": (FIRST, Step("producer", "b", "a")),
    "other halves of words": (Step("odd_halves", "a", "x", early=False), Step("even_halves_early", "a", "x")),
    "a bulk copy of other memory": (FIRST, Step("bulk_early", "b", "x")),
}
