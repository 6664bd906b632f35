"""The core against its peers: launch overhead, bandwidth, pool, graphs, import and first-operator time.

Ours and the peer run in one process, alternating; every figure is a median of many rounds. Figures are ratios against a
peer or a ceiling of the same run, and each has the bar it must meet.

    python benchmarks/core.py --json benchmarks/results/core.json
"""

from __future__ import annotations

import argparse
import compileall
import functools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report

BURST = 256
INNER = 8
KERNEL = """extern "C" __global__ void axpy(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = x[i] * factor + 1.0f;
}"""


Measured = tuple[str, Callable[[], Any]] | Callable[[], float]


def burst_us(*statements: Measured, names: dict[str, Any], rounds: int) -> list[float]:
    """Microseconds of host time per statement, in bursts that end with the given wait; the statements alternate.

    A function in place of a statement does the same burst by itself and returns the seconds per call.

    Each runs in a loop of its own with its names as locals, so that no call but the measured one is in it.
    """
    bursts = [m if callable(m) else _burst(*m, names) for m in statements]
    times: list[list[float]] = [[] for _ in bursts]
    for _ in range(3):
        for burst in bursts:
            burst()
    for _ in range(rounds):
        for burst, kept in zip(bursts, times, strict=True):
            kept.append(burst() * 1e6)
    return [statistics.median(kept) for kept in times]


def _burst(statement: str, sync: Callable[[], Any], names: dict[str, Any]) -> Callable[[], float]:
    scope: dict[str, Any] = {}
    exec(f"def loop({', '.join(names)}):\n    for _ in range({BURST}):\n        {statement}\n", scope)
    loop = scope["loop"]

    def run() -> float:
        start = time.perf_counter()
        loop(**names)
        sync()
        return (time.perf_counter() - start) / BURST

    return run


FUSED = """#include "pygpukit/elementwise.cuh"
extern "C" __global__ void pgk_bench_fused(float* out, float* work, const float* a, const float* b, const float* c,
                                           long long n) {
    pgk::await_predecessor();
    long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i < n) out[i] = work[i] = a[i] * b[i] + c[i];
}
"""


def registered() -> Callable[..., Any]:
    """An operator of the registry with three inputs and workspace, for its host time."""
    from pygpukit.ops.launch import KernelLaunch, Launch, Unit, Workspace, blocks_for, i64, read, write
    from pygpukit.ops.problem import Problem, Result
    from pygpukit.ops.registry import Operator, Parameter, Variant, register

    unit = Unit("pgk_bench_fused", FUSED, ("pgk_bench_fused",))

    def launch(p: Problem) -> Launch:
        work = Workspace()
        space, n = work.buffer(gp.float32, p["a"].size), p["a"].size
        arguments = (write(p.out), write(space), read(p["a"]), read(p["b"]), read(p["c"]), i64(n))
        step = KernelLaunch(unit, unit.entries[0], (blocks_for(n, 256, "fused"),), (256,), arguments)
        return Launch((step,), tuple(work.pieces))

    def accepts(p: Problem) -> str | None:
        return None if all(x.is_contiguous() for x in p.inputs.values()) else "not contiguous"

    variant = Variant("only", "batch_invariant", accepts, launch=launch)
    parameters = tuple(Parameter(name) for name in "abc")
    return register(
        Operator(
            "bench_fused", parameters, lambda p: [Result(p["a"].shape, gp.float32)], lambda a, b, c: a * b + c,
            (variant,), "For the benchmark.", public=False,
        )
    )  # fmt: skip


def device_ms(
    call: Callable[[], Any], event: Callable[[], Any], elapsed: str, sync: Callable[[], Any], rounds: int
) -> float:
    """Milliseconds on the device per call: events around several calls in a row, the median of many rounds."""
    call()
    times = []
    for _ in range(rounds):
        start, end = event(), event()
        sync()
        start.record()
        for _ in range(INNER):
            call()
        end.record()
        end.synchronize()
        times.append(getattr(start, elapsed)(end) / INNER)
    return statistics.median(times)


