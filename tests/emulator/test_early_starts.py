"""The checker finds kernels that, started early, touch what the kernels before use without having waited for them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import pygpukit as gp
from pygpukit import _pygpukit_rust as native

sys.path.insert(0, str(Path(__file__).parent))

from early_starts import FIRST, KERNELS, ORDERED, TOO_EARLY, Step, TooEarly

pytestmark = pytest.mark.nvrtc

N = 128
MEMORY = 1 << 26


def open_device(seed: int | None = None, check: bool = True, capability: tuple[int, int] = (9, 0)) -> gp.Device:
    """A CPU device; kernels may be started early from compute capability 9.0 on."""
    return native.open_cpu(MEMORY, seed, True, False, capability, check)


@pytest.fixture(params=[None, 1], ids=["inline", "deferred"])
def device(request: pytest.FixtureRequest) -> Iterator[gp.Device]:
    with gp.device(open_device(request.param)) as current:
        yield current


def launch(steps: Sequence[Step], module: gp.Module, on: dict[str, gp.GPUArray]) -> None:
    for step in steps:
        out = on[step.out].view("int16") if "halves" in step.kernel else on[step.out]
        uses = {"w": "constant"} if step.constant else {}
        kernel = module.kernel(step.kernel)
        shape = {"grid": N // 64, "block": 64} | ({"cluster": step.cluster} if step.cluster > 1 else {})
        kernel(out, on[step.x], on[step.w], **shape, programmatic=step.early, uses=uses)


def report(
    steps: Sequence[Step],
    graph: bool = False,
    replays: int = 1,
    check: bool | Literal["fuzz"] = False,
    seed: int = 0,
) -> str:
    """What is said of these launches, in a stream or in replays of a graph; empty for nothing."""
    module = gp.module(KERNELS, check=check, seed=seed if check == "fuzz" else None)
    on = {name: gp.from_numpy(np.full(N, i, np.float32)) for i, name in enumerate("abcxyw")}
    captured = gp.CudaGraph()
    try:
        if graph:
            with captured.capture():
                launch(steps, module, on)
            for _ in range(replays):
                captured.replay()
        else:
            launch(steps, module, on)
        gp.synchronize()
    except gp.KernelFaultError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("graph", [False, True], ids=["stream", "graph"])
@pytest.mark.parametrize("bug", TOO_EARLY, ids=[bug.name for bug in TOO_EARLY])
def test_what_is_touched_too_early_is_found_and_explained(device: gp.Device, bug: TooEarly, graph: bool) -> None:
    text = report(bug.steps, graph)
    assert text.startswith(f"kernel '{bug.steps[-1].kernel}': early access to global memory: "), text
    for words in bug.words:
        assert words in text
    # The next launches have nothing to do with it.
    assert report(ORDERED["all wait first"], graph) == ""


@pytest.mark.parametrize("graph", [False, True], ids=["stream", "graph"])
@pytest.mark.parametrize("steps", ORDERED.values(), ids=ORDERED)
def test_what_is_in_order_gives_no_report(device: gp.Device, steps: Sequence[Step], graph: bool) -> None:
    assert report(steps, graph, replays=2) == ""


@pytest.mark.parametrize("seed", range(3))
def test_reports_do_not_depend_on_the_order_of_threads(seed: int) -> None:
    with gp.device(open_device(check=False)):
        for bug in TOO_EARLY:
            assert "early access to global memory" in report(bug.steps, check="fuzz", seed=seed), bug.name
        for name, steps in ORDERED.items():
            assert report(steps, check="fuzz", seed=seed) == "", name


def test_kernels_that_are_not_checked_or_cannot_start_early_are_not_compared() -> None:
    steps = (FIRST, Step("read_early", "b", "a"))
    with gp.device(open_device(check=False)):
        assert report(steps) == ""
        assert "read of x[0]" in report(steps, check=True)
    with gp.device(open_device(capability=(8, 0))):
        assert report(steps) == ""


def test_kernels_behind_a_graph_start_in_order(device: gp.Device) -> None:
    module, graph = gp.module(KERNELS), gp.CudaGraph()
    on = {name: gp.ones(N) for name in "abcxyw"}
    with graph.capture():
        launch([FIRST], module, on)

    def run(*steps: Step) -> None:
        graph.replay()
        launch(steps, module, on)
        gp.synchronize()

    behind = Step("read_early", "b", "a")
    run(behind)
    assert on["b"].tolist() == [3.0] * N
    with pytest.raises(
        gp.KernelFaultError, match=r"read of x\[0\] before .* when kernel 'read_early' may not have written"
    ):
        run(behind, Step("read_early", "c", "b"))


BUILT_IN = """
import numpy as np
import pygpukit as gp
from early_starts import KERNELS

x = np.arange(32 * 32, dtype=np.float32).reshape(32, 32) / 1024
a, out, w = gp.from_numpy(x), gp.zeros(32 * 32), gp.ones(32 * 32)
graph, wrong = gp.CudaGraph(), gp.CudaGraph()
with graph.capture():
    y = (a * 2 + 1) @ a - a
    z = y.sum(axis=1) + gp.exp(a).sum(axis=0)
for _ in range(2):
    graph.replay()
    np.testing.assert_allclose(z.to_numpy(), ((x * 2 + 1) @ x - x).sum(1) + np.exp(x).sum(0), rtol=1e-4)
# They are started early, and what they touch is kept: a kernel behind two of them must wait for both.
with wrong.capture():
    doubled = a * 2
    shifted = doubled + 1
    gp.module(KERNELS).read_early(out, doubled.reshape(-1), w, grid=16, block=64, programmatic=True)
try:
    wrong.replay()
except gp.KernelFaultError as error:
    print(error)
"""


def test_built_in_kernels_of_a_graph_are_in_order(run_python: Callable[..., str]) -> None:
    environ = {"PYGPUKIT_DEVICE": "emulated", "PYGPUKIT_EMULATED_ARCH": "90a", "PYGPUKIT_CHECK": "1"}
    text = run_python(BUILT_IN, PYTHONPATH=str(Path(__file__).parent), PYGPUKIT_QUIET="1", **environ)
    assert text.startswith(
        "kernel 'read_early': early access to global memory: read of x[0] before griddepcontrol.wait"
    ), text
    assert "so it may run beside 'pgk_mul" in text


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_flag_of_a_block_that_has_waited_orders_another_block(seed: int | None) -> None:
    source = """
    __device__ int ready;
    extern "C" __global__ void first(float* out, const float* x) { out[threadIdx.x] = x[threadIdx.x]; }
    extern "C" __global__ void use(float* out, const float* x) {
        if (blockIdx.x == 0) {
            asm volatile("griddepcontrol.wait;" ::: "memory");
            __threadfence();
            atomicExch(&ready, 1);
        } else {
            SPIN
            out[threadIdx.x] = x[threadIdx.x];
        }
    }"""
    check: bool | Literal["fuzz"] = True if seed is None else "fuzz"

    def run(spin: str) -> None:
        module = gp.module(source.replace("SPIN", spin), check=check, seed=seed)
        x, y, z = (gp.ones(32) for _ in range(3))
        module.first(y, x, grid=1, block=32)
        module.use(z, y, grid=2, block=32, programmatic=True)
        assert z.tolist() == [1.0] * 32

    with gp.device(open_device(check=False)):
        run("while (atomicAdd(&ready, 0) == 0) { } __threadfence();")
        with pytest.raises(gp.KernelFaultError, match=r"read of x\[0\] before griddepcontrol\.wait"):
            run("")
