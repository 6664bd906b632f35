"""`pygpukit demo`: a guided tour on whichever device exists; each step says what happened and how fast."""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit import _pygpukit_rust as _native
from pygpukit.cli import demo_scheduler
from pygpukit.config import format_size
from pygpukit.errors import FallbackWarning, NvrtcNotFoundError

__all__ = ["add_parser", "run"]

_KERNEL = """extern "C" __global__ void scale(float* x, float factor, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] *= factor;
}"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command ``demo`` to the parser of ``pygpukit``."""
    parser = subparsers.add_parser("demo", help="a guided tour on whichever device is there")
    parser.add_argument("--size", type=int, default=0, help="elements of the large array (default: by device)")
    parser.set_defaults(run=run)
    parts = parser.add_subparsers(metavar="[scheduler]", help="a latency-critical tenant beside a hog")
    demo_scheduler.add_parser(parts)


def run(args: argparse.Namespace) -> int:
    """Carry out ``pygpukit demo``."""
    say = _printer()
    for title, line in _steps(args.size):
        say(title, line)
    return 0


def _printer() -> Callable[[str, str], None]:
    if not sys.stdout.isatty():
        return lambda title, line: print(f"{title:<10} {line}", flush=True)
    from rich.console import Console
    from rich.text import Text

    console = Console()
    return lambda title, line: console.print(Text.assemble((f"{title:<10} ", "bold cyan"), line))


