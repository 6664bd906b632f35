"""What kernels/random/reject.cu computes, in NumPy: the same steps for all elements that are not accepted yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pygpukit.random.philox import words
from pygpukit.random.reference import high_product, log_of_quotient, minus_log, minus_log_rest, normal_of

_CHUNK = 8192
_HALF_LOG_2_PI = 0.9189385332046727
_TABLE = (
    0.08106146679532726, 0.0413406959554093, 0.02767792568499834, 0.020790672103765093,
    0.016644691189821193, 0.013876128823070748, 0.01189670994589177,
)  # fmt: skip

Draw = Callable[[Any, int], Any]
"""Words of some elements (positions) at an attempt."""


def _fractions(w: Any) -> tuple[Any, Any]:
    u = (w.view(np.uint64) >> np.uint64(11)).astype(np.float64)
    u += 0.5
    u *= 2.0**-53
    np.minimum(u, 1.0 - 2.0**-53, out=u)
    return np.ascontiguousarray(u[:, 0]), np.ascontiguousarray(u[:, 1])


def _log_ratio(x: Any, y: Any) -> Any:
    s = (x - y) / (x + y)
    near = np.abs(s) < 0.17
    return np.where(near, log_of_quotient(np.where(near, s, 0.0)), minus_log(y) - minus_log(x))


def _stirling(k: Any) -> Any:
    r = 1.0 / (k + 1.0)
    z = r * r
    t = z * (-1.0 / 1680) + 1.0 / 1260
    t = ((t * z + -1.0 / 360) * z + 1.0 / 12) * r
    small = k < len(_TABLE)
    t[small] = np.array(_TABLE)[k[small].astype(np.int64)]
    return t


def gamma(draw: Draw, a: Any, _: Any, logarithm: bool) -> Any:
    """Return gamma numbers of the shapes `a`, or their logarithms."""
    out = np.where(a == 0, -np.inf if logarithm else 0.0, np.where(a == np.inf, a, np.nan))
    todo = np.flatnonzero((a > 0) & (a < np.inf))
    attempt = 0
    while todo.size:
        shape = a[todo]
        small = shape < 1
        d = np.where(small, shape + 1.0, shape) + -1.0 / 3
        c = 1.0 / np.sqrt(9.0 * d)
        z = normal_of(draw(todo, attempt), "float64")[::2]
        second = draw(todo, attempt + 1)
        attempt += 2
        root = 1.0 + c * z
        valid = root > 0
        safe = np.where(valid, root, 1.0)
        v, square = safe * safe * safe, z * z
        u, w = _fractions(second)
        sure = u < 1.0 + -(0.0331 * (square * square))
        bound = 0.5 * square + d * ((1.0 + -v) + -minus_log(v))
        done = valid & (sure | (-minus_log(u) < bound))
        less = np.where(small, minus_log(w) / shape, 0.0)
        if logarithm:
            made = -(minus_log(d) + 3.0 * minus_log(safe)) - less
        else:
            made = np.where(small, d * v * np.exp(-less), d * v)
        out[todo[done]] = made[done]
        todo = todo[~done]
    return out


def _arrivals(draw: Draw, todo: Any, limit: Any, n: Any, out: Any) -> None:
    """Count exponential numbers, divided by how many of `n` are left, up to a limit of their sum."""
    time, k = np.zeros(todo.size), np.zeros(todo.size)
    attempt = 0
    while todo.size:
        for u in _fractions(draw(todo, attempt)):
            wait = minus_log(u)
            with np.errstate(divide="ignore"):
                time = time + (wait if n is None else wait / (n - k))
            k += time < limit
        attempt += 1
        # After the last arrival the time is over the limit or, with none left, infinite, and stays so.
        going = time < limit
        out[todo[~going]] = k[~going]
        todo, time, k, limit = todo[going], time[going], k[going], limit[going]
        n = None if n is None else n[going]


def poisson(draw: Draw, mean: Any, _: Any, __: bool) -> Any:
    """Return counts of the Poisson distribution."""
    out = np.full(mean.size, -1.0)
    few = np.flatnonzero((mean >= 0) & (mean < 10))
    _arrivals(draw, few, mean[few], None, out)
    todo = np.flatnonzero((mean >= 10) & (mean < 9.2e18))
    attempt = 0
    while todo.size:
        m = mean[todo]
        b = 0.931 + 2.53 * np.sqrt(m)
        a = -0.059 + 0.02483 * b
        scale = 1.1239 + 1.1328 / (b - 3.4)
        inner = 0.9277 - 3.6224 / (b - 2.0)
        k, us, v, done = _transformed(draw, todo, attempt, a, b, m, 0.43, inner)
        possible = (k >= 0) & (k <= 9.22337203685477e18) & ~((us < 0.013) & (v > us))
        safe = np.where(possible, k, 0.0)
        up = safe + 1.0
        taken = -minus_log(v * scale / (a / (us * us) + b))
        bound = safe * _log_ratio(m, up) + (up - m)
        bound = (bound + 0.5 * minus_log(up)) + -_HALF_LOG_2_PI
        done |= possible & (taken <= bound - _stirling(safe))
        out[todo[done]] = k[done]
        todo = todo[~done]
        attempt += 1
    return out


def _transformed(
    draw: Draw, todo: Any, attempt: int, a: Any, b: Any, mean: Any, shift: float, inner: Any
) -> tuple[Any, Any, Any, Any]:
    u, v = _fractions(draw(todo, attempt))
    u -= 0.5
    us = 0.5 - np.abs(u)
    k = np.floor(((2.0 * a / us + b) * u + mean) + shift)
    return k, us, v, (us >= 0.07) & (v <= inner)


def binomial(draw: Draw, n: Any, chance: Any, _: bool) -> Any:
    """Return counts of the binomial distribution."""
    out = np.full(n.size, -1.0)
    valid = (n >= 0) & (chance >= 0) & (chance <= 1)
    turned = chance > 0.5
    p = np.where(turned, 1.0 - chance, chance)
    mean = n * p
    few = np.flatnonzero(valid & (mean < 10))
    _arrivals(draw, few, minus_log_rest(p[few]), n[few], out)
    todo = np.flatnonzero(valid & (mean >= 10))
    attempt = 0
    while todo.size:
        total, part, m = n[todo], p[todo], mean[todo]
        rest = 1.0 - part
        deviation = np.sqrt(m * rest)
        b = 1.15 + 2.53 * deviation
        a = (-0.0873 + 0.0248 * b) + 0.01 * part
        inner, odds = 0.92 - 4.2 / b, part / rest
        scale = (2.83 + 5.1 / b) * deviation
        mode = np.floor((total + 1.0) * part)
        beyond = (total - mode) + 1.0
        top = (mode + 0.5) * _log_ratio(mode + 1.0, odds * beyond)
        top = top + (_stirling(mode) + _stirling(total - mode))
        k, us, v, done = _transformed(draw, todo, attempt, a, b, m, 0.5, inner)
        possible = (k >= 0) & (k <= total)
        safe = np.where(possible, k, 0.0)
        left = (total - safe) + 1.0
        taken = -minus_log(v * scale / (a / (us * us) + b))
        bound = top + (total + 1.0) * _log_ratio(beyond, left)
        bound = bound + (safe + 0.5) * _log_ratio(odds * left, safe + 1.0)
        done |= possible & (taken <= bound - (_stirling(safe) + _stirling(total - safe)))
        out[todo[done]] = k[done]
        todo = todo[~done]
        attempt += 1
    return np.where(turned & (out >= 0), n - out, out)


def ranges(draw: Draw, low: Any, last: Any, _: bool) -> Any:
    """Return integers in ``low .. low + last``, modulo 2^64."""
    span = last + np.uint64(1)
    out = np.empty_like(low)
    todo = np.arange(low.size)
    attempt = 0
    while todo.size:
        x = np.ascontiguousarray(draw(todo, attempt).view(np.uint64)[:, 0])
        factor = span[todo]
        whole = factor == 0
        reject = (np.uint64(0) - factor) % np.where(whole, np.uint64(1), factor)
        done = whole | (x * factor >= reject)
        made = low[todo] + np.where(whole, x, high_product(x, factor))
        out[todo[done]] = made[done]
        todo = todo[~done]
        attempt += 1
    return out


KINDS: dict[str, Callable[[Draw, Any, Any, bool], Any]] = {
    "gamma": gamma,
    "log_gamma": gamma,
    "poisson": poisson,
    "binomial": binomial,
    "ranges": ranges,
}


def reject(
    kind: str, counter: Any, x: Any, y: Any, n: int, key: int, offset: int, stream: int, a: Any, b: Any, out: Any
) -> None:
    """Write numbers of a distribution to a vector; `x` and `y` are the parameters of each, else `a` and `b` of all."""
    if stream & 1:
        offset += int(counter[0])
    real: Any = np.uint64 if kind == "ranges" else np.float64
    target = out.view(np.uint64) if kind == "ranges" else out
    for start in range(0, n, _CHUNK):
        stop = min(start + _CHUNK, n)
        first = np.arange(start, stop, dtype=np.uint64) + np.uint64(offset % 2**64)

        def draw(todo: Any, attempt: int, first: Any = first) -> Any:
            return words(key, first[todo], attempt, stream)

        first_given, second_given = (
            np.full(stop - start, every, real) if each is None else each[start:stop].view(real)
            for each, every in ((x, a), (y, b))
        )
        with np.errstate(all="ignore"):
            target[start:stop] = KINDS[kind](draw, first_given, second_given, kind == "log_gamma")
