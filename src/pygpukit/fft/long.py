"""Transforms of rows longer than a block holds: columns, roots between, rows, through workspace.

With ``n = a * b``, element ``j * b + i`` of a row is element ``j`` of column ``i``. The columns are transformed and
number ``r`` of column ``i`` is multiplied by the root of order ``n`` to the power ``r * i``. Row ``r`` of the result is
then transformed, and its number ``k`` is number ``r + k * a`` of the whole.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

from pygpukit.dtypes import DataType, dtype
from pygpukit.fft import plan
from pygpukit.fft.layout import INVERSE, LAST_OF_THREE, LAST_STEP, PLAIN, Batch, launch
from pygpukit.ops.launch import KernelLaunch, Launch, Number, Unit, Workspace, blocks_for, i32, i64, read, write
from pygpukit.ops.problem import Tensor
from pygpukit.ops.size import ceil_div
from pygpukit.ops.source import instance

_THREADS = 256


def _one(real: DataType) -> bytes:
    return struct.pack("<f" if real.itemsize == 4 else "<d", 1.0)


def _steps(work: Workspace, x: Tensor, out: Tensor, batch: Batch, lengths: tuple[int, ...], real: DataType,
           scale: Number | bytes, inverse: bool, last: int = LAST_STEP) -> Iterator[KernelLaunch]:  # fmt: skip
    """Yield the launches for the rows of the two inner levels of a batch."""
    n, a = prod(lengths), lengths[0]
    b = n // a
    _, outer, inner = batch.sizes
    complex_type = dtype("complex64" if real.itemsize == 4 else "complex128")
    between = work.buffer(complex_type, outer * inner, n)
    columns = Batch((outer, inner, b), (*batch.x[1:], b * batch.x[3]), (inner * n, n, 1, b))
    made = plan.unit(a, real, "COMPLEX", "STEP", (True, True), n)
    yield launch(made, columns, write(between), read(x), None, a, _one(real), PLAIN)
    if len(lengths) == 3:
        # One level of rows became two.
        step = -batch.out[3] if inverse else batch.out[3]
        rest = Batch((1, inner, a), (0, n, b, 1), (0, batch.out[2], step, a * batch.out[3]))
        yield from _steps(work, between, out, rest, lengths[1:], real, scale, inverse, LAST_STEP | LAST_OF_THREE)
        return
    # Of an inverse transform all numbers but the first are written in reverse order.
    strides = (*batch.out[1:3], -batch.out[3] if inverse else batch.out[3], a * batch.out[3])
    ends = Batch((outer, inner, a), (inner * n, n, b, 1), strides)
    made = plan.unit(b, real, "COMPLEX", "COMPLEX", (False, True))
    yield launch(made, ends, write(out), read(between), None, b, scale, PLAIN | last | INVERSE * inverse)


def complex_launch(x: Tensor, out: Tensor, batch: Batch, n: int, scale: Number, flags: int) -> Launch:
    """Return the launches for complex rows."""
    wide, work = x.dtype.itemsize == 16, Workspace()
    lengths = plan.steps(n, wide)
    assert lengths is not None
    launches = tuple(_steps(work, x, out, batch, lengths, scale.dtype, scale, bool(flags & INVERSE)))
    return Launch(launches, tuple(work.pieces))


@cache
def halves_unit(points: int, real: DataType) -> Unit:
    """Return the kernels that separate and join the halves of long real rows."""
    shift, table = plan.two_level(points)
    entries = tuple(f"pgk_fft_{what}_{points}_{real.tag}" for what in ("separate", "join"))
    lines = [
        plan.words("fft_extra", table, real.itemsize == 8),
        *(f"PGK_FFT_{what}({entry}, {real.tag}, {points // 2}, {shift})"
          for what, entry in zip(("SEPARATE", "JOIN"), entries, strict=True)),
    ]  # fmt: skip
    return instance("fft/halves.cu", lines, entries)


def _halves(points: int, real: DataType, which: int, out: Tensor, x: Tensor, batch: Batch, strides: tuple[Any, ...],
            scale: Number | bytes, flags: int) -> KernelLaunch:  # fmt: skip
    half = points // 2
    per_row = ceil_div((half + 1) // 2, _THREADS)
    _, outer, inner = batch.sizes
    unit = halves_unit(points, real)
    blocks = blocks_for(outer * inner * per_row, 1, "a transform of long rows")
    arguments = (write(out), read(x), *map(i64, (per_row, inner, *strides)), scale, i32(flags))
    return KernelLaunch(unit, unit.entries[which], (blocks,), (_THREADS,), arguments)


def _separated(work: Workspace, x: Tensor, out: Tensor, batch: Batch, pairs: Batch, lengths: tuple[int, ...],
               real: DataType, scale: Number, flags: int) -> tuple[KernelLaunch, KernelLaunch]:  # fmt: skip
    """Return the two launches for real rows whose last step separates what it has transformed."""
    a, b = lengths
    _, outer, inner = batch.sizes
    between = work.buffer(out.dtype, outer * inner, a * b)
    columns = Batch((outer, inner, b), (*pairs.x[1:], b * pairs.x[3]), (inner * a * b, a * b, 1, b))
    made = plan.unit(a, real, "COMPLEX", "STEP", (True, True), a * b)
    first = launch(made, columns, write(between), read(x), None, a, _one(real), PLAIN)
    strides = (*batch.out[1:3], batch.out[3], a * batch.out[3])
    ends = Batch((outer, inner, a), (inner * a * b, a * b, b, 1), strides)
    made = plan.unit(b, real, "COMPLEX", "ENDS", (False, True), 2 * a * b)
    last = launch(made, ends, write(out), read(between), None, b, scale, PLAIN | flags)
    # A block has rows and their partners, of each row of the whole.
    groups = (a // 2 + 1 + made[1].rows // 2 - 1) // (made[1].rows // 2)
    blocks = blocks_for(outer * inner * groups, 1, "a transform of long rows")
    return first, last._replace(grid=(blocks,))


def real_launch(x: Tensor, out: Tensor, batch: Batch, n: int, scale: Number, flags: int) -> Launch:
    """Return the launches for real rows: pairs as complex numbers, whose transforms are separated."""
    real, half, work = scale.dtype, n // 2, Workspace()
    lengths = plan.steps(half, real.itemsize == 8)
    assert lengths is not None
    _, outer, inner = batch.sizes
    pairs = Batch(batch.sizes, (0, batch.x[1] // 2, batch.x[2] // 2, 1), (0, inner * half, half, 1))
    if len(lengths) == 2:
        return Launch(_separated(work, x, out, batch, pairs, lengths, real, scale, flags), tuple(work.pieces))
    whole = work.buffer(out.dtype, outer * inner, half)
    launches = [*_steps(work, x, whole, pairs, lengths, real, _one(real), False)]
    launches.append(_halves(n, real, 0, out, whole, batch, batch.out[1:], scale, flags))
    return Launch(tuple(launches), tuple(work.pieces))


def hermitian_launch(x: Tensor, out: Tensor, batch: Batch, n: int, scale: Number, flags: int) -> Launch:
    """Return the launches for half the points of real rows: joined to complex numbers, which become pairs of reals."""
    real, half, work = scale.dtype, n // 2, Workspace()
    lengths = plan.steps(half, real.itemsize == 8)
    assert lengths is not None
    _, outer, inner = batch.sizes
    joined = work.buffer(x.dtype, outer * inner, half)
    launches = [_halves(n, real, 1, joined, x, batch, batch.x[1:], _one(real), flags)]
    pairs = Batch(batch.sizes, (0, inner * half, half, 1), (0, batch.out[1] // 2, batch.out[2] // 2, 1))
    launches += _steps(work, joined, out, pairs, lengths, real, scale, True)
    return Launch(tuple(launches), tuple(work.pieces))
