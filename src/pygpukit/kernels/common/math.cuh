// Real arithmetic and functions of the operator expressions, for float, double and the integers.
// float and double use the CUDA library's accurate functions (no fast-math); integers wrap, and divide by zero to 0.
// LOW marks float computations whose result is rounded to 16 bits or fewer: two-ulp hardware approximations suffice.
#pragma once
#include "pygpukit/types.cuh"

namespace pgk {

// Products and sums that must round separately: the compiler may not fuse them.
#if PGK_ON_DEVICE
PGK_FN f32 mul_rn(f32 a, f32 b) { return __fmul_rn(a, b); }
PGK_FN f64 mul_rn(f64 a, f64 b) { return __dmul_rn(a, b); }
PGK_FN f32 add_rn(f32 a, f32 b) { return __fadd_rn(a, b); }
PGK_FN f64 add_rn(f64 a, f64 b) { return __dadd_rn(a, b); }
PGK_FN f32 exp2_approx(f32 a) { f32 r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
// Like exp2_approx, with subnormal results: bfloat16 has them too.
PGK_FN f32 exp2_full(f32 a) { f32 r; asm("ex2.approx.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
PGK_FN f32 log2_approx(f32 a) { f32 r; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
PGK_FN f32 rcp_approx(f32 a) { f32 r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(a)); return r; }
PGK_FN f32 rsqrt(f32 a) { return ::rsqrtf(a); }
PGK_FN f64 rsqrt(f64 a) { return ::rsqrt(a); }
#else
PGK_FN f32 mul_rn(f32 a, f32 b) { return a * b; }
PGK_FN f64 mul_rn(f64 a, f64 b) { return a * b; }
PGK_FN f32 add_rn(f32 a, f32 b) { return a + b; }
PGK_FN f64 add_rn(f64 a, f64 b) { return a + b; }
PGK_FN f32 exp2_approx(f32 a) { return ::exp2f(a); }
PGK_FN f32 exp2_full(f32 a) { return ::exp2f(a); }
PGK_FN f32 log2_approx(f32 a) { return ::log2f(a); }
PGK_FN f32 rcp_approx(f32 a) { return 1.0f / a; }
PGK_FN f32 rsqrt(f32 a) { return 1.0f / ::sqrtf(a); }
PGK_FN f64 rsqrt(f64 a) { return 1.0 / ::sqrt(a); }
#endif
PGK_FN f32 fused(f32 a, f32 b, f32 c) { return ::fmaf(a, b, c); }
PGK_FN f64 fused(f64 a, f64 b, f64 c) { return ::fma(a, b, c); }

#define PGK_UNARY_FUNCTION(name) \
    PGK_FN f32 name(f32 a) { return ::name##f(a); } \
    PGK_FN f64 name(f64 a) { return ::name(a); }
#define PGK_BINARY_FUNCTION(name) \
    PGK_FN f32 name(f32 a, f32 b) { return ::name##f(a, b); } \
    PGK_FN f64 name(f64 a, f64 b) { return ::name(a, b); }
PGK_UNARY_FUNCTION(exp)
PGK_UNARY_FUNCTION(exp2)
PGK_UNARY_FUNCTION(expm1)
PGK_UNARY_FUNCTION(log)
PGK_UNARY_FUNCTION(log2)
PGK_UNARY_FUNCTION(log10)
PGK_UNARY_FUNCTION(log1p)
PGK_UNARY_FUNCTION(sqrt)
PGK_UNARY_FUNCTION(cbrt)
PGK_UNARY_FUNCTION(sin)
PGK_UNARY_FUNCTION(cos)
PGK_UNARY_FUNCTION(tan)
PGK_UNARY_FUNCTION(asin)
PGK_UNARY_FUNCTION(acos)
PGK_UNARY_FUNCTION(atan)
PGK_UNARY_FUNCTION(sinh)
PGK_UNARY_FUNCTION(cosh)
PGK_UNARY_FUNCTION(asinh)
PGK_UNARY_FUNCTION(acosh)
PGK_UNARY_FUNCTION(atanh)
PGK_UNARY_FUNCTION(erf)
PGK_UNARY_FUNCTION(erfc)
PGK_BINARY_FUNCTION(fmod)
PGK_BINARY_FUNCTION(atan2)
PGK_BINARY_FUNCTION(hypot)
PGK_BINARY_FUNCTION(copysign)
#undef PGK_UNARY_FUNCTION
#undef PGK_BINARY_FUNCTION

template <bool LOW> PGK_FN f32 exp(f32 a) {
    // The rounded product is off by at most 2^-17 where exp does not overflow: far below 16 bits.
    if constexpr (LOW) return exp2_full(a * 1.4426950408889634f);
    else return ::expf(a);
}
template <bool LOW> PGK_FN f64 exp(f64 a) { return ::exp(a); }

template <bool LOW> PGK_FN f32 tanh(f32 a) {
    if constexpr (LOW) {
        // 1 - 2 / (1 + e^2a) cancels near zero, where tanh(a) rounds to a.
        const f32 r = fused(-2.0f, rcp_approx(1.0f + exp2_approx(a * 2.8853900817779268f)), 1.0f);
        return ::fabsf(a) < 0.0078125f ? a : r;
    } else {
        return ::tanhf(a);
    }
}
template <bool LOW> PGK_FN f64 tanh(f64 a) { return ::tanh(a); }

template <bool LOW> PGK_FN f32 sigmoid(f32 a) {
    // The reciprocal flushes results under 2^-126 to zero; everywhere else it is within an ulp of the division.
    if constexpr (LOW) return rcp_approx(1.0f + exp2_approx(a * -1.4426950408889634f));
    else return rcp_approx(1.0f + ::expf(-a));
}
template <bool LOW> PGK_FN f64 sigmoid(f64 a) { return 1.0 / (1.0 + ::exp(-a)); }

template <bool LOW, class T> PGK_FN T silu(T a) { return a * sigmoid<LOW>(a); }

// 0.5 a (1 + tanh(u)) = a sigmoid(2 u), u = sqrt(2 / pi) (a + 0.044715 a^3): no cancellation for negative a. The
// argument is rounded step by step, as the reference does it: the exponential would magnify any difference.
template <bool LOW, class T> PGK_FN T gelu(T a) {
    const T slope = mul_rn(mul_rn(a, a), T(0.07135481627260025)) + T(1.5957691216057308);
    return a * sigmoid<LOW>(mul_rn(a, slope));
}
// 0.5 a (1 + erf(a / sqrt(2))), without its cancellation for negative a.
template <bool LOW, class T> PGK_FN T gelu_erf(T a) {
    if constexpr (LOW) {
        // The share beyond |a| is t exp2(p(t) - a^2 / (2 ln 2)) with t = 1 / (1 + 0.35 |a|), to a relative 7e-6 for every
        // a: a minimax fit. The exponential flushes shares under 2^-126 to zero.
        const f32 t = rcp_approx(fused(0.35f, ::fabsf(a), 1.0f));
        constexpr f32 terms[] = {-1.0472926f, 0.73438592f, 0.34978365f, 1.4732262f, -2.8421677f};
        f32 p = 0.33207202f;
#pragma unroll
        for (int i = 0; i < 5; ++i) p = fused(p, t, terms[i]);
        const f32 beyond = t * exp2_approx(fused(a * -0.72134752f, a, p));
        return a * (a < 0.0f ? beyond : 1.0f - beyond);
    } else {
        return mul_rn(mul_rn(a, T(0.5)), erfc(mul_rn(a, T(-0.70710678118654752))));
    }
}

template <class T> PGK_FN bool isnan(T a) { return a != a; }
template <class T> PGK_FN bool isinf(T a) {
    if constexpr (is_float<T>::value) return !isnan(a) && isnan(a - a);
    else return false;
}
template <class T> PGK_FN bool isfinite(T a) {
    if constexpr (is_float<T>::value) return !isnan(a - a);
    else return true;
}
template <class T> PGK_FN bool truth(T a) { return a != T(0); }
template <class T> PGK_FN bool equal(T a, T b) { return a == b; }
template <class T> PGK_FN bool less(T a, T b) { return a < b; }
template <class T> PGK_FN bool less_equal(T a, T b) { return a <= b; }

template <class T> PGK_FN T add(T a, T b) {
    if constexpr (is_integer<T>::value) { using W = typename wrapping<T>::type; return T(W(a) + W(b)); }
    else return a + b;
}
template <class T> PGK_FN T sub(T a, T b) {
    if constexpr (is_integer<T>::value) { using W = typename wrapping<T>::type; return T(W(a) - W(b)); }
    else return a - b;
}
template <class T> PGK_FN T mul(T a, T b) {
    if constexpr (is_integer<T>::value) { using W = typename wrapping<T>::type; return T(W(a) * W(b)); }
    else return mul_rn(a, b);
}
template <class T> PGK_FN T div(T a, T b) { return a / b; }
template <class T> PGK_FN T neg(T a) {
    if constexpr (is_integer<T>::value) return sub(T(0), a);
    else return -a;
}
template <class T> PGK_FN T abs(T a) {
    if constexpr (same<T, f32>::value) return ::fabsf(a);
    else if constexpr (same<T, f64>::value) return ::fabs(a);
    else return a < T(0) ? neg(a) : a;
}
template <class T> PGK_FN T sign(T a) { return isnan(a) ? a : T((a > T(0)) - (a < T(0))); }
template <class T> PGK_FN T reciprocal(T a) {
    if constexpr (is_integer<T>::value) return a == T(1) || (is_signed<T>::value && a == T(-1)) ? a : T(0);
    else return T(1) / a;
}
template <class T> PGK_FN T relu(T a) { return a > T(0) || isnan(a) ? a : T(0); }
template <class T> PGK_FN T relu2(T a) { return mul_rn(relu(a), relu(a)); }

// maximum and minimum keep a NaN of either side, fmax and fmin prefer the number.
template <class T> PGK_FN T maximum(T a, T b) { return isnan(a) || less_equal(b, a) ? a : b; }
template <class T> PGK_FN T minimum(T a, T b) { return isnan(a) || less_equal(a, b) ? a : b; }
template <class T> PGK_FN T fmax(T a, T b) { return isnan(b) || less_equal(b, a) ? a : b; }
template <class T> PGK_FN T fmin(T a, T b) { return isnan(b) || less_equal(a, b) ? a : b; }
template <class T> PGK_FN T clamp(T x, T low, T high) { return minimum(maximum(x, low), high); }
template <class T> PGK_FN T lerp(T a, T b, T t) { return a + mul_rn(t, b - a); }

PGK_FN f32 floor(f32 a) { return ::floorf(a); }
PGK_FN f64 floor(f64 a) { return ::floor(a); }
PGK_FN f32 ceil(f32 a) { return ::ceilf(a); }
PGK_FN f64 ceil(f64 a) { return ::ceil(a); }
PGK_FN f32 trunc(f32 a) { return ::truncf(a); }
PGK_FN f64 trunc(f64 a) { return ::trunc(a); }
PGK_FN f32 round(f32 a) { return ::rintf(a); }
PGK_FN f64 round(f64 a) { return ::rint(a); }

// Quotient rounded down and remainder with the divisor's sign.
template <class T> PGK_FN T floor_divide(T a, T b) {
    if constexpr (is_integer<T>::value) {
        if (b == T(0)) return T(0);
        if constexpr (is_signed<T>::value) {
            if (b == T(-1)) return neg(a);
            const T q = T(a / b);
            return (a % b != 0 && (a < 0) != (b < 0)) ? T(q - 1) : q;
        } else {
            return T(a / b);
        }
    } else {
        if (b == T(0)) return a / b;
        const T rest = fmod(a, b);
        T q = (a - rest) / b;
        if (rest != T(0) && (b < T(0)) != (rest < T(0))) q = q - T(1);
        if (q == T(0)) return copysign(T(0), a / b);
        const T down = floor(q);
        return q - down > T(0.5) ? down + T(1) : down;
    }
}
template <class T> PGK_FN T mod(T a, T b) {
    if constexpr (is_integer<T>::value) {
        if (b == T(0)) return T(0);
        if constexpr (is_signed<T>::value) {
            if (b == T(-1)) return T(0);
            const T rest = T(a % b);
            return (rest != 0 && (a < 0) != (b < 0)) ? T(rest + b) : rest;
        } else {
            return T(a % b);
        }
    } else {
        const T rest = fmod(a, b);
        if (b == T(0)) return rest;
        if (rest == T(0)) return copysign(T(0), b);
        return (b < T(0)) != (rest < T(0)) ? rest + b : rest;
    }
}

// Remainder with the dividend's sign.
template <class T> PGK_FN T fmod(T a, T b) {
    if (b == T(0) || (is_signed<T>::value && b == T(-1))) return T(0);
    return T(a % b);
}
template <class T> PGK_FN typename wrapping<T>::type magnitude(T a) {
    using W = typename wrapping<T>::type;
    return a < T(0) ? W(0) - W(a) : W(a);
}
template <class T> PGK_FN T gcd(T a, T b) {
    auto x = magnitude(a), y = magnitude(b);
    while (y) { const auto rest = x % y; x = y; y = rest; }
    return T(x);
}
template <class T> PGK_FN T lcm(T a, T b) {
    const auto x = magnitude(a), y = magnitude(b);
    auto p = x, q = y;
    while (q) { const auto rest = p % q; p = q; q = rest; }
    return p ? T(x / p * y) : T(0);
}
template <class T> PGK_FN u8 bitwise_count(T a) {
#if PGK_ON_DEVICE
    if constexpr (sizeof(T) == 8) return static_cast<u8>(__popcll(magnitude(a)));
    else return static_cast<u8>(__popc(magnitude(a)));
#else
    return static_cast<u8>(__builtin_popcountll(magnitude(a)));
#endif
}

// An integer to a negative power is the truncated reciprocal (NumPy raises, which a kernel cannot).
template <class T> PGK_FN T pow(T a, T b) {
    if constexpr (is_integer<T>::value) {
        if (is_signed<T>::value && b < T(0)) {
            if (a == T(1)) return a;
            if (is_signed<T>::value && a == T(-1)) return b % 2 ? a : T(1);
            return T(0);
        }
        using W = typename wrapping<T>::type;
        W base = W(a), result = 1;
        for (auto e = b; e != T(0); e = T(e / 2)) {
            if (e % 2) result *= base;
            base *= base;
        }
        return T(result);
    } else if constexpr (same<T, f32>::value) {
        return ::powf(a, b);
    } else {
        return ::pow(a, b);
    }
}

// A quotient of sizes; most fit 32 bits, where a division takes a third of the time.
PGK_FN i64 quotient(i64 a, i64 b) {
    if ((static_cast<u64>(a | b) >> 32) == 0) return static_cast<u32>(a) / static_cast<u32>(b);
    return a / b;
}

// Shifting by the width or more (a negative count included) drains every bit, as NumPy defines it.
template <class T> PGK_FN T left_shift(T a, T b) {
    using W = typename wrapping<T>::type;
    return W(b) < 8 * sizeof(T) ? T(W(a) << W(b)) : T(0);
}
template <class T> PGK_FN T right_shift(T a, T b) {
    using W = typename wrapping<T>::type;
    if (W(b) < 8 * sizeof(T)) return T(a >> b);
    return a < T(0) ? T(-1) : T(0);
}

template <class T> PGK_FN bool signbit(T a) { return copysign(T(1), a) < T(0); }
template <class T> PGK_FN T heaviside(T a, T b) {
    if (isnan(a)) return a;
    return a == T(0) ? b : a < T(0) ? T(0) : T(1);
}
// Where both are the same infinity their difference would be NaN.
template <class T> PGK_FN T logaddexp(T a, T b) {
    if (a == b) return a + T(0.6931471805599453094);
    const T d = a - b;
    if (d > T(0)) return a + log1p(exp(-d));
    return d <= T(0) ? b + log1p(exp(d)) : d;
}
template <class T> PGK_FN T logaddexp2(T a, T b) {
    if (a == b) return a + T(1);
    const T d = a - b, scale = T(1.4426950408889634074);
    if (d > T(0)) return a + mul_rn(scale, log1p(exp2(-d)));
    return d <= T(0) ? b + mul_rn(scale, log1p(exp2(d))) : d;
}

// The next number of the storage type S towards b: one step of its bits, which are in order of magnitude.
template <int BYTES> struct bits_type { using type = u8; };
template <> struct bits_type<2> { using type = u16; };
template <> struct bits_type<4> { using type = u32; };
template <> struct bits_type<8> { using type = u64; };
template <class S, class T> PGK_FN T next_after(T a, T b) {
    using U = typename bits_type<sizeof(S)>::type;
    if (isnan(a) || isnan(b)) return a + b;
    if (a == b) return b;
    U bits = bit_cast<U>(convert<S>(a));
    if (a == T(0)) bits = U(1) | U(U(b < T(0)) << (8 * sizeof(S) - 1));
    else bits = (a < b) == (a > T(0)) ? U(bits + 1) : U(bits - 1);
    return convert<T>(bit_cast<S>(bits));
}

// Parts of a number as frexp and modf give them; an infinity is its own mantissa, with exponent 0 and fraction 0.
PGK_FN f32 split(f32 a, int& e) { return ::frexpf(a, &e); }
PGK_FN f64 split(f64 a, int& e) { return ::frexp(a, &e); }
template <class T> PGK_FN T mantissa(T a) {
    int e = 0;
    return isfinite(a) ? split(a, e) : a;
}
template <class T> PGK_FN i32 exponent(T a) {
    int e = 0;
    if (isfinite(a)) split(a, e);
    return e;
}
template <class T> PGK_FN T fraction(T a) { return copysign(isinf(a) ? T(0) : a - trunc(a), a); }
PGK_FN f32 scale_by(f32 a, int n) { return ::ldexpf(a, n); }
PGK_FN f64 scale_by(f64 a, int n) { return ::ldexp(a, n); }
template <class T> PGK_FN T scalb(T a, T b) {
    const T n = isnan(b) ? T(0) : b > T(5000) ? T(5000) : b < T(-5000) ? T(-5000) : b;
    return scale_by(a, static_cast<int>(n));
}
template <class T> PGK_FN T finite_or(T a, T b, T c) {
    if (isnan(a)) return b;
    return isinf(a) ? (a > T(0) ? c : -c) : a;
}

}  // namespace pgk
