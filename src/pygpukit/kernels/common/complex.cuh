// Complex arithmetic and functions with NumPy's conventions: products round each term, division is Smith's method,
// order is lexicographic. Functions of complex64 are evaluated in double and rounded once.
#pragma once
#include "pygpukit/math.cuh"

namespace pgk {

template <class T> PGK_FN bool isnan(cx<T> a) { return isnan(a.re) || isnan(a.im); }
template <class T> PGK_FN bool isinf(cx<T> a) { return isinf(a.re) || isinf(a.im); }
template <class T> PGK_FN bool isfinite(cx<T> a) { return isfinite(a.re) && isfinite(a.im); }
template <class T> PGK_FN bool truth(cx<T> a) { return a.re != T(0) || a.im != T(0); }
template <class T> PGK_FN bool equal(cx<T> a, cx<T> b) { return a.re == b.re && a.im == b.im; }
template <class T> PGK_FN bool less(cx<T> a, cx<T> b) {
    return (a.re < b.re && !isnan(a.im) && !isnan(b.im)) || (a.re == b.re && a.im < b.im);
}
template <class T> PGK_FN bool less_equal(cx<T> a, cx<T> b) {
    return (a.re < b.re && !isnan(a.im) && !isnan(b.im)) || (a.re == b.re && a.im <= b.im);
}

template <class T> PGK_FN cx<T> add(cx<T> a, cx<T> b) { return {a.re + b.re, a.im + b.im}; }
template <class T> PGK_FN cx<T> sub(cx<T> a, cx<T> b) { return {a.re - b.re, a.im - b.im}; }
template <class T> PGK_FN cx<T> mul(cx<T> a, cx<T> b) {
    return {mul_rn(a.re, b.re) - mul_rn(a.im, b.im), mul_rn(a.re, b.im) + mul_rn(a.im, b.re)};
}
template <class T> PGK_FN cx<T> neg(cx<T> a) { return {-a.re, -a.im}; }
template <class T> PGK_FN cx<T> conj(cx<T> a) { return {a.re, -a.im}; }
template <class T> PGK_FN cx<T> scale(cx<T> a, T s) { return {mul_rn(a.re, s), mul_rn(a.im, s)}; }
template <class T> PGK_FN cx<T> div(cx<T> a, cx<T> b) {
    const T re = abs(b.re), im = abs(b.im);
    if (re == T(0) && im == T(0)) return {a.re / re, a.im / re};
    if (re >= im) {
        const T ratio = b.im / b.re;
        const T s = T(1) / (b.re + mul_rn(b.im, ratio));
        return scale(cx<T>{a.re + mul_rn(a.im, ratio), a.im - mul_rn(a.re, ratio)}, s);
    }
    const T ratio = b.re / b.im;
    const T s = T(1) / (b.im + mul_rn(b.re, ratio));
    return scale(cx<T>{mul_rn(a.re, ratio) + a.im, mul_rn(a.im, ratio) - a.re}, s);
}
template <class T> PGK_FN cx<T> reciprocal(cx<T> a) { return div(cx<T>{T(1), T(0)}, a); }
template <class T> PGK_FN T abs(cx<T> a) { return hypot(a.re, a.im); }
template <class T> PGK_FN cx<T> sign(cx<T> a) {
    if (isnan(a)) return {a.re - a.re + a.im - a.im, a.re - a.re + a.im - a.im};
    if (!truth(a)) return {T(0), T(0)};
    if (isinf(a)) {
        const cx<T> unit = {isinf(a.re) ? copysign(T(1), a.re) : T(0), isinf(a.im) ? copysign(T(1), a.im) : T(0)};
        return isinf(a.re) && isinf(a.im) ? cx<T>{T(0) * a.re, T(0) * a.im} : unit;
    }
    const T r = abs(a);
    return {a.re / r, a.im / r};
}
template <class T> PGK_FN cx<T> round(cx<T> a) { return {round(a.re), round(a.im)}; }

PGK_FN c128 exp(c128 a) {
    // A zero imaginary part must not meet an infinite factor, nor an infinite angle a zero or an infinite one.
    if (a.im == 0.0) return {exp(a.re), a.im};
    if (isinf(a.re) && !isfinite(a.im)) return a.re < 0.0 ? c128{0.0, 0.0} : c128{a.re, a.im - a.im};
    // Where exp(re) alone overflows its product with a small cosine may not: exp(709) is multiplied last.
    const bool large = a.re > 709.0;
    const f64 r = exp(large ? a.re - 709.0 : a.re), last = large ? 8.2184074615549724e307 : 1.0;
    return {r * cos(a.im) * last, r * sin(a.im) * last};
}
PGK_FN c128 expm1(c128 a) {
    const f64 s = sin(a.im * 0.5);
    return {fused(expm1(a.re), cos(a.im), -2.0 * s * s), a.im == 0.0 ? a.im : exp(a.re) * sin(a.im)};
}
PGK_FN c128 log(c128 a) {
    const f64 r = hypot(a.re, a.im), x = abs(a.re), y = abs(a.im);
    const f64 high = x > y ? x : y, low = x > y ? y : x;
    f64 re;
    // Near the unit circle log(r) cancels; log1p of r^2 - 1 does not.
    if (r > 0.5 && r < 2.0) re = 0.5 * log1p(fused(high - 1.0, high + 1.0, low * low));
    // The magnitude of finite parts may overflow.
    else if (isinf(r) && isfinite(a)) re = log(hypot(0.5 * x, 0.5 * y)) + 0.69314718055994531;
    else re = log(r);
    return {re, atan2(a.im, a.re)};
}
PGK_FN c128 log1p(c128 a) {
    const f64 x = a.re, y = a.im, r = hypot(x + 1.0, y);
    // The same cancellation, for every small a; NumPy's own loses those digits.
    const f64 re = r > 0.5 && r < 2.0 ? 0.5 * log1p(fused(x, x + 2.0, y * y)) : log(r);
    return {re, atan2(y, x + 1.0)};
}
PGK_FN c128 log2(c128 a) { return scale(log(a), 1.4426950408889634); }
PGK_FN c128 log10(c128 a) { return scale(log(a), 0.43429448190325182); }
PGK_FN c128 exp2(c128 a) { return exp(scale(a, 0.69314718055994531)); }
PGK_FN c128 sqrt(c128 a) {
    if (a.re == 0.0 && a.im == 0.0) return {0.0, a.im};
    if (isinf(a.im)) return {abs(a.im), a.im};
    // Halving before the sum keeps it finite; the quotient gives the part that would cancel.
    const f64 t = sqrt(0.5 * abs(a.re) + 0.5 * hypot(a.re, a.im));
    const f64 s = isinf(t) ? 0.0 : abs(a.im) / (2.0 * t);
    return a.re >= 0.0 ? c128{t, copysign(s, a.im)} : c128{s, copysign(t, a.im)};
}
PGK_FN c128 sinh(c128 a) {
    return {sinh(a.re) * cos(a.im), a.im == 0.0 ? a.im : cosh(a.re) * sin(a.im)};
}
PGK_FN c128 cosh(c128 a) {
    return {cosh(a.re) * cos(a.im), a.im == 0.0 || a.re == 0.0 ? a.re * a.im : sinh(a.re) * sin(a.im)};
}
PGK_FN c128 tanh(c128 a) {
    if (abs(a.re) > 20.0) {
        return {copysign(1.0, a.re), 4.0 * sin(a.im) * cos(a.im) * exp(-2.0 * abs(a.re))};
    }
    const f64 t = tan(a.im), beta = 1.0 + t * t, s = sinh(a.re), rho = sqrt(1.0 + s * s), d = 1.0 + beta * s * s;
    return {beta * rho * s / d, t / d};
}
PGK_FN c128 sin(c128 a) { const c128 r = sinh(c128{-a.im, a.re}); return {r.im, -r.re}; }
PGK_FN c128 cos(c128 a) { return cosh(c128{-a.im, a.re}); }
PGK_FN c128 tan(c128 a) { const c128 r = tanh(c128{-a.im, a.re}); return {r.im, -r.re}; }
// Kahan's formulas: products of two roots, whose terms never cancel; signed zeros choose the side of a branch cut.
// Of numbers whose magnitude overflows a quarter is taken, and its logarithm added.
PGK_FN bool is_huge(c128 a) { return abs(a.re) > 1e300 || abs(a.im) > 1e300; }
PGK_FN c128 asin(c128 a) {
    const f64 added = is_huge(a) ? 1.3862943611198906 : 0.0;
    if (added) a = scale(a, 0.25);
    const c128 s = sqrt(c128{1.0 - a.re, -a.im}), t = sqrt(c128{1.0 + a.re, a.im});
    const f64 im = asinh(s.re * t.im - s.im * t.re);
    return {atan2(a.re, s.re * t.re - s.im * t.im), im + copysign(added, im)};
}
PGK_FN c128 acos(c128 a) {
    const f64 added = is_huge(a) ? 1.3862943611198906 : 0.0;
    if (added) a = scale(a, 0.25);
    const c128 s = sqrt(c128{1.0 - a.re, -a.im}), t = sqrt(c128{1.0 + a.re, a.im});
    const f64 im = asinh(t.re * s.im - t.im * s.re);
    return {2.0 * atan2(s.re, t.re), im + copysign(added, im)};
}
PGK_FN c128 acosh(c128 a) {
    const f64 added = is_huge(a) ? 1.3862943611198906 : 0.0;
    if (added) a = scale(a, 0.25);
    const c128 s = sqrt(c128{a.re - 1.0, a.im}), t = sqrt(c128{a.re + 1.0, a.im});
    return {asinh(s.re * t.re + s.im * t.im) + added, 2.0 * atan2(s.im, t.re)};
}
PGK_FN c128 atanh(c128 a) {
    const f64 x = abs(a.re), y = a.im, z = abs(y), quarter = 0.78539816339744831;
    // Beyond, squares overflow and 1 / a is all that is left beside the right angle.
    if (x > 1e17 || z > 1e17) {
        return {copysign(0.25 * reciprocal(c128{0.25 * x, 0.25 * z}).re, a.re), copysign(2.0 * quarter, y)};
    }
    f64 re;
    if (x == 1.0 && z < 1.0) re = 0.5 * (log(hypot(2.0, z)) - log(z));
    else re = 0.25 * log1p(4.0 * x / fused(1.0 - x, 1.0 - x, z * z));
    return {copysign(re, a.re), 0.5 * atan2(2.0 * y, (1.0 - x) * (1.0 + x) - z * z)};
}
PGK_FN c128 asinh(c128 a) { const c128 r = asin(c128{-a.im, a.re}); return {r.im, -r.re}; }
PGK_FN c128 atan(c128 a) { const c128 r = atanh(c128{-a.im, a.re}); return {r.im, -r.re}; }
// The product of C's Annex G: where both parts are NaN, an infinite factor makes an infinite product.
PGK_FN c128 mul_infinite(c128 a, c128 b) {
    const c128 r = mul(a, b);
    if (!isnan(r.re) || !isnan(r.im)) return r;
    const bool overflows = isinf(a.re * b.re) || isinf(a.im * b.im) || isinf(a.re * b.im) || isinf(a.im * b.re);
    if (!isinf(a) && !isinf(b) && !overflows) return r;
    // An infinite factor becomes the corner of the unit square that it points to; NaN elsewhere becomes 0.
    const bool box_a = isinf(a), box_b = isinf(b);
    if (box_a) a = {copysign(isinf(a.re) ? 1.0 : 0.0, a.re), copysign(isinf(a.im) ? 1.0 : 0.0, a.im)};
    else a = {isnan(a.re) ? copysign(0.0, a.re) : a.re, isnan(a.im) ? copysign(0.0, a.im) : a.im};
    if (box_b) b = {copysign(isinf(b.re) ? 1.0 : 0.0, b.re), copysign(isinf(b.im) ? 1.0 : 0.0, b.im)};
    else b = {isnan(b.re) ? copysign(0.0, b.re) : b.re, isnan(b.im) ? copysign(0.0, b.im) : b.im};
    const c128 corner = mul(a, b);
    const f64 infinity = bit_cast<f64>(0x7ff0000000000000ull);
    return {infinity * corner.re, infinity * corner.im};
}
// NumPy's power: products for whole exponents below 100, otherwise exp(b log(a)); 0 to a power whose real part is not
// positive is NaN.
PGK_FN c128 pow(c128 a, c128 b) {
    if (!truth(b)) return {1.0, 0.0};
    if (!truth(a)) {
        if (b.re > 0.0) return {0.0, 0.0};
        const f64 nan = a.re / a.re;
        return {nan, nan};
    }
    const f64 whole = round(b.re);
    if (b.im == 0.0 && whole == b.re && abs(whole) < 100.0) {
        // A product with 1 would turn an infinite part into NaN.
        if (whole == 1.0) return a;
        if (whole == 2.0) return mul(a, a);
        if (whole == 3.0) return mul(a, mul(a, a));
        c128 result = {1.0, 0.0}, base = a;
        for (int e = static_cast<int>(abs(whole)); e; e >>= 1) {
            if (e & 1) result = mul(result, base);
            base = mul(base, base);
        }
        return whole < 0.0 ? reciprocal(result) : result;
    }
    return exp(mul_infinite(b, log(a)));
}

#define PGK_THROUGH_DOUBLE(name) \
    PGK_FN c64 name(c64 a) { return convert<c64>(name(convert<c128>(a))); }
PGK_THROUGH_DOUBLE(exp)
PGK_THROUGH_DOUBLE(expm1)
PGK_THROUGH_DOUBLE(exp2)
PGK_THROUGH_DOUBLE(log)
PGK_THROUGH_DOUBLE(log1p)
PGK_THROUGH_DOUBLE(log2)
PGK_THROUGH_DOUBLE(log10)
PGK_THROUGH_DOUBLE(sqrt)
PGK_THROUGH_DOUBLE(sin)
PGK_THROUGH_DOUBLE(cos)
PGK_THROUGH_DOUBLE(tan)
PGK_THROUGH_DOUBLE(sinh)
PGK_THROUGH_DOUBLE(cosh)
PGK_THROUGH_DOUBLE(tanh)
PGK_THROUGH_DOUBLE(asin)
PGK_THROUGH_DOUBLE(acos)
PGK_THROUGH_DOUBLE(atan)
PGK_THROUGH_DOUBLE(asinh)
PGK_THROUGH_DOUBLE(acosh)
PGK_THROUGH_DOUBLE(atanh)
#undef PGK_THROUGH_DOUBLE
PGK_FN c64 pow(c64 a, c64 b) { return convert<c64>(pow(convert<c128>(a), convert<c128>(b))); }
template <bool LOW, class T> PGK_FN cx<T> exp(cx<T> a) { return exp(a); }
template <bool LOW, class T> PGK_FN cx<T> tanh(cx<T> a) { return tanh(a); }

}  // namespace pgk
