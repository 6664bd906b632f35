"""Sorting and searching on the GPU against torch: large vectors, many short rows, topk, and what sorting serves.

First the results of sizes that no tile divides are compared with NumPy's. torch.sort gives values and positions and has
no call for one of them alone; unique and bincount wait for the device on both sides.

    python benchmarks/array/sort.py --json benchmarks/results/h200-array-sort.json
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from harness import Bench

import pygpukit as gp

LARGE = 100_000_000


def check() -> None:
    """Compare results with NumPy's; raise where they differ."""
    rng = np.random.default_rng(1)
    for name, shape in (
        ("float32", 10_000_019), ("int32", (3, 1_000_003)), ("int64", 3_000_017), ("uint8", 5_000_011),
        ("float16", (2, 999_983)), ("float64", (7, 9973)), ("float32", (1001, 257)), ("float32", (5, 4096)),
    ):  # fmt: skip
        x = (rng.standard_normal(shape) * 1000).astype(name)
        if x.dtype.kind == "f":
            x[..., ::97] = np.nan
            x[..., 5::89] = -0.0
        ours = gp.from_numpy(x)
        np.testing.assert_array_equal(gp.sort(ours).to_numpy(), np.sort(x))
        np.testing.assert_array_equal(gp.argsort(ours).to_numpy(), np.argsort(x, kind="stable"))
    logits = rng.standard_normal((8, 152_064)).astype(np.float32)
    values, index = gp.topk(gp.from_numpy(logits), 50)
    want = np.argsort(-logits, kind="stable")[:, :50]
    np.testing.assert_array_equal(index.to_numpy(), want)
    np.testing.assert_array_equal(values.to_numpy(), np.take_along_axis(logits, want, 1))
    n = rng.integers(0, 5000, 1_000_003)
    ours = gp.from_numpy(n)
    for got, expected in zip(gp.unique(ours, True, True, True), np.unique(n, True, True, True), strict=True):
        np.testing.assert_array_equal(got.to_numpy(), expected)
    np.testing.assert_array_equal(gp.bincount(ours).to_numpy(), np.bincount(n))
    weights = rng.standard_normal(n.size)
    sums = gp.bincount(ours, gp.from_numpy(weights))
    np.testing.assert_allclose(sums.to_numpy(), np.bincount(n, weights), atol=1e-9)
    assert gp.bincount(ours, gp.from_numpy(weights)).to_numpy().tobytes() == sums.to_numpy().tobytes()
    x = rng.standard_normal(1_000_003).astype(np.float32)
    for options in ({"bins": 100}, {"bins": 5000, "range": (-3, 3)}):
        got, edges = gp.histogram(gp.from_numpy(x), **options)
        expected, limits = np.histogram(x, **options)
        np.testing.assert_array_equal(edges.to_numpy(), limits)
        np.testing.assert_array_equal(got.to_numpy(), expected)
    np.testing.assert_array_equal(
        gp.searchsorted(gp.from_numpy(np.sort(x)), gp.from_numpy(x[:9999])).to_numpy(),
        np.searchsorted(np.sort(x), x[:9999]),
    )
    np.testing.assert_allclose(gp.median(gp.from_numpy(x)).item(), np.median(x))


def large(bench: Bench, name: str) -> None:
    """A vector of 100 million elements; the share of the copy rate counts a read, and a read and a write per digit."""
    torch: Any = bench.torch
    rng = np.random.default_rng(2)
    if name.startswith("float"):
        x = rng.standard_normal(LARGE, np.float32).astype(name, copy=False)
    else:
        info = np.iinfo(name)
        x = rng.integers(info.min, info.max, LARGE, name, endpoint=True)
    ours, theirs = gp.from_numpy(x), torch.from_numpy(x).cuda()
    out, order = gp.empty_like(ours), gp.empty(LARGE, "int64")
    moved = (2 * ours.itemsize + 1) * ours.nbytes
    bench.against_torch(
        f"sort of 100M {name}", lambda: gp.sort(ours, out=out), lambda: torch.sort(theirs), 1.5, nbytes=moved
    )
    bench.against_torch(
        f"argsort of 100M {name}", lambda: gp.argsort(ours, out=order), lambda: torch.argsort(theirs, stable=True), 1.5
    )


