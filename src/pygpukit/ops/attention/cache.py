"""Writing keys and values to their caches: contiguous ones by position, paged ones by slot."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache as _once
from typing import Any

import numpy as np

from pygpukit._pygpukit_rust import GPUArray
from pygpukit.dtypes import DataType, dtype
from pygpukit.errors import DTypeError, ShapeError
from pygpukit.ops.attention import reference
from pygpukit.ops.attention.arguments import CODES, FLOATS, check_cache, check_indices, check_scales, group_of, shown
from pygpukit.ops.launch import Argument, KernelLaunch, Launch, Struct, Unit, blocks_for, i64, read, update
from pygpukit.ops.problem import Problem, Tensor
from pygpukit.ops.registry import Operator, Parameter, Variant, register
from pygpukit.ops.size import hint
from pygpukit.ops.source import instance

_THREADS = 256
_WORDS = (16, 8, 4, 2, 1)
"""Bytes that a thread copies at a time, the most first."""

_AT_START, _AT_POSITION, _AT_SLOTS = range(3)


def context_of(name: str, cache: Any, length: Any) -> int:
    """Return the length of a context as an integer.

    Raises
    ------
    ShapeError
        If the cache is shorter.
    """
    n = operator.index(length)
    if getattr(cache, "ndim", 0) != 3:
        raise ShapeError(f"{name}(): the caches must be arrays of shape [heads, max_seq_len, dim]")
    if not 0 <= n <= cache.shape[1]:
        raise ShapeError(
            f"{name}(): a context of {n} tokens, but the cache holds {cache.shape[1]}: allocate a longer one"
        )
    return n


@_once
def write_unit() -> Unit:
    """Return the source of the copies into caches, an entry per word size."""
    entries = tuple(f"pgk_kv_cache_write_w{n}" for n in _WORDS)
    lines = [f"PGK_KV_CACHE_WRITE({entry}, {n})" for entry, n in zip(entries, _WORDS, strict=True)]
    return instance("attention/cache.cu", lines, entries)


def _units(types: Sequence[str]) -> Iterator[Unit]:
    yield write_unit()


def _word(tensors: Sequence[Tensor]) -> int:
    """The most bytes at which rows of all arrays begin and of which they consist."""
    item = tensors[0].dtype.itemsize
    for word in _WORDS:
        if word <= item:
            break
        if all(
            t.is_aligned(word)
            and t.shape[-1] * item % word == 0
            and all(n == 1 or s * item % word == 0 for n, s in zip(t.shape[:-1], t.strides[:-1], strict=True))
            for t in tensors
        ):
            return word
    return item


def _check_new(p: Problem, name: str, heads: Any, dim: Any, like: Tensor, coded: Sequence[str] = ()) -> Tensor:
    x = p[name]
    if x.ndim != 3 or x.shape[1] != heads or x.shape[2] != dim:
        raise ShapeError(
            f"{p.name}(): {name} {shown(x)} must be [tokens, kv_heads, dim] with {hint(heads)} heads of {hint(dim)}"
        )
    if x.dtype is not like.dtype and like.dtype.name not in coded:
        raise DTypeError(
            f"{p.name}(): {name} is {x.dtype.name}, the cache {like.dtype.name}: convert {name} with astype"
        )
    return x


def _infer(p: Problem) -> list[Any]:
    cache = p["k_cache"]
    k = p["k_new"]
    if cache.ndim != 3 or k.ndim != 3:
        raise ShapeError(
            f"{p.name}(): new keys {shown(k)} must be [tokens, kv_heads, dim], a cache {shown(cache)} "
            "[heads, max_seq_len, dim]"
        )
    _check_new(p, "k_new", k.shape[1], cache.shape[2], cache)
    group_of(p, cache.shape[0], k.shape[1])
    if p.arrays["v_new"] is not None:
        other = p["v_cache"]
        if other.ndim != 3 or any(a != b for a, b in zip(other.shape, cache.shape, strict=True)):
            raise ShapeError(f"{p.name}(): the caches {shown(cache)} and {shown(other)} have different shapes")
        v = _check_new(p, "v_new", k.shape[1], cache.shape[2], other)
        if v.shape[0] != k.shape[0] or v.dtype is not k.dtype:
            raise ShapeError(f"{p.name}(): k_new {shown(k)} and v_new {shown(v)} differ")
    if p.arrays["position"] is not None:
        check_indices(p, "position")
        if p["position"].ndim > 1 or p["position"].size != 1:
            raise ShapeError(f"{p.name}(): start is an array of shape {shown(p['position'])}; it must have one element")
    else:
        first, tokens = p.integers["start"], k.shape[0]
        if first < 0 or first + tokens > cache.shape[1]:
            raise ShapeError(
                f"{p.name}(): {hint(tokens)} tokens from position {hint(first)} on end at {hint(first + tokens)}, but "
                f"the cache holds {hint(cache.shape[1])}: allocate a longer one"
            )
    return []


def _rows(t: Tensor, *axes: int) -> list[Any]:
    """Strides of axes."""
    return [t.strides[a] for a in axes]


def _launch(p: Problem) -> Launch:
    k, k_cache = p["k_new"], p["k_cache"]
    both = p.arrays["v_new"] is not None
    v, v_cache = (p["v_new"], p["v_cache"]) if both else (k, k_cache)
    position = p.arrays["position"]
    mode = _AT_START if position is None else _AT_POSITION
    first = p.integers["start"] if position is None else 0
    index = k if position is None else position
    # A place of a contiguous cache is a page of one token.
    to = [x for t in (k_cache, v_cache) for x in (t.strides[1], 0, t.strides[0])]
    strides = [*_rows(k, 0, 1), *_rows(v, 0, 1), *to]
    sizes = [k.shape[0], k_cache.shape[0], k_cache.shape[0] // k.shape[1], k_cache.shape[1], 1, first, mode, 1 + both]
    return _copy(p, (k_cache, v_cache, k, v), index, sizes, strides, 0)


def _copy(
    p: Problem, arrays: tuple[Tensor, ...], index: Tensor, sizes: list[Any], strides: list[Any], v_offset: Any
) -> Launch:
    k_cache, v_cache, k, v = arrays
    item = k.dtype.itemsize
    word = _word(arrays)
    words = k.shape[-1] * item // word
    total = sizes[0] * sizes[1] * sizes[-1] * words
    members = [*sizes, words, *(s * item // word for s in (*strides, v_offset))]
    unit = write_unit()
    arguments: tuple[Argument, ...] = (
        update(k_cache), update(v_cache), read(k), read(v), read(index), Struct(tuple(map(i64, members))),
    )  # fmt: skip
    entry = unit.entries[_WORDS.index(word)]
    return Launch((KernelLaunch(unit, entry, (blocks_for(total, _THREADS, p.name),), (_THREADS,), arguments),))


def _accepts(p: Problem) -> str | None:
    arrays = [t for name in ("k_new", "v_new", "k_cache", "v_cache", "cache") if (t := p.arrays.get(name)) is not None]
    dense = all(t.shape[-1] <= 1 or t.strides[-1] == 1 for t in arrays)
    return None if dense else "elements of a row do not lie side by side: pass contiguous arrays"


def _host(p: Problem) -> Callable[..., None]:
    def run(k_new: Any, k_cache: Any, v_new: Any, v_cache: Any, start: Any, position: Any) -> None:
        first = int(position.item()) if position is not None else start
        tokens = max(0, min(k_new.shape[0], k_cache.shape[1] - first))
        group = k_cache.shape[0] // k_new.shape[1]
        for new, into in ((k_new, k_cache), (v_new, v_cache)):
            if new is not None:
                rows = new[:tokens].swapaxes(0, 1)
                into[:, first : first + tokens] = rows if group == 1 else np.repeat(rows, group, axis=0)

    return run


_write = register(
    Operator(
        name="kv_cache_write",
        parameters=(
            Parameter("k_new"),
            Parameter("k_cache"),
            Parameter("v_new", "optional", None),
            Parameter("v_cache", "optional", None),
            Parameter("start", "number", 0),
            Parameter("position", "optional", None),
        ),
        infer=_infer,
        reference=lambda *arrays: None,
        variants=(
            Variant("a thread per word", "batch_invariant", _accepts, launch=_launch, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host),
        ),
        doc="Tokens written to a contiguous cache.",
        public=False,
        updates=("k_cache", "v_cache"),
    )
)


def _infer_paged(p: Problem) -> list[Any]:
    cache, k = p["cache"], p["k"]
    if k.ndim != 3:
        raise ShapeError(f"{p.name}(): k {shown(k)} must be [tokens, kv_heads, dim]")
    check_cache(p, cache, k.shape[2])
    scaled = p.arrays["kv_scales"] is not None or cache.dtype.name == "float8_e4m3fn"
    coded = CODES if scaled and k.dtype is not cache.dtype else ()
    _check_new(p, "k", cache.shape[3], cache.shape[4], cache, coded)
    v = _check_new(p, "v", cache.shape[3], cache.shape[4], cache, coded)
    if k.dtype is not v.dtype:
        raise DTypeError(f"{p.name}(): k is {k.dtype.name} and v {v.dtype.name}: use one type")
    if coded or p.arrays["kv_scales"] is not None:
        _check_encoded(p, k)
    check_indices(p, "slots")
    slots = p["slots"]
    if slots.ndim != 1 or slots.shape[0] != k.shape[0] or v.shape[0] != k.shape[0]:
        raise ShapeError(
            f"{p.name}(): k {shown(k)}, v {shown(v)} and slots {shown(slots)} do not speak of as many tokens"
        )
    return []


def _check_encoded(p: Problem, k: Tensor) -> None:
    check_scales(p, k)
    scales, cache = p.arrays["kv_scales"], p["cache"]
    if cache.dtype.name == "int8" and scales is not None:
        full = (cache.shape[0], 2, cache.shape[2], cache.shape[3])
        if any(a != b for a, b in zip(scales.shape, full, strict=True)):
            raise ShapeError(
                f"{p.name}(): kv_scales of shape {shown(scales)} must be {tuple(hint(n) for n in full)}: the scale of "
                "each token and head is written there"
            )


def _launch_encoded(p: Problem) -> Launch:
    cache, k, v, scales = p["cache"], p["k"], p["v"], p.arrays["kv_scales"]
    pages, _, page_tokens, heads, dim = cache.shape
    steps = (
        (0, 0, 0, 0)
        if scales is None
        else [0 if n == 1 else s for n, s in zip(scales.shape, scales.strides, strict=True)]
    )
    to = _rows(cache, 0, 2, 3)
    sizes = [k.shape[0], heads, 1, pages * page_tokens, page_tokens, 0, _AT_SLOTS, 2, dim]
    members = [*sizes, *_rows(k, 0, 1), *_rows(v, 0, 1), *to, *to, cache.strides[1], *steps]
    unit = encode_unit(k.dtype, cache.dtype)
    arguments: tuple[Argument, ...] = (
        update(cache), i64(0) if scales is None else update(scales), read(k), read(v), read(p["slots"]),
        Struct(tuple(map(i64, members))),
    )  # fmt: skip
    blocks = blocks_for(k.shape[0] * heads * 2, _THREADS // 32, p.name)
    return Launch((KernelLaunch(unit, unit.entries[0], (blocks,), (_THREADS,), arguments),))


@_once
def encode_unit(kind: DataType, stored: DataType) -> Unit:
    """Return the source of the write that makes codes of numbers."""
    entry = f"pgk_kv_cache_encode_{kind.tag}_{stored.tag}"
    return instance("attention/cache.cu", [f"PGK_KV_CACHE_ENCODE({entry}, {kind.tag}, {stored.tag})"], (entry,))


def _encoded_units(types: Sequence[str]) -> Iterator[Unit]:
    for name in types:
        if name in FLOATS and name != "float64":
            yield from (encode_unit(dtype(name), dtype(code)) for code in CODES if code in types)


def _encodes(p: Problem) -> bool:
    return p["cache"].dtype is not p["k"].dtype


def _accepts_encoded(p: Problem) -> str | None:
    if not _encodes(p):
        return "the cache holds numbers as they are"
    if p["k"].dtype.name == "float64":
        return "float64 is not made codes of"
    return _accepts(p) or (None if p["slots"].is_contiguous() else "slots are not contiguous")


def _launch_paged(p: Problem) -> Launch:
    cache, k, v = p["cache"], p["k"], p["v"]
    pages, _, page_tokens, heads, _ = cache.shape
    to = _rows(cache, 0, 2, 3)
    strides = [*_rows(k, 0, 1), *_rows(v, 0, 1), *to, *to]
    sizes = [k.shape[0], heads, 1, pages * page_tokens, page_tokens, 0, _AT_SLOTS, 2]
    return _copy(p, (cache, cache, k, v), p["slots"], sizes, strides, cache.strides[1])


def _accepts_paged(p: Problem) -> str | None:
    if _encodes(p):
        return "numbers become codes"
    return _accepts(p) or (None if p["slots"].is_contiguous() else "slots are not contiguous")


def _host_paged(p: Problem) -> Callable[..., None]:
    def run(k: Any, v: Any, cache: Any, slots: Any, kv_scales: Any) -> None:
        pages, _, page_tokens = cache.shape[:3]
        kept = slots >= 0
        if slots.size and slots.max() >= pages * page_tokens:
            raise IndexError(
                f"kv_cache_write_paged(): slot {slots.max()} in a cache of {pages} pages of {page_tokens} tokens"
            )
        page, place = np.divmod(slots[kept], page_tokens)
        for part, new in enumerate((k[kept], v[kept])):
            if new.dtype == cache.dtype:
                cache[page, part, place] = new
                continue
            every = None if kv_scales is None else np.broadcast_to(kv_scales, cache.shape[:-1])
            given = None if every is None or cache.dtype == np.int8 else every[page, part, place]
            cache[page, part, place], made = reference.encoded(new, cache.dtype, given)
            if cache.dtype == np.int8:
                kv_scales[page, part, place] = made

    return run


kv_cache_write_paged = register(
    Operator(
        name="kv_cache_write_paged",
        parameters=(
            Parameter("k", doc="New keys, ``[tokens, kv_heads, dim]``."),
            Parameter("v", doc="New values, of the same shape."),
            Parameter("cache", doc="One layer of a paged cache, ``[pages, 2, page_tokens, kv_heads, dim]``: of a cache "
                      "``[pages, layers, 2, ...]`` the view ``cache[:, layer]``."),
            Parameter("slots", doc="int32 ``[tokens]``: ``page * page_tokens + place`` of each token; a negative one "
                      "is not written."),
            Parameter("kv_scales", "optional", None, True, "Of a cache of codes, as `sdpa_paged` takes them: numbers "
                      "are divided by those of a cache of float8_e4m3fn, 1 by default; of one of int8 they are "
                      "written, the largest number of a token and head by 127."),
        ),
        infer=_infer_paged,
        reference=lambda k, v, cache, slots, **options: None,
        variants=(
            Variant("codes, a warp per row", "batch_invariant", _accepts_encoded, launch=_launch_encoded,
                    units=_encoded_units),
            Variant("a thread per word", "batch_invariant", _accepts_paged, launch=_launch_paged, units=_units),
            Variant("NumPy", "batch_invariant", lambda p: None, host=_host_paged),
        ),
        doc="""Write the keys and values of tokens to their slots of a paged cache.

