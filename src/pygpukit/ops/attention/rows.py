"""Attention: the operators `sdpa` and `sdpa_paged`, and causal attention under its published names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pygpukit import _pygpukit_rust as _native
from pygpukit.ops.attention import cache as _cache
from pygpukit.ops.attention import kernels, reference, scalar, sm90
from pygpukit.ops.attention.arguments import CODES, check_dense, check_paged, check_scales, check_types
from pygpukit.ops.problem import Problem, Result
from pygpukit.ops.registry import Case, Operator, Parameter, Variant, export, register
from pygpukit.ops.size import hint

__all__ = ["sdpa", "sdpa_causal", "sdpa_paged"]

TOLERANCE = {"float64": 1e-12, "float32": 1e-5, "bfloat16": 2**-7, "float16": 2**-9}
"""Of a weighted mean of values: weights and result are rounded to 16 bits, sums are float32."""

_OPTIONS = (
    Parameter("scale", "choice", None, True, "What scores are multiplied by; ``1 / sqrt(dim)`` by default."),
    Parameter("window", "choice", None, True, "How many keys a query sees, its own included; all by default."),
    Parameter("softcap", "choice", None, True, "Scores become ``softcap * tanh(score / softcap)``, before the mask."),
)


def _infer(p: Problem) -> list[Result]:
    check_dense(p)
    kind = check_types(p, q=p["q"], k=p["k"], v=p["v"])
    return [Result(p["q"].shape, kind)]


def _host(p: Problem) -> Callable[..., None]:
    options = {name: p.options[name] for name in ("scale", "causal", "window", "softcap")}

    def run(q: Any, k: Any, v: Any, mask: Any, start: Any, lengths: Any, out: Any) -> None:
        out[...] = reference.sdpa(q, k, v, mask=mask, start=start, lengths=lengths, **options)

    return run


def _few_elements(p: Problem) -> str | None:
    return "heads of more than 1024 elements" if p["q"].shape[-1] > 1024 else None


_NAMES = ("scale", "causal", "window", "softcap", "start")
_NAMES_PAGED = ("scale", "window", "softcap", "max_queries")


def _copied(p: Problem) -> Callable[..., None]:
    return scalar.copied(sdpa, _NAMES, 3, p)


def _widened(p: Problem) -> Callable[..., None]:
    return scalar.widened(sdpa, _NAMES, 3, p)


def _copied_paged(p: Problem) -> Callable[..., None]:
    return scalar.copied(sdpa_paged, _NAMES_PAGED, 2, p)


def _widened_paged(p: Problem) -> Callable[..., None]:
    return scalar.widened(sdpa_paged, _NAMES_PAGED, 2, p)


def _flops(p: Problem) -> int:
    q, keys = p["q"], hint(p["k"].shape[-2])
    tokens, window = hint(q.shape[-2]), p.options["window"]
    first = keys - tokens if p.options["start"] is None else p.options["start"]
    seen = 0
    for i in range(tokens):
        low, high = reference.visible(first + i, first + i + 1, keys, p.options["causal"], window)
        seen += max(0, high - low)
    return 4 * hint(q.size) // max(tokens, 1) * seen


sdpa = register(
    Operator(
        name="sdpa",
        parameters=(
            Parameter("q", doc="Queries, ``[heads, tokens, dim]`` or ``[batch, heads, tokens, dim]``."),
            Parameter("k", doc="Keys, ``[..., kv_heads, keys, dim]``; ``heads`` is a multiple of ``kv_heads``."),
            Parameter("v", doc="Values, of the shape of ``k``."),
            _OPTIONS[0],
            Parameter("causal", "choice", False, True, "A query sees no key behind its own position."),
            Parameter("mask", "optional", None, True, "Broadcasts to ``[..., heads, tokens, keys]``: bool, True where "
                      "a query sees a key, or float, added to the scores."),
            *_OPTIONS[1:],
            Parameter("start", "number", None, True, "Position of the first query; the queries are the last positions "
                      "of the keys by default."),
            Parameter("lengths", "optional", None, True, "int32, one per batch or one for all: how many of the keys "
                      "are there, read on the device. The queries are the last positions of these."),
        ),
        infer=_infer,
        reference=reference.sdpa,
        variants=(
            Variant("wgmma", "batch_invariant", sm90.accepts, launch=sm90.launch, architectures=sm90.ARCHITECTURE,
                    units=sm90.units),
            Variant("tensor cores", "batch_invariant", kernels.accepts, launch=kernels.launch_dense,
                    units=kernels.dense_units),
            Variant("CUDA cores", "batch_invariant", scalar.accepts, launch=scalar.launch_dense,
                    units=scalar.dense_units),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host),
            Variant("dense copies, then tensor cores", "batch_invariant", scalar.fits_when_copied, compose=_copied),
            Variant("in float32 on CUDA cores", "batch_invariant", _few_elements, compose=_widened),
        ),
        doc="""Attention: ``softmax(q @ k.T * scale + mask) @ v`` per head (scaled dot-product attention).