def _steps(size: int) -> Iterator[tuple[str, str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", FallbackWarning)
        device = gp.current_device()
    for warning in caught:
        yield "note", str(warning.message)
    properties = device.properties()
    memory = format_size(properties["total_memory"])
    yield "device", f"{device!r}: {properties['name']}, {properties['sm_count']} SMs, {memory}"
    is_cuda = device.kind == "cuda"
    n = size or (1 << 28 if is_cuda else 1 << 22)
    yield from _arrays()
    ceiling = _copy_rate(n)
    yield (
        "limit",
        f"a copy of {format_size(4 * n)} inside the device moves {ceiling / 1e9:,.1f} GB/s; 100 % below means this",
    )
    yield from _operators(n, ceiling)
    yield from _transfer(n)
    yield from _kernel(n, ceiling)
    yield from _graph()
    yield from _pool()
    yield from _eviction()
    yield from _reply()


def _arrays() -> Iterator[tuple[str, str]]:
    x = gp.zeros((1024, 1024), dtype="float32")
    y = gp.ones((1024, 1024), dtype="float32")
    z, w = gp.add(x, y), gp.matmul(y, y)
    correct = bool((z.to_numpy() == 1).all() and (w.to_numpy() == 1024).all())
    yield "arrays", f"zeros + ones and ones @ ones of (1024, 1024) match NumPy: {_yes(correct)}"


def _seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    call()
    gp.synchronize()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        gp.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _copy_rate(n: int) -> float:
    x, out = gp.ones(n), gp.zeros(n)
    return 2 * x.nbytes / _seconds(lambda: _native.copy_dense(out, x))


def _operators(n: int, ceiling: float) -> Iterator[tuple[str, str]]:
    x = gp.from_numpy(np.linspace(-3, 3, n, dtype=np.float32))
    y, out = gp.ones_like(x), gp.zeros_like(x)
    for name, call, passes in (
        ("add", lambda: gp.add(x, y, out=out), 3),
        ("gelu", lambda: gp.gelu(x, out=out), 2),
    ):
        rate = passes * x.nbytes / _seconds(call)
        yield "operator", f"gp.{name} on {n:,} float32: {rate / 1e9:,.1f} GB/s, {rate / ceiling:.0%} of the limit"
    total, expected = gp.sum(x).item(), float(x.to_numpy().sum(dtype=np.float64))
    error = abs(total - expected) / n
    yield "sum", f"gp.sum is {error:.1e} per element from float64; the same bits every run, whatever the number of SMs"


def _transfer(n: int) -> Iterator[tuple[str, str]]:
    host = np.ones(min(n, 1 << 26), np.float32)
    up = host.nbytes / _seconds(lambda: gp.from_numpy(host), 3)
    x = gp.from_numpy(host)
    down = host.nbytes / _seconds(lambda: x.to_numpy(), 3)
    yield (
        "transfer",
        f"{format_size(host.nbytes)} to the device {up / 1e9:.1f} GB/s, back {down / 1e9:.1f} GB/s (pageable memory)",
    )


def _kernel(n: int, ceiling: float) -> Iterator[tuple[str, str]]:
    try:
        start = time.perf_counter()
        kernel = gp.jit(_KERNEL, func="scale")
        took = time.perf_counter() - start
    except NvrtcNotFoundError as error:
        yield "kernel", str(error).splitlines()[0]
        return
    yield "kernel", f"compiled {kernel!r} in {took * 1e3:.0f} ms (0 ms of compiling when it comes from the cache)"
    x = gp.ones(n)
    kernel(x, factor=0.5, n=x.size)
    correct = bool((x[:1000].to_numpy() == 0.5).all())
    rate = 2 * x.nbytes / _seconds(lambda: kernel(x, factor=1.0, n=x.size))
    yield "kernel", f"launched it, correct: {_yes(correct)}, {rate / 1e9:,.1f} GB/s, {rate / ceiling:.0%} of the limit"


def _graph() -> Iterator[tuple[str, str]]:
    x = gp.from_numpy(np.linspace(0, 1, 1000, dtype=np.float32))

    def work() -> gp.GPUArray:
        y = x
        for _ in range(20):
            y = gp.tanh(y) + 0.5
        return y

    eager = work()
    graph = gp.CudaGraph()
    with graph.capture():
        result = work()
    graph.replay()
    equal = bool((result.to_numpy() == eager.to_numpy()).all())
    eager_s, replay_s = _seconds(work), _seconds(graph.replay)
    yield (
        "graph",
        f"{graph.num_nodes} operators in one graph, bit-equal to eager: {_yes(equal)}, "
        f"{eager_s * 1e6:.0f} us eager, {replay_s * 1e6:.0f} us replayed",
    )


def _pool() -> Iterator[tuple[str, str]]:
    with gp.memory.MemoryPool("64MiB", name="demo") as pool:
        for _ in range(1000):
            gp.empty(1000)
        refused = ""
        try:
            gp.empty(1 << 26)
        except gp.OutOfMemoryError as error:
            refused = str(error).splitlines()[0]
        stats = pool.stats()
    yield (
        "pool",
        f"{stats['allocations']} arrays, {stats['hit_rate']:.1%} served from the pool; over its quota: {refused}",
    )


def _eviction() -> Iterator[tuple[str, str]]:
    parts, elements = 8, 1 << 20

    def work(pool: gp.memory.MemoryPool) -> float:
        with pool:
            arrays = [gp.full(elements, float(i), "float32") for i in range(parts)]
            for _ in range(3):
                for array in arrays:
                    array *= 1.5
            return float(sum(gp.sum(array).item() for array in arrays))

    try:
        tight = gp.memory.MemoryPool(parts * elements * 4 // 2, enable_eviction=True, name="half")
    except ValueError as error:
        yield "eviction", str(error)
        return
    equal = work(gp.memory.MemoryPool(name="whole")) == work(tight)
    stats = tight.stats()
    moved = stats["evicted_bytes"] + stats["restored_bytes"]
    yield (
        "eviction",
        f"{format_size(parts * elements * 4)} of arrays in a quota of {format_size(tight.quota or 0)}: "
        f"{format_size(moved)} moved, same result: {_yes(equal)}",
    )


def _reply() -> Iterator[tuple[str, str]]:
    from pygpukit.llm import LLM, SamplingParams, fetch
    from pygpukit.llm.testing import tiny_gguf

    params = SamplingParams(temperature=0, max_tokens=24)
    with tempfile.TemporaryDirectory() as folder:
        # Text needs two packages; token ids need none.
        packages = all(importlib.util.find_spec(name) for name in ("tokenizers", "jinja2"))
        if packages and fetch.installed("smollm2") is not None:
            question = "What is the capital of France?"
            with LLM("smollm2") as llm:
                out = llm.chat([{"role": "user", "content": question}], params)
            said = f"SmolLM2-135M-Instruct, asked {question!r}: {out.text!r}"
        else:
            with LLM(tiny_gguf(f"{folder}/tiny.gguf")) as llm:
                out = llm.generate([5, 60, 7], params)
            begin = " ".join(map(str, out.token_ids[:6]))
            said = (
                f"a tiny random model goes on with {begin} ...; a real one is brought by pip install 'pygpukit[llm]' "
                "and pygpukit model fetch smollm2"
            )
    speed = out.timing.rate(out.usage.completion)
    yield "model", f"{said}; {out.usage.completion} tokens" + (f", {speed:,.0f} a second" if speed else "")


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
