"""A small program that runs every kind of kernel, for compute-sanitizer.

Every array is an allocation of its own (PYGPUKIT_POOL=none), so that an access outside it is seen.

    compute-sanitizer --error-exitcode 9 python3 tests/gpu/sanitizer.py

The results are compared with the references too: an exit code of 1 says that one was wrong.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("PYGPUKIT_POOL", "none")
os.environ.setdefault("PYGPUKIT_DEVICE", "cuda")
TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS.parent / "src"), str(TESTS / "gpu"), str(TESTS / "ops")]

import numpy as np  # noqa: E402
import op_cases  # noqa: E402
from gpu_kernels import SCALE  # noqa: E402

import pygpukit as gp  # noqa: E402
from pygpukit import _pygpukit_rust as native  # noqa: E402
from pygpukit.ops import reference  # noqa: E402
from pygpukit.ops.tolerance import tolerance  # noqa: E402
from pygpukit.ops.units import ALL_TYPES  # noqa: E402

# Together they use every width of access, every conversion and both kinds of arithmetic.
TYPES = ["float32", "bfloat16", "float8_e4m3fn", "int8", "int64", "complex64", "complex128"]
# Neither a multiple of a vector nor of a block.
COUNT = 1237


def elementwise() -> None:
    """Every row on dense, unaligned and strided operands, with scalars and single elements."""
    for name in TYPES:
        for row in op_cases.rows_of(name):
            made = op_cases.same_plan(row, name)
            arrays = op_cases.arguments(row, name, COUNT)
            ours = [gp.from_numpy(a) for a in arrays]
            want = np.empty(COUNT, gp.to_numpy_dtype(made.out))
            reference.apply(row.name, tuple(arrays), want)
            dense = native.apply(row.name, ours).to_numpy()
            op_cases.assert_close(dense, want, tolerance(row.name, made.common), f"{row.name} {name}")
            for key in (slice(1, None), slice(None, None, -2)):
                part = native.apply(row.name, [x[key] for x in ours]).to_numpy()
                # NumPy's own loops, which are what the CPU device runs, do not promise this.
                if gp.current_device().kind == "cuda":
                    assert part.tobytes() == np.ascontiguousarray(dense[key]).tobytes(), f"{row.name} {name}"
            if row.arity > 1:
                native.apply(row.name, [*ours[:-1], ours[-1][:1]]).to_numpy()
                native.apply(row.name, [x.reshape(1, -1) for x in ours[:-1]] + [ours[-1].reshape(-1, 1)[:3]]).to_numpy()


def casts() -> None:
    """From every type to a few and back."""
    for name in ALL_TYPES:
        x = gp.from_numpy(np.arange(100).astype(gp.to_numpy_dtype(name)))
        for other in ("float32", "float16", "float8_e5m2", "int16", "bool", "complex128", name):
            x.astype(other).astype(name).to_numpy()
            x[::3].astype(other).to_numpy()


def linear() -> None:
    """Sums by rows, by columns and in several stages; products that do not fill their tiles."""
    for name in TYPES:
        kind = gp.to_numpy_dtype(name)
        host = (np.arange(37 * 130) % 16 == 0).astype(kind).reshape(37, 130)
        x = gp.from_numpy(host)
        wide = host.astype(np.complex128)
        for axis in (0, 1, None):
            got = gp.sum(x, axis=axis).to_numpy().astype(np.complex128)
            assert np.allclose(got, wide.sum(axis), rtol=0.07), f"sum of {name}"
        gp.sum(gp.ones((9001, 3), name)[::-1], axis=0).to_numpy()
        gp.sum(gp.ones(9001, name)[1:]).to_numpy()
        got = gp.matmul(x[:3, :5], x[:5, :70]).to_numpy().astype(np.complex128)
        assert np.allclose(got, wide[:3, :5] @ wide[:5, :70], rtol=0.07), f"product of {name}"
        gp.matmul(x.T, x).to_numpy()
        gp.matmul(x[1:].T[::2], gp.ones((2, 36, 1), name)).to_numpy()


def runtime() -> None:
    """Fills, copies, streams with events, a graph with branches and parameters, and a kernel of one's own."""
    x = gp.full((33, 35), 1.5, "float32")
    x[::2, 1::3] = 2.0
    gp.full(1001, 0.1, "float64").copy().to_numpy()
    side = gp.Stream()
    side.wait(gp.default_stream())
    with side:
        y = (x.T + 1.0).copy()
    gp.default_stream().wait(side)
    graph = gp.CudaGraph()
    factor = graph.parameter("factor", gp.float32, 2.0)
    with graph.capture():
        side.wait(gp.current_stream())
        z = x * factor
        with side:
            w = gp.sum(y, axis=0)
        gp.current_stream().wait(side)
        total = gp.sum(z) + gp.sum(w)
    for value in (2.0, 3.0):
        graph.replay(factor=value)
    host = np.full((33, 35), 1.5)
    host[::2, 1::3] = 2.0
    assert np.isclose(total.item(), 3 * host.sum() + (host + 1).sum(), rtol=1e-5)
    if gp.current_device().kind == "cuda":
        kernel = gp.jit(SCALE)
        n = 1001
        ones = gp.ones(n)
        kernel(ones, 3.0, n)
        assert (ones.to_numpy() == 3).all()
    gp.synchronize()


def main() -> int:
    """Run all of it; what is wrong raises."""
    for part in (elementwise, casts, linear, runtime):
        part()
        print(part.__name__, "done", flush=True)
    gp.synchronize()
    stats = gp.memory.stats()
    print(f"{stats['allocations']} allocations, {stats['live']} live")
    return 0


if __name__ == "__main__":
    sys.exit(main())