Neighbouring heads of ``q`` share a head of ``k`` and ``v``. Key ``j`` is visible to the query at position ``i`` if
``j <= i`` (causal) and ``i - window < j`` (without ``causal``: ``abs(i - j) < window``). A query that sees no key gives
zeros. float16 and bfloat16 are multiplied on tensor cores and summed in float32, in chunks of keys at fixed positions:
the bits of a query's result do not depend on the other queries, on the batch, or on how the keys are stored
(docs/attention.md).

Examples
--------
>>> import pygpukit as gp
>>> q, k, v = gp.ones((4, 1, 8)), gp.ones((2, 5, 8)), gp.ones((2, 5, 8))
>>> gp.sdpa(q, k, v, causal=True).shape
(4, 1, 8)
""",
        tolerance=TOLERANCE,
        cases=(
            Case({"q": ("bfloat16", (4, 70, 64)), "k": ("bfloat16", (2, 150, 64)), "v": ("bfloat16", (2, 150, 64))},
                 {"causal": True}),
            Case({"q": ("float32", (2, 3, 5, 24)), "k": ("float32", (2, 1, 130, 24)),
                  "v": ("float32", (2, 1, 130, 24))},
                 {"scale": 0.3, "softcap": 2.0}),
            Case({"q": ("float16", (1, 9, 40)), "k": ("float16", (1, 9, 40)), "v": ("float16", (1, 9, 40))},
                 {"window": 4}),
            Case({"q": ("bfloat16", (2, 2, 3, 32)), "k": ("bfloat16", (2, 1, 40, 32)),
                  "v": ("bfloat16", (2, 1, 40, 32))},
                 {"causal": True}, {"q": 0, "k": 0, "v": 0}),
        ),
        flops=_flops,
    )
)  # fmt: skip


@export
def sdpa_causal(q: Any, k: Any, v: Any, scale: float = 0.0, *, out: Any = None, stream: Any = None) -> Any:
    """Causal attention: `sdpa` with ``causal=True``.

    Parameters
    ----------
    q : GPUArray
        ``[heads, tokens, dim]`` or ``[batch, heads, tokens, dim]``.
    k, v : GPUArray
        ``[..., kv_heads, keys, dim]``; the queries are the last positions of the keys.
    scale : float, optional
        What scores are multiplied by; 0 stands for ``1 / sqrt(dim)``.
    out : GPUArray, optional
        Where the result is written.
    stream : Stream, optional
        The current one by default.

    Examples
    --------
    >>> import pygpukit as gp
    >>> x = gp.asarray([[[0.0], [0.0]]])
    >>> gp.sdpa_causal(x, x, gp.asarray([[[2.0], [4.0]]])).tolist()
    [[[2.0], [3.0]]]
    """
    return sdpa(q, k, v, scale=scale or None, causal=True, out=out, stream=stream)


def _infer_paged(p: Problem) -> list[Result]:
    check_paged(p)
    coded = p["cache"].dtype.name in CODES
    kind = check_types(p, q=p["q"]) if coded else check_types(p, q=p["q"], cache=p["cache"])
    check_scales(p, p["q"])
    return [Result(p["q"].shape, kind)]


def _host_paged(p: Problem) -> Callable[..., None]:
    options = {name: p.options[name] for name in _NAMES_PAGED}

    def run(q: Any, cache: Any, page_table: Any, lengths: Any, query_starts: Any, kv_scales: Any, out: Any) -> None:
        out[...] = reference.sdpa_paged(q, cache, page_table, lengths, query_starts, kv_scales=kv_scales, **options)

    return run


def _rows_refuse(p: Problem) -> str | None:
    q, cache = p["q"], p["cache"]
    if p.determinism != "batch_invariant":
        return f"NumPy may be faster, and {p.determinism} is asked"
    if q.dtype.name != "float32" or cache.dtype.name not in ("float32", *CODES):
        return "not float32"
    if any(x.shape[-1] != 1 and x.strides[-1] != 1 for x in (q, cache)):
        return "the elements of a head do not lie side by side"
    small = (p["page_table"], p["lengths"], p["query_starts"], p.out)
    return None if all(x.is_contiguous() for x in small) else "tables, lengths, starts or out are not contiguous"


def _host_rows(p: Problem) -> Callable[..., None]:
    options = p.options
    scale = options["scale"] or reference.default_scale(hint(p["q"].shape[-1]))
    window, softcap, most = options["window"] or 0, options["softcap"] or 0.0, options["max_queries"]

    def run(q: Any, cache: Any, page_table: Any, lengths: Any, query_starts: Any, kv_scales: Any, out: Any) -> None:
        if most:
            reference.check_queries(query_starts, most)
        if cache.dtype != q.dtype:
            cache, page_table = reference.decoded_pages(cache, page_table, kv_scales, q.dtype)
        try:
            _native.paged_attention_rows(q, cache, page_table, lengths, query_starts, out, scale, window, softcap)
        except ValueError as error:
            # A page outside of the cache: all else was checked before.
            raise IndexError(str(error)) from None

    return run


sdpa_paged = register(
    Operator(
        name="sdpa_paged",
        parameters=(
            Parameter("q", doc="Queries of all sequences one behind the other, ``[tokens, heads, dim]``."),
            Parameter("cache", doc="One layer of a paged cache, ``[pages, 2, page_tokens, kv_heads, dim]``, which "
                      "holds the keys and values of these tokens already (`kv_cache_write_paged`); of the type of "
                      "``q``, or of codes."),
            Parameter("page_table", doc="int32 ``[sequences, pages]``: the pages of each sequence in order."),
            Parameter("lengths", doc="int32 ``[sequences]``: tokens in the cache, with those of ``q``."),
            Parameter("query_starts", doc="int32 ``[sequences + 1]``: sequence ``s`` has the rows "
                      "``query_starts[s]`` to ``query_starts[s + 1] - 1`` of ``q``, its last tokens."),
            *_OPTIONS,
            Parameter("max_queries", "choice", 0, True, "The most queries of one sequence where the caller knows it: "
                      "with few, kernels for many are not launched, and a sequence with more gets no result."),
            Parameter("kv_scales", "optional", None, True, "Of a cache of codes, float8_e4m3fn or int8: float32 that "
                      "broadcasts to ``[pages, 2, page_tokens, kv_heads]``. A number is code times scale in float32, "
                      "rounded once to the type of ``q``. None is 1, of float8 only."),
        ),
        infer=_infer_paged,
        reference=reference.sdpa_paged,
        variants=(
            Variant("wgmma", "batch_invariant", sm90.accepts_paged, launch=sm90.launch_paged,
                    architectures=sm90.ARCHITECTURE, units=sm90.paged_units),
            Variant("tensor cores", "batch_invariant", kernels.accepts, launch=kernels.launch_paged,
                    units=kernels.paged_units),
            Variant("CUDA cores", "batch_invariant", scalar.accepts, launch=scalar.launch_paged,
                    units=scalar.paged_units),
            Variant("row by row", "batch_invariant", _rows_refuse, host=_host_rows),
            Variant("NumPy", "run_to_run", lambda p: None, host=_host_paged),
            Variant("dense copies, then tensor cores", "batch_invariant", scalar.fits_when_copied,
                    compose=_copied_paged),
            Variant("in float32 on CUDA cores", "batch_invariant", _few_elements, compose=_widened_paged),
        ),
        doc="""Causal attention of a batch of sequences to a paged cache: prompts, parts of prompts and single tokens.

