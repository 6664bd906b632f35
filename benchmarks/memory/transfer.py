"""Copies between host and device against torch and the disk: pinned, both ways at once, pageable, files, small ones.

Ours and the peer run in one process, alternating; every figure is a median of many rounds. Without a GPU (or torch)
ours is compared with a plain copy in host memory, to see that everything runs; such figures say nothing.

    python benchmarks/memory/transfer.py --json benchmarks/results/h200-transfer.json
    python benchmarks/memory/transfer.py --sweep workers=2,4,8,12 chunk=2,4,8 slots=8,16 past_caches=0,1
"""

from __future__ import annotations

import argparse
import itertools
import mmap
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit import _pygpukit_rust as native
from pygpukit.config import parse_size

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from report import Report, alternate

PARTS = ["pinned", "duplex", "pageable", "small", "file"]
OPTIONS = ["workers", "chunk", "slots", "past_caches"]


class Peer:
    """Torch on the GPU, or copies in host memory where there is none."""

    def __init__(self, nbytes: int) -> None:
        self.torch: Any = None
        if gp.is_cuda_available():
            try:
                import torch

                self.torch = torch
            except ImportError:
                print("torch is not installed: ours is compared with a copy in host memory", file=sys.stderr)
        self.name = "a copy in host memory" if self.torch is None else "torch"
        noise = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
        if self.torch is None:
            self.host, self.pinned, self.device = noise.copy(), noise.copy(), noise.copy()
        else:
            self.host = self.torch.from_numpy(noise.copy())
            self.pinned = self.torch.empty(nbytes, dtype=self.torch.uint8, pin_memory=True)
            self.pinned.copy_(self.host)
            self.device = self.host.cuda()

    def _copy(self, target: Any, source: Any, non_blocking: bool) -> None:
        if self.torch is None:
            np.copyto(target, source)
        else:
            target.copy_(source, non_blocking=non_blocking)
            self.torch.cuda.synchronize()

    def pinned_up(self) -> None:
        self._copy(self.device, self.pinned, True)

    def pinned_down(self) -> None:
        self._copy(self.pinned, self.device, True)

    def pageable_up(self) -> None:
        """A new tensor, as ours makes a new array."""
        if self.torch is None:
            self.host.copy()
        else:
            self.host.cuda()
            self.torch.cuda.synchronize()

    def pageable_down(self) -> None:
        if self.torch is None:
            self.device.copy()
        else:
            self.device.cpu()

    def small_up(self, sources: list[np.ndarray[Any, Any]]) -> None:
        for source in sources:
            if self.torch is None:
                source.copy()
            else:
                self.torch.from_numpy(source).cuda()
        if self.torch is not None:
            self.torch.cuda.synchronize()


def pinned(report: Report, peer: Peer, nbytes: int, rounds: int) -> float:
    """Page-locked memory, each way; returns the slower of our rates in GB/s."""
    host = gp.empty_pinned(nbytes, "uint8")
    host[:] = np.random.default_rng(2).integers(0, 256, nbytes, dtype=np.uint8)
    array = gp.empty(nbytes, "uint8")
    up, their_up, down, their_down = alternate(
        rounds,
        lambda: gp.copy_to_device(host, array).wait(),
        peer.pinned_up,
        lambda: gp.copy_to_host(array, host).wait(),
        peer.pinned_down,
    )
    scale = nbytes / 1e9
    report.add(f"pinned to the device, against {peer.name}", scale / up, scale / their_up, "GB/s", 0.97, at_least=True)
    report.add(
        f"pinned to the host, against {peer.name}", scale / down, scale / their_down, "GB/s", 0.97, at_least=True
    )
    return scale / max(up, down)


def duplex(report: Report, nbytes: int, rounds: int) -> None:
    """Both ways at once, page-locked."""
    hosts = [gp.empty_pinned(nbytes, "uint8") for _ in range(2)]
    for host in hosts:
        host[:] = 7
    arrays = [gp.empty(nbytes, "uint8") for _ in range(2)]

    def both() -> None:
        transfers = [gp.copy_to_device(hosts[0], arrays[0]), gp.copy_to_host(arrays[1], hosts[1])]
        for transfer in transfers:
            transfer.wait()

    one, two = alternate(rounds, lambda: gp.copy_to_device(hosts[0], arrays[0]).wait(), both)
    report.add(
        "pinned, both ways at once, against one way",
        2 * nbytes / two / 1e9,
        nbytes / one / 1e9,
        "GB/s",
        1.7,
        at_least=True,
    )


