"""What the kernels of sampling compute, in NumPy: the same integers, and the same steps of float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

_STREAM = 0x53414D50
_SCALE = np.float32(2.0**23)
_LOG2E = np.float32(1.44269504)
_TERMS = tuple(
    np.float32(x)
    for x in (2.16887156e-4, 1.24518392e-3, 9.67643114e-3, 5.54852292e-2, 2.40229208e-1, 6.93147061e-1, 1.0)
)


def masses(d: Any) -> Any:
    """Return ``2**39 exp(d)`` of float32 numbers up to 0 as uint64, rounded down.

    Examples
    --------
    >>> masses(np.float32([0, -np.inf])).tolist() == [2**39, 0]
    True
    """
    t = d * _LOG2E
    on = t > -40
    t = np.where(on, t, np.float32(0))
    whole = np.floor(t)
    f = t - whole
    p = np.full_like(f, _TERMS[0])
    for term in _TERMS[1:]:
        p = p * f + term
    made = ((p * _SCALE).astype(np.uint64) << np.uint64(16)) >> (-whole).astype(np.uint64)
    return np.where(on, made, np.uint64(0))


def gumbel(seed: int, position: int, ids: Any) -> Any:
    """Return the noise of tokens, float32: a function of seed, position and token id alone."""
    from pygpukit.random.philox import words
    from pygpukit.random.reference import minus_log, minus_log_rest

    place = ids >> 2
    if 8 * place.size > place.max():
        # Most of the vocabulary: all blocks up to the last.
        whole = np.arange(place.max() + 1, dtype=np.uint64)
    else:
        blocks, place = np.unique(place, return_inverse=True)
        whole = blocks.astype(np.uint64)
    stream = _STREAM ^ (position >> 32 & 0xFFFFFFFF)
    bits = words(seed & 0xFFFFFFFFFFFFFFFF, whole, position & 0xFFFFFFFF, stream)[place, ids & 3]
    u = bits.astype(np.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    return minus_log(minus_log_rest(np.minimum(u, np.float32(1 - 2.0**-24))))


def processed(row: int, logits: Any, repetition: Any, frequency: Any, presence: Any, counts: Any, prompt: Any,
              bias: Any, allowed: Any) -> Any:  # fmt: skip
    """Return a row's logits in float32 after mask, bias and penalties; NaN as -inf, one zero."""
    with np.errstate(all="ignore"):
        x = logits[row].astype(np.float32)
        n = np.arange(x.size)
        if allowed is not None:
            bits = allowed[row].view(np.uint32)[n >> 5] >> (n & 31).astype(np.uint32) & np.uint32(1)
            x = np.where(bits != 0, x, np.float32(-np.inf))
        if bias is not None:
            x = x + (bias[row] if bias.ndim == 2 else bias)
        many = counts[row] if counts is not None else np.zeros(x.size, np.int32)
        if repetition is not None:
            seen = many > 0 if prompt is None else (many > 0) | (prompt[row] != 0)
            x = np.where(seen, np.where(x > 0, x / repetition[row], x * repetition[row]), x)
        often = np.float32(0) if frequency is None else frequency[row]
        once = np.float32(0) if presence is None else presence[row]
        x = np.where(many > 0, x + -(often * many.astype(np.float32)) + -once, x)
        return np.where(np.isnan(x), np.float32(-np.inf), x + np.float32(0))


def kept(z: Any, temperature: float, top_k: int, top_p: float, min_p: float) -> tuple[Any, Any]:
    """Return the ids that may be drawn, and how far each is below the largest logit, over the temperature."""
    from pygpukit.random.reference import minus_log

    f32 = np.float32
    top = z.max()
    with np.errstate(all="ignore"):
        d = np.where(z == top, f32(0), (z - top) / f32(temperature))
    ids = np.flatnonzero(z > -np.inf)
    if 0 < top_k < ids.size:
        # Only what can be among them is sorted.
        ids = ids[z[ids] >= np.partition(z[ids], -top_k)[-top_k]]
    if 0 < top_k < z.size or top_p < 1:
        ids = ids[np.argsort(-z[ids], kind="stable")]
    if 0 < top_k < z.size:
        ids = ids[:top_k]
    if min_p > 0:
        ids = ids[d[ids] >= -minus_log(np.clip(np.asarray([min_p], f32), f32(2.0**-126), f32(1)))]
    if top_p < 1:
        sums = np.cumsum(masses(d[ids]))
        total = int(sums[-1])
        wanted = math.ceil(float(f32(top_p)) * float(total))
        ids = ids[: np.searchsorted(sums, np.uint64(min(max(wanted, 1), total))) + 1]
    return ids, d[ids]


def draw(z: Any, temperature: float, top_k: int, top_p: float, min_p: float, seed: int, position: int) -> int:
    """Return the token drawn of processed logits; -1 if none is above -inf."""
    if not (z > -np.inf).any():
        return -1
    if not temperature > 0:
        return int(z.argmax())
    ids, d = kept(z, temperature, top_k, top_p, min_p)
    scores = d + gumbel(seed, position, ids)
    best = ids[scores == scores.max()]
    return int(best.min())


def sample_rows(logits: Any, temperature: Any = None, top_k: Any = None, top_p: Any = None, min_p: Any = None,
                seeds: Any = None, positions: Any = None, repetition: Any = None, frequency: Any = None,
                presence: Any = None, counts: Any = None, prompt: Any = None, bias: Any = None, allowed: Any = None,
                ) -> Any:  # fmt: skip
    """Return one token per row, int32; None switches a parameter off."""

    def at(x: Any, row: int, off: float) -> Any:
        return off if x is None else x[row].item()

    adjusted = any(x is not None for x in (repetition, frequency, presence, bias, allowed))
    if logits.size and not adjusted and temperature is not None and not (temperature > 0).any():
        # The usual case of greedy decoding, at once: without a NaN, and with a score, `argmax` says it.
        best = logits.argmax(axis=1)
        if (logits[np.arange(best.size), best] > -np.inf).all():
            return best.astype(np.int32)
    tokens = np.empty(logits.shape[0], np.int32)
    for row in range(logits.shape[0]):
        z = processed(row, logits, repetition, frequency, presence, counts, prompt, bias, allowed)
        tokens[row] = draw(
            z, at(temperature, row, 1.0), at(top_k, row, 0), at(top_p, row, 1.0), at(min_p, row, 0.0),
            at(seeds, row, 0), at(positions, row, 0),
        ) if z.size else -1  # fmt: skip
    return tokens
