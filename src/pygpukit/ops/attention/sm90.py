"""Attention of many queries by wgmma and bulk copies, for SM 90a."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from pygpukit.dtypes import DataType, dtype
from pygpukit.ops.attention import kernels
from pygpukit.ops.attention.kernels import Call
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Unit, Workspace, tensor_map, update, write
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.size import ceil_div, maximum, minimum
from pygpukit.ops.source import instance

ARCHITECTURE = "90a"

_ROWS = 128
_THREADS = 384
_CHUNK = 128
_STAGES = 2
_PAGES = (8, 16, 32, 64, 128)
"""Tokens of a page that a bulk copy can bring to its place in a chunk."""


@cache
def unit(kind: DataType, dim: int, page_tokens: int, form: str = kernels.PLAIN) -> Unit:
    """Return the source of the kernel; ``page_tokens`` is 0 for dense keys."""
    paged = f"_paged{page_tokens}" if page_tokens else ""
    entry = f"pgk_attention_prefill_sm90_{kind.tag}_d{dim}{paged}{'' if form == kernels.PLAIN else '_' + form.lower()}"
    line = f"PGK_ATTENTION_PREFILL_SM90({entry}, {kind.tag}, {dim}, {page_tokens}, {form})"
    return instance("attention/prefill_sm90.cu", [line], (entry,), ARCHITECTURE)


def units(types: Sequence[str]) -> Iterator[Unit]:
    """Return what a bundle holds for `pygpukit.sdpa`."""
    yield from (unit(dtype(name), dim, 0) for name in types if name in kernels.TYPES for dim in (64, 128))


def paged_units(types: Sequence[str]) -> Iterator[Unit]:
    """Return what a bundle holds for `pygpukit.sdpa_paged`: pages of 16 tokens."""
    yield from (unit(dtype(name), dim, 16) for name in types if name in kernels.TYPES for dim in (64, 128))


def accepts(p: Problem) -> str | None:
    """Return why wgmma cannot take a call of `pygpukit.sdpa`; None if it can."""
    reason = kernels.accepts(p)
    if reason is not None:
        return reason
    if kernels.form_of(p) == kernels.MASKED:
        return "a mask"
    if p["q"].shape[-1] > _CHUNK:
        return f"heads of more than {_CHUNK} elements"
    call = kernels.dense_call(p)
    if call.queries * call.group <= kernels.FEW_ROWS:
        return "few queries: their keys are split over blocks"
    if p["k"].shape[-2] < 1:
        return "no keys"
    return _no_map(p["k"], p["v"])


def accepts_paged(p: Problem) -> str | None:
    """Return why wgmma cannot take a call of `pygpukit.sdpa_paged`; None if it can."""
    reason = kernels.accepts(p) or kernels.codes(p)
    if reason is not None:
        return reason
    if kernels.form_of(p) == kernels.MASKED:
        return "a mask"
    if p["q"].shape[-1] > _CHUNK:
        return f"heads of more than {_CHUNK} elements"
    if kernels.few_queries(p):
        return "few queries of every sequence"
    if all(p["cache"].shape[2] != n for n in _PAGES):
        return "bulk copies take pages of 8, 16, 32, 64 or 128 tokens"
    if p["cache"].shape[0] < 1:
        return "no pages"
    return _no_map(p["cache"])


def _no_map(*arrays: Tensor) -> str | None:
    """Why an array has no tensor map: broadcast and reversed axes."""
    for x in arrays:
        if any(n != 1 and s < 1 for n, s in zip(x.shape[:-1], x.strides[:-1], strict=True)):
            return "bulk copies take no broadcast or reversed axes"
    return None


def launch(p: Problem) -> Launch:
    """Return the launch of a call of `pygpukit.sdpa`."""
    work = Workspace()
    return Launch((_prefill(p, kernels.dense_call(p), work),), tuple(work.pieces))


def launch_paged(p: Problem) -> Launch:
    """Return the launches of a call of `pygpukit.sdpa_paged`: few queries, then many."""
    call = kernels.paged_call(p)
    work = Workspace()
    few = kernels.decode(p, call, work, 1)
    return Launch((few, _prefill(p, call, work)), tuple(work.pieces))


def _maps(p: Problem, call: Call) -> list[Argument]:
    if call.paged:
        cache_ = p["cache"]
        box = (1, 1, int(cache_.shape[2]), 1, 64)
        return [tensor_map(cache_, box, swizzle="128B")] * 2
    made: list[Argument] = []
    for name in ("k", "v"):
        x = p[name]
        shape = x.shape if x.ndim == 4 else (1, *x.shape)
        # The distance between elements of an axis that has one is never used, but a map wants one that could be.
        steps = [kernels.DIMS[-1] if n == 1 else s for n, s in zip(x.shape, x.strides, strict=True)]
        view = x.view(shape, (*steps[: x.ndim - 1], 1) if x.ndim == 4 else (kernels.DIMS[-1], *steps[:2], 1))
        made.append(tensor_map(view, (1, 1, _CHUNK, 64), swizzle="128B"))
    return made


def _prefill(p: Problem, call: Call, work: Workspace) -> KernelLaunch:
    dim = 64 if p["q"].shape[-1] <= 64 else 128
    page_tokens = int(p["cache"].shape[2]) if call.paged else 0
    made = unit(p["q"].dtype, dim, page_tokens, kernels.form_of(p))
    tiles = ceil_div(call.tokens * call.group, _ROWS) + minimum(call.seqs, call.tokens)
    if not call.paged:
        tiles = ceil_div(call.queries * call.group, _ROWS) * call.seqs
    grid = maximum(minimum(tiles * call.heads, p.sm_count), 1)
    chunk_bytes = _CHUNK * dim * 2
    shared = _ROWS * dim * 2 + 2 * _STAGES * chunk_bytes + _STAGES * 32 + 48 + (8 * _THREADS if call.paged else 0)
    counters = work.counters(dtype("int32"), 2)
    arguments = (*_maps(p, call), write(p.out), update(counters), *kernels.inputs(p), kernels.attention(p, call))
    return KernelLaunch(made, made.entries[0], (grid,), (_THREADS,), arguments, shared, programmatic=True)