def pageable(report: Report, peer: Peer, nbytes: int, rounds: int, pinned_rate: float | None) -> None:
    """from_numpy and to_numpy."""
    host = np.random.default_rng(3).integers(0, 256, nbytes, dtype=np.uint8)
    array = gp.from_numpy(host)

    def upload() -> None:
        gp.from_numpy(host)
        gp.synchronize()

    up, their_up, down, their_down = alternate(rounds, upload, peer.pageable_up, array.to_numpy, peer.pageable_down)
    # Into memory that has been written before: what the system does for fresh pages is not a copy.
    again = np.zeros_like(host)
    (reused,) = alternate(rounds, lambda: gp.copy_to_host(array, again).wait())
    np.testing.assert_array_equal(again, host)
    scale = nbytes / 1e9
    report.add(f"from_numpy, against {peer.name}", scale / up, scale / their_up, "GB/s", 2.0, at_least=True)
    report.add(f"to_numpy, against {peer.name}", scale / down, scale / their_down, "GB/s", 2.0, at_least=True)
    report.add(
        f"to the host, used pages, against {peer.name}", scale / reused, scale / their_down, "GB/s", 2.0, at_least=True
    )
    if pinned_rate is not None:
        report.add("from_numpy against our pinned rate (stretch)", scale / up, pinned_rate, "GB/s", 0.8, at_least=True)
        report.add("to_numpy against our pinned rate (stretch)", scale / down, pinned_rate, "GB/s", 0.8, at_least=True)


def small(report: Report, peer: Peer, rounds: int) -> None:
    """256 uploads of 4 KiB: one by one, and in one call."""
    sources = [np.full(1024, i, "float32") for i in range(256)]
    targets = [gp.empty(1024) for _ in sources]
    pairs = list(zip(sources, targets, strict=True))

    def one_by_one() -> None:
        for source in sources:
            gp.from_numpy(source)
        gp.synchronize()

    def at_once() -> None:
        gp.copy_many(pairs)
        gp.synchronize()

    single, batched, theirs = alternate(rounds, one_by_one, at_once, lambda: peer.small_up(sources))
    each = 1e6 / len(sources)
    report.add(f"from_numpy of 4 KiB, against {peer.name}", single * each, theirs * each, "us", 1.0)
    report.add(f"copy_many of 4 KiB, against {peer.name}", batched * each, theirs * each, "us", 0.5)


