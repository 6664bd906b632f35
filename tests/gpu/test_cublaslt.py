"""Matrix products by the real cuBLASLt: values, the bits of a row whatever M is, graphs, eviction, tasks and rings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pygpukit as gp
from pygpukit.core.cublaslt import plan_product
from pygpukit.scheduler import Scheduler

pytestmark = [pytest.mark.cuda, pytest.mark.usefixtures("cuda")]

# Sums are kept in float32; its 2^-24 per addition is far above what was measured.
ACCUMULATION = 2.0**-24
# The rounding of a result, and of an operand where the hardware shortens it: half a unit of the last place.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TF32 = 2.0**-10


@pytest.fixture(autouse=True)
def library(cuda: gp.Device) -> None:
    try:
        plan_product(16, 16, 16, gp.float32)
    except gp.errors.DriverError as error:
        pytest.skip(f"no cuBLASLt: {error}")


def numbers(*shape: int, dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(gp.to_numpy_dtype(dtype))


def close(out: gp.GPUArray, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], compute: str = "f32") -> None:
    """Compare with the product in float64, whose error is bounded by that of its terms."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    wanted, terms = x @ y, np.abs(x) @ np.abs(y)
    each = 2 * TF32 if compute == "tf32" else 0.0
    bound = terms * (x.shape[-1] * ACCUMULATION + each) + np.abs(wanted) * 2 * ROUNDING[out.dtype.name] + 1e-30
    error = np.abs(out.to_numpy().astype(np.float64) - wanted)
    assert (error <= bound).all(), f"{(error / bound).max()} of the bound"


