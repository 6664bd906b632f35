"""Reductions and scans on a GPU: device time against torch, and reads against the copy rate.

Every operator is first compared with NumPy in double precision on sizes that do not divide evenly. Both sides of a row
work on the same values.

    python benchmarks/array/reduce.py --json benchmarks/results/h200-array-reduce.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from harness import Bench

GIB = 1 << 30
NAMES = ("sum", "prod", "max", "min", "argmax", "argmin", "mean", "var", "std", "any", "all", "count_nonzero", "cumsum")


def pair(torch: Any, shape: tuple[int, ...], kind: str = "float32") -> tuple[gp.GPUArray, Any]:
    """The same random numbers here and there."""
    peer = torch.randn(shape, device="cuda", generator=torch.Generator("cuda").manual_seed(sum(shape)))
    return gp.from_numpy(peer.cpu().numpy()).astype(kind), peer.to(getattr(torch, kind))


def peer_call(torch: Any, name: str, x: Any, axis: Any) -> Any:
    """What torch calls it."""
    axes = tuple(range(x.ndim)) if axis is None else axis
    if name in ("max", "min"):
        return getattr(torch, "a" + name)(x, axes)
    if name in ("var", "std"):
        return getattr(torch, name)(x, axes, correction=0)
    if name == "cumsum":
        return torch.cumsum(x.reshape(-1) if axis is None else x, 0 if axis is None else axis)
    if axis is None:
        return getattr(torch, name)(x)
    return getattr(torch, name)(x, axis)


def check() -> None:
    """Compare every operator with NumPy; an error ends the run.

    Raises
    ------
    AssertionError
        If a result is further away than its rounding explains.
    """
    rng = np.random.default_rng(0)
    for shape in ((7,), (100_003,), (1_000_003,), (513, 1027), (3, 70_001), (70_001, 3), (40_011, 37), (33, 45, 67)):
        for kind in ("float32", "bfloat16"):
            ours = gp.from_numpy(rng.standard_normal(shape).astype(gp.to_numpy_dtype(kind)))
            wide = ours.to_numpy().astype(np.float64)
            for name in NAMES:
                for axis in (None, *range(len(shape)), *([(0, 2)] if len(shape) == 3 else [])):
                    if isinstance(axis, tuple) and name not in ("sum", "max", "mean", "var"):
                        continue
                    got = getattr(gp, name)(ours, axis=axis).to_numpy().astype(np.float64)
                    want = np.asarray(getattr(np, name)(wide, axis=axis)).astype(np.float64)
                    digits = 2e-6 if kind == "float32" else 1e-2
                    # Sums of random signs cancel: their roundings are those of the terms.
                    terms = {"sum": 4 * np.sqrt(ours.size), "cumsum": 4 * np.sqrt(ours.size), "mean": 1.0}
                    size = np.abs(want) + terms.get(name, 1e-3)
                    if name in ("argmax", "argmin", "count_nonzero", "any", "all", "max", "min"):
                        size, digits = np.ones_like(want), 0.0
                    far = ~(np.abs(got - want) <= 8 * digits * size)
                    assert not far.any(), f"{name} of {kind} {shape} over {axis}: {got[far][:3]} not {want[far][:3]}"
    print("values agree with NumPy in double precision")


def rows(bench: Bench, what: str, ours: Any, peer: Any, calls: list[tuple[str, Any, float]], traffic: int) -> None:
    """A row per (operator, axis, bar) on one array; the traffic is that of reading it, twice that for a scan."""
    for name, axis, must in calls:
        label = f"{name} {what}" + ("" if axis is None else f", axis {axis}")
        function: Callable[..., Any] = getattr(gp, name)
        nbytes = traffic * 2 if name == "cumsum" else traffic
        bench.against_torch(
            label, lambda f=function, a=axis: f(ours, axis=a),
            lambda n=name, a=axis: peer_call(bench.torch, n, peer, a), must, nbytes=nbytes,
        )  # fmt: skip
        if name in ("sum", "max", "argmax") and traffic == GIB:
            bench.of_copy_rate(f"{label}, of the copy rate", lambda f=function, a=axis: f(ours, axis=a), nbytes, 0.85)


def main() -> int:
    bench = Bench(__doc__)
    torch = bench.torch
    bench.check(check)
    flat = [(name, None, 1.0) for name in ("sum", "max", "argmax", "mean", "var", "prod", "any", "cumsum")]
    rows(bench, "2^28 float32", *pair(torch, (1 << 28,)), flat, GIB)
    square = [(name, axis, 1.0) for name in ("sum", "max", "argmax", "var", "cumsum") for axis in (0, 1)]
    rows(bench, "16384^2 float32", *pair(torch, (16384, 16384)), square, GIB)
    rows(bench, "2^28 bfloat16", *pair(torch, (1 << 28,), "bfloat16"), flat[:3], GIB // 2)
    for shape, calls in (
        ((1_000_000, 16), [("sum", 0, 1.0), ("sum", 1, 1.0), ("argmax", 1, 1.0), ("cumsum", 1, 1.0)]),
        ((1_000_000, 3), [("mean", 0, 1.0), ("sum", 1, 1.0)]),
        ((10_000, 1000), [("sum", 0, 1.0), ("sum", 1, 1.0), ("var", 0, 1.0)]),
        ((4096, 4096), [("sum", 0, 1.0), ("sum", 1, 1.0), ("mean", 1, 1.0)]),
        ((16384, 16383), [("sum", 1, 1.0), ("sum", 0, 1.0)]),
        ((64, 256, 56, 56), [("sum", (0, 2, 3), 1.0), ("var", (0, 2, 3), 1.0)]),
        ((8, 152_064), [("argmax", 1, 1.0), ("max", 1, 1.0)]),
    ):
        size = 4 * int(np.prod(shape))
        rows(bench, " x ".join(map(str, shape)), *pair(torch, shape), calls, size)  # type: ignore[arg-type]
    for n in (1024, 1 << 20):
        ours, peer = pair(torch, (n,))
        for name in ("sum", "argmax", "cumsum"):
            bench.against_torch(
                f"{name} {n} float32, in a graph of 50", lambda m=name, x=ours: getattr(gp, m)(x),
                lambda m=name, x=peer: peer_call(torch, m, x, None), 1.0, repeat=50,
            )  # fmt: skip
    return bench.finish("python benchmarks/array/reduce.py")


if __name__ == "__main__":
    sys.exit(main())
