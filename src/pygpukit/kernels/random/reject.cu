// Numbers that are drawn until one is accepted: gamma, poisson, binomial, and integers in ranges of their own.
//
// Arguments: out contiguous, counter (read where the lowest bit of `stream` is set: blocks that replays of graphs have used),
//   x and y (parameters of each element, contiguous; read where the bits 1 and 2 of `flags` are set), n, flags (bit 4: the
//   logarithm of gamma), key, offset (block of element 0), stream, a and b (parameters of all elements).
// Element i has the block `offset + i` for itself: its attempts are words of that block with other third counters, so its
// value does not depend on how often others were refused. What decides are multiplications, additions, divisions and
// roots that are rounded one by one, so the decisions are those of src/pygpukit/random/rejection.py. Parameters out of
// range give NaN, of counts -1.
// Launch: 256 threads, an element per thread. Determinism: batch_invariant.
//
// gamma: Marsaglia and Tsang 2000. poisson and binomial up to a mean of 10: arrivals of a Poisson process, and how many of
// n exponential numbers are below -ln(1 - p); beyond, transformed rejection (PTRS and BTRS, Hoermann 1993).
#include "pygpukit/philox.cuh"

namespace pgk::rng {

struct Attempts {
    u64 key, block;
    u32 stream, next;
    PGK_FN Words words() { return philox(key, block, next++, stream); }
};

// A number in (0, 1) with 53 random bits.
PGK_FN f64 fraction(u32 low, u32 high) {
    return ::fmin(mul_rn(add_rn(static_cast<f64>(pair_of(low, high) >> 11), 0.5), 0x1p-53), 1.0 - 0x1p-53);
}

// ln(x / y) of positive numbers, with a small relative error where they are close.
PGK_FN f64 log_ratio(f64 x, f64 y) {
    const f64 s = div_rn(add_rn(x, -y), add_rn(x, y));
    return ::fabs(s) < 0.17 ? log_of_quotient(s) : add_rn(minus_log(y), -minus_log(x));
}

// ln(k!) less (k + 1/2) ln(k + 1) - (k + 1) + ln(2 pi) / 2.
PGK_FN f64 stirling(f64 k) {
    constexpr f64 first[] = {0.08106146679532726, 0.0413406959554093, 0.02767792568499834, 0.020790672103765093,
                             0.016644691189821193, 0.013876128823070748, 0.01189670994589177};
    const f64 r = div_rn(1.0, add_rn(k, 1.0)), z = mul_rn(r, r);
    f64 t = -1.0 / 1680;
    t = add_rn(mul_rn(t, z), 1.0 / 1260);
    t = add_rn(mul_rn(t, z), -1.0 / 360);
    t = mul_rn(add_rn(mul_rn(t, z), 1.0 / 12), r);
#pragma unroll
    for (int i = 0; i < 7; ++i) t = k == i ? first[i] : t;
    return t;
}

PGK_FN f64 gamma(Attempts& attempts, f64 a, int flags) {
    const bool logarithm = flags & 4;
    const f64 infinity = __longlong_as_double(0x7FF0000000000000ll);
    if (!(a > 0.0 && a < infinity)) {
        if (a == 0.0) return logarithm ? -infinity : 0.0;
        return a == infinity ? a : __longlong_as_double(0x7FF8000000000000ll);
    }
    const bool small = a < 1.0;
    const f64 d = add_rn(small ? add_rn(a, 1.0) : a, -1.0 / 3), c = div_rn(1.0, sqrt_rn(mul_rn(9.0, d)));
    for (;;) {
        const Words first = attempts.words(), second = attempts.words();
        const u64 turn = pair_of(first.w[2], first.w[3]);
        f64 z[2];
        normal_pair(positive(pair_of(first.w[0], first.w[1])), angle(turn), turn >> 63, turn >> 62 & 1, z);
        const f64 root = add_rn(1.0, mul_rn(c, z[0]));
        if (!(root > 0.0)) continue;
        const f64 v = mul_rn(mul_rn(root, root), root), square = mul_rn(z[0], z[0]);
        const f64 u = fraction(second.w[0], second.w[1]);
        if (!(u < add_rn(1.0, -mul_rn(0.0331, mul_rn(square, square))))) {
            const f64 bound = add_rn(mul_rn(0.5, square), mul_rn(d, add_rn(add_rn(1.0, -v), -minus_log(v))));
            if (!(-minus_log(u) < bound)) continue;
        }
        const f64 less = small ? div_rn(minus_log(fraction(second.w[2], second.w[3])), a) : 0.0;
        if (logarithm) return add_rn(-add_rn(minus_log(d), mul_rn(3.0, minus_log(root))), -less);
        const f64 whole = mul_rn(d, v);
        return small ? whole * ::exp(-less) : whole;
    }
}

PGK_FN i64 poisson(Attempts& attempts, f64 mean) {
    if (!(mean >= 0.0 && mean < 9.2e18)) return -1;
    if (mean < 10.0) {
        f64 time = 0.0;
        for (i64 k = 0;; k += 2) {
            const Words w = attempts.words();
            time = add_rn(time, minus_log(fraction(w.w[0], w.w[1])));
            if (!(time < mean)) return k;
            time = add_rn(time, minus_log(fraction(w.w[2], w.w[3])));
            if (!(time < mean)) return k + 1;
        }
    }
    const f64 b = add_rn(0.931, mul_rn(2.53, sqrt_rn(mean))), a = add_rn(-0.059, mul_rn(0.02483, b));
    const f64 scale = add_rn(1.1239, div_rn(1.1328, add_rn(b, -3.4)));
    const f64 inner = add_rn(0.9277, -div_rn(3.6224, add_rn(b, -2.0)));
    for (;;) {
        const Words w = attempts.words();
        const f64 u = add_rn(fraction(w.w[0], w.w[1]), -0.5), v = fraction(w.w[2], w.w[3]), us = add_rn(0.5, -::fabs(u));
        const f64 x = mul_rn(add_rn(div_rn(mul_rn(2.0, a), us), b), u);
        const f64 k = ::floor(add_rn(add_rn(x, mean), 0.43));
        if (us >= 0.07 && v <= inner) return static_cast<i64>(k);
        if (k < 0.0 || k > 9.22337203685477e18 || (us < 0.013 && v > us)) continue;
        const f64 high = add_rn(div_rn(a, mul_rn(us, us)), b), up = add_rn(k, 1.0);
        const f64 taken = -minus_log(div_rn(mul_rn(v, scale), high));
        f64 bound = add_rn(mul_rn(k, log_ratio(mean, up)), add_rn(up, -mean));
        bound = add_rn(add_rn(bound, mul_rn(0.5, minus_log(up))), -0.9189385332046727);
        if (taken <= add_rn(bound, -stirling(k))) return static_cast<i64>(k);
    }
}

PGK_FN i64 binomial(Attempts& attempts, f64 n, f64 chance) {
    if (!(n >= 0.0 && chance >= 0.0 && chance <= 1.0)) return -1;
    const bool turned = chance > 0.5;
    const f64 p = turned ? add_rn(1.0, -chance) : chance, mean = mul_rn(n, p);
    f64 k = 0.0;
    if (mean < 10.0) {
        const f64 limit = minus_log_rest(p);
        for (f64 time = 0.0; k < n;) {
            const Words w = attempts.words();
            time = add_rn(time, div_rn(minus_log(fraction(w.w[0], w.w[1])), add_rn(n, -k)));
            if (!(time < limit)) break;
            k = add_rn(k, 1.0);
            if (!(k < n)) break;
            time = add_rn(time, div_rn(minus_log(fraction(w.w[2], w.w[3])), add_rn(n, -k)));
            if (!(time < limit)) break;
            k = add_rn(k, 1.0);
        }
        return static_cast<i64>(turned ? add_rn(n, -k) : k);
    }
    const f64 rest = add_rn(1.0, -p), deviation = sqrt_rn(mul_rn(mean, rest));
    const f64 b = add_rn(1.15, mul_rn(2.53, deviation));
    const f64 a = add_rn(add_rn(-0.0873, mul_rn(0.0248, b)), mul_rn(0.01, p));
    const f64 inner = add_rn(0.92, -div_rn(4.2, b)), odds = div_rn(p, rest);
    const f64 scale = mul_rn(add_rn(2.83, div_rn(5.1, b)), deviation);
    const f64 mode = ::floor(mul_rn(add_rn(n, 1.0), p)), beyond = add_rn(add_rn(n, -mode), 1.0);
    f64 top = mul_rn(add_rn(mode, 0.5), log_ratio(add_rn(mode, 1.0), mul_rn(odds, beyond)));
    top = add_rn(top, add_rn(stirling(mode), stirling(add_rn(n, -mode))));
    for (;;) {
        const Words w = attempts.words();
        const f64 u = add_rn(fraction(w.w[0], w.w[1]), -0.5), v = fraction(w.w[2], w.w[3]), us = add_rn(0.5, -::fabs(u));
        const f64 x = mul_rn(add_rn(div_rn(mul_rn(2.0, a), us), b), u);
        k = ::floor(add_rn(add_rn(x, mean), 0.5));
        if (us >= 0.07 && v <= inner) break;
        if (k < 0.0 || k > n) continue;
        const f64 high = add_rn(div_rn(a, mul_rn(us, us)), b), left = add_rn(add_rn(n, -k), 1.0);
        const f64 taken = -minus_log(div_rn(mul_rn(v, scale), high));
        f64 bound = add_rn(top, mul_rn(add_rn(n, 1.0), log_ratio(beyond, left)));
        bound = add_rn(bound, mul_rn(add_rn(k, 0.5), log_ratio(mul_rn(odds, left), add_rn(k, 1.0))));
        if (taken <= add_rn(bound, -add_rn(stirling(k), stirling(add_rn(n, -k))))) break;
    }
    return static_cast<i64>(turned ? add_rn(n, -k) : k);
}

PGK_FN u64 integer(Attempts& attempts, u64 low, u64 last) {
    const u64 span = last + 1;
    for (;;) {
        const Words w = attempts.words();
        const u64 x = pair_of(w.w[0], w.w[1]), lower = x * span;
        if (span == 0) return low + x;
        if (lower >= span || lower >= (0 - span) % span) return low + high_product(x, span);
    }
}

struct Gamma {
    PGK_FN static f64 draw(Attempts& t, f64 a, f64, int flags) { return gamma(t, a, flags); }
};
struct Poisson {
    PGK_FN static i64 draw(Attempts& t, f64 a, f64, int) { return poisson(t, a); }
};
struct Binomial {
    PGK_FN static i64 draw(Attempts& t, f64 a, f64 b, int) { return binomial(t, a, b); }
};
struct Ranges {
    PGK_FN static u64 draw(Attempts& t, u64 a, u64 b, int) { return integer(t, a, b); }
};

template <class D, class T, class P>
PGK_FN void reject(T* out, const u64* counter, const P* x, const P* y, i64 n, int flags, u64 key, u64 offset, u32 stream,
                   P a, P b) {
    await_predecessor();
    const i64 i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= n) return;
    if (stream & 1) offset += *counter;
    Attempts attempts{key, offset + i, stream, 0};
    out[i] = static_cast<T>(D::draw(attempts, flags & 1 ? x[i] : a, flags & 2 ? y[i] : b, flags));
}

}  // namespace pgk::rng

#define PGK_REJECT(name, D, T, P) \
    extern "C" __global__ void __launch_bounds__(256) name(pgk::T* out, const unsigned long long* counter, \
        const pgk::P* x, const pgk::P* y, long long n, int flags, unsigned long long key, unsigned long long offset, \
        unsigned stream, pgk::P a, pgk::P b) { \
        pgk::rng::reject<pgk::rng::D>(out, counter, x, y, n, flags, key, offset, stream, a, b); \
    }
