"""Matrix products through a stand-in for cuBLASLt on the fake driver: arrays, graphs, eviction and tasks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif("sys.platform == 'win32'", reason="there is no fake CUDA driver")

PRELUDE = """
from pygpukit.core.cublaslt import plan_product

random = np.random.default_rng(1)

def numbers(*shape, dtype="float32"):
    # Their products and sums are exact in every type.
    return random.integers(-4, 5, shape).astype(gp.to_numpy_dtype(dtype))

def check(array, wanted):
    np.testing.assert_array_equal(array.to_numpy().astype(np.float32), np.asarray(wanted, dtype=np.float32))
"""


@pytest.fixture
def run_lt(run_fake: Callable[..., str], fake_cuda: str) -> Callable[..., str]:
    return lambda program: run_fake(PRELUDE + program + "\nprint('ok')", PYGPUKIT_CUBLASLT=fake_cuda)


def test_products_of_arrays_and_views(run_lt: Callable[..., str]) -> None:
    program = """
for kind, out_kind in [("float32", None), ("float16", None), ("bfloat16", gp.float32), ("bfloat16", None)]:
    x, y = numbers(3, 5, 7, dtype=kind), numbers(7, 4, dtype=kind)
    a, b = gp.from_numpy(x), gp.from_numpy(y)
    out = gp.zeros((3, 5, 4), out_kind or kind)
    plan = plan_product(5, 4, 7, a.dtype, out_kind, batch=3, batch_strides=(35, 0, 20))
    plan.run(out, a, b)
    check(out, x.astype(np.float32) @ y.astype(np.float32))
# Columns of larger arrays, transposed, added to what is there.
x, y, z = numbers(7, 16), numbers(9, 16), numbers(8, 10)
a, b, out = (gp.from_numpy(v) for v in (x, y, z))
plan = plan_product(4, 5, 7, gp.float32, transpose_a=True, transpose_b=True, ld=(16, 16, 10), accumulate=True,
                    alignment=(16, 4, 8))
plan.run(out[2:, 2:], a[:, 4:], b[1:, 3:])
z[2:6, 2:7] += x[:, 4:8].T @ y[1:6, 3:10].T
check(out, z)
described = plan.describe()
assert (described["split_k"], described["reduction"], described["workspace"]) == (1, 0, 0), described
assert described["product"] == ("m=4 n=5 k=7 batch=1 a=f32,t,16,0,16 b=f32,t,16,0,4 out=f32,n,10,0,8 compute=f32 "
                                "accumulate=1"), described
assert len(plan.algorithm) == 64
again = plan_product(4, 5, 7, gp.float32, transpose_a=True, transpose_b=True, ld=(16, 16, 10), accumulate=True,
                     alignment=(16, 4, 8), saved=plan.save())
assert again.algorithm == plan.algorithm
assert count("cublasLtCreate") == 1
"""
    assert run_lt(program) == "ok\n"


def test_what_does_not_fit_the_plan_is_refused(run_lt: Callable[..., str]) -> None:
    program = """
plan = plan_product(4, 5, 6, gp.float32)
a, b, out = gp.zeros((4, 6)), gp.zeros((6, 5)), gp.zeros((4, 5))
before = count("cublasLtMatmul")
text = refused(lambda: plan.run(out, a, gp.zeros((6, 5), "float16")), ValueError)
assert "b has dtype float16" in text and "float32" in text, text
large = gp.zeros((1 << 20,))
text = refused(lambda: plan.run(out, large[-16:], b), ValueError)
assert "reaches 96 bytes from the first element of a, and its memory has 64 there" in text, text
text = refused(lambda: plan.run(out, large[1:], b), ValueError)
assert "multiple of the 16 bytes" in text and "alignment=4" in text, text
out.setflags(write=False)
text = refused(lambda: plan.run(out, a, b), ValueError)
assert "read-only" in text, text
assert count("cublasLtMatmul") == before
for call, part in [
    (lambda: plan_product(4, 5, 0, gp.float32), "k is 0"),
    (lambda: plan_product(4, 5, 6, gp.int8), "int8"),
    (lambda: plan_product(4, 5, 6, gp.float32, compute="f64"), "'f32' or 'tf32', not 'f64'"),
    (lambda: plan_product(4, 5, 6, gp.float32, saved="x"), "not a saved cuBLASLt algorithm"),
    (lambda: plan_product(4, 5, 7, gp.float32, saved=plan.save()), "choose again"),
]:
    text = refused(call, (ValueError, TypeError))
    assert part in text, text
with gp.device("cpu"):
    text = refused(lambda: plan_product(4, 5, 6, gp.float32), gp.DeviceError)
assert "CUDA devices only" in text, text
# An error of the library is the caller's, and the next call works.
out.setflags(write=True)
configure("FAIL", "cublasLtMatmul:1:14")
text = refused(lambda: plan.run(out, a, b))
assert "cublasLtMatmul failed" in text and "(14), cuBLASLt 13.1.0" in text, text
plan.run(out, a, b)
"""
    assert run_lt(program) == "ok\n"


def test_replays_evicted_arrays_and_workspaces(run_lt: Callable[..., str]) -> None:
    program = """
