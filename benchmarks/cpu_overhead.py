"""What arrays on the CPU device cost above NumPy: small operators, views, and large arrays.

Ours and NumPy run in one process, in turns. A figure is the least of many rounds, which other work of the machine does
not lengthen. A small call may take some time more than NumPy's, which is its bar; a large one is bounded by a ratio.

    PYGPUKIT_DEVICE=cpu python benchmarks/cpu_overhead.py --json benchmarks/results/epyc-cpu-overhead.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp

sys.path.insert(0, str(Path(__file__).resolve().parent))
from report import Report


def in_turns(ours: Callable[[], Any], other: Callable[[], Any], calls: int, rounds: int) -> tuple[float, float]:
    """Microseconds per call of both: the least of rounds, which alternate."""
    times: tuple[list[float], list[float]] = ([], [])
    for call in (ours, other):
        for _ in range(min(calls, 100)):
            call()
    for _ in range(rounds):
        for call, kept in zip((ours, other), times, strict=True):
            start = time.perf_counter()
            for _ in range(calls):
                call()
            kept.append((time.perf_counter() - start) / calls * 1e6)
    return min(times[0]), min(times[1])


class Rows:
    def __init__(self) -> None:
        self.report = Report()

    def small(
        self,
        what: str,
        ours: Callable[[], Any],
        other: Callable[[], Any],
        *,
        more: float | None = None,
        most: float = 0,
    ) -> None:
        """A call that may take `more` us more than NumPy's, or `most` us in all."""
        taken, numpy = in_turns(ours, other, 20, 501)
        if more is None:
            self.report.add(what, taken, most, "us", 1.0, numpy_us=numpy, difference_us=taken - numpy)
        else:
            self.report.add(what, taken, numpy + more, "us", 1.0, numpy_us=numpy, difference_us=taken - numpy)

    def large(self, what: str, ours: Callable[[], Any], other: Callable[[], Any], ratio: float) -> None:
        """A call that may take `ratio` times as long as NumPy's."""
        taken, numpy = in_turns(ours, other, 1, 31)
        self.report.add(what, taken / 1e3, numpy / 1e3, "ms", ratio, numpy_us=numpy, difference_us=taken - numpy)

    def table(self) -> None:
        """Ours beside NumPy, without the bars."""
        print(f"{'':34}{'ours us':>12}{'NumPy us':>12}{'difference':>12}")
        for row in self.report.rows:
            numpy = row["numpy_us"]
            print(f"{row['what']:34}{numpy + row['difference_us']:12.3f}{numpy:12.3f}{row['difference_us']:12.3f}")


def measure() -> Rows:
    rows = Rows()
    random = np.random.default_rng(1)
    h = random.random(1024, np.float32)
    x = gp.from_numpy(h)
    rows.small("add 1,024 float32", lambda: gp.add(x, x), lambda: np.add(h, h), more=2)
    rows.small("add with a scalar, 1,024 float32", lambda: x + 2.5, lambda: h + 2.5, more=2)
    rows.small("x[0:10]", lambda: x[0:10], lambda: h[0:10], most=1)
    m = random.random((64, 64), np.float32)
    a = gp.from_numpy(m)
    rows.small("x.T", lambda: a.T, lambda: m.T, most=1)
    rows.small("x.reshape(32, 128)", lambda: a.reshape(32, 128), lambda: m.reshape(32, 128), most=2)
    rows.small("empty 1,024 float32", lambda: gp.empty(1024), lambda: np.empty(1024, np.float32), more=2)
    rows.small("zeros 1,024 float32", lambda: gp.zeros(1024), lambda: np.zeros(1024, np.float32), more=3)
    rows.small("matmul 64 x 64 float32", lambda: gp.matmul(a, a), lambda: m @ m, more=5)
    rows.small("sum 1,024 float32", lambda: gp.sum(x), lambda: h.sum(), more=3)
    operators(rows, random)
    s = random.random((2000, 2000), np.float32)
    b = gp.from_numpy(s)
    rows.large("x.T + x.T of 2,000 x 2,000 float32", lambda: b.T + b.T, lambda: s.T + s.T, 5)
    rows.large("x.T.copy() of 2,000 x 2,000 float32", lambda: b.T.copy(), lambda: s.T.copy("C"), 1.2)
    v = random.random(4_000_000, np.float32)
    c = gp.from_numpy(v)
    rows.large("add 4M float32", lambda: gp.add(c, c), lambda: np.add(v, v), 1.2)
    w = random.random(10_000_000)
    d = gp.from_numpy(w)
    rows.large("sum of 10M float64", lambda: gp.sum(d), lambda: w.sum(), 1.2)
    return rows


