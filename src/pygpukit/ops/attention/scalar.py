"""Attention on CUDA cores, of float32 and float64, and of 16-bit arrays whose layout tensor cores do not take."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.array.creation import zeros
from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.attention import kernels
from pygpukit.ops.attention.arguments import CODES
from pygpukit.ops.attention.kernels import Call, dense_call, paged_call
from pygpukit.ops.attention.reference import default_scale
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, blocks_for, i64, write
from pygpukit.ops.problem import Problem
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance

_THREADS = 128
_MOST = 1024
"""Elements of a head that a block of the kernel can sum."""

_TYPES = ("float32", "float64")


@cache
def scalar_unit(kind: DataType, stored: DataType, paged: bool) -> Unit:
    """Return the source for an element type, with keys and values of it or of codes."""
    layout = "" if not paged else "_paged" if stored is kind else f"_paged_{stored.tag}"
    entry = f"pgk_attention_scalar_{kind.tag}{layout}"
    line = f"PGK_ATTENTION_SCALAR({entry}, {kind.tag}, {stored.tag}, {str(paged).lower()})"
    return instance("attention/scalar.cu", [line], (entry,))


def dense_units(types: Sequence[str]) -> Iterator[Unit]:
    """Return what a bundle holds for `pygpukit.sdpa`."""
    yield from (scalar_unit(dtype(name), dtype(name), False) for name in types if name in _TYPES)


def paged_units(types: Sequence[str]) -> Iterator[Unit]:
    """Return what a bundle holds for `pygpukit.sdpa_paged`."""
    for name in types:
        if name in _TYPES:
            for stored in (name, *(code for code in CODES if code in types)):
                yield scalar_unit(dtype(name), dtype(stored), True)


def accepts(p: Problem) -> str | None:
    """Return why the kernel cannot take a call; None if it can."""
    if p["q"].dtype.name not in _TYPES:
        return f"{p['q'].dtype.name} is multiplied on tensor cores"
    if p["q"].shape[-1] > _MOST:
        return f"heads of more than {_MOST} elements"
    return kernels.index_layout(p)


def launch_dense(p: Problem) -> Launch:
    """Return the launch of `pygpukit.sdpa`."""
    return _launch(p, dense_call(p))


def launch_paged(p: Problem) -> Launch:
    """Return the launch of `pygpukit.sdpa_paged`."""
    return _launch(p, paged_call(p))


def _launch(p: Problem, call: Call) -> Launch:
    q = p["q"]
    k, v = (p["cache"], p["cache"]) if call.paged else (p["k"], p["v"])
    unit = scalar_unit(q.dtype, k.dtype, call.paged)
    scale = p.options["scale"] or default_scale(int(q.shape[-1]))
    code = "<d" if q.dtype.itemsize == 8 else "<f"
    numbers = (struct.pack(code, scale), struct.pack(code, p.options["softcap"] or 0.0))
    blocks = blocks_for(call.tokens * call.heads * call.group, 1, f"attention of {hint(call.tokens)} tokens")
    steps = (q.strides[-1], k.strides[-1], v.strides[-1], p.out.strides[-1])
    arguments: tuple[Argument, ...] = (
        write(p.out), *kernels.inputs(p), kernels.scales(p), kernels.attention(p, call), *map(i64, steps), *numbers,
    )  # fmt: skip
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


def fits_when_copied(p: Problem) -> str | None:
    """Return why dense copies would not make a call one for tensor cores; None if they would."""
    if p["q"].dtype.name not in kernels.TYPES:
        return f"{p['q'].dtype.name} is not multiplied on tensor cores"
    if p["q"].shape[-1] > kernels.DIMS[-1]:
        return f"heads of more than {kernels.DIMS[-1]} elements"
    return None


def copied(function: Callable[..., Any], names: Sequence[str], arrays: int, p: Problem) -> Callable[..., None]:
    """Return the same call over copies whose rows are dense and a multiple of 16 bytes.

    Zeros behind the elements of a head add nothing to a score, and their columns of the result are dropped.
    """
    options = {name: p.options[name] for name in names}
    dim = int(p["q"].shape[-1])
    options["scale"] = options["scale"] or default_scale(dim)
    width = -(-dim // 8) * 8

    def dense(x: Any) -> Any:
        wide = zeros((*x.shape[:-1], width), x.dtype, device=x.device)
        wide[..., :dim] = x
        return wide

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        rest = {name: x.contiguous() for name, x in _rest(p, given, arrays).items()}
        made = function(*map(dense, given[:arrays]), **rest, **options)
        _native.apply("copy", (made[..., :dim],), results[0])

    return run


def widened(function: Callable[..., Any], names: Sequence[str], arrays: int, p: Problem) -> Callable[..., None]:
    """Return the same call in float32, rounded once more; index arrays become contiguous."""
    options = {name: p.options[name] for name in names}
    wide = dtype("float64" if p["q"].dtype.name == "float64" else "float32")

    def run(results: tuple[Any, ...], given: tuple[Any, ...]) -> None:
        rest = _rest(p, given, arrays)
        mask = rest.get("mask")
        if mask is not None and mask.dtype.kind != "b":
            rest["mask"] = mask.astype("float32")
        rest |= {name: x.contiguous() for name, x in rest.items() if name != "mask"}
        scales = rest.pop("kv_scales", None)
        numbers = (_decoded(x, scales, given[0].dtype).astype(wide, copy=False) for x in given[:arrays])
        made = function(*numbers, **rest, **options)
        _native.apply("copy", (made,), results[0])

    return run


def _decoded(x: Any, scales: Any, kind: DataType) -> Any:
    """The numbers that codes stand for, in the type of the queries; what is no code as it is."""
    if x.dtype is kind:
        return x
    x = x.astype("float32")
    return (x if scales is None else x * scales[..., None]).astype(kind)


def _rest(p: Problem, given: tuple[Any, ...], arrays: int) -> dict[str, Any]:
    """The other arrays of a call by name; ``given`` are all arguments in the operator's order."""
    from pygpukit.ops.registry import OPERATORS

    names = [parameter.name for parameter in OPERATORS[p.name].parameters]
    return {name: x for name, x in list(zip(names, given, strict=True))[arrays:] if name in p.arrays and x is not None}
