"""Square products by each route of `matmul` alone, against torch: mma.sync, CUDA cores, and cuBLASLt's other types.

The determinism and the values of these routes are tests: tests/gpu/test_matmul_routes.py. All data is normal; int8 is
normal times 40. torch multiplies float32 without tf32, and int8 by `torch._int_mm`.

    python benchmarks/tensor/routes.py --json benchmarks/results/h200-tensor-routes.json
    python benchmarks/tensor/routes.py --only float32 --sizes 4096
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pygpukit as gp
from pygpukit.ops.registry import load, register

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "array"))
from harness import Bench


class Route(NamedTuple):
    """A variant, the operands and options it is called with, and the most of torch's time it may take."""

    variant: str
    dtype: str
    options: dict[str, Any]
    bar: float


ROUTES = (
    Route("CUDA cores, large tiles", "float32", {}, 1 / 0.85),
    Route("CUDA cores, large tiles", "float64", {}, 1 / 0.4),
    Route("mma.sync", "bfloat16", {}, 1 / 0.55),
    Route("mma.sync", "float16", {}, 1 / 0.55),
    Route("mma.sync", "float32", {"precision": "tf32"}, 1 / 0.5),
    Route("mma.sync", "int8", {"precision": "int32"}, 1.0),
    Route("cuBLASLt, int8", "int8", {"precision": "int32"}, 1 / 0.98),
    Route("cuBLASLt", "bfloat16", {}, 1 / 0.98),
    Route("cuBLASLt", "float16", {}, 1 / 0.98),
)
"""float64 on CUDA cores has half the rate of the tensor cores that torch uses; mma.sync about 0.6 of wgmma's."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of this benchmark."""
    parser.add_argument("--sizes", type=int, nargs="*", default=[2048, 4096, 8192], help="of products")


def normal(bench: Bench, n: int, dtype: str) -> tuple[Any, Any]:
    """Return a matrix of normal numbers, and the same memory as torch sees it."""
    torch = bench.torch
    values = torch.randn((n, n), device="cuda", dtype=torch.float64 if dtype == "float64" else torch.float32)
    theirs = (values * 40 if dtype == "int8" else values).to(getattr(torch, dtype))
    torch.cuda.synchronize()
    return gp.from_dlpack(theirs), theirs


def square(bench: Bench, route: Route, multiply: Callable[..., Any], n: int) -> None:
    """One size by one route; weights as [N, K]."""
    torch = bench.torch
    what = f"{route.variant}: {route.dtype} {route.options.get('precision', '')} {n}"
    if not bench.wanted(what):
        return
    (a, ta), (b, tb) = normal(bench, n, route.dtype), normal(bench, n, route.dtype)
    torch.backends.cuda.matmul.allow_tf32 = route.options.get("precision") == "tf32"
    out = gp.empty((n, n), "int32" if route.dtype == "int8" else route.dtype)
    peer = (lambda: torch._int_mm(ta, tb.T)) if route.dtype == "int8" else (lambda: torch.matmul(ta, tb.T))
    bench.against_torch(
        what, lambda: multiply(a, b.T, out=out, **route.options), peer, route.bar, tflops=2 * n**3 / 1e12
    )
    torch.backends.cuda.matmul.allow_tf32 = False


def main() -> int:
    """Measure every route at every size."""
    bench = Bench(__doc__, arguments)
    matmul = load()["matmul"]
    known = {variant.name: variant for variant in matmul.variants}
    for i, route in enumerate(ROUTES):
        multiply = register(
            dataclasses.replace(
                matmul, name=f"bench_route_{i}", variants=(known[route.variant],), cases=(), public=False
            )
        )
        for n in bench.options.sizes:
            bench.guarded(f"{route.variant} {n}", square, bench, route, multiply, n)
            bench.torch.cuda.empty_cache()
    return bench.finish("python benchmarks/tensor/routes.py")


if __name__ == "__main__":
    sys.exit(main())
