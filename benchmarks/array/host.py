"""Host time of array operators and views on a GPU: bursts of calls, against the bare driver's launch and torch.

An operator of one kernel should take at most what a launch takes and 0.9 us; a view at most 1 us. Results are compared
with NumPy's first.

    python benchmarks/array/host.py --json benchmarks/results/h200-array-host.json
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from core import BURST, KERNEL, burst_us

VIEWS = {
    "x[0:10]": "tx[0:10]",
    "x[::2]": "tx[::2]",
    "m.T": "tm.T",
    "m[3]": "tm[3]",
    "m[:, None]": "tm[:, None]",
    "m.reshape(16, 64)": "tm.reshape(16, 64)",
}


class Call(NamedTuple):
    """An operator of one kernel, as we, torch and NumPy write it; torch's may be missing."""

    ours: str
    theirs: str
    numpy: Callable[[Any, Any], Any]


CALLS = (
    Call("gp.add(x, x)", "torch.add(tx, tx)", lambda x, m: x + x),
    Call("x * 2.5", "tx * 2.5", lambda x, m: x * np.float32(2.5)),
    Call("x < 0.5", "tx < 0.5", lambda x, m: x < 0.5),
    Call("gp.exp(x)", "torch.exp(tx)", lambda x, m: np.exp(x)),
    Call("gp.where(b, x, 0.0)", "torch.where(tb, tx, 0.0)", lambda x, m: np.where(x < 0.5, x, np.float32(0))),
    Call("m + row", "tm + trow", lambda x, m: m + m[0]),
    Call("m.T + m.T", "tm.T + tm.T", lambda x, m: m.T + m.T),
    Call("x.astype('float16')", "tx.to(torch.float16)", lambda x, m: x.astype(np.float16)),
    Call("x.copy()", "tx.clone()", lambda x, m: x.copy()),
    Call("gp.sum(x)", "torch.sum(tx)", lambda x, m: x.sum()),
    Call("gp.sum(m, axis=1)", "torch.sum(tm, 1)", lambda x, m: m.sum(1)),
    Call("gp.max(x)", "torch.amax(tx, 0)", lambda x, m: x.max()),
    Call("gp.argmax(m, axis=1)", "torch.argmax(tm, 1)", lambda x, m: m.argmax(1)),
    Call("gp.mean(m, axis=0)", "torch.mean(tm, 0)", lambda x, m: m.mean(0)),
    Call("gp.cumsum(x)", "torch.cumsum(tx, 0)", lambda x, m: x.cumsum()),
    Call("x[i]", "tx[ti]", lambda x, m: x[np.arange(0, 1024, 3)]),
    Call("gp.take(x, i)", "torch.take(tx, ti)", lambda x, m: x[np.arange(0, 1024, 3)]),
    Call("gp.concatenate([x, x])", "torch.cat([tx, tx])", lambda x, m: np.concatenate([x, x])),
    Call("gp.sort(m, axis=1)", "torch.sort(tm, 1)", lambda x, m: np.sort(m, 1)),
    Call("gp.roll(x, 3)", "torch.roll(tx, 3)", lambda x, m: np.roll(x, 3)),
    Call("gp.softmax(m)", "torch.softmax(tm, 1)", lambda x, m: np.exp(m) / np.exp(m).sum(1, keepdims=True)),
    Call("gp.dot(x, x)", "torch.dot(tx, tx)", lambda x, m: x @ x),
    Call("gp.fft.rfft(x)", "torch.fft.rfft(tx)", lambda x, m: np.fft.rfft(x)),
    Call("rng.random(dtype='float32', out=out)", "tout.uniform_()", lambda x, m: None),
    Call("gp.clip(x, 0.2, 0.8)", "torch.clamp(tx, 0.2, 0.8)", lambda x, m: np.clip(x, 0.2, 0.8)),
)


def names(torch: Any) -> dict[str, Any]:
    """The arrays of the calls, here and there."""
    rng = np.random.default_rng(0)
    x, m = rng.random(1024, np.float32), rng.random((32, 32), np.float32)
    i = np.arange(0, 1024, 3)
    ours = {"x": gp.from_numpy(x), "m": gp.from_numpy(m), "i": gp.from_numpy(i), "row": gp.from_numpy(m[0])}
    theirs = {"tx": x, "tm": m, "ti": i, "trow": m[0].copy()}
    peers = {name: torch.from_numpy(value).cuda() for name, value in theirs.items()}
    return {
        "gp": gp, "torch": torch, **ours, **peers, "b": ours["x"] < 0.5, "tb": peers["tx"] < 0.5,
        "out": gp.empty_like(ours["x"]), "tout": torch.empty_like(peers["tx"]), "rng": gp.random.default_rng(1),
    }  # fmt: skip


def check(scope: dict[str, Any]) -> None:
    """Compare every call with NumPy.

    Raises
    ------
    AssertionError
        If a result is not NumPy's.
    """
    for call in CALLS:
        want = call.numpy(scope["x"].to_numpy(), scope["m"].to_numpy())
        got = eval(call.ours, dict(scope))
        if want is not None:
            np.testing.assert_allclose(got.to_numpy(), want, rtol=2e-3, atol=1e-4, err_msg=call.ours)


def main() -> int:
    """Check, then measure."""
    bench = Bench(__doc__)
    torch, rounds = bench.torch, bench.options.rounds
    scope = names(torch)
    bench.check(check, scope)
    sync, their_sync = gp.synchronize, torch.cuda.synchronize
    kernel = gp.jit(KERNEL, func="axpy")
    arguments = [scope["out"], 0.5, 1024]

    def bare() -> float:
        return kernel._time_launches(arguments, True, BURST, 1)

    def view(ours: str, theirs: str) -> None:
        mine, other = burst_us((ours, sync), (theirs, their_sync), names=scope, rounds=rounds)
        bench.report.add(f"view {ours}", mine, 1.0, "us", 1.0, torch_us=other)

    def call(row: Call) -> None:
        mine, other, launch = burst_us((row.ours, sync), (row.theirs, their_sync), bare, names=scope, rounds=rounds)
        extra = {"torch_us": other, "launch_us": launch}
        bench.report.add(f"{row.ours}, against a launch + 0.9 us", mine, launch + 0.9, "us", 1.0, **extra)

    for ours, theirs in VIEWS.items():
        if bench.wanted(ours):
            bench.guarded(f"view {ours}", lambda o=ours, t=theirs: view(o, t))
    for row in CALLS:
        if bench.wanted(row.ours):
            bench.guarded(row.ours, lambda r=row: call(r))
    return bench.finish("python benchmarks/array/host.py")


if __name__ == "__main__":
    sys.exit(main())