def launches(report: Report, torch: Any, cupy: Any, rounds: int) -> None:
    """Host time of an operator and of a JIT kernel, beside the bare driver call."""
    x, y = gp.from_numpy(np.random.rand(1024).astype("f")), gp.from_numpy(np.random.rand(1024).astype("f"))
    out = gp.empty_like(x)
    kernel = gp.jit(KERNEL, func="axpy")

    names = {
        "add": gp.add,
        "kernel": kernel,
        "bare_launch": kernel._bare_launcher([x, 0.5, 1024]),
        "x": x,
        "y": y,
        "out": out,
        "torch_add": torch.add,
        "tx": torch.rand(1024, device="cuda"),
        "ty": torch.rand(1024, device="cuda"),
        "tout": torch.empty(1024, device="cuda"),
        "raw": cupy.RawKernel(KERNEL, "axpy"),
        "cx": cupy.random.rand(1024).astype("f"),
        "n32": np.int32(1024),
        "half": np.float32(0.5),
        "fused": registered(),
    }
    arguments = [x, 0.5, 1024]
    ours, theirs, ours_out, theirs_out, jit, floor, rawkernel, view, fused, bare, booked = burst_us(
        ("add(x, y)", gp.synchronize),
        ("torch_add(tx, ty)", torch.cuda.synchronize),
        ("add(x, y, out=out)", gp.synchronize),
        ("torch_add(tx, ty, out=tout)", torch.cuda.synchronize),
        ("kernel(x, 0.5, 1024)", gp.synchronize),
        ("bare_launch()", gp.synchronize),
        ("raw((4,), (256,), (cx, half, n32))", cupy.cuda.Device().synchronize),
        ("x[0:10]", gp.synchronize),
        ("fused(x, y, out)", gp.synchronize),
        lambda: kernel._time_launches(arguments, True, BURST, 1),
        lambda: kernel._time_launches(arguments, False, BURST, 1),
        names=names,
        rounds=rounds,
    )
    print(f"     cuLaunchKernelEx in a compiled loop {bare:.3f} us, with our bookkeeping {booked:.3f} us", flush=True)
    print(f"     the same call from Python {floor:.3f} us", flush=True)
    figures = {"compiled_loop_us": bare, "booked_us": booked, "called_from_python_us": floor}
    report.add("gp.add(x, y) 1,024 float32, against torch.add", ours, theirs, "us", 0.60, **figures)
    report.add("gp.add(x, y) against cuLaunchKernelEx from Python + 0.9 us", ours, floor + 0.9, "us", 1.0)
    report.add("gp.add(x, y) against the same + 0.5 us (stretch)", ours, floor + 0.5, "us", 1.0)
    report.add("gp.add(x, y) against a compiled loop + 0.9 us (floor)", ours, bare + 0.9, "us", 1.0)
    report.add("gp.add(x, y, out=) against torch.add(out=)", ours_out, theirs_out, "us", 1.0)
    report.add("JIT kernel, three arguments, against cupy.RawKernel", jit, rawkernel, "us", 0.70)
    report.add("view x[0:10]", view, 1.0, "us", 1.0)
    report.add(
        "registered operator, three inputs and workspace, against a compiled loop + 1.2 us",
        fused,
        bare + 1.2,
        "us",
        1.0,
    )
    report.add("JIT kernel against cuLaunchKernelEx from Python + 0.5 us", jit, floor + 0.5, "us", 1.0)
    report.add("JIT kernel against the same + 0.3 us (stretch)", jit, floor + 0.3, "us", 1.0)
    report.add("JIT kernel against a compiled loop + 0.5 us (floor)", jit, bare + 0.5, "us", 1.0)


