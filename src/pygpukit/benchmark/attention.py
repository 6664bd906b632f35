"""Section ``attention``: causal attention of prompts, and of single tokens to contiguous and paged caches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import pygpukit as gp
from pygpukit._pygpukit_rust import GPUArray
from pygpukit.benchmark.work import Call, Options, Row, Work, distance
from pygpukit.ops.attention import reference

HEADS, KV_HEADS, DIM, PAGE = 32, 8, 128, 16
PROMPT_TOKENS = 8192
"""Tokens of all prompts of a row; with longer prompts there is one."""

SEQUENCES = 8
_CHECKED = 48
_TOLERANCES = {"bfloat16": 6e-3, "float16": 1e-3, "float32": 1e-5, "float64": 1e-12}


def attention(options: Options) -> Iterator[Row]:
    """Causal attention: prompts of each length, and single tokens of eight sequences of it."""
    names = options.dtypes or ("bfloat16",) if options.on_gpu else options.dtypes or ("float32",)
    unknown = [name for name in names if name not in _TOLERANCES]
    if unknown:
        raise ValueError(f"no attention is measured in {unknown[0]!r}; choose from {', '.join(_TOLERANCES)}")
    usual = (2048, 8192) if options.on_gpu else (128, 512)
    lengths = options.seq_lens or (usual[:1] if options.quick else usual)
    works: dict[str, Callable[[Options, int, str], Work]] = {
        "prompt": _prompt, "token": _contiguous, "token paged": _paged,
    }  # fmt: skip
    for name in names:
        for what, work in works.items():
            for n in lengths:
                yield Row(
                    f"attention {what} {name} {n}", "attention", name,
                    lambda n=n, name=name, work=work: work(options, n, name),  # type: ignore[misc]
                )  # fmt: skip


def _prompt(options: Options, n: int, name: str) -> Work:
    heads = HEADS if options.on_gpu else 4
    shape = (max(1, (PROMPT_TOKENS if options.on_gpu else n) // n), heads, n, DIM)
    q, k, v = (options.normal(shape, name) for _ in range(3))
    out = gp.empty_like(q)

    def ours() -> Any:
        return gp.sdpa(q, k, v, causal=True, out=out)

    ours()
    peer: tuple[Call, ...] = ()
    torch = options.torch
    if torch is not None:
        x, y, z = (options.to_torch(a) for a in (q, k, v))
        peer = (lambda: torch.nn.functional.scaled_dot_product_attention(x, y, z, is_causal=True),)
    first = max(0, n - _CHECKED)
    want = _exact(q[0, :1, first:], k[0, :1], v[0, :1])
    return Work(
        calls=(ours,),
        peer=peer,
        error=distance(out[0, :1, first:].to_numpy(), want),
        tolerance=_TOLERANCES[name],
        nbytes=4 * q.nbytes,
        flops=2 * shape[0] * heads * n * (n + 1) * DIM,
        variant=gp.explain(gp.sdpa, q, k, v, causal=True).variant,
    )


def _contiguous(options: Options, n: int, name: str) -> Work:
    q = options.normal((SEQUENCES, HEADS, 1, DIM), name)
    shape = (SEQUENCES, KV_HEADS, n, DIM)
    nbytes = 2 * q.nbytes // (SEQUENCES * HEADS * DIM) * (SEQUENCES * KV_HEADS * n * DIM)
    caches = [(options.normal(shape, name), options.normal(shape, name)) for _ in range(options.copies(nbytes))]
    out = gp.empty_like(q)
    calls = tuple(_call(gp.sdpa, (q, *cache), {"causal": True, "out": out}) for cache in caches)
    calls[0]()
    torch = options.torch
    peer: tuple[Call, ...] = ()
    if torch is not None:
        query = options.to_torch(q)
        peer = tuple(
            _call(
                torch.nn.functional.scaled_dot_product_attention,
                (query, *map(options.to_torch, cache)),
                {"enable_gqa": True},
            )
            for cache in caches
        )
    k, v = caches[0]
    return Work(
        calls=calls,
        peer=peer,
        error=distance(out[0, :1].to_numpy(), _exact(q[0, :1], k[0, :1], v[0, :1])),
        tolerance=_TOLERANCES[name],
        nbytes=nbytes,
        flops=4 * SEQUENCES * HEADS * n * DIM,
        variant=gp.explain(gp.sdpa, q, k, v, causal=True).variant,
    )


def _paged(options: Options, n: int, name: str) -> Work:
    per = -(-n // PAGE)
    q = options.normal((SEQUENCES, HEADS, DIM), name)
    nbytes = 2 * q.dtype.itemsize * SEQUENCES * n * KV_HEADS * DIM
    layers = options.copies(nbytes)
    cache = options.normal((SEQUENCES * per, layers, 2, PAGE, KV_HEADS, DIM), name)
    order = np.random.default_rng(options.seed).permutation(SEQUENCES * per).astype(np.int32).reshape(SEQUENCES, per)
    rest = (
        gp.from_numpy(order), gp.full((SEQUENCES,), n, "int32"), gp.arange(SEQUENCES + 1, dtype="int32"),
    )  # fmt: skip
    out = gp.empty_like(q)
    named = {"max_queries": 1, "out": out}
    calls = tuple(_call(gp.sdpa_paged, (q, cache[:, i], *rest), named) for i in range(layers))
    calls[0]()
    held = [gp.take(cache[:, 0, i], rest[0][0], axis=0).to_numpy() for i in (0, 1)]
    k, v = (x.reshape(per * PAGE, KV_HEADS, DIM)[:n, :1].swapaxes(0, 1) for x in held)
    want = reference.attend(q[0, :1, None].to_numpy(), k, v, causal=True, dtype=np.float64)
    return Work(
        calls=calls,
        peer=(),
        error=distance(out[0, :1, None].to_numpy(), want),
        tolerance=_TOLERANCES[name],
        nbytes=nbytes,
        flops=4 * SEQUENCES * HEADS * n * DIM,
        variant=gp.explain(gp.sdpa_paged, q, cache[:, 0], *rest, max_queries=1).variant,
    )


def _call(function: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Call:
    return lambda: function(*args, **named)


def _exact(q: GPUArray, k: GPUArray, v: GPUArray) -> Any:
    """Causal attention of one head in float64."""
    return reference.attend(*(x.to_numpy() for x in (q, k, v)), causal=True, dtype=np.float64)