@pytest.mark.parametrize("turn", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize(
    ("kind", "to", "compute"),
    [
        ("bfloat16", "bfloat16", "f32"),
        ("bfloat16", "float32", "f32"),
        ("float16", "float16", "f32"),
        ("float32", "float32", "f32"),
        ("float32", "float32", "tf32"),
    ],
)
def test_products_of_every_layout_and_size(kind: str, to: str, compute: str, turn: str) -> None:
    for m, n, k in [(64, 64, 64), (1, 512, 256), (3, 5, 7), (127, 33, 65), (256, 1000, 4096)]:
        x, y = numbers(m, k, dtype=kind), numbers(k, n, dtype=kind, seed=1)
        a = gp.from_numpy(np.ascontiguousarray(x.T) if turn[0] == "t" else x)
        b = gp.from_numpy(np.ascontiguousarray(y.T) if turn[1] == "t" else y)
        out = gp.full((m, n), np.nan, to)
        plan = plan_product(
            m, n, k, a.dtype, out.dtype, transpose_a=turn[0] == "t", transpose_b=turn[1] == "t", compute=compute
        )
        plan.run(out, a, b)
        close(out, x, y, compute)
        told = plan.describe()
        assert (told["split_k"] in (0, 1), told["reduction"], told["workspace"]) == (True, 0, 0), told


def test_true_float32_is_not_tf32() -> None:
    # 1 + 2^-12 is 1 in tf32.
    x = np.full((64, 64), 1 + 2.0**-12, np.float32)
    a, out = gp.from_numpy(x), gp.empty((64, 64))
    plan_product(64, 64, 64, gp.float32).run(out, a, a)
    close(out, x, x)


def test_stacks_views_and_what_is_added() -> None:
    x, y, z = (
        numbers(5, 40, 96, dtype="bfloat16"),
        numbers(200, 72, dtype="bfloat16", seed=1),
        numbers(5, 48, 64, dtype="float32", seed=2),
    )
    a, b, out = gp.from_numpy(x), gp.from_numpy(y), gp.from_numpy(z)
    # Every matrix of the stack is multiplied by the same one; all three are parts of larger arrays.
    plan = plan_product(
        40, 64, 88, gp.bfloat16, gp.float32,
        batch=5, ld=(96, 72, 64), batch_strides=(40 * 96, 0, 48 * 64), accumulate=True, alignment=(16, 16, 16),
    )  # fmt: skip
    plan.run(out[:, 8:], a[:, :, 8:], b[100:, :64])
    wanted = z.astype(np.float64)
    wanted[:, 8:] += x[:, :, 8:].astype(np.float64) @ y[100:188, :64].astype(np.float64)
    np.testing.assert_allclose(out.to_numpy(), wanted, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("kind", "compute"), [("bfloat16", "f32"), ("float16", "f32")])
@pytest.mark.parametrize(("n", "k"), [(3584, 3584), (512, 4096), (4608, 3584)])
def test_the_bits_of_a_row_do_not_depend_on_the_others(kind: str, compute: str, n: int, k: int) -> None:
    x, y = numbers(1024, k, dtype=kind), numbers(n, k, dtype=kind, seed=1)
    a, b = gp.from_numpy(x), gp.from_numpy(y)
    rows = set()
    for m in [*range(1, 65), 1024]:
        out = gp.empty((m, n), kind)
        # Weights lie as [n, k], as they do in models.
        plan_product(m, n, k, a.dtype, transpose_b=True, compute=compute).run(out, a[:m], b)
        rows.add(out[0].to_numpy().tobytes())
    assert len(rows) == 1


@pytest.mark.parametrize("kind", ["bfloat16", "float32"])
def test_replays_have_the_bits_of_calls_on_any_lane(kind: str) -> None:
    x, y = numbers(96, 768, dtype=kind), numbers(768, 320, dtype=kind, seed=1)
    a, b = gp.from_numpy(x), gp.from_numpy(y)
    out, last = gp.zeros((96, 320), kind), gp.zeros((96, 320), kind)
    plan, graph = plan_product(96, 320, 768, a.dtype), gp.CudaGraph()
    # The plan's first call is this one.
    with graph.capture():
        plan.run(out, a, b)
        gp.mul(out, 2.0, out=last)
    graph.replay()
    replayed = out.to_numpy().tobytes(), last.to_numpy().tobytes()
    plan.run(out, a, b)
    assert out.to_numpy().tobytes() == replayed[0]
    saved = plan_product(96, 320, 768, a.dtype, saved=plan.save())
    saved.run(out, a, b)
    assert out.to_numpy().tobytes() == replayed[0]

    def work() -> tuple[bytes, bytes, bytes]:
        out[:] = 0.0
        last[:] = 0.0
        graph.replay()
        bits = out.to_numpy().tobytes(), last.to_numpy().tobytes()
        mine = gp.zeros((96, 320), kind)
        plan.run(mine, a, b)
        return *bits, mine.to_numpy().tobytes()

    scheduler = Scheduler()
    for _ in range(2):
        of_task = scheduler.submit(work, policy="guaranteed", bandwidth=0.25).result(60)
        assert of_task == (*replayed, replayed[0])
    for _ in range(2):
        graph.replay()
        assert (out.to_numpy().tobytes(), last.to_numpy().tobytes()) == replayed


def test_evicted_arrays_come_back_for_a_product() -> None:
    with gp.memory.MemoryPool(enable_eviction=True):
        x, y = numbers(1024, 1024, dtype="float32"), numbers(1024, 1024, dtype="float32", seed=1)
        a, b, out = gp.from_numpy(x), gp.from_numpy(y), gp.zeros((1024, 1024))
        plan, graph = plan_product(1024, 1024, 1024, gp.float32), gp.CudaGraph()
        plan.run(out, a, b)
        bits = out.to_numpy().tobytes()
        with graph.capture():
            plan.run(out, a, b)
        for run in (graph.replay, lambda: plan.run(out, a, b)):
            out[:] = 0.0
            assert a.evict()
            assert b.evict()
            assert out.evict()
            run()
            assert out.to_numpy().tobytes() == bits
        close(out, x, y)


def test_a_workspace_is_used_where_it_is_given() -> None:
    x, y = numbers(16, 16384, dtype="bfloat16"), numbers(16384, 64, dtype="bfloat16", seed=1)
    a, b, out = gp.from_numpy(x), gp.from_numpy(y), gp.zeros((16, 64), "float32")
    plan = plan_product(16, 64, 16384, gp.bfloat16, gp.float32, workspace=4 << 20)
    # Guarded on both sides.
    whole = gp.full((plan.workspace + 512,), 0xA5, "uint8")
    workspace = whole[256 : 256 + plan.workspace]
    plan.run(out, a, b, workspace)
    close(out, x, y)
    host = whole.to_numpy()
    assert (host[:256] == 0xA5).all()
    assert (host[256 + plan.workspace :] == 0xA5).all()
    assert plan.workspace <= 4 << 20


RING = """
import numpy as np
import pygpukit as gp
from pygpukit.core.cublaslt import plan_product
from pygpukit.ring import RingKernelRuntime, message, ring_kernel

@message
class Sample:
    x: gp.float32

@ring_kernel(kernel_id="gain", input_type=Sample, output_type=Sample, device="gpu", block_size=32)
def gain():
    '''
    __device__ void handle(const Sample& in, Sample& out, State& state, Context& ctx) {
        out.x = in.x * 2.0f;
        ctx.send(out);
    }
    '''

with RingKernelRuntime() as runtime:
    client = runtime.client("gain")
    assert client.call(Sample(3.0)).x == 6.0
    # The handle, the choice and the kernel are all made and loaded beside the ring.
    for n in (64, 640, 2048):
        x = np.eye(n, dtype=np.float32)
        a, out = gp.from_numpy(x), gp.zeros((n, n))
        graph = gp.CudaGraph()
        plan = plan_product(n, n, n, gp.float32)
        with graph.capture():
            plan.run(out, a, a)
        graph.replay()
        plan.run(out, a, a)
        assert (out.to_numpy() == x).all()
        assert client.call(Sample(4.0)).x == 8.0
print("ok")
"""


def test_the_first_products_do_not_wait_for_a_resident_ring(run_cuda: Callable[..., str]) -> None:
    assert run_cuda(RING) == "ok\n"