def bandwidth(report: Report, torch: Any, rounds: int) -> None:
    """Elementwise operators on 1 GiB against the device copy and torch."""
    for name in ("float32", "bfloat16"):
        _bandwidth_of(report, torch, name, rounds)
        gp.memory.trim()
        torch.cuda.empty_cache()


class _Memory:
    """Device memory of an array as raw bytes, in the interface torch reads."""

    def __init__(self, array: gp.GPUArray) -> None:
        self.__cuda_array_interface__ = {
            "data": (array.ptr, False),
            "shape": (array.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _as_torch(torch: Any, array: gp.GPUArray, name: str) -> Any:
    gp.synchronize()
    return torch.as_tensor(_Memory(array), device="cuda").view(getattr(torch, name))


def _bandwidth_of(report: Report, torch: Any, name: str, rounds: int) -> None:
    n = (1 << 30) // gp.dtype(name).itemsize
    host = torch.rand(n, dtype=torch.float32).to(getattr(torch, name)).view(torch.uint8).numpy()
    raw = host.view(gp.to_numpy_dtype(name))
    x, y = gp.from_numpy(raw), gp.from_numpy(raw[::-1].copy())
    out = gp.empty_like(x)
    # Both work on the same memory: with memory of its own each kernel's rate varied by up to a percent.
    tx, ty, tout = (_as_torch(torch, array, name) for array in (x, y, out))

    def ours_ms(call: Callable[[], Any]) -> float:
        return device_ms(call, gp.Event, "elapsed_ms", gp.synchronize, rounds)

    def their_ms(call: Callable[[], Any]) -> float:
        event = functools.partial(torch.cuda.Event, enable_timing=True)
        return device_ms(call, event, "elapsed_time", torch.cuda.synchronize, rounds)

    copy_rate = 2 * tx.nbytes / their_ms(lambda: tout.copy_(tx)) / 1e6
    gelu = torch.nn.functional.gelu
    cases = {
        "add": (3, lambda: gp.add(x, y, out=out), lambda: torch.add(tx, ty, out=tout), 0.92),
        "mul": (3, lambda: gp.mul(x, y, out=out), lambda: torch.mul(tx, ty, out=tout), 0.92),
        "exp": (2, lambda: gp.exp(x, out=out), lambda: torch.exp(tx, out=tout), 0.92),
        "gelu": (2, lambda: gp.gelu(x, out=out), lambda: gelu(tx, approximate="tanh"), 0.85),
    }
    for op, (passes, ours, theirs, must) in cases.items():
        # Alternating: a drift of the clocks shows in both.
        pairs = [(ours_ms(ours), their_ms(theirs)) for _ in range(3)]
        our_rate = passes * x.nbytes / statistics.median(p[0] for p in pairs) / 1e6
        their_rate = passes * x.nbytes / statistics.median(p[1] for p in pairs) / 1e6
        report.add(f"{op} {name} 1 GiB against the device copy", our_rate, copy_rate, "GB/s", must, at_least=True)
        report.add(f"{op} {name} 1 GiB against torch", our_rate, their_rate, "GB/s", 1.0, at_least=True)


def pool(report: Report, rounds: int) -> None:
    """Allocate and free from Python."""
    held = gp.memory.get_default_pool()
    before = held.stats()["misses"]
    (us,) = burst_us(("allocate(4096)", gp.synchronize), names={"allocate": held.allocate}, rounds=rounds)
    misses = held.stats()["misses"] - before
    report.add("pool allocate + free from Python", us, 0.4, "us", 1.0, misses=misses)


def graphs(report: Report, torch: Any, rounds: int) -> None:
    """A graph of 100 small operators."""
    x, one = gp.from_numpy(np.random.rand(1024).astype("f")), gp.from_numpy(np.random.rand(1024).astype("f"))
    graph = gp.CudaGraph()
    gp.add(x, one)
    with graph.capture():
        y = x
        for _ in range(100):
            y = gp.add(y, one)
    tx, tone = torch.rand(1024, device="cuda"), torch.rand(1024, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.add(tx, tone)
    side.synchronize()
    their_graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(their_graph):
        ty = tx
        for _ in range(100):
            ty = torch.add(ty, tone)

    def replay_us(replay: Callable[[], Any], sync: Callable[[], Any]) -> float:
        start = time.perf_counter()
        for _ in range(20):
            replay()
        sync()
        return (time.perf_counter() - start) / 20 * 1e6

    ours, theirs = [], []
    for _ in range(rounds):
        ours.append(replay_us(graph.replay, gp.synchronize))
        theirs.append(replay_us(their_graph.replay, torch.cuda.synchronize))
    mine, other = statistics.median(ours), statistics.median(theirs)
    report.add("graph of 100 adds, replay, against torch.cuda.CUDAGraph", mine, other, "us", 1.05)
    report.add("graph of 100 adds, replay (stretch)", mine, other, "us", 0.9)
    np.testing.assert_array_equal(y.to_numpy(), _eager(x, one).to_numpy())


def _eager(x: gp.GPUArray, one: gp.GPUArray) -> gp.GPUArray:
    for _ in range(100):
        x = gp.add(x, one)
    return x


def _child(code: str, **env: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **env}, capture_output=True, text=True, check=True, timeout=120
    )
    return float(done.stdout.split()[-1])


def processes(report: Report, rounds: int) -> None:
    """Import time, and the first operator with an empty and with a warm cache."""
    # Bytecode is there, as after an install.
    compileall.compile_dir(str(Path(gp.__file__).parent), quiet=2)
    clock = "import time; t = time.perf_counter(); {}; print((time.perf_counter() - t) * 1e3)"
    base, ours = [], []
    for _ in range(rounds):
        base.append(_child(clock.format("import numpy, ml_dtypes")))
        ours.append(_child(clock.format("import pygpukit")))
    report.add(
        "import pygpukit against numpy and ml_dtypes + 50 ms",
        statistics.median(ours),
        statistics.median(base) + 50,
        "ms",
        1.0,
    )
    report.add("import pygpukit, + 20 ms (stretch)", statistics.median(ours), statistics.median(base) + 20, "ms", 1.0)
    first = (
        "import time, pygpukit as gp; x = gp.empty(1024); gp.synchronize(); t = time.perf_counter(); "
        "gp.add(x, x); gp.synchronize(); print((time.perf_counter() - t) * 1e3)"
    )
    with tempfile.TemporaryDirectory() as folder:
        env = {"PYGPUKIT_CACHE_DIR": folder, "PYGPUKIT_BUNDLE": os.path.join(folder, "none.zip")}
        empty = _child(first, **env)
        warm = statistics.median(_child(first, **env) for _ in range(5))
    report.add("first operator, empty cache", empty, 1000, "ms", 1.0)
    report.add("first operator, warm cache", warm, 30, "ms", 1.0)


def main() -> int:
    """Run the benchmark; the exit code says whether every bar held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--rounds", type=int, default=50, help="rounds per figure (default 50)")
    parser.add_argument("--only", nargs="*", choices=["launches", "bandwidth", "pool", "graphs", "processes"])
    args = parser.parse_args()
    if not gp.is_cuda_available():
        print("benchmarks/core.py compares with CUDA peers and needs a GPU", file=sys.stderr)
        return 2
    import cupy
    import torch

    chosen = args.only or ["launches", "bandwidth", "pool", "graphs", "processes"]
    report = Report()
    if "launches" in chosen:
        launches(report, torch, cupy, args.rounds)
    if "pool" in chosen:
        pool(report, args.rounds)
    if "graphs" in chosen:
        graphs(report, torch, args.rounds)
    if "bandwidth" in chosen:
        bandwidth(report, torch, min(args.rounds, 20))
    if "processes" in chosen:
        processes(report, 5)
    return report.finish(args.json, f"python benchmarks/core.py --rounds {args.rounds}")


if __name__ == "__main__":
    sys.exit(main())
