"""The operator that puts up to 32 contiguous arrays side by side in one launch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from pygpukit import _pygpukit_rust as _native
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i64, read, write
from pygpukit.ops.problem import Problem, Result, Tensor
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.source import instance

MOST = 32
"""Arrays of one launch: `JOINED` in the kernel."""

TYPES = {1: "u8", 2: "u16", 4: "u32", 8: "u64", 16: "u128"}
"""Types that move so many bytes."""

_NAMES = tuple(f"x{i}" for i in range(MOST))


@cache
def join_unit(size: int) -> Unit:
    """Return the source for units of so many bytes."""
    name = f"pgk_join_{TYPES[size]}"
    return instance("shape/join.cu", (f"PGK_JOIN({name}, {TYPES[size]})",), (name,))


def _units(types: Sequence[str]) -> Iterator[Unit]:
    for size in TYPES:
        yield join_unit(size)


def _infer(p: Problem) -> list[Result]:
    first, *rest = p.inputs.values()
    width = first.shape[1]
    for x in rest:
        width = width + x.shape[1]
    return [Result((first.shape[0], width), first.dtype)]


def unit_of(lengths: Sequence[Any], tensors: Sequence[Tensor]) -> int:
    """Return the largest number of bytes, up to 16, that divides all addresses and all lengths of elements."""
    kind = tensors[0].dtype
    # The address of a complex number is a multiple of its parts only.
    sure = kind.itemsize // 2 if kind.kind == "c" else kind.itemsize
    for size in (16, 8, 4, 2):
        if size <= sure:
            return size
        if all((n * kind.itemsize) % size == 0 for n in lengths) and all(t.is_aligned(size) for t in tensors):
            return size
    return 1


def _accepts(p: Problem) -> str | None:
    together = all(x.is_contiguous() for x in p.inputs.values()) and p.out.strides[1] == 1
    return None if together else "an array is not contiguous"


def _launch(p: Problem) -> Launch:
    tensors = list(p.inputs.values())
    item = p.out.dtype.itemsize
    size = unit_of([p.out.strides[0], *(x.shape[1] for x in tensors)], [p.out, *tensors])

    def units(n: Any) -> Any:
        return n * (item // size) if size <= item else n // (size // item)

    starts: list[Any] = [0]
    for x in tensors:
        starts.append(starts[-1] + units(x.shape[1]))
    width = starts[-1]
    starts += [width] * (MOST + 1 - len(starts))
    total = p.out.shape[0] * width
    sources = (tensors + tensors[:1] * MOST)[:MOST]
    arguments: tuple[Argument, ...] = (
        write(p.out), *map(read, sources), *map(i64, starts), *map(i64, (total, width, units(p.out.strides[0])))
    )  # fmt: skip
    unit = join_unit(size)
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks_for(total, 1024, "join"),), (256,), arguments),))


join = register(
    Operator(
        name="shape_join",
        parameters=(Parameter("x0"), *(Parameter(name, "optional", None) for name in _NAMES[1:])),
        infer=_infer,
        reference=lambda *arrays: np.concatenate([x for x in arrays if x is not None], axis=1),
        variants=(
            Variant("a thread per unit", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("the core", "batch_invariant", _accepts, host=lambda p: _native.host_join()),
        ),
        doc="Contiguous matrices of one element type side by side.",
        public=False,
    )
)
