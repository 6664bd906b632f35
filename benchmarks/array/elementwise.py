"""Elementwise operators on broadcast, strided and transposed arrays, and copies, on a GPU against torch.

Every layout is first compared with NumPy on sizes that do not divide evenly. Bytes are those of the distinct elements
read and of the result.

    python benchmarks/array/elementwise.py --json benchmarks/results/h200-array-elementwise.json
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

Views = Callable[[Any], Any]

LAYOUTS: dict[str, Views] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.T,
    "every second column": lambda x: x[:, ::2],
    "every second row": lambda x: x[::2],
    "without the first column": lambda x: x[:, 1:],
    "a block of columns": lambda x: x[:, 16 : x.shape[1] // 2],
    "one column": lambda x: x[:, :1],
    "one row": lambda x: x[:1],
}


def check() -> None:
    """Compare every pair of layouts with NumPy; an error ends the run.

    Raises
    ------
    AssertionError
        If a result differs from NumPy's.
    """
    rng = np.random.default_rng(0)
    for kind in ("float32", "bfloat16", "int8", "float64"):
        for shape in ((37, 53), (513, 1027), (1024, 1000), (3, 4099)):
            host = (rng.standard_normal(shape) * 30).astype(gp.to_numpy_dtype(kind))
            ours = gp.from_numpy(host)
            for name, view in LAYOUTS.items():
                np.testing.assert_array_equal(view(ours).contiguous().to_numpy(), view(host), err_msg=name)
                a, b = view(ours), ours[: view(host).shape[0], : view(host).shape[1]]
                if b.shape == a.shape:
                    want = view(host) + host[: a.shape[0], : a.shape[1]]
                    np.testing.assert_array_equal(gp.add(a, b).to_numpy(), want, err_msg=name)
            np.testing.assert_array_equal((ours * ours[:, :1]).to_numpy(), host * host[:, :1])
            np.testing.assert_array_equal((ours * ours[:1]).to_numpy(), host * host[:1])
            np.testing.assert_array_equal((ours[:, :1] * ours[:1]).to_numpy(), host[:, :1] * host[:1])
    print("all layouts agree with NumPy")


def square(bench: Bench, kind: str, n: int) -> None:
    """All layouts of one matrix."""
    torch: Any = bench.torch
    theirs = torch.randn((n, n), device="cuda").to(getattr(torch, kind))
    ours = gp.from_dlpack(theirs)
    full = theirs.nbytes
    text = f"({n}, {n}) {kind}"
    for name, nbytes in (("one column", 2 * full), ("one row", 2 * full), ("transposed", 3 * full)):
        view = LAYOUTS[name]
        bench.against_torch(
            f"{text} times {name} of it", lambda v=view: gp.mul(ours, v(ours)),
            lambda v=view: torch.mul(theirs, v(theirs)), 1.0, nbytes=nbytes,
        )  # fmt: skip
    bench.against_torch(
        f"column times row, {text}", lambda: gp.mul(ours[:, :1], ours[:1]),
        lambda: torch.mul(theirs[:, :1], theirs[:1]), 1.0, nbytes=full,
    )  # fmt: skip
    for name, view in LAYOUTS.items():
        if name in ("one column", "one row"):
            continue
        nbytes = 2 * view(theirs).nbytes
        bench.against_torch(
            f"{name} plus itself, {text}", lambda v=view: gp.add(v(ours), v(ours)),
            lambda v=view: torch.add(v(theirs), v(theirs)), 1.0, nbytes=nbytes,
        )  # fmt: skip
        bench.against_torch(
            f"copy of {name}, {text}", lambda v=view: v(ours).copy(),
            lambda v=view: v(theirs).clone(memory_format=torch.contiguous_format), 1.0, nbytes=nbytes,
        )  # fmt: skip
    bench.of_copy_rate(f"transposed copy, {text}, of the copy rate", lambda: ours.T.copy(), 2 * full, 0.8)


def main() -> int:
    """Check, then measure."""
    bench = Bench(__doc__)
    bench.check(check)
    for kind, n in (("float32", 8192), ("bfloat16", 8192), ("float32", 16384)):
        square(bench, kind, n)
    return bench.finish("python benchmarks/array/elementwise.py")


if __name__ == "__main__":
    sys.exit(main())