x, y = numbers(1 << 16, 8), numbers(8, 200)
with gp.memory.MemoryPool(enable_eviction=True):
    # Large enough to be moved out.
    a, b, out = gp.from_numpy(x), gp.from_numpy(y), gp.zeros((1500, 200))
    plan = plan_product(30, 200, 8, gp.float32)
    graph = gp.CudaGraph()
    # The first call of a plan may be one of a capture.
    with graph.capture():
        plan.run(out, a, b)
        plan.run(out[30:], a[30:], b)
    assert graph.num_nodes == 2
    assert (out.to_numpy() == 0).all()
    for _ in range(2):
        assert a.evict() and out.evict()
        graph.replay()
        check(out[:60], x[:60] @ y)
    assert a.evict() and out.evict()
    plan.run(out[60:], a, b)
    check(out[60:90], x[:30] @ y)
    check(out[90:], np.zeros((1410, 200)))
split = plan_product(30, 200, 8, gp.float32, workspace=1 << 20)
assert (split.workspace, split.describe()["split_k"]) == (4096, 4)
out = gp.zeros((30, 200))
assert "needs a workspace of 4096 bytes, and 0 were given" in refused(lambda: split.run(out, a, b), ValueError)
workspace = gp.zeros(4096, "uint8")
split.run(out, a, b, workspace)
check(out, x[:30] @ y)
assert (workspace.to_numpy() == 0xcd).all()
"""
    assert run_lt(program) == "ok\n"


def test_products_in_tasks_run_on_their_lanes(run_lt: Callable[..., str]) -> None:
    program = """
import threading
from pygpukit.scheduler import Scheduler

x, y = numbers(8, 8), numbers(8, 8)
plan = plan_product(8, 8, 8, gp.float32)
graph = gp.CudaGraph()
result = gp.zeros((8, 8))
a, b = gp.from_numpy(x), gp.from_numpy(y)
with graph.capture():
    plan.run(result, a, b)

def work():
    mine = [gp.from_numpy(v) for v in (x, y)]
    out = gp.zeros((8, 8))
    for _ in range(20):
        plan.run(out, *mine)
    check(out, x @ y)
    graph.replay()
    return out

scheduler = Scheduler()
streams = count("cuGreenCtxStreamCreate")
out = scheduler.submit(work, policy="guaranteed", bandwidth=0.25).result(60)
check(result, x @ y)
assert count("cuGreenCtxStreamCreate") > streams

# Arrays of a sandboxed task are its own.
kept, made, refused_outside = [], threading.Event(), threading.Event()

def leak():
    kept.append(gp.from_numpy(x))
    made.set()
    refused_outside.wait(60)

task = scheduler.submit(leak, sandbox=True)
assert made.wait(60)
text = refused(lambda: plan.run(result, kept[0], b), ValueError)
assert "sandboxed" in text, text
refused_outside.set()
task.result(60)
"""
    assert run_lt(program) == "ok\n"


def test_a_missing_library_is_said_with_the_search(run_fake: Callable[..., str]) -> None:
    program = """
from pygpukit.core.cublaslt import plan_product
text = refused(lambda: plan_product(1, 1, 1, gp.float32))
assert "/nonexistent/libcublasLt.so: no such file" in text and "pip install" in text, text
print("ok")
"""
    assert run_fake(program, PYGPUKIT_CUBLASLT="/nonexistent/libcublasLt.so") == "ok\n"


@pytest.fixture
def run_alone(run_fake: Callable[..., str], fake_cuda: str) -> Callable[..., str]:
    """Programs with the library and without kernels: the driver here runs none of those that NVRTC makes."""
    found = {"PYGPUKIT_CUBLASLT": fake_cuda, "PYGPUKIT_NVRTC": "/nonexistent/libnvrtc.so"}
    return lambda program, **environ: run_fake(PRELUDE + program + "\nprint('ok')", **found, **environ)


def test_matmul_runs_what_the_library_takes(run_alone: Callable[..., str]) -> None:
    program = """
def walk(*args, **options):
    return gp.explain(gp.matmul, *args, **options)

x, w = numbers(3, 4, 32, dtype="bfloat16"), numbers(16, 32, dtype="bfloat16")
a, b = gp.from_numpy(x), gp.from_numpy(w)
said = walk(a, b.T)
assert said.variant == "cuBLASLt", said
assert said.launches == ("cublasLtMatmul nt m=4 n=16 k=32 batch=3, no workspace, no split sum, algorithm 66 tile 20 "
                         "stages 8 cluster 0",), said.launches
want = x.astype(np.float32) @ w.astype(np.float32).T
check(a @ b.T, want)
sums = gp.matmul(a, b.T, out=gp.zeros((3, 4, 16)))
check(sums, want)
# Where lines are no multiples of 16 bytes, the library's sums have another order.
def unordered(x, y):
    return {name for name, reason in walk(x, y).refused if "an order of its own" in reason}