A slot behind the last page is an error on the CPU device; kernels leave such a token out. In a cache of codes numbers
too large for float8 become the largest, 448 times the scale; NaN stays NaN, and makes a row of int8 NaN.

Examples
--------
>>> import pygpukit as gp
>>> cache = gp.zeros((4, 2, 16, 1, 8))
>>> gp.kv_cache_write_paged(gp.ones((2, 1, 8)), gp.ones((2, 1, 8)), cache, gp.asarray([17, 3], "int32"))
>>> cache[1, 0, 1, 0, 0].item(), cache[0, 1, 3, 0, 0].item()
(1.0, 1.0)
""",
        updates=("cache", "kv_scales"),
    )
)  # fmt: skip


def kv_cache_update(k_new: Any, v_new: Any, k_cache: Any, v_cache: Any, start: Any, *, stream: Any = None) -> None:
    """Write the keys and values of tokens to contiguous caches, from position ``start`` on.

    Parameters
    ----------
    k_new, v_new : GPUArray
        ``[tokens, kv_heads, dim]``.
    k_cache, v_cache : GPUArray
        ``[heads, max_seq_len, dim]``; where ``heads`` is a multiple of ``kv_heads``, a head is written several times.
    start : int or GPUArray
        Position of the first token; an int32 array of one element is read on the device, for graphs, and tokens that
        would lie behind the end of the cache are then left out.
    stream : Stream, optional
        The current one by default.

    Raises
    ------
    ShapeError
        If the tokens do not fit into the cache.

    Examples
    --------
    >>> import pygpukit as gp
    >>> k_cache, v_cache = gp.zeros((1, 4, 2)), gp.zeros((1, 4, 2))
    >>> gp.kv_cache_update(gp.ones((1, 1, 2)), gp.ones((1, 1, 2)), k_cache, v_cache, 2)
    >>> k_cache[0, :, 0].tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    if isinstance(start, GPUArray):
        _write(k_new, k_cache, v_new, v_cache, 0, start, stream=stream)
    else:
        _write(k_new, k_cache, v_new, v_cache, operator.index(start), stream=stream)


