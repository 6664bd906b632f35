// Philox4x32-10: four words of random bits for a key and a counter, and the numbers made of them.
//
// A counter is a block number (64 bits), an attempt (32 bits: how often a number was drawn again) and a stream (32 bits).
// Every floating-point step is rounded by itself (no fused multiply-add), so that NumPy's steps have the same bits.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk::rng {

struct Words { u32 w[4]; };

PGK_FN u32 high_half(u64 x) { return static_cast<u32>(x >> 32); }

// The halves of a product; one instruction, where the compiler would compute in 64 bits.
PGK_FN void multiply(u32 a, u32 b, u32& low, u32& high) {
    asm("{ .reg .u64 p; mul.wide.u32 p, %2, %3; mov.b64 {%0, %1}, p; }" : "=r"(low), "=r"(high) : "r"(a), "r"(b));
}

PGK_FN Words philox(u64 key, u64 block, u32 attempt, u32 stream) {
    u32 c0 = static_cast<u32>(block), c1 = high_half(block), c2 = attempt, c3 = stream;
    u32 k0 = static_cast<u32>(key), k1 = high_half(key);
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        u32 low0, high0, low1, high1;
        multiply(0xD2511F53u, c0, low0, high0);
        multiply(0xCD9E8D57u, c2, low1, high1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

PGK_FN u64 pair_of(u32 low, u32 high) { return static_cast<u64>(high) << 32 | low; }

PGK_FN f32 add_rn(f32 a, f32 b) { return __fadd_rn(a, b); }
PGK_FN f64 add_rn(f64 a, f64 b) { return __dadd_rn(a, b); }
PGK_FN f32 div_rn(f32 a, f32 b) { return __fdiv_rn(a, b); }
PGK_FN f64 div_rn(f64 a, f64 b) { return __ddiv_rn(a, b); }
PGK_FN f32 sqrt_rn(f32 a) { return __fsqrt_rn(a); }
PGK_FN f64 sqrt_rn(f64 a) { return __dsqrt_rn(a); }
PGK_FN u32 bits_of(f32 a) { return __float_as_uint(a); }
PGK_FN u64 bits_of(f64 a) { return static_cast<u64>(__double_as_longlong(a)); }
PGK_FN f32 from_bits(u32 a) { return __uint_as_float(a); }
PGK_FN f64 from_bits(u64 a) { return __longlong_as_double(static_cast<i64>(a)); }
PGK_FN u64 high_product(u64 a, u64 b) { return __umul64hi(a, b); }

template <class U> struct signed_of { using type = i32; };
template <> struct signed_of<u64> { using type = i64; };

// ln((1 + s) / (1 - s)) = 2 atanh(s) of |s| < 0.172 by its series.
template <class T> PGK_FN T log_of_quotient(T s) {
    const T z = mul_rn(s, s);
    constexpr int last = sizeof(T) == 8 ? 21 : 9;
    T p = T(2.0 / last);
#pragma unroll
    for (int k = last - 2; k >= 1; k -= 2) p = add_rn(mul_rn(p, z), T(2.0 / k));
    return mul_rn(s, p);
}

// -ln(u) of a positive normal number: u = 2^e m with m around 1.
template <class T> PGK_FN T minus_log(T u) {
    using U = decltype(bits_of(u));
    using I = typename signed_of<U>::type;
    constexpr bool wide = sizeof(T) == 8;
    constexpr int mantissa = wide ? 52 : 23;
    const U root = static_cast<U>(wide ? 0x3FE6A09E667F3BCDull : 0x3F3504F3ull);
    const U bits = bits_of(u);
    const I e = static_cast<I>(bits - root) >> mantissa;
    const T f = add_rn(from_bits(static_cast<U>(bits - (static_cast<U>(e) << mantissa))), T(-1));
    const T s = div_rn(f, add_rn(f, T(2)));
    return add_rn(mul_rn(static_cast<T>(-e), T(0.6931471805599453)), -log_of_quotient(s));
}

// -ln(1 - p) for 0 <= p < 1, with a small relative error where p is small.
template <class T> PGK_FN T minus_log_rest(T p) {
    return p < T(0.25) ? log_of_quotient(div_rn(p, add_rn(T(2), -p))) : minus_log(add_rn(T(1), -p));
}

// Sine and cosine of |x| <= pi / 4 by their series.
template <class T> PGK_FN void sine_cosine(T x, T& s, T& c) {
    constexpr double inverse[] = {1.0 / 1, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
        1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800, 1.0 / 87178291200,
        1.0 / 1307674368000, 1.0 / 20922789888000};
    constexpr int last = sizeof(T) == 8 ? 15 : 9;
    const T z = -mul_rn(x, x);
    T odd = T(inverse[last - 1]), even = T(inverse[last]);
#pragma unroll
    for (int k = last - 2; k >= 1; k -= 2) {
        odd = add_rn(mul_rn(odd, z), T(inverse[k - 1]));
        even = add_rn(mul_rn(even, z), T(inverse[k]));
    }
    s = mul_rn(x, odd);
    c = add_rn(mul_rn(even, z), T(1));
}

// Box and Muller: `radius` is uniform in (0, 1), `angle` a number around 0 in [-pi/4, pi/4], turned by two random bits.
template <class T> PGK_FN void normal_pair(T radius, T angle, bool swap, bool negate, T* out) {
    const T r = sqrt_rn(mul_rn(T(2), minus_log(radius)));
    T s, c;
    sine_cosine(angle, s, c);
    c = negate ? -c : c;
    out[0] = mul_rn(r, swap ? s : c);
    out[1] = mul_rn(r, swap ? c : s);
}

// A number in (0, 1), finer near 0: its logarithm is finite and not 0.
PGK_FN f32 positive(u32 x) {
    return ::fminf(add_rn(mul_rn(__uint2float_rn(x), 0x1p-32f), 0x1p-33f), 1.0f - 0x1p-24f);
}
PGK_FN f64 positive(u64 x) {
    return ::fmin(mul_rn(add_rn(static_cast<f64>(x >> 11), 1.0), 0x1p-53), 1.0 - 0x1p-53);
}

// The same from the upper bits: the lowest is left for a sign.
PGK_FN f32 positive_half(u32 x) {
    return ::fminf(add_rn(mul_rn(__uint2float_rn(x >> 1), 0x1p-31f), 0x1p-32f), 1.0f - 0x1p-24f);
}
PGK_FN f64 positive_half(u64 x) { return positive(x); }

// An angle from the bits below the two highest: in (-pi/4, pi/4).
PGK_FN f32 angle(u32 x) {
    return mul_rn(__int2float_rn(2 * static_cast<i32>(x & 0x3FFFFFFFu) - 0x3FFFFFFF), f32(1.5707963267948966 * 0x1p-31));
}
PGK_FN f64 angle(u64 x) {
    return mul_rn(__ll2double_rn(2 * static_cast<i64>(x & 0x3FFFFFFFFFFFFFFFull) - 0x3FFFFFFFFFFFFFFFll),
                  1.5707963267948966 * 0x1p-63);
}

}  // namespace pgk::rng