both = {"cuBLASLt", "copies around cuBLASLt"}
odd = gp.from_numpy(numbers(17, 32, dtype="bfloat16"))
assert unordered(a, odd.T) == both
assert unordered(a[..., :31], b[:, :31].T) == both
assert walk(a[..., :24], b[:, :24].T).variant == "cuBLASLt"
said = walk(a[0, :, 1:25], b[:, :24].T)
assert (said.variant, unordered(a[0, :, 1:25], b[:, :24].T)) == ("copies around cuBLASLt", {"cuBLASLt"}), said
# int8 with lines along k.
x, w = numbers(5, 32, dtype="int8"), numbers(16, 32, dtype="int8")
a, b = gp.from_numpy(x), gp.from_numpy(w)
assert walk(a, b.T, precision="int32").variant == "cuBLASLt, int8"
got = gp.matmul(a, b.T, precision="int32")
assert got.dtype is gp.int32
np.testing.assert_array_equal(got.to_numpy(), x.astype(np.int32) @ w.astype(np.int32).T)
text = refused(lambda: walk(a, gp.from_numpy(w.T.copy()), precision="int32"))
assert "cuBLASLt, int8: the library wants lines along k: weights as [N, K], passed as w.T" in text, text
text = refused(lambda: walk(a[:, :24], b[:, :24].T, precision="int32"))
assert "cuBLASLt, int8: the library wants sizes and distances that are multiples of 16" in text, text
# float8 to bfloat16.
x, w = numbers(5, 32, dtype="float8_e4m3fn"), numbers(16, 32, dtype="float8_e4m3fn")
a, b = gp.from_numpy(x), gp.from_numpy(w)
assert walk(a, b.T, precision="fp8").variant == "cuBLASLt, float8"
got = gp.matmul(a, b.T, precision="fp8")
assert got.dtype is gp.bfloat16
check(got, x.astype(np.float32) @ w.astype(np.float32).T)
# Where less is asked, sums may be split in a workspace.
x, w = numbers(5, 40), numbers(40, 12)
a, b = gp.from_numpy(x), gp.from_numpy(w)
with gp.deterministic("run_to_run"):
    said = walk(a, b)
    assert (said.variant, said.determinism) == ("cuBLASLt with a workspace", "run_to_run"), said
    assert "4096 bytes of workspace, sums in 4 parts, algorithm 67" in said.launches[0], said.launches
    check(a @ b, x @ w)
# float32 stays with our own chain, whose kernel this driver does not have.
refusals = dict(walk(gp.zeros((4, 8)), gp.zeros((8, 4))).refused)
assert "batch_invariant is asked" in refusals["cuBLASLt with a workspace"], refusals
"""
    assert run_alone(program) == "ok\n"


def test_architectures_whose_sums_are_not_known_are_left_to_our_kernels(run_alone: Callable[..., str]) -> None:
    program = """
a, b = gp.zeros((4, 8), "float16"), gp.zeros((8, 4), "float16")
refusals = dict(gp.explain(gp.matmul, a, b).refused)
assert refusals["cuBLASLt"] == "the order of its sums is not known on sm_80", refusals
"""
    assert run_alone(program, FAKECUDA_CAPABILITY="8.0") == "ok\n"


def test_algorithms_are_pinned_saved_and_loaded(run_lt: Callable[..., str], tmp_path: Path) -> None:
    program = f"""
from pygpukit.errors import LoadError

file = {str(tmp_path / "algorithms.json")!r}
# Fewer rows than 65 are not the library's.
a, b = gp.from_numpy(numbers(96, 32, dtype="bfloat16")), gp.from_numpy(numbers(32, 8, dtype="bfloat16"))
a @ b
asked = count("cublasLtMatmulAlgoGetHeuristic")
native.clear_plans()
a @ b
assert count("cublasLtMatmulAlgoGetHeuristic") == asked, "a product keeps its algorithm"
a[:80] @ b
assert gp.save_algorithms(file) == 2
assert gp.load_algorithms(file) == 2
asked = count("cublasLtMatmulAlgoGetHeuristic")
check(a @ b, a.to_numpy().astype(np.float32) @ b.to_numpy().astype(np.float32))
assert count("cublasLtMatmulAlgoGetHeuristic") == asked
text = pathlib.Path(file).read_text()
for damaged, part in [
    (text.replace("version=130100", "version=120900"), "12.9.0, and this is 13.1.0"),
    (text.replace("algorithm=", "algorithm=x"), "no saved cuBLASLt algorithm"),
    ('{{"cublaslt": 3}}', "no list of texts"),
    ("[]", "holds a JSON list"),
]:
    pathlib.Path(file).write_text(damaged)
    text_of = refused(lambda: gp.load_algorithms(file), LoadError)
    assert part in text_of or "not a saved" in text_of, text_of
"""
    assert run_lt(program) == "ok\n"
