"""Audio on the GPU: transforms and features against torch, a transform's share of the copy rate, and librosa's times.

First results are compared: transforms and features with torch in double, the rest with the CPU device, which the tests
compare with librosa. librosa's times are those of `benchmarks/results/librosa-five-minutes.json` (`five_minutes.py`).
A call that works on the host between kernels, as `pyin` does, is timed with that work.

    python benchmarks/audio/gpu.py --json benchmarks/results/h200-audio.json
    python benchmarks/audio/gpu.py --part 0.01 --rounds 1        # a hundredth of each length, to try the script
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "array"))
from five_minutes import CALLS, MINUTES
from harness import Bench
from minute import RATE, samples

import pygpukit as gp
import pygpukit.audio as A

RECORD = Path(__file__).resolve().parents[1] / "results" / "librosa-five-minutes.json"
HOUR = 60
N_FFT, HOP = 2048, 512
LENGTHS = (400, 512, 1024, 2048)
LONG_MS = 500.0


class Peer:
    """What torch computes in place of ours: `torch.stft` and the products that follow it."""

    def __init__(self, torch: Any, kind: Any) -> None:
        self.torch, self.kind = torch, kind
        self.window = self._on_device(A.get_window("hann", N_FFT))
        self.mels = self._on_device(A.filters.mel(sr=RATE, n_fft=N_FFT).to_numpy())
        n, k = np.meshgrid(np.arange(128), np.arange(20))
        cosines = np.cos(np.pi * k * (2 * n + 1) / 256) * np.sqrt(2 / 128)
        cosines[0] *= np.sqrt(0.5)
        self.cosines = self._on_device(cosines)

    def _on_device(self, values: Any) -> Any:
        return self.torch.as_tensor(np.ascontiguousarray(values), device="cuda").to(self.kind)

    def stft(self, y: Any, n_fft: int = N_FFT, hop: int = HOP, window: Any = None, center: bool = True) -> Any:
        return self.torch.stft(
            y, n_fft, hop, window=self.window if window is None else window, center=center, pad_mode="constant",
            return_complex=True,
        )  # fmt: skip

    def mel(self, y: Any) -> Any:
        return self.mels @ self.stft(y).abs().square()

    def mfcc(self, y: Any) -> Any:
        decibels = 10 * self.torch.log10(self.torch.clamp(self.mel(y), min=1e-10))
        return self.cosines @ self.torch.maximum(decibels, decibels.max() - 80.0)

    def griffinlim(self, S: Any, n_iter: int = 32, random: bool = True, length: int | None = None) -> Any:
        """librosa's algorithm as a loop of torch.stft and torch.istft."""
        torch, before, least = self.torch, None, 1.1754943508222875e-38
        angles = S * (torch.exp(2j * np.pi * torch.rand_like(S)) if random else torch.ones_like(S))
        angles = angles + 0j
        for _ in range(n_iter):
            rebuilt = self.stft(torch.istft(angles, N_FFT, HOP, window=self.window, length=length))
            angles = rebuilt if before is None else rebuilt - before * (0.99 / 1.99)
            angles = angles / (angles.abs() + least) * S
            before = rebuilt
        return torch.istft(angles, N_FFT, HOP, window=self.window, length=length)


def compared(what: str, got: Any, want: Any, limit: float) -> None:
    """Raise where a result is further from another than a part of its peak."""
    got, want = np.asarray(got), np.asarray(want)
    if got.shape != want.shape:
        raise AssertionError(f"{what} has shape {got.shape}, not {want.shape}")
    peak = float(np.abs(want).max())
    error = float(np.abs(got - want).max()) / peak
    if not error <= limit:
        raise AssertionError(f"{what} is off by {error:.2e} of the peak, over {limit:g}")
    print(f"     {what:40} off by {error:.1e} of the peak", flush=True)


