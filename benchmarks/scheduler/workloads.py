"""Kernels, tenants and load generators of the scheduler's benchmarks."""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit.scheduler import Scheduler, Task

SOURCE = """
__device__ __forceinline__ unsigned long long now() {
    unsigned long long t; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); return t;
}
__device__ __forceinline__ unsigned sm_id() {
    unsigned s; asm volatile("mov.u32 %0, %smid;" : "=r"(s)); return s;
}
__device__ __forceinline__ float work(int iters) {
    float a = threadIdx.x, b = 0.5f;
    for (int i = 0; i < iters; i++) a = fmaf(a, 1.0000001f, b);
    return a;
}
// Compute bound: `iters` dependent multiply-adds in every thread.
extern "C" __global__ void burn(float* out, int iters) {
    float a = work(iters);
    if (a == 12345.678f) out[0] = a;
}
// The same, noting when the first block began and the last one ended.
extern "C" __global__ void burn_logged(unsigned long long* log, int slot, int iters) {
    unsigned long long begin = now();
    float a = work(iters);
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicMin(&log[2 * slot], begin + (a == 12345.678f));
        atomicMax(&log[2 * slot + 1], now());
    }
}
// Which SMs blocks ran on.
extern "C" __global__ void where_am_i(unsigned* histogram, int iters) {
    float a = work(iters);
    if (threadIdx.x == 0) atomicAdd(&histogram[sm_id()], 1u + (a == 12345.678f));
}
// Cycles and nanoseconds of the same stretch.
extern "C" __global__ void clock_rate(long long* out, int iters) {
    unsigned long long t0 = now(); long long c0 = clock64();
    float a = work(iters);
    long long c1 = clock64(); unsigned long long t1 = now();
    out[0] = c1 - c0 + (a == 12345.678f);
    out[1] = (long long)(t1 - t0);
}
// When this block began, told to the host.
extern "C" __global__ void say_when(unsigned long long address) {
    volatile unsigned long long* told = (volatile unsigned long long*)address;
    told[0] = now();
    __threadfence_system();
}
// Answer `rounds` times with the device's clock.
extern "C" __global__ void ping_pong(unsigned long long address, int rounds) {
    volatile unsigned long long* cell = (volatile unsigned long long*)address;
    for (int i = 1; i <= rounds; i++) {
        while (cell[0] != (unsigned long long)i) {}
        cell[1] = now();
        __threadfence_system();
    }
}
// Memory bound: copy.
extern "C" __global__ void stream_copy(float* to, const float* from, long long n) {
    float4* out = (float4*)to; const float4* in = (const float4*)from;
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += step) out[i] = in[i];
}
"""


class Kernels:
    """The kernels, and what they cost on the whole device."""

    def __init__(self) -> None:
        self.burn = gp.jit(SOURCE, func="burn")
        self.logged = gp.jit(SOURCE, func="burn_logged")
        self.where = gp.jit(SOURCE, func="where_am_i")
        self.copy = gp.jit(SOURCE, func="stream_copy")
        self.rate = gp.jit(SOURCE, func="clock_rate")
        self.say_when = gp.jit(SOURCE, func="say_when")
        self.ping_pong = gp.jit(SOURCE, func="ping_pong")
        self.clock_error = 0.0
        self.out = gp.zeros(1, dtype="float32")
        self.sms = int(gp.get_device_info()["sm_count"])

    def launcher(self, iters: int, blocks: int | None = None) -> Callable[[], None]:
        """A call that launches `burn` on as many blocks, four per SM of the device by default."""
        burn, out, grid = self.burn, self.out, (blocks or 4 * self.sms,)
        return lambda: burn(out, iters, grid=grid, block=(256,))

    def calibrate(self, seconds: float, blocks: int | None = None) -> int:
        """Iterations with which `burn` takes that long where it is launched now."""
        low = timed(self.launcher(2_000, blocks))
        high = timed(self.launcher(20_000, blocks))
        slope = (high - low) / 18_000
        return max(1, int(2_000 + (seconds - low) / slope))

    def copier(self, mib: int) -> Callable[[], Callable[[], None]]:
        """A maker of calls that copy as many MiB on the device."""

        def make() -> Callable[[], None]:
            source = gp.ones((mib << 18,), dtype="float32")
            target = gp.empty((mib << 18,), dtype="float32")
            count, grid, copy = mib << 16, (16 * self.sms,), self.copy
            return lambda: copy(target, source, count, grid=grid, block=(256,))

        return make

    def megahertz(self) -> float:
        """The SM clock where this is called, under the load of now."""
        out = gp.zeros(2, dtype="int64")
        rates = []
        for _ in range(50):
            self.rate(out, 20_000, grid=(1,), block=(32,))
            cycles, ns = out.to_numpy()
            rates.append(float(cycles) / float(ns) * 1e3)
        return statistics.median(rates)

    def clock_offset(self) -> float:
        """Nanoseconds to take from the device's clock to get `time.perf_counter_ns`, to half a round trip."""
        cell = gp.empty_pinned((2,), dtype="uint64")
        cell[:] = 0
        rounds, best, offset = 2000, float("inf"), 0.0
        self.ping_pong(cell.ctypes.data, rounds, grid=(1,), block=(1,))
        for i in range(1, rounds + 1):
            before = int(cell[1])
            sent = time.perf_counter_ns()
            cell[0] = i
            while int(cell[1]) == before:
                pass
            seen = time.perf_counter_ns()
            if seen - sent < best:
                best, offset = seen - sent, int(cell[1]) - (sent + seen) / 2
        gp.current_stream().synchronize()
        self.clock_error = best / 2e3
        return offset

    def first_blocks(self, count: int, pause: float) -> np.ndarray:
        """Microseconds from the call to the first block's begin, called from native code after Poisson pauses."""
        offset = self.clock_offset()
        cell = gp.empty_pinned((1,), dtype="uint64")
        self.say_when._time_first_blocks(cell.ctypes.data, offset, pause, 50)
        return np.array(self.say_when._time_first_blocks(cell.ctypes.data, offset, pause, count)) / 1e3


