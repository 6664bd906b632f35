"""Matrix products by cuBLASLt: host time per call against torch, and replays against calls.

Ours and torch run in one process, alternating; a figure is the median of many bursts of 256 calls.

    python benchmarks/library.py --json benchmarks/results/library.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

import pygpukit as gp
from pygpukit.core.cublaslt import plan_product

sys.path.insert(0, str(Path(__file__).resolve().parent))
from core import burst_us
from report import Report

# Ours, torch's time times this.
HOST_TIME = 0.7


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=200)
    options = parser.parse_args()
    import torch

    report = Report()
    for m, n, k in [(64, 64, 64), (1, 3584, 3584)]:
        host = np.random.default_rng(0).standard_normal((m, k)).astype(gp.to_numpy_dtype("bfloat16"))
        weights = np.random.default_rng(1).standard_normal((k, n)).astype(gp.to_numpy_dtype("bfloat16"))
        a, b, out = gp.from_numpy(host), gp.from_numpy(weights), gp.empty((m, n), "bfloat16")
        plan = plan_product(m, n, k, gp.bfloat16)
        plan.run(out, a, b)
        bits = out.to_numpy().tobytes()
        ta, tb = (torch.from_numpy(x.astype(np.float32)).to("cuda", torch.bfloat16) for x in (host, weights))
        tout = torch.empty((m, n), device="cuda", dtype=torch.bfloat16)
        names = {"run": plan.run, "out": out, "a": a, "b": b}
        names |= {"matmul": torch.matmul, "ta": ta, "tb": tb, "tout": tout, "gmatmul": gp.matmul}
        ours, new, into, operator, operator_into = burst_us(
            ("run(out, a, b)", gp.synchronize),
            ("matmul(ta, tb)", torch.cuda.synchronize),
            ("matmul(ta, tb, out=tout)", torch.cuda.synchronize),
            ("gmatmul(a, b)", gp.synchronize),
            ("gmatmul(a, b, out=out)", gp.synchronize),
            names=names,
            rounds=options.rounds,
        )
        size = f"{m}x{n}x{k} bfloat16"
        report.add(f"plan.run against torch.matmul, {size}", ours, new, "us", HOST_TIME)
        report.add(f"plan.run against torch.matmul(out=), {size}", ours, into, "us", HOST_TIME)
        report.add(f"gp.matmul against torch.matmul, {size}", operator, new, "us", HOST_TIME)
        report.add(f"gp.matmul(out=) against torch.matmul(out=), {size}", operator_into, into, "us", HOST_TIME)
        print(f"     {gp.explain(gp.matmul, a, b)}\n     the algorithm is {plan.describe()}")
        assert gp.matmul(a, b).to_numpy().tobytes() == bits, "the operator has other bits than the plan"
        plan.run(out, a, b)
        graph = gp.CudaGraph()
        with graph.capture():
            for _ in range(16):
                plan.run(out, a, b)
        graph.replay()
        assert out.to_numpy().tobytes() == bits, "a replay has other bits than a call"
        names |= {"replay": graph.replay}
        (replay,) = burst_us(("replay()", gp.synchronize), names=names, rounds=options.rounds // 8 + 1)
        print(f"     a replay of 16 products takes {replay:.3f} us, and has the bits of a call")
    return report.finish(options.json, "python benchmarks/library.py")


if __name__ == "__main__":
    sys.exit(main())
