"""Random numbers on the GPU against torch's (Philox too) and the rate of writing.

First results are compared with the CPU device's, bit by bit. The share of the copy rate counts the bytes written.

    python benchmarks/array/random_numbers.py --json benchmarks/results/h200-array-random.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from harness import Bench

import pygpukit as gp

LARGE = 100_000_000


def check() -> None:
    """Compare results with the CPU device's; raise where a bit differs."""
    draws: list[Callable[[Any], gp.GPUArray]] = [
        *(
            lambda rng, name=name, kind=kind: getattr(rng, name)(3_000_017, kind)
            for name in ("random", "standard_normal", "standard_exponential")
            for kind in ("float16", "bfloat16", "float32", "float64")
        ),
        lambda rng: rng.integers(1_000_003, size=5_000_011, dtype="int32"),
        lambda rng: rng.integers(2**62 + 3, size=1_000_003),
        lambda rng: rng.permutation(1_000_003),
        lambda rng: rng.gamma(2.5, size=300_007),
        lambda rng: rng.poisson(3.0, 300_007),
        lambda rng: rng.poisson(1e4, 300_007),
        lambda rng: rng.binomial(1000, 0.3, 300_007),
    ]
    for i, draw in enumerate(draws):
        ours = draw(gp.random.default_rng(i)).to_numpy()
        with gp.device("cpu"):
            want = draw(gp.random.default_rng(i)).to_numpy()
        if ours.tobytes() != want.tobytes():
            raise AssertionError(f"draw {i} differs in {(ours != want).sum()} of {ours.size} numbers")


def large(bench: Bench, rng: gp.random.Generator) -> None:
    """100 million numbers; the uniform ones should be written at half of the copy rate or more."""
    torch: Any = bench.torch
    for kind in ("float32", "float64", "bfloat16"):
        ours, theirs = gp.empty(LARGE, kind), torch.empty(LARGE, device="cuda", dtype=getattr(torch, kind))
        rows: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
            ("random", lambda ours=ours, kind=kind: rng.random(dtype=kind, out=ours), theirs.uniform_),
            ("standard_normal", lambda ours=ours, kind=kind: rng.normal(dtype=kind, out=ours), theirs.normal_),
            (
                "standard_exponential",
                lambda ours=ours, kind=kind: rng.exponential(dtype=kind, out=ours),
                theirs.exponential_,
            ),
        ]
        for name, mine, other in rows:
            bench.against_torch(f"{name} of 100M {kind}", mine, other, 1.0, nbytes=ours.nbytes)
    x = gp.empty(LARGE, "float32")
    bench.of_copy_rate(
        "random of 100M float32, bytes written", lambda: rng.random(dtype="float32", out=x), x.nbytes, 0.5
    )
    for kind, high in (("int32", 1000), ("int64", 1000), ("int64", 2**62), ("uint8", 256)):
        theirs = torch.empty(LARGE, device="cuda", dtype=getattr(torch, kind))
        bench.against_torch(
            f"integers below {high} of 100M {kind}",
            lambda kind=kind, high=high: rng.integers(high, size=LARGE, dtype=kind),
            lambda theirs=theirs, high=high: theirs.random_(high),
            1.0,
        )


def others(bench: Bench, rng: gp.random.Generator) -> None:
    """Orders, counts and gamma numbers; small draws in a graph."""
    torch: Any = bench.torch
    n = 10_000_000
    bench.against_torch("permutation of 10M", lambda: rng.permutation(n), lambda: torch.randperm(n, device="cuda"), 1.5)
    rate, shape = torch.full((n,), 4.0, device="cuda"), torch.full((n,), 2.5, device="cuda")
    bench.against_torch("poisson of 10M, mean 4", lambda: rng.poisson(4.0, n), lambda: torch.poisson(rate), 2.0)
    rate = torch.full((n,), 1e4, device="cuda")
    bench.against_torch("poisson of 10M, mean 10,000", lambda: rng.poisson(1e4, n), lambda: torch.poisson(rate), 2.0)
    bench.against_torch(
        "gamma of 10M float32, shape 2.5", lambda: rng.gamma(2.5, size=n, dtype="float32"),
        lambda: torch._standard_gamma(shape), 2.0,
    )  # fmt: skip
    x, y = gp.empty(4096, "float32"), torch.empty(4096, device="cuda")
    bench.against_torch(
        "random of 4096 float32", lambda: rng.random(dtype="float32", out=x), y.uniform_, 2.0, repeat=20
    )


def main() -> int:
    """Check, then measure."""
    bench = Bench(__doc__)
    bench.check(check)
    rng = gp.random.default_rng(1)
    large(bench, rng)
    others(bench, rng)
    return bench.finish("python benchmarks/array/random_numbers.py")


if __name__ == "__main__":
    sys.exit(main())
