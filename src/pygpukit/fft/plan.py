"""Plans of transforms: radices and threads of a block for a length, steps of long ones, tables of roots of unity."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import islice, permutations
from math import isqrt, log2, prod
from typing import Any, Literal, NamedTuple

import numpy as np

from pygpukit.dtypes import DataType
from pygpukit.ops.launch import Unit
from pygpukit.ops.source import instance

Source = Literal["COMPLEX", "PACKED", "REAL", "HERMITIAN", "HERMITIAN_ODD"]
Sink = Literal["COMPLEX", "STEP", "ENDS", "HALF", "HALF_ODD", "PACKED", "REAL"]

LARGEST_PRIME = 13
_SHARED = 96 << 10
_NO_PAD = 1 << 20
_THREADS = 128
_MOST_THREADS = 1024
_FILE = "fft/block.cu"


class Shape(NamedTuple):
    """How a block computes transforms.

    Attributes
    ----------
    n
        Points of the complex transform.
    radices
        Of the passes, in order.
    lanes, rows
        Threads per row, and rows per block.
    split
        Real and imaginary parts move through shared memory in turn.
    pad
        In shared memory an element is left out after each so many; more than ``n`` for none.
    stride
        Elements from row to row there.
    shared
        Bytes of dynamic shared memory.
    """

    n: int
    radices: tuple[int, ...]
    lanes: int
    rows: int
    split: bool
    pad: int
    stride: int
    shared: int


MOST_POINTS = {4: 16384, 8: 8192}
"""Points of the longest complex transform in a block, by the size of a real."""

BUNDLED = {4: (16, 64, 128, 256, 400, 512, 1024, 2048, 4096), 8: (64, 512, 4096)}
"""Lengths whose kernels bundles hold, by the size of a real."""


def limit(real: DataType) -> int:
    """Return the most points of a complex transform that one block computes."""
    return MOST_POINTS[real.itemsize]


def factors(n: int) -> list[int]:
    """Return the prime factors, ascending.

    Examples
    --------
    >>> factors(400)
    [2, 2, 2, 2, 5, 5]
    """
    found, p = [], 2
    while p * p <= n:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found + [n] * (n > 1)


def is_smooth(n: int) -> bool:
    """Has every prime factor a butterfly?"""
    return all(p <= LARGEST_PRIME for p in factors(n))


def _splits(n: int, most: int) -> Iterator[tuple[int, ...]]:
    """Yield the ways to write ``n`` as a product of radices up to ``most``, descending."""
    if n == 1:
        yield ()
    for r in range(min(n, most), 1, -1):
        if n % r == 0 and (r <= 16):
            for rest in _splits(n // r, r):
                yield (r, *rest)


def _work(r: int) -> float:
    """Return the cost of a pass per element: its move through shared memory, and arithmetic."""
    return 4.0 + sum(0.5 if p == 2 else 0.4 * p for p in factors(r))


@cache
def layout(n: int, wide: bool) -> tuple[tuple[int, ...], int]:
    """Return the radices and the number of threads for a row of ``n`` points, a product of small primes.

    Examples
    --------
    >>> layout(512, False)
    ((8, 8, 8), 32)
    """
    held = (8 if wide else 16) * (1 if n <= (4096 if wide else 8192) else 2)
    best: tuple[float, tuple[int, ...], int] = (float("inf"), (1,), 1)
    for radices in _splits(n, 10 if wide else 16) if n > 1 else ():
        # One thread per row reads whole rows: only the shortest do not gain by sharing them.
        if len(radices) == 1 and n > 5 and len(factors(n)) > 1:
            continue
        largest = max(radices)
        for lanes in {-(-n // (r * k)) for r in radices for k in (1, 2, 4)}:
            loops = [-(-n // (r * lanes)) for r in radices]
            registers = max(r * k for r, k in zip(radices, loops, strict=True))
            if lanes == 1 < len(radices):
                continue
            if lanes > _MOST_THREADS // (1 + (n <= 8192)) or registers > max(held, largest):
                continue
            cost = sum(_work(r) * r * k * lanes / n for r, k in zip(radices, loops, strict=True))
            # Few elements per thread mean many threads, each with its own addresses.
            cost *= 1.0 + 0.6 / min(registers, 12) + 0.02 * abs(log2(max(lanes, 32) / 64)) + 0.01 * largest / 16
            best = min(best, (cost, radices, lanes))
    if n > 1 and best[2] == 1 and best[1] == (1,):
        # Primes of one pass above the usual radix.
        radices = tuple(reversed(factors(n)))
        return radices, max(n // max(radices), 1)
    return best[1], best[2]


@cache
def shape_of(n: int, wide: bool, columns: bool) -> Shape:
    """Return how a block computes rows of ``n`` points; ``columns``: neighbouring rows are neighbours in memory."""
    radices, lanes = layout(n, wide)
    element = 16 if wide else 8

    def bytes_of(rows: int, split: bool) -> int:
        unit = element // 2 if split else element
        return rows * (n + n // (128 // unit) + 128 // unit) * unit

    split = bytes_of(1, False) > _SHARED
    if columns:
        rows = max(128 // element, _THREADS // lanes)
        while rows > 1 and (rows * lanes > _MOST_THREADS or bytes_of(rows, True) > _SHARED):
            rows //= 2
        split = bytes_of(rows, False) > _SHARED
    else:
        rows = max(1, _THREADS // lanes)
        choices = [r for r in range(rows, 2 * rows) if r * lanes <= 2 * _THREADS] or [rows]
        # Whole warps, or nearly.
        rows = min(choices, key=lambda r: (-(-r * lanes // 32) * 32 / (r * lanes), r))
        while rows > 1 and bytes_of(rows, False) > _SHARED // 2:
            rows -= 1
    unit = element // 2 if split else element
    radices, pad, stride = _placed(n, radices, lanes, rows, columns, 128 // unit)
    return Shape(n, radices, lanes, rows, split, pad, stride, rows * stride * unit)


def _placed(n: int, radices: tuple[int, ...], lanes: int, rows: int, columns: bool, banks: int
            ) -> tuple[tuple[int, ...], int, int]:  # fmt: skip
    """Return the order of radices, the padding and the stride of rows with the fewest conflicts of banks."""
    if len(radices) == 1:
        return radices, _NO_PAD, n | 1
    orders = list(islice(dict.fromkeys(permutations(radices)), 6))
    lengths = {pad: n + n // pad for pad in (banks, banks // 2, 2 * banks, _NO_PAD)}
    start = 1 if not columns or rows >= banks else banks // rows
    padded = [
        (_conflicts(order, lanes, rows, columns, banks, pad, length + (start - length) % banks), i, order, pad)
        for i, order in enumerate(orders)
        for pad, length in lengths.items()
    ]
    _, _, order, pad = min(padded)
    strides = range(lengths[pad], lengths[pad] + banks) if rows > 1 else [lengths[pad]]
    found = min((_conflicts(order, lanes, rows, columns, banks, pad, stride), stride) for stride in strides)
    return order, pad, found[1]


def _conflicts(radices: tuple[int, ...], lanes: int, rows: int, columns: bool, banks: int, pad: int, stride: int
               ) -> float:  # fmt: skip
    """Return how often a bank is asked in turn, for samples of what the first warps read and write."""
    n, done, total = prod(radices), 1, 0.0
    threads = np.arange(min(-(-lanes * rows // banks) * banks, 64))
    row, lane = (threads % rows, threads // rows) if columns else (threads // lanes, threads % lanes)
    for p, r in enumerate(radices):
        on = (lane < n // r) & (row < rows)
        written = lane % done + lane // done * (done * r)
        for places, step, there in ((written, done, p < len(radices) - 1), (lane, n // r, p > 0)):
            for e in (0, r // 2) if there else ():
                at = places + e * step
                bank = np.where(on, (at + at // pad + row * stride) % banks, -1).reshape(-1, banks)
                total += float((bank[:, :, None] == np.arange(banks)).sum(1).max(1).sum()) * r
        done *= r
    return total


@cache
def steps(n: int, wide: bool) -> tuple[int, ...] | None:
    """Return lengths whose product is ``n`` and which blocks compute for many neighbouring columns, or None.

    Examples
    --------
    >>> steps(65536, False)
    (256, 256)
    """
    most = 1024 if wide else 2048
    primes = factors(n)
    if primes[-1] > LARGEST_PRIME or n >= 1 << 32:
        return None
    for count in (2, 3):
        found = _divide(n, count)
        if found is not None and max(found) <= most:
            return found
    return None


def _divide(n: int, count: int) -> tuple[int, ...] | None:
    """Return ``count`` factors of ``n`` whose largest is smallest."""
    if count == 1:
        return (n,)
    best: tuple[int, ...] | None = None
    for d in range(2, round(n ** (1 / count)) + 2):
        if n % d == 0:
            rest = _divide(n // d, count - 1)
            made = None if rest is None else tuple(sorted((d, *rest), reverse=True))
            if made is not None and (best is None or max(made) < max(best)):
                best = made
    return best


@cache
def convolution_length(n: int) -> int:
    """Return a length with small factors, at least ``2 n - 1``, whose transforms cost little."""
    least = 2 * n - 1
    candidates = []
    for odd in (1, 3, 5, 9, 15):
        power = 0
        while odd << power < least:
            power += 1
        candidates.append(odd << power)
    # A length with an odd factor has to be a tenth shorter to be faster.
    return min(candidates, key=lambda m: m * (1.0 if m & (m - 1) == 0 else 1.1))


def bundled_convolution(n: int, real: DataType) -> int | None:
    """Return a length for the same of which bundles hold the transforms; None if there is none."""
    return next((m for m in BUNDLED[real.itemsize] if m >= 2 * n - 1), None)


def roots(turns: Any, n: int) -> np.ndarray[Any, np.dtype[np.complex128]]:
    """Return ``exp(-2 pi i turns / n)`` for integers, with exact reduction."""
    reduced = np.mod(np.asarray(turns, np.int64), n)
    eighth, rest = np.divmod(8 * reduced, n)
    # Angles up to an eighth of a turn, from the nearer end of each eighth.
    odd = (eighth & 1).astype(bool)
    angle = np.where(odd, n - rest, rest) * (2 * np.pi / (8 * n))
    c, s = np.cos(angle), np.sin(angle)
    c, s = np.where(odd, s, c), np.where(odd, c, s)
    for _ in range(3):
        turn = eighth >= 2
        c, s = np.where(turn, -s, c), np.where(turn, c, s)
        eighth = np.where(turn, eighth - 2, eighth)
    return c - 1j * s


def pass_roots(radices: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.complex128]]:
    """Return the table of all passes: for each but the first, roots to the powers of two below its radix."""
    found, done = [np.ones(1, np.complex128)], radices[0]
    for r in radices[1:]:
        found += [roots(np.arange(done) << s, done * r) for s in range((r - 1).bit_length())]
        done *= r
    return np.concatenate(found[1:] or found)


def two_level(n: int) -> tuple[int, np.ndarray[Any, np.dtype[np.complex128]]]:
    """Return a shift and a table: the root of ``t`` is entry ``t >> shift`` times entry ``2**shift + t % 2**shift``.

    The first part has ``2**shift`` places, at least as many as are used.
    """
    shift = (isqrt(n - 1).bit_length()) if n > 1 else 0
    return shift, np.concatenate([roots(np.arange(1 << shift) << shift, n), roots(np.arange(1 << shift), n)])


def chirp(n: int, m: int) -> np.ndarray[Any, np.dtype[np.complex128]]:
    """Return ``exp(-pi i j^2 / n)`` for ``j < n``, and the spectrum of length ``m`` of its inverse, over ``m``."""
    j = np.arange(n, dtype=np.int64)
    # Squares modulo 2 n stay exact: j < 2^31.
    c = roots(j * j % (2 * n), 2 * n)
    h = np.zeros(m, np.complex128)
    h[:n] = c.conj()
    h[m - n + 1 :] = c[:0:-1].conj()
    return np.concatenate([c, np.fft.fft(h) / m])


def words(name: str, values: np.ndarray[Any, np.dtype[np.complex128]], wide: bool) -> str:
    """Return the definition of a table in device memory."""
    pairs = np.stack([values.real, values.imag], -1).astype(np.float64 if wide else np.float32).ravel()
    words = ",".join(map(hex, pairs.view(np.uint64 if wide else np.uint32).tolist()))
    kind, suffix = ("unsigned long long", "ull") if wide else ("unsigned int", "u")
    return f"__device__ const __align__(16) {kind} {name}[] = {{{words.replace(',', suffix + ',') + suffix}}};"


@cache
def unit(points: int, real: DataType, source: Source, sink: Sink, columns: tuple[bool, bool] = (False, False),
         total: int = 0) -> tuple[Unit, Shape]:  # fmt: skip
    """Return the kernel that transforms rows of ``points`` points, and its shape.

    Parameters
    ----------
    points
        Length of the transform; a packed real or Hermitian one has half as many complex points.
    real
        Type of the parts of numbers.
    source, sink
        What is read and written.
    columns
        Whether neighbouring rows are neighbours in memory where it reads, and where it writes.
    total
        With the sinks ``"STEP"`` and ``"ENDS"``, the length of the whole transform.
    """
    wide = real.itemsize == 8
    n = points // 2 if "PACKED" in (source, sink) else points
    chirped = not is_smooth(n)
    shape = shape_of(convolution_length(n) if chirped else n, wide, any(columns))
    shift, extra = 0, np.ones(1, np.complex128)
    if chirped:
        extra = chirp(n, shape.n)
    elif source == "PACKED" or sink == "PACKED":
        extra = roots(np.arange((n + 1) // 2), points)
    elif sink in ("STEP", "ENDS"):
        shift, extra = two_level(total)
    if sink == "PACKED":
        source = "HERMITIAN"
    elif source == "PACKED":
        sink = "HALF"
    names = {"COMPLEX": "c", "PACKED": "p", "REAL": "r", "HERMITIAN": "h", "HERMITIAN_ODD": "ho", "STEP": "s",
             "ENDS": "e", "HALF": "h", "HALF_ODD": "ho"}  # fmt: skip
    moves = "" if columns == (False, False) else "_" + "".join("rc"[c] for c in columns)
    entry = f"pgk_fft_{names[source]}2{names[sink]}_{points}{f'_of_{total}' if total else ''}{moves}_{real.tag}"
    flags = ", ".join("true" if x else "false" for x in (shape.split, *columns))
    sizes = ", ".join(map(str, (shape.n, shape.lanes, shape.rows, shape.pad, shape.stride)))
    block = f"pgk::Block<pgk::{real.tag}, {sizes}, {flags}>"
    passes = f"pgk::Radices<{', '.join(map(str, shape.radices))}>"
    lines = [
        words("fft_roots", pass_roots(shape.radices), wide),
        words("fft_extra", extra, wide),
        f"using FftBlock = {block};",
        f"using FftPasses = {passes};",
        f"PGK_FFT({entry}, {real.tag}, FftBlock, {points}, {source}_IN, {sink}_OUT, {str(chirped).lower()}, {shift}, "
        "FftPasses)",
    ]
    return instance(_FILE, lines, (entry,)), shape


def operations(points: int) -> int:
    """Return the operations of a transform, as transforms are compared: ``5 n log2 n``."""
    return int(5 * points * log2(points)) if points > 1 else 0


def is_plan(shape: Shape) -> bool:
    """Do the passes of a shape make its length?"""
    return prod(shape.radices) == shape.n
