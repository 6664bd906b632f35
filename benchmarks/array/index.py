"""Indexing on a GPU against torch: gather, masks, scatter, and sums into places that are named more than once.

First the results of sizes that do not divide evenly are compared with NumPy's. torch's index_add is the
deterministic one (`torch.use_deterministic_algorithms(True)`), and boolean indexing waits for the device on both sides.

    python benchmarks/array/index.py --json benchmarks/results/h200-array-index.json
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from harness import Bench

GIB = 1 << 30


def check() -> None:
    """Compare with NumPy; an error ends the run.

    Raises
    ------
    AssertionError
        If a result differs from NumPy's.
    """
    rng = np.random.default_rng(0)
    for kind in ("float32", "int64", "bfloat16"):
        host = (rng.standard_normal((10_007, 131)) * 30).astype(gp.to_numpy_dtype(kind))
        flat = host.reshape(-1)
        index, columns = rng.integers(0, flat.size, 1_000_003), rng.integers(0, 131, 77)
        ours, at, by = gp.from_numpy(host), gp.from_numpy(index), gp.from_numpy(columns)
        vector = ours.reshape(-1)
        np.testing.assert_array_equal(vector[at].to_numpy(), flat[index])
        np.testing.assert_array_equal(ours[:, by].to_numpy(), host[:, columns])
        np.testing.assert_array_equal(ours[by].to_numpy(), host[columns])
        mask = host > 0
        np.testing.assert_array_equal(ours[gp.from_numpy(mask)].to_numpy(), host[mask])
        for got, want in zip(gp.nonzero(gp.from_numpy(mask)), np.nonzero(mask), strict=True):
            np.testing.assert_array_equal(got.to_numpy(), want)
        values = (rng.standard_normal(index.size) * 30).astype(host.dtype)
        want, got = flat.copy(), vector.copy()
        want[index] = values
        got[at] = gp.from_numpy(values)
        np.testing.assert_array_equal(got.to_numpy(), want)
        if kind != "bfloat16":
            want, got = flat.copy(), vector.copy()
            np.add.at(want, index, values)
            gp.add.at(got, at, gp.from_numpy(values))
            np.testing.assert_array_equal(got.to_numpy(), want)
    print("results agree with NumPy")


def main() -> int:
    bench = Bench(__doc__)
    torch: Any = bench.torch
    bench.check(check)
    torch.use_deterministic_algorithms(True)
    n, m = GIB // 4, 64_000_000
    theirs = torch.randn(n, device="cuda")
    ours = gp.from_dlpack(theirs)
    at = torch.randint(0, n, (m,), device="cuda")
    ours_at = gp.from_dlpack(at)
    bench.against_torch(
        "gather of 64M random elements from 1 GiB", lambda: ours[ours_at], lambda: theirs[at], 1.0, nbytes=m * 16
    )
    bench.against_torch("x[x > 0] of 2^28 float32", lambda: ours[ours > 0], lambda: theirs[theirs > 0], 1.0)
    positive, positive_ = theirs > 0, ours > 0
    bench.against_torch("x[mask] of 2^28 float32", lambda: ours[positive_], lambda: theirs[positive], 1.0)
    bench.against_torch("nonzero(x > 0) of 2^28", lambda: gp.nonzero(positive_), lambda: positive.nonzero(), 1.0)
    bench.against_torch(
        "where(mask, x, 0) of 2^28", lambda: gp.where(positive_, ours, 0.0),
        lambda: torch.where(positive, theirs, 0.0), 1.0, nbytes=n * 9,
    )  # fmt: skip
    values = torch.randn(m, device="cuda")
    ours_values = gp.from_dlpack(values)
    into, ours_into = torch.zeros(n, device="cuda"), gp.zeros(n)
    bench.against_torch(
        "add.at of 64M random places in 1 GiB, against deterministic index_add",
        lambda: gp.add.at(ours_into, ours_at, ours_values), lambda: into.index_add_(0, at, values), 1.0,
    )  # fmt: skip
    few, few_values = at % 1000, values
    ours_few = gp.from_dlpack(few)
    small, ours_small = torch.zeros(1000, device="cuda"), gp.zeros(1000)
    bench.against_torch(
        "add.at of 64M into 1,000 places, against deterministic index_add",
        lambda: gp.add.at(ours_small, ours_few, ours_values), lambda: small.index_add_(0, few, few_values), 1.0,
    )  # fmt: skip
    unique = torch.randperm(n, device="cuda")[:m]
    ours_unique = gp.from_dlpack(unique)

    def put() -> None:
        ours_into[ours_unique] = ours_values

    bench.against_torch(
        "x[index] = values, 64M places in 1 GiB, against deterministic index_put",
        put, lambda: into.index_put_((unique,), values), 1.0,
    )  # fmt: skip
    table = torch.randn((152_064, 896), device="cuda")
    tokens = torch.randint(0, 152_064, (100_000,), device="cuda")
    ours_table, ours_tokens = gp.from_dlpack(table), gp.from_dlpack(tokens)
    bench.against_torch(
        "100,000 rows of 896 float32", lambda: ours_table[ours_tokens], lambda: table[tokens], 1.0,
        nbytes=2 * 100_000 * 896 * 4,
    )  # fmt: skip
    order = torch.argsort(table[:20_000], dim=1)
    ours_order, part, ours_part = gp.from_dlpack(order), table[:20_000], ours_table[:20_000]
    bench.against_torch(
        "take_along_axis of 20,000 x 896", lambda: gp.take_along_axis(ours_part, ours_order, 1),
        lambda: torch.gather(part, 1, order), 1.0,
    )  # fmt: skip
    return bench.finish("python benchmarks/array/index.py")


if __name__ == "__main__":
    sys.exit(main())