def rows(bench: Bench, shape: tuple[int, int], repeat: int = 1) -> None:
    """Many rows."""
    torch: Any = bench.torch
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    ours, theirs = gp.from_numpy(x), torch.from_numpy(x).cuda()
    out, order = gp.empty_like(ours), gp.empty(shape, "int64")
    text = f"{shape[0]} x {shape[1]} float32"
    bench.against_torch(
        f"sort of {text}", lambda: gp.sort(ours, out=out), lambda: torch.sort(theirs), 1.0,
        repeat=repeat, nbytes=2 * ours.nbytes,
    )  # fmt: skip
    bench.against_torch(
        f"argsort of {text}", lambda: gp.argsort(ours, out=order), lambda: torch.argsort(theirs, stable=True), 1.0,
        repeat=repeat,
    )  # fmt: skip


def top(bench: Bench, shape: tuple[int, ...], k: int, must: float, repeat: int = 1) -> None:
    """The k largest of each row."""
    torch: Any = bench.torch
    x = np.random.default_rng(3).standard_normal(shape, np.float32)
    ours, theirs = gp.from_numpy(x), torch.from_numpy(x).cuda()
    into = (gp.empty((*shape[:-1], k)), gp.empty((*shape[:-1], k), "int64"))
    bench.against_torch(
        f"topk {k} of {' x '.join(map(str, shape))} float32", lambda: gp.topk(ours, k, out=into),
        lambda: torch.topk(theirs, k), must, repeat=repeat,
    )  # fmt: skip


def searches(bench: Bench) -> None:
    """searchsorted, unique, bincount, histogram, median."""
    torch: Any = bench.torch
    rng = np.random.default_rng(4)
    a, v = np.sort(rng.standard_normal(10_000_000, np.float32)), rng.standard_normal(10_000_000, np.float32)
    ours, theirs = [gp.from_numpy(x) for x in (a, v)], [torch.from_numpy(x).cuda() for x in (a, v)]
    bench.against_torch(
        "searchsorted of 10M in 10M float32", lambda: gp.searchsorted(*ours), lambda: torch.searchsorted(*theirs), 1.0
    )
    n = rng.integers(0, 100_000, LARGE, np.int32)
    x, y = gp.from_numpy(n), torch.from_numpy(n).cuda()
    bench.against_torch("unique of 100M int32", lambda: gp.unique(x), lambda: torch.unique(y), 1.5)
    bench.against_torch(
        "unique with inverse and counts", lambda: gp.unique(x, return_inverse=True, return_counts=True),
        lambda: torch.unique(y, return_inverse=True, return_counts=True), 1.5,
    )  # fmt: skip
    bench.against_torch("bincount of 100M into 100,000", lambda: gp.bincount(x), lambda: torch.bincount(y), 1.0)
    few, fewer = gp.from_numpy(n % 100), torch.from_numpy(n % 100).cuda()
    bench.against_torch("bincount of 100M into 100", lambda: gp.bincount(few), lambda: torch.bincount(fewer), 1.0)
    weights = rng.standard_normal(10_000_000)
    w, u = gp.from_numpy(weights), torch.from_numpy(weights).cuda()
    x10, y10 = gp.from_numpy(n[: weights.size]), torch.from_numpy(n[: weights.size]).cuda()
    bench.against_torch(
        "bincount of 10M with weights (torch: atomics)",
        lambda: gp.bincount(x10, w),
        lambda: torch.bincount(y10, u),
        10.0,
    )
    x = gp.from_numpy(rng.standard_normal(LARGE, np.float32))
    y = torch.randn(LARGE, device="cuda")
    bench.against_torch(
        "histogram of 100M, 100 bins", lambda: gp.histogram(x, 100, (-4, 4))[0],
        lambda: torch.histc(y, 100, -4, 4), 1.0,
    )  # fmt: skip
    bench.against_torch("median of 100M float32", lambda: gp.median(x), lambda: torch.median(y), 1.5)
    rows_, theirs_ = gp.from_numpy(v.reshape(10_000, 1000)), torch.from_numpy(v.reshape(10_000, 1000)).cuda()
    bench.against_torch(
        "quantile of 10,000 x 1000", lambda: gp.quantile(rows_, 0.3, 1), lambda: torch.quantile(theirs_, 0.3, 1), 1.0
    )


def main() -> int:
    """Check, then measure."""
    bench = Bench(__doc__)
    bench.check(check)
    for shape in ((100_000, 256), (20_000, 1000), (4000, 4096), (1000, 20_000)):
        rows(bench, shape)
    rows(bench, (1, 4096), 20)
    rows(bench, (8, 152_064), 20)
    for k in (1, 50, 1000):
        top(bench, (8, 152_064), k, 1.0, 20)
    top(bench, (LARGE,), 50, 1.5)
    searches(bench)
    for name in ("float32", "int32", "int64", "float16", "uint8"):
        large(bench, name)
        bench.torch.cuda.empty_cache()
    return bench.finish("python benchmarks/array/sort.py")


if __name__ == "__main__":
    sys.exit(main())
