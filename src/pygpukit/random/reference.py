"""What the kernels of this family compute, in NumPy: the same steps, rounded alike, so that the bits are the same."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pygpukit.random.philox import chunks, words

_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24}
_INVERSE = [1.0 / math.factorial(k) for k in range(1, 17)]


def log_of_quotient(s: Any) -> Any:
    """Return ln((1 + s) / (1 - s)) of float32 or float64 numbers, |s| < 0.172."""
    z = s * s
    last = 21 if s.dtype.itemsize == 8 else 9
    p = z * (2.0 / last)
    p += 2.0 / (last - 2)
    for k in range(last - 4, 0, -2):
        p *= z
        p += 2.0 / k
    p *= s
    return p


def minus_log(u: Any) -> Any:
    """Return -ln(u) of positive normal float32 or float64 numbers."""
    wide = u.dtype.itemsize == 8
    integer, root, mantissa = (np.int64, 0x3FE6A09E667F3BCD, 52) if wide else (np.int32, 0x3F3504F3, 23)
    bits = u.view(integer)
    e = (bits - integer(root)) >> integer(mantissa)
    f = (bits - (e << integer(mantissa))).view(u.dtype)
    f -= u.dtype.type(1)
    s = f + u.dtype.type(2)
    np.divide(f, s, s)
    p = log_of_quotient(s)
    r = np.negative(e, e).astype(u.dtype)
    r *= 0.6931471805599453
    r -= p
    return r


def sine_cosine(x: Any) -> tuple[Any, Any]:
    """Return the sine and the cosine of float32 or float64 numbers within pi / 4 of 0."""
    last = 15 if x.dtype.itemsize == 8 else 9
    z = x * x
    np.negative(z, z)
    odd, even = z * _INVERSE[last - 1], z * _INVERSE[last]
    for k in range(last - 2, 0, -2):
        odd += _INVERSE[k - 1]
        even += _INVERSE[k]
        if k > 1:
            odd *= z
        even *= z
    odd *= x
    even += 1.0
    return odd, even


def _fractions(w: Any, name: str) -> Any:
    if name == "float64":
        return (w.view(np.uint64) >> np.uint64(11)) * 2.0**-53
    bits = _MANTISSA[name]
    return (w >> np.uint32(32 - bits)).astype(np.float32) * np.float32(2.0**-bits)


def _positive(w: Any) -> Any:
    if w.dtype.itemsize == 8:
        u = (w >> np.uint64(11)).astype(np.float64)
        u += 1.0
        u *= 2.0**-53
        return np.minimum(u, 1.0 - 2.0**-53, out=u)
    u = w.astype(np.float32)
    u *= np.float32(2.0**-32)
    u += np.float32(2.0**-33)
    return np.minimum(u, np.float32(1.0 - 2.0**-24), out=u)


def _uniform(w: Any, name: str) -> Any:
    return _fractions(w, name).reshape(-1)


def _flat(w: Any, name: str) -> Any:
    return (w.view(np.uint64) if name == "float64" else w).reshape(-1)


def minus_log_rest(p: Any) -> Any:
    """Return -ln(1 - p) of float32 or float64 numbers in [0, 1)."""
    small = p < 0.25
    return np.where(small, log_of_quotient(np.where(small, p, 0) / (2 - p)), minus_log(1 - p))


def _exponential(w: Any, name: str) -> Any:
    return minus_log(_positive(_flat(w, name)))


def _rayleigh(w: Any, name: str) -> Any:
    x = _exponential(w, name)
    x += x
    return np.sqrt(x, x)


def _gumbel(w: Any, name: str) -> Any:
    return minus_log(minus_log_rest(_positive(_flat(w, name))))


def _positive_half(x: Any) -> Any:
    if x.dtype.itemsize == 8:
        return _positive(x)
    u = (x >> np.uint32(1)).astype(np.float32)
    u *= np.float32(2.0**-31)
    u += np.float32(2.0**-32)
    return np.minimum(u, np.float32(1.0 - 2.0**-24), out=u)


def _signed(magnitude: Any, x: Any) -> Any:
    bits = magnitude.view(x.dtype)
    bits ^= x << x.dtype.type(8 * x.dtype.itemsize - 1)
    return magnitude


def _laplace(w: Any, name: str) -> Any:
    x = _flat(w, name)
    return _signed(minus_log(_positive_half(x)), x)


def _logistic(w: Any, name: str) -> Any:
    x = _flat(w, name)
    u = _positive_half(x)
    e = minus_log(u)
    e -= minus_log(2 - u)
    return _signed(e, x)


def _angle(turn: Any, real: Any) -> Any:
    bits = 8 * turn.dtype.itemsize
    signed, half = (np.int64, 0x3FFFFFFFFFFFFFFF) if bits == 64 else (np.int32, 0x3FFFFFFF)
    angle = (turn & turn.dtype.type(half)).view(signed)
    angle += angle
    angle -= signed(half)
    x = angle.astype(real)
    x *= real(1.5707963267948966 * 2.0 ** (1 - bits))
    return x


def _cauchy(w: Any, name: str) -> Any:
    x = _flat(w, name)
    s, c = sine_cosine(_angle(x, np.float64 if name == "float64" else np.float32))
    return np.where(x >> x.dtype.type(8 * x.dtype.itemsize - 1) != 0, c / s, s / c)


def normal_of(w: Any, name: str) -> Any:
    """Return normal numbers of words."""
    wide = name == "float64"
    bits = 64 if wide else 32
    pairs = (w.view(np.uint64) if wide else w).reshape(-1, 2)
    unsigned, real = pairs.dtype.type, np.float64 if wide else np.float32
    turn = np.ascontiguousarray(pairs[:, 1])
    s, c = sine_cosine(_angle(turn, real))
    # The second highest bit becomes the sign of the cosine, the highest exchanges sine and cosine.
    second, first = s.view(unsigned), c.view(unsigned)
    sign = turn << unsigned(1)
    sign &= unsigned(1 << (bits - 1))
    first ^= sign
    np.right_shift(turn, unsigned(bits - 1), turn)
    np.subtract(unsigned(0), turn, turn)
    turn &= first ^ second
    first ^= turn
    second ^= turn
    r = minus_log(_positive(np.ascontiguousarray(pairs[:, 0])))
    r *= real(2)
    np.sqrt(r, r)
    out = np.empty((r.size, 2), real)
    np.multiply(c, r, out[:, 0])
    np.multiply(s, r, out[:, 1])
    return out.reshape(-1)


KINDS = {
    "uniform": _uniform,
    "normal": normal_of,
    "exponential": _exponential,
    "rayleigh": _rayleigh,
    "gumbel": _gumbel,
    "laplace": _laplace,
    "logistic": _logistic,
    "cauchy": _cauchy,
}


def fill(
    kind: str, name: str, counter: Any, n: int, key: int, offset: int, stream: int, a: float, b: float, out: Any
) -> None:
    """Write ``a + b * x`` for numbers of a distribution to a vector; `name` is its element type."""
    real = np.float64 if name == "float64" else np.float32
    function, low, scale = KINDS[kind], real(a), real(b)
    if stream & 1:
        offset += int(counter[0])
    for start, stop, _, w in chunks(key, offset, stream, n, 2 if name == "float64" else 4):
        v = function(w, name)[: stop - start]
        if scale != 1:
            v *= scale
        # Adding 0 makes -0.0 a positive zero, as in the kernel.
        if low != 0 or kind in ("normal", "gumbel", "laplace", "logistic", "cauchy"):
            v += low
        out[start:stop] = v


def high_product(a: Any, b: Any) -> Any:
    """Return the upper 64 bits of products of uint64 numbers."""
    mask, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    low, high = b & mask, b >> shift
    x, y = a & mask, a >> shift
    middle = y * low
    carry = ((x * low) >> shift) + (middle & mask) + x * high
    return y * high + (middle >> shift) + (carry >> shift)


def integers(
    wide: bool, counter: Any, n: int, key: int, offset: int, stream: int, low: int, last: int, reject: int, out: Any
) -> None:
    """Write integers in ``low .. low + last`` to a vector, as bits of its type."""
    target = out.view(f"u{out.itemsize}")
    if stream & 1:
        offset += int(counter[0])
    base, span, per = np.uint64(low), np.uint64((last + 1) % 2**64), 2 if wide else 4
    mask = np.uint64(2**64 - 1 if wide else 2**32 - 1)
    for start, stop, blocks, w in chunks(key, offset, stream, n, per):
        x: Any = (w.view(np.uint64) if wide else w).reshape(-1)
        factor, least = x.dtype.type(span & mask), x.dtype.type(reject)
        wrong: Any = np.flatnonzero(x * factor < least) if reject else ()
        attempt = 0
        while len(wrong):
            attempt += 1
            again: Any = words(key, blocks[wrong // per], attempt, stream)
            x[wrong] = (again.view(np.uint64) if wide else again)[np.arange(len(wrong)), wrong % per]
            wrong = wrong[x[wrong] * factor < least]
        if wide:
            v = high_product(x, span) if last + 1 < 2**64 else x
        elif last + 1 < 2**32:
            v = (x * span) >> np.uint64(32)
        else:
            v = x.astype(np.uint64)
        v = v[: stop - start]
        target[start:stop] = v + base if low else v