def drop_cache(path: Path) -> None:
    """Let the system forget the file's pages."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def disk_rate(path: Path, threads: int, block: int) -> float:
    """GB/s of the disk: threads that read the whole file past the page cache, where the file system allows."""
    size = path.stat().st_size
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECT", 0))
    except OSError:
        descriptor = os.open(path, os.O_RDONLY)
    offsets = iter(range(0, size, block))
    lock = threading.Lock()

    def read() -> None:
        # A mapping without a file is aligned as direct reads need it.
        with mmap.mmap(-1, block) as buffer:
            while True:
                with lock:
                    offset = next(offsets, None)
                if offset is None:
                    return
                os.preadv(descriptor, [buffer], offset)

    start = time.perf_counter()
    readers = [threading.Thread(target=read) for _ in range(threads)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    os.close(descriptor)
    return size / (time.perf_counter() - start) / 1e9


def file(report: Report, nbytes: int, folder: str | None, pinned_rate: float | None, rounds: int) -> None:
    """A file the system does not have in memory."""
    workers, chunk, _, _ = native.transfer_options()
    with tempfile.TemporaryDirectory(dir=folder) as made:
        path = Path(made) / "weights.bin"
        piece = np.random.default_rng(4).integers(0, 256, min(nbytes, 64 << 20), dtype=np.uint8)
        with path.open("wb") as target:
            for _ in range(0, nbytes, piece.nbytes):
                target.write(piece.tobytes())
        nbytes = path.stat().st_size
        cold, warm, disk = [], [], []
        for _ in range(rounds):
            drop_cache(path)
            disk.append(disk_rate(path, workers + 1, chunk))
            drop_cache(path)
            start = time.perf_counter()
            array = gp.load_raw(path, 0, nbytes, "uint8", progress=False)
            gp.synchronize()
            cold.append(nbytes / (time.perf_counter() - start) / 1e9)
            got = array[-piece.nbytes :].to_numpy()
            del array
        np.testing.assert_array_equal(got, piece)
        np.fromfile(path, np.uint8, min(nbytes, 1 << 30))
        for _ in range(rounds):
            start = time.perf_counter()
            gp.load_raw(path, 0, min(nbytes, 1 << 30), "uint8", progress=False)
            gp.synchronize()
            warm.append(min(nbytes, 1 << 30) / (time.perf_counter() - start) / 1e9)
    ceiling = min(statistics.median(disk), pinned_rate or float("inf"))
    report.add(
        "load_raw of a cold file, against the disk or the bus",
        statistics.median(cold),
        ceiling,
        "GB/s",
        0.9,
        disk=disk,
        warm=warm,
        folder=folder or tempfile.gettempdir(),
        at_least=True,
    )
    print(f"     the same file from the system's cache {statistics.median(warm):.3f} GB/s", flush=True)


def run(report: Report, parts: list[str], sizes: tuple[int, int], rounds: int, folder: str | None) -> None:
    """All parts asked for, with the options in force."""
    nbytes, file_bytes = sizes
    peer = Peer(nbytes)
    rate = pinned(report, peer, nbytes, rounds) if {"pinned", "file", "pageable"} & set(parts) else None
    if "duplex" in parts:
        duplex(report, nbytes, rounds)
    if "pageable" in parts:
        pageable(report, peer, nbytes, rounds, rate)
    if "small" in parts:
        small(report, peer, rounds)
    del peer
    gp.memory.trim_pinned()
    if "file" in parts:
        file(report, file_bytes, folder, rate, max(1, min(rounds, 3)))


def options_of(sweep: list[str]) -> list[dict[str, int]]:
    """Every combination of the values given as NAME=VALUE,VALUE."""
    names, values = [], []
    for item in sweep:
        name, _, given = item.partition("=")
        if name not in OPTIONS:
            raise SystemExit(f"--sweep takes {', '.join(OPTIONS)}, not {name!r}")
        names.append(name)
        values.append([int(value) for value in given.split(",")])
    return [dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*values)]


def apply_options(chosen: dict[str, int]) -> None:
    """Options that are not named stay; `chunk` is in MiB."""
    workers, chunk, slots, past_caches = native.transfer_options()
    native.set_transfer_options(
        chosen.get("workers", workers),
        chosen["chunk"] << 20 if "chunk" in chosen else chunk,
        chosen.get("slots", slots),
        bool(chosen.get("past_caches", past_caches)),
    )


def main() -> int:
    """Run the benchmark; the exit code says whether every bar held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write all rows here")
    parser.add_argument("--rounds", type=int, default=20, help="rounds per figure (default 20)")
    parser.add_argument("--only", nargs="*", choices=PARTS)
    parser.add_argument("--size", help="bytes of an array (default 1GiB; 8MiB without a GPU)")
    parser.add_argument("--file-size", help="bytes of the file (default 8GiB; 16MiB without a GPU)")
    parser.add_argument("--folder", help="where the file is made; a real disk, not one in memory")
    parser.add_argument(
        "--sweep", nargs="*", default=[], help="NAME=VALUE,VALUE of workers, chunk (MiB), slots, past_caches"
    )
    args = parser.parse_args()
    on_gpu = gp.is_cuda_available()
    sizes = (
        parse_size(args.size or ("1GiB" if on_gpu else "8MiB")),
        parse_size(args.file_size or ("8GiB" if on_gpu else "16MiB")),
    )
    report = Report()
    before = native.transfer_options()
    for chosen in options_of(args.sweep):
        apply_options(chosen)
        workers, chunk, slots, past_caches = native.transfer_options()
        print(
            f"-- {workers} threads, chunks of {chunk >> 20} MiB, {slots} slots, past the caches: {past_caches}",
            flush=True,
        )
        first = len(report.rows)
        run(report, args.only or PARTS, sizes, args.rounds, args.folder)
        for row in report.rows[first:]:
            row["options"] = dict(zip(OPTIONS, (workers, chunk, slots, past_caches), strict=True))
    native.set_transfer_options(*before)
    missed = report.finish(args.json, " ".join(["python", "benchmarks/memory/transfer.py", *sys.argv[1:]]))
    return missed if on_gpu else 0


if __name__ == "__main__":
    sys.exit(main())