def kv_cache_prefill_gqa(new_kv: Any, cache: Any, num_heads: int, start_pos: Any = 0, *, stream: Any = None) -> None:
    """Write keys or values to a contiguous cache that has a copy of them for every head of queries.

    Parameters
    ----------
    new_kv : GPUArray
        ``[tokens, kv_heads, dim]``.
    cache : GPUArray
        ``[num_heads, max_seq_len, dim]``.
    num_heads : int
        Heads of the cache, a multiple of ``kv_heads``.
    start_pos : int or GPUArray, optional
        Position of the first token, as `kv_cache_update` takes it.
    stream : Stream, optional
        The current one by default.

    Raises
    ------
    ShapeError
        If the tokens do not fit into the cache, or it has other heads.

    Examples
    --------
    >>> import pygpukit as gp
    >>> cache = gp.zeros((2, 4, 1))
    >>> gp.kv_cache_prefill_gqa(gp.ones((3, 1, 1)), cache, 2)
    >>> cache[:, :, 0].tolist()
    [[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    """
    if getattr(cache, "ndim", 0) != 3 or cache.shape[0] != num_heads:
        shape = getattr(cache, "shape", type(cache).__name__)
        raise ShapeError(f"kv_cache_prefill_gqa(): the cache is {shape}, not [num_heads={num_heads}, max_seq_len, dim]")
    if isinstance(start_pos, GPUArray):
        _write(new_kv, cache, None, None, 0, start_pos, stream=stream)
    else:
        _write(new_kv, cache, None, None, operator.index(start_pos), stream=stream)


FUNCTIONS = (kv_cache_update, kv_cache_prefill_gqa)
"""The public functions of this module."""