def operators(rows: Rows, random: np.random.Generator) -> None:
    """A sample of all families on 1,024 float32, or 32 x 32: at most 2 us above NumPy, reductions 3."""
    h, m = random.random(1024, np.float32), random.random((32, 32), np.float32)
    x, a = gp.from_numpy(h), gp.from_numpy(m)
    i, b = np.arange(0, 1024, 3), h < 0.5
    j, c = gp.from_numpy(i), gp.from_numpy(b)
    d = m.astype(np.float64) + 8 * np.eye(32)
    e, w, v = gp.from_numpy(d), d[0].copy(), gp.from_numpy(d[0])
    ours, theirs = gp.random.default_rng(1), np.random.default_rng(1)
    sample: dict[str, tuple[Callable[[], Any], Callable[[], Any], float]] = {
        "exp": (lambda: gp.exp(x), lambda: np.exp(h), 2),
        "x < 0.5": (lambda: x < 0.5, lambda: h < 0.5, 2),
        "where": (lambda: gp.where(c, x, 0.0), lambda: np.where(b, h, np.float32(0)), 2),
        "maximum": (lambda: gp.maximum(x, 0.5), lambda: np.maximum(h, np.float32(0.5)), 2),
        "clip": (lambda: gp.clip(x, 0.2, 0.8), lambda: np.clip(h, 0.2, 0.8), 2),
        "x += 1": (lambda: x.__iadd__(1), lambda: h.__iadd__(1), 2),
        "astype float64": (lambda: x.astype("float64"), lambda: h.astype("float64"), 2),
        "copy": (lambda: x.copy(), lambda: h.copy(), 2),
        "mean": (lambda: gp.mean(x), lambda: h.mean(), 3),
        "max": (lambda: x.max(), lambda: h.max(), 3),
        "argmax": (lambda: gp.argmax(x), lambda: h.argmax(), 3),
        "any": (lambda: gp.any(c), lambda: b.any(), 3),
        "std axis 0": (lambda: gp.std(a, axis=0), lambda: m.std(axis=0), 3),
        "sum axis 1": (lambda: gp.sum(a, axis=1), lambda: m.sum(axis=1), 3),
        "cumsum": (lambda: gp.cumsum(x), lambda: h.cumsum(), 2),
        "sort": (lambda: gp.sort(x), lambda: np.sort(h), 2),
        "argsort": (lambda: gp.argsort(x), lambda: np.argsort(h, kind="stable"), 2),
        "x[i]": (lambda: x[j], lambda: h[i], 2),
        "x[mask]": (lambda: x[c], lambda: h[b], 2),
        "x[0] = 1": (lambda: x.__setitem__(0, 1.0), lambda: h.__setitem__(0, 1.0), 2),
        "x[2:9] = 1": (lambda: x.__setitem__(slice(2, 9), 1.0), lambda: h.__setitem__(slice(2, 9), 1.0), 2),
        "take": (lambda: gp.take(x, j), lambda: np.take(h, i), 2),
        "concatenate": (lambda: gp.concatenate([x, x]), lambda: np.concatenate([h, h]), 2),
        "stack": (lambda: gp.stack([x, x]), lambda: np.stack([h, h]), 2),
        "reshape": (lambda: gp.reshape(a, (4, 256)), lambda: np.reshape(m, (4, 256)), 2),
        "roll": (lambda: gp.roll(x, 3), lambda: np.roll(h, 3), 2),
        "nonzero": (lambda: gp.nonzero(c), lambda: np.nonzero(b), 2),
        "arange": (lambda: gp.arange(1024), lambda: np.arange(1024), 2),
        "full": (lambda: gp.full(1024, 2.0), lambda: np.full(1024, 2.0), 2),
        "dot": (lambda: gp.dot(x, x), lambda: np.dot(h, h), 2),
        "einsum ij,j": (lambda: gp.einsum("ij,j->i", e, v), lambda: np.einsum("ij,j->i", d, w), 2),
        "fft.rfft": (lambda: gp.fft.rfft(x), lambda: np.fft.rfft(h), 2),
        "random": (lambda: ours.random(1024), lambda: theirs.random(1024), 2),
        "linalg.solve": (lambda: gp.linalg.solve(e, v), lambda: np.linalg.solve(d, w), 2),
        "float(x[0])": (lambda: float(x[0]), lambda: float(h[0]), 2),
        "to_numpy": (lambda: x.to_numpy(), lambda: h.copy(), 2),
    }
    for what, (mine, other, more) in sample.items():
        rows.small(what, mine, other, more=more)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows here")
    options = parser.parse_args()
    if gp.zeros(1).device.kind != "cpu":
        print("this measures the CPU device: set PYGPUKIT_DEVICE=cpu", file=sys.stderr)
        return 2
    rows = measure()
    rows.table()
    return rows.report.finish(options.json, "PYGPUKIT_DEVICE=cpu python benchmarks/cpu_overhead.py")


if __name__ == "__main__":
    sys.exit(main())