def timed(launch: Callable[[], None], rounds: int = 20) -> float:
    """Device seconds of one launch: the median over bursts of five, between events."""
    times = []
    for _ in range(rounds):
        start, end = gp.Event(), gp.Event()
        start.record()
        for _ in range(5):
            launch()
        end.record()
        end.synchronize()
        times.append(start.elapsed_ms(end) / 5e3)
    return statistics.median(times)


class ClosedLoop:
    """A tenant that submits as fast as it may, and counts by the clock."""

    def __init__(self, scheduler: Scheduler, make: Callable[[], Callable[[], None]], **request: Any) -> None:
        self.counts: list[tuple[float, int]] = []
        self.count = 0
        self.charged = 0.0
        self.seconds = 0.0
        self._stop = threading.Event()
        self._go = threading.Event()
        self.ready = threading.Event()
        self._make = make
        self.task: Task[Any] = scheduler.submit(self._run, **request)
        if self.task.decision == "rejected":
            raise RuntimeError(f"{request}: {self.task.decision.reason}")

    def _run(self) -> None:
        launch = self._make()
        for _ in range(3):
            launch()
        gp.current_stream().synchronize()
        self.ready.set()
        self._go.wait()
        stop = self._stop.is_set
        before, began = self.task.stats()["gpu_seconds"], time.perf_counter()
        while not stop():
            launch()
            self.count += 1
        gp.current_stream().synchronize()
        self.charged = self.task.stats()["gpu_seconds"] - before
        self.seconds = time.perf_counter() - began

    def go(self) -> None:
        self._go.set()

    def stop(self) -> None:
        self._stop.set()
        self._go.set()

    def join(self) -> dict[str, Any]:
        self.task.result(timeout=60)
        return self.task.stats()


class GraphLoop:
    """A tenant that replays a graph from native code as fast as it may: the interpreter is free for others."""

    def __init__(self, scheduler: Scheduler, make: Callable[[], Callable[[], None]], **request: Any) -> None:
        self.count = 0
        self._make = make
        self._stop = threading.Event()
        self._go = threading.Event()
        self._ready = threading.Event()
        self.task: Task[Any] = scheduler.submit(self._run, **request)

    def _run(self) -> None:
        launch = self._make()
        graph = gp.CudaGraph()
        with graph.capture():
            launch()
        graph.replay()
        graph.synchronize()
        self._ready.set()
        self._go.wait()
        while not self._stop.is_set():
            graph.replay_many(20)
            self.count += 20

    def wait(self) -> None:
        if not self._ready.wait(30):
            raise RuntimeError("a tenant did not start")

    def begin(self) -> None:
        """Saturate the lane from now on."""
        self.wait()
        self._go.set()

    def end(self) -> dict[str, Any]:
        self._stop.set()
        self._go.set()
        self.task.result(timeout=60)
        return self.task.stats()


def compete(tenants: list[ClosedLoop], seconds: float, window: float) -> list[list[int]]:
    """Let tenants run against each other; launches of each in every window, the first one left out."""
    for tenant in tenants:
        if not tenant.ready.wait(30):
            raise RuntimeError("a tenant did not start")
    for tenant in tenants:
        tenant.go()
    time.sleep(min(1.0, window))
    rows = []
    before = [tenant.count for tenant in tenants]
    next_at = time.perf_counter()
    while len(rows) * window < seconds - window / 2:
        next_at += window
        time.sleep(max(0.0, next_at - time.perf_counter()))
        after = [tenant.count for tenant in tenants]
        rows.append([b - a for a, b in zip(before, after, strict=True)])
        before = after
    for tenant in tenants:
        tenant.stop()
    return rows


def open_loop(serve: Callable[[], None], rate: float, seconds: float, seed: int = 1) -> np.ndarray:
    """Serve requests that arrive by a Poisson process; seconds from arrival to end of each."""
    rng = random.Random(seed)
    latencies = []
    start = time.perf_counter()
    arrival = start
    while arrival < start + seconds:
        arrival += rng.expovariate(rate)
        while (left := arrival - time.perf_counter()) > 0:
            if left > 2e-4:
                time.sleep(left - 1e-4)
        serve()
        latencies.append(time.perf_counter() - arrival)
    return np.array(latencies)