Lengths, page tables and starts are read on the device, so one graph serves every step of its shapes. Rows of ``q``
behind ``query_starts[-1]`` give zeros. A token's bits are those of `sdpa` over the same keys, whatever the pages, the
batch, and the split of a prompt into parts.

Examples
--------
>>> import pygpukit as gp
>>> cache = gp.ones((3, 2, 16, 1, 8))
>>> table, starts = gp.asarray([[2, 0]], "int32"), gp.asarray([0, 1], "int32")
>>> gp.sdpa_paged(gp.ones((1, 2, 8)), cache, table, gp.asarray([20], "int32"), starts)[0, 0, 0].item()
1.0
""",
        tolerance=TOLERANCE,
    )
)  # fmt: skip


for _function in _cache.FUNCTIONS:
    export(_function)


@export
def sdpa_causal_fixed_cache(
    q: Any, k_cache: Any, v_cache: Any, out: Any, context_len: int, scale: float = 0.0, *, stream: Any = None
) -> Any:
    """Causal attention to the first ``context_len`` places of a cache of fixed size, written to ``out``.

    Parameters
    ----------
    q : GPUArray
        ``[heads, tokens, dim]``, the last tokens of the context.
    k_cache, v_cache : GPUArray
        ``[heads, max_seq_len, dim]``, or as many heads as the model has for keys.
    out : GPUArray
        Of the shape of ``q``.
    context_len : int
        Tokens in the cache, with those of ``q``.
    scale : float, optional
        What scores are multiplied by; 0 stands for ``1 / sqrt(dim)``.
    stream : Stream, optional
        The current one by default.

    Raises
    ------
    ShapeError
        If the context is longer than the cache.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q, cache, out = gp.ones((2, 1, 8)), gp.ones((2, 32, 8)), gp.zeros((2, 1, 8))
    >>> gp.sdpa_causal_fixed_cache(q, cache, cache, out, 20)[0, 0, 0].item()
    1.0
    """
    n = _cache.context_of("sdpa_causal_fixed_cache", k_cache, context_len)
    return sdpa(q, k_cache[:, :n], v_cache[:, :n], scale=scale or None, causal=True, out=out, stream=stream)


@export
def sdpa_causal_fixed_cache_ptr(
    q: Any,
    k_cache: Any,
    v_cache: Any,
    out: Any,
    context_len_buf: Any,
    max_kv_len: int,
    scale: float = 0.0,
    *,
    stream: Any = None,
) -> Any:
    """`sdpa_causal_fixed_cache` with the length of the context in device memory, for graphs.

    Parameters
    ----------
    q, k_cache, v_cache, out : GPUArray
        As `sdpa_causal_fixed_cache` takes them.
    context_len_buf : GPUArray
        int32, one element. A length over ``max_kv_len`` counts as ``max_kv_len``.
    max_kv_len : int
        The longest context.
    scale : float, optional
        What scores are multiplied by; 0 stands for ``1 / sqrt(dim)``.
    stream : Stream, optional
        The current one by default.

    Raises
    ------
    ShapeError
        If ``max_kv_len`` is longer than the cache.

    Examples
    --------
    >>> import pygpukit as gp
    >>> q, cache, out = gp.ones((2, 1, 8)), gp.ones((2, 32, 8)), gp.zeros((2, 1, 8))
    >>> length = gp.asarray([20], "int32")
    >>> gp.sdpa_causal_fixed_cache_ptr(q, cache, cache, out, length, 32)[0, 0, 0].item()
    1.0
    """
    n = _cache.context_of("sdpa_causal_fixed_cache_ptr", k_cache, max_kv_len)
    k, v = k_cache[:, :n], v_cache[:, :n]
    return sdpa(q, k, v, scale=scale or None, causal=True, lengths=context_len_buf, out=out, stream=stream)
