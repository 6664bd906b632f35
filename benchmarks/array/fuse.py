"""Fused functions on a GPU: device time against the operators one after the other, against torch, and the copy rate.

Every function is first compared with its operators, in every bit, on sizes that do not divide evenly. All sides of a
row work on the same values.

    python benchmarks/array/fuse.py --json benchmarks/results/h200-array-fuse.json
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from harness import Bench

N = 1 << 28


class Case(NamedTuple):
    """A function of arrays, what torch calls it, and the arrays: element type and shape of each."""

    name: str
    function: Callable[..., Any]
    peer: Callable[..., Any]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    result: int
    """Bytes of the result."""
    of_copy: float = 0.0
    """Share of the copy rate it must reach; 0 for none."""


def cases(torch: Any) -> list[Case]:
    def gated(x: Any, y: Any) -> Any:
        return gp.silu(x * 2.0) * y

    def bias(x: Any, b: Any) -> Any:
        return gp.gelu(x + b)

    def adam(m: Any, v: Any, g: Any) -> Any:
        return (m * 0.9 + g * 0.1) / (gp.sqrt(v * 0.999 + g * g * 0.001) + 1e-8)

    def distance(x: Any, y: Any) -> Any:
        return gp.sum((x - y) * (x - y), axis=1)

    def columns(x: Any, y: Any) -> Any:
        return gp.mean(gp.abs(x - y), axis=0)

    def torch_adam(m: Any, v: Any, g: Any) -> Any:
        return (m * 0.9 + g * 0.1) / (torch.sqrt(v * 0.999 + g * g * 0.001) + 1e-8)

    def torch_bias(x: Any, b: Any) -> Any:
        return torch.nn.functional.gelu(x + b, approximate="tanh")

    flat, square, row = (N,), (16384, 16384), (16384,)
    return [
        Case("silu(2 x) y, 2^28 float32", gated, lambda x, y: torch.nn.functional.silu(x * 2.0) * y,
             (("float32", flat), ("float32", flat)), 4 * N, 0.9),
        Case("silu(2 x) y, 2^28 bfloat16", gated, lambda x, y: torch.nn.functional.silu(x * 2.0) * y,
             (("bfloat16", flat), ("bfloat16", flat)), 2 * N, 0.9),
        Case("gelu(x + bias), 16384^2 float32", bias, torch_bias, (("float32", square), ("float32", row)), 4 * N, 0.8),
        Case("Adam's step, 2^28 float32", adam, torch_adam, (("float32", flat),) * 3, 4 * N, 0.9),
        Case("sum (x - y)^2 over rows, 16384^2", distance, lambda x, y: ((x - y) * (x - y)).sum(1),
             (("float32", square), ("float32", square)), 4 * 16384, 0.85),
        Case("mean |x - y| over columns, 16384^2", columns, lambda x, y: (x - y).abs().mean(0),
             (("float32", square), ("float32", square)), 4 * 16384, 0.8),
    ]  # fmt: skip


def check(torch: Any) -> None:
    """Compare every function with its operators on small arrays; an error ends the run.

    Raises
    ------
    AssertionError
        If a bit differs.
    """
    rng = np.random.default_rng(0)
    for case in cases(torch):
        small = [tuple(1031 if n == 16384 else 100_003 for n in shape) for _, shape in case.arrays]
        for at in (0, 1):
            # Once aligned, once not.
            arrays = [
                gp.from_numpy(np.abs(rng.standard_normal((*s[:-1], s[-1] + at))).astype(np.float32)).astype(kind)[
                    ..., at:
                ]
                for (kind, _), s in zip(case.arrays, small, strict=True)
            ]
            want, got = case.function(*arrays), gp.fuse(case.function)(*arrays)
            assert want.to_numpy().tobytes() == got.to_numpy().tobytes(), case.name
    print("every bit is that of the operators one after the other")


def can_compile(torch: Any) -> bool:
    """Has this machine what torch.compile needs: a C compiler, and Triton?"""
    try:
        torch.compile(torch.neg)(torch.ones(3, device="cuda"))
    except Exception as error:
        print(f"no rows against torch.compile: {str(error).partition(chr(10))[0]}")
        return False
    return True


def main() -> int:
    bench = Bench(__doc__)
    torch = bench.torch
    bench.check(check, torch)
    compiles = can_compile(torch)
    for case in cases(torch):
        peers = [torch.rand(shape, device="cuda").to(getattr(torch, kind)) for kind, shape in case.arrays]
        arrays = [
            gp.from_numpy(p.float().cpu().numpy()).astype(k) for p, (k, _) in zip(peers, case.arrays, strict=True)
        ]
        fused = gp.fuse(case.function)
        nbytes = case.result + sum(x.nbytes for x in arrays)
        bench.against_torch(
            case.name, lambda f=fused, a=arrays: f(*a), lambda f=case.peer, a=peers: f(*a), 1.0, nbytes=nbytes
        )
        if compiles:
            compiled = torch.compile(case.peer)
            bench.against_torch(
                f"{case.name}, against torch.compile", lambda f=fused, a=arrays: f(*a),
                lambda f=compiled, a=peers: f(*a), 0.95, nbytes=nbytes,
            )  # fmt: skip
        bench.of_copy_rate(f"{case.name}, of the copy rate", lambda f=fused, a=arrays: f(*a), nbytes, case.of_copy)
        bench.of_copy_rate(
            f"{case.name}, operators apart, of the copy rate", lambda f=case.function, a=arrays: f(*a), nbytes, 0.0
        )
    return bench.finish("python benchmarks/array/fuse.py")


if __name__ == "__main__":
    sys.exit(main())
