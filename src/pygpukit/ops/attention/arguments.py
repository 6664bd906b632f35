"""What attention may be called with: shapes, types and options, and the errors that name what does not fit."""

from __future__ import annotations

import math
from typing import Any

from pygpukit.dtypes import DataType
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.size import hint

FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Types of queries, keys and values."""

CODES = ("float8_e4m3fn", "int8")
"""Types that a paged cache may have beside that of the queries: numbers are code times scale."""


def shown(x: Tensor) -> str:
    """Return a shape as text, without tying the plan to it."""
    return str(tuple(hint(n) for n in x.shape))


def check_options(p: Problem) -> None:
    """Refuse a scale, window or softcap that means nothing.

    Raises
    ------
    ValueError
        If one is out of range.
    """
    scale, window, softcap = (p.options[name] for name in ("scale", "window", "softcap"))
    if scale is not None and (isinstance(scale, bool) or not 0 <= scale < math.inf):
        raise ValueError(f"{p.name}(): scale is {scale!r}; give a positive number, or None for 1 / sqrt(dim)")
    if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
        raise ValueError(f"{p.name}(): window is {window!r}; give how many keys a query sees, itself included, or None")
    if softcap is not None and (isinstance(softcap, bool) or not 0 <= softcap < math.inf):
        raise ValueError(f"{p.name}(): softcap is {softcap!r}; give a positive number, or None")


def check_types(p: Problem, **arrays: Tensor) -> DataType:
    """Return the type that queries, keys, values and a result given as ``out`` share.

    Raises
    ------
    DTypeError
        If they do not share one, or it is no float.
    """
    kinds = {x.dtype.name for x in arrays.values()}
    given = ", ".join(f"{name} {x.dtype.name}" for name, x in arrays.items())
    if len(kinds) > 1:
        raise DTypeError(f"{p.name}() takes arrays of one type, not {given}: convert with astype")
    (name,) = kinds
    if name not in FLOATS:
        raise DTypeError(f"{p.name}() is not defined for {given}; it takes {', '.join(FLOATS)}")
    kind = next(iter(arrays.values())).dtype
    if p.requested and p.requested[0] is not kind:
        raise DTypeError(f"{p.name}() of {name} cannot be written to {p.requested[0].name}; use an out of {name}")
    return kind


def check_indices(p: Problem, *names: str) -> None:
    """Refuse page tables, lengths and the like that are no int32.

    Raises
    ------
    DTypeError
        If one is of another type.
    """
    for name in names:
        if p[name].dtype.name != "int32":
            raise DTypeError(f"{p.name}(): {name} is {p[name].dtype.name}; it must be int32")


def group_of(p: Problem, heads: Any, kv_heads: Any) -> Any:
    """Return how many heads of queries share one of keys.

    Raises
    ------
    ShapeError
        If it is no whole number.
    """
    if kv_heads < 1 or heads % kv_heads != 0:
        raise ShapeError(
            f"{p.name}(): {hint(heads)} heads of queries cannot share {hint(kv_heads)} heads of keys evenly; "
            "the first must be a multiple of the second"
        )
    return heads // kv_heads


def check_dense(p: Problem) -> None:
    """Refuse arguments of `pygpukit.sdpa` that do not fit together.

    Raises
    ------
    ShapeError
        If shapes or options do not fit.
    """
    q, k, v = p["q"], p["k"], p["v"]
    if q.ndim not in (3, 4) or k.ndim != q.ndim or v.ndim != q.ndim:
        raise ShapeError(
            f"{p.name}() takes q, k and v of shape [heads, tokens, dim] or [batch, heads, tokens, dim], "
            f"not {shown(q)}, {shown(k)} and {shown(v)}"
        )
    if k.shape[:-1] != v.shape[:-1] or k.shape[-1] != q.shape[-1] or v.shape[-1] != q.shape[-1]:
        raise ShapeError(
            f"{p.name}(): k {shown(k)} and v {shown(v)} must have one shape, with the last axis of q {shown(q)}"
        )
    if q.ndim == 4 and q.shape[0] != k.shape[0]:
        raise ShapeError(f"{p.name}(): q {shown(q)} and k {shown(k)} are batches of different sizes")
    if q.shape[-1] < 1:
        raise ShapeError(f"{p.name}(): q {shown(q)} has no elements per head")
    group_of(p, q.shape[-3], k.shape[-3])
    check_options(p)
    _check_positions(p)
    _check_mask(p)


def _check_positions(p: Problem) -> None:
    q, k, start = p["q"], p["k"], p.options["start"]
    lengths = p.arrays["lengths"]
    if lengths is not None:
        if start is not None:
            raise ValueError(f"{p.name}(): lengths say where the queries are; do not give start as well")
        check_indices(p, "lengths")
        batch = q.shape[0] if q.ndim == 4 else 1
        if lengths.ndim != 1 or (lengths.shape[0] != 1 and lengths.shape[0] != batch):
            raise ShapeError(f"{p.name}(): lengths {shown(lengths)} must have 1 or {hint(batch)} elements")
        return
    if start is not None:
        if isinstance(start, bool) or not isinstance(start, int) or p.integers["start"] < 0:
            raise ValueError(f"{p.name}(): start is {start!r}; give the position of the first query, 0 or more")
        return
    if (p.options["causal"] or p.options["window"] is not None) and q.shape[-2] > k.shape[-2]:
        raise ShapeError(
            f"{p.name}() of {hint(q.shape[-2])} queries and {hint(k.shape[-2])} keys: queries are the last positions "
            "of the keys; give start where that is not so"
        )


def _check_mask(p: Problem) -> None:
    mask, q, k = p.arrays["mask"], p["q"], p["k"]
    if mask is None:
        return
    if mask.dtype.name not in ("bool", "float32", q.dtype.name):
        raise DTypeError(
            f"{p.name}(): mask is {mask.dtype.name}; give bool (True where a query sees a key), float32 or "
            f"{q.dtype.name} (added to the scores)"
        )
    full = (*((q.shape[0],) if q.ndim == 4 else ()), q.shape[-3], q.shape[-2], k.shape[-2])
    if not 2 <= mask.ndim <= q.ndim or any(
        a != 1 and a != b for a, b in zip(mask.shape, full[-mask.ndim :], strict=True)
    ):
        raise ShapeError(f"{p.name}(): mask {shown(mask)} does not broadcast to {tuple(hint(n) for n in full)}")


def check_paged(p: Problem) -> None:
    """Refuse arguments of `pygpukit.sdpa_paged` that do not fit together.

    Raises
    ------
    ShapeError
        If shapes do not fit.
    """
    q, cache = p["q"], p["cache"]
    if q.ndim != 3:
        raise ShapeError(f"{p.name}(): q {shown(q)} must be [tokens, heads, dim]")
    check_cache(p, cache, q.shape[-1])
    group_of(p, q.shape[1], cache.shape[3])
    check_indices(p, "page_table", "lengths", "query_starts")
    table, lengths, starts = p["page_table"], p["lengths"], p["query_starts"]
    if table.ndim != 2 or lengths.ndim != 1 or starts.ndim != 1:
        raise ShapeError(
            f"{p.name}(): page_table {shown(table)}, lengths {shown(lengths)} and query_starts {shown(starts)} must be "
            "[sequences, pages], [sequences] and [sequences + 1]"
        )
    if table.shape[0] != lengths.shape[0] or starts.shape[0] != lengths.shape[0] + 1:
        raise ShapeError(
            f"{p.name}(): page_table {shown(table)}, lengths {shown(lengths)} and query_starts {shown(starts)} do not "
            "speak of as many sequences; query_starts has one element more"
        )
    limit = p.options["max_queries"]
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"{p.name}(): max_queries is {limit!r}; give the most queries of a sequence, or 0 if unknown")
    check_options(p)


def check_scales(p: Problem, numbers: Tensor) -> None:
    """Refuse scales that do not belong to a paged cache, or are missing.

    Raises
    ------
    DTypeError, ShapeError, ValueError
        With what fits.
    """
    cache, scales = p["cache"], p.arrays.get("kv_scales")
    if cache.dtype.name not in CODES:
        if scales is not None:
            raise ValueError(f"{p.name}(): kv_scales are for a cache of {' or '.join(CODES)}, not {cache.dtype.name}")
        return
    if numbers.dtype.name not in FLOATS:
        raise DTypeError(f"{p.name}() is not defined for {numbers.dtype.name}; it takes {', '.join(FLOATS)}")
    full = (cache.shape[0], 2, cache.shape[2], cache.shape[3])
    shape = f"float32 that broadcasts to [pages, 2, page_tokens, kv_heads], {tuple(hint(n) for n in full)}"
    if scales is None:
        if cache.dtype.name == "int8":
            raise ValueError(f"{p.name}(): a cache of int8 needs kv_scales: {shape}")
        return
    if scales.dtype.name != "float32":
        raise DTypeError(f"{p.name}(): kv_scales are {scales.dtype.name}; they must be {shape}")
    if scales.ndim != 4 or any(a != 1 and a != b for a, b in zip(scales.shape, full, strict=True)):
        raise ShapeError(f"{p.name}(): kv_scales of shape {shown(scales)} must be {shape}")


def check_cache(p: Problem, cache: Tensor, dim: Any) -> None:
    """Refuse a layer's cache of another shape than ``[pages, 2, page_tokens, kv_heads, dim]``.

    Raises
    ------
    ShapeError
        If it has another shape.
    """
    if cache.ndim != 5 or cache.shape[1] != 2 or cache.shape[4] != dim:
        raise ShapeError(
            f"{p.name}(): cache {shown(cache)} must be [pages, 2, page_tokens, kv_heads, dim] with dim {hint(dim)}; "
            "of a cache of all layers give one layer, cache[:, layer]"
        )