def check_transforms(bench: Bench, minute: Any) -> None:
    """Compare `stft`, mel and mfcc with torch in double: 10 s, and every length of frames."""
    peer = Peer(bench.torch, bench.torch.float64)
    host = minute[: 10 * RATE + 77]
    y, theirs = gp.from_numpy(host), peer._on_device(host)
    for n in LENGTHS:
        window = peer._on_device(A.get_window("hann", n))
        for center in (True, False):
            want = peer.stft(theirs, n, n // 4, window, center).cpu().numpy()
            compared(f"stft {n} center={center}", A.stft(y, n_fft=n, center=center).to_numpy(), want, 1e-5)
    compared("melspectrogram", A.melspectrogram(y=y, sr=RATE).to_numpy(), peer.mel(theirs).cpu().numpy(), 5e-4)
    compared("mfcc", A.mfcc(y=y, sr=RATE).to_numpy(), peer.mfcc(theirs).cpu().numpy(), 5e-4)


def check_griffinlim(bench: Bench, minute: Any) -> None:
    """Compare `griffinlim` without random phases with the loop in torch, both in double."""
    peer = Peer(bench.torch, bench.torch.float64)
    host = minute[: 3 * RATE].astype(np.float64)
    S = np.abs(peer.stft(peer._on_device(host)).cpu().numpy())
    got = A.griffinlim(gp.from_numpy(S), n_iter=4, init=None, length=len(host))
    want = peer.griffinlim(peer._on_device(S), 4, random=False, length=len(host))
    compared("griffinlim", got.to_numpy(), want.cpu().numpy(), 1e-6)


def check_against_cpu(minute: Any) -> None:
    """Compare what librosa's times are for with the CPU device: 5 s."""
    host = minute[: 5 * RATE]
    for name, limit in (("hpss", 1e-3), ("cqt", 1e-4), ("pyin", None)):
        made = []
        for device in (None, gp.device("cpu")):
            if device is None:
                result = CALLS[name](A, gp.from_numpy(host))
            else:
                with device:
                    result = CALLS[name](A, gp.from_numpy(host))
            parts = result if isinstance(result, tuple) else (result,)
            made.append([np.nan_to_num(x.to_numpy().astype(np.complex128)) for x in parts])
        for i, (got, want) in enumerate(zip(*made, strict=True)):
            if limit is not None:
                compared(f"{name}, result {i}", got, want, limit)
                continue
            # A rounding may turn a path another way for a frame or two.
            same = float(np.mean(np.abs(got - want) <= 1e-3 * np.maximum(np.abs(want), 1e-3)))
            if not same >= 0.98:
                raise AssertionError(f"{name}, result {i}: {1 - same:.1%} of the frames differ from the CPU device's")
            print(f"     {name}, result {i}: {same:.2%} of the frames are the CPU device's", flush=True)


def timed(bench: Bench, what: str, call: Callable[[], Any]) -> float:
    """Milliseconds of a call, with fewer rounds where one takes long."""
    call()
    gp.synchronize()
    start = time.perf_counter()
    call()
    gp.synchronize()
    once = (time.perf_counter() - start) * 1e3
    print(f"     {what:62} {once:10.3f} ms, first look", flush=True)
    if once > LONG_MS:
        return once
    rounds = bench.options.rounds
    try:
        bench.options.rounds = max(1, min(rounds, int(10 * LONG_MS / max(once, 1e-3))))
        return bench.ours_ms(call)
    finally:
        bench.options.rounds = rounds


def hour(bench: Bench, y: Any, theirs: Any) -> None:
    """stft, mel and mfcc of an hour against torch.stft and its products."""
    peer = Peer(bench.torch, bench.torch.float32)
    cases: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        ("stft", lambda: A.stft(y), lambda: peer.stft(theirs)),
        ("melspectrogram", lambda: A.melspectrogram(y=y, sr=RATE), lambda: peer.mel(theirs)),
        ("mfcc", lambda: A.mfcc(y=y, sr=RATE), lambda: peer.mfcc(theirs)),
    ]
    for name, ours, other in cases:
        bench.against_torch(f"{name} of 1 h at 22,050 Hz", ours, other, 1 / 2, stretch=1 / 3)


def share(bench: Bench, y: Any) -> None:
    """The transform alone as a share of the copy rate: bytes are the input once and the output once."""
    for n in LENGTHS:
        hop = n // 4
        for center in (True, False):
            frames = 1 + (y.shape[-1] - (0 if center else n)) // hop
            nbytes = y.nbytes + frames * (n // 2 + 1) * 8
            call = partial(A.stft, y, n_fft=n, center=center)
            what = f"stft of {n} points, hop {hop}, center={center}, of the copy rate"
            bench.of_copy_rate(what, call, nbytes, 0.6, stretch=0.8)


def rebuilt(bench: Bench, y: Any) -> None:
    """griffinlim of five minutes, 32 iterations, against a loop of torch.stft and torch.istft."""
    torch, peer = bench.torch, Peer(bench.torch, bench.torch.float32)
    S = gp.abs(A.stft(y)).copy()
    theirs = torch.from_numpy(S.to_numpy()).cuda()
    what = "griffinlim of 5 min, 32 iterations"
    bench.against_torch(what, lambda: A.griffinlim(S), lambda: peer.griffinlim(theirs), 1 / 1.5, stretch=1 / 3)
    bench.against_torch(
        f"{what}, phases of 0 at first", lambda: A.griffinlim(S, init=None),
        lambda: peer.griffinlim(theirs, random=False), 1 / 1.5,
    )  # fmt: skip


def beside_librosa(bench: Bench, y: Any) -> None:
    """hpss, cqt and pyin of five minutes against librosa's recorded times."""
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    seconds = {row["what"]: row["seconds"] for row in record["rows"]}
    for name, call in CALLS.items():
        what = f"{name} of {MINUTES} min, against librosa on {record['cores']} cores of {record['processor']}"
        if not bench.wanted(what):
            continue

        def measure(name: str = name, call: Callable[[Any, Any], Any] = call, what: str = what) -> None:
            mine, theirs = timed(bench, what, lambda: call(A, y)), 1e3 * seconds[name] * bench.options.part
            for label, must in (("", 1 / 300), (" (stretch)", 1 / 1000)):
                bench.report.add(f"{what}{label}", mine, theirs, "ms", must, times=theirs / mine)

        bench.guarded(what, measure)


def main() -> int:
    """Measure."""
    bench = Bench(
        __doc__, lambda p: p.add_argument("--part", type=float, default=1.0, help="of each length (default 1)")
    )
    minute, part = samples(), bench.options.part
    bench.check(check_transforms, bench, minute)
    bench.check(check_griffinlim, bench, minute)
    bench.check(check_against_cpu, minute)

    def sound(minutes: int) -> Any:
        return bench.torch.from_numpy(np.tile(minute, minutes)[: int(minutes * len(minute) * part)]).cuda()

    theirs = sound(HOUR)
    y = gp.from_dlpack(theirs)
    bench.guarded("an hour", lambda: hour(bench, y, theirs))
    bench.guarded("shares", lambda: share(bench, y))
    five = gp.from_numpy(sound(MINUTES).cpu().numpy())
    bench.guarded("griffinlim", lambda: rebuilt(bench, five))
    bench.guarded("librosa", lambda: beside_librosa(bench, five))
    return bench.finish("python benchmarks/audio/gpu.py")


if __name__ == "__main__":
    sys.exit(main())
