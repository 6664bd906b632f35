// Numbers of a continuous distribution: out[i] = a + b * D(words of element i), rounded after each step.
//
// Arguments: out contiguous, counter (read where the lowest bit of `stream` is set: blocks that replays of graphs have used),
//   n, vec (nonzero: out is aligned to a block's elements), key, offset (first block), stream, a, b.
// A block of four words gives 4 elements of 16 or 32 bits, which are computed in float, or 2 of double.
// Launch: 256 threads, 1024 blocks of words per block of threads. Determinism: batch_invariant; NumPy's steps in
// src/pygpukit/random/reference.py have the same bits.
#include "pygpukit/philox.cuh"

namespace pgk::rng {

// A fraction with as many random bits as the stored type has: in [0, 1).
template <class To> struct Uniform {
    static constexpr int bits = same<To, f16>::value ? 11 : same<To, bf16>::value ? 8 : 24;
    PGK_FN static void apply(const Words& x, f32 (&v)[4]) {
        constexpr f32 unit = 1.0f / (1 << bits);
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = mul_rn(static_cast<f32>(x.w[i] >> (32 - bits)), unit);
    }
    PGK_FN static void apply(const Words& x, f64 (&v)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            v[i] = mul_rn(static_cast<f64>(pair_of(x.w[2 * i], x.w[2 * i + 1]) >> 11), 1.0 / (1ull << 53));
        }
    }
};

template <class To> struct Normal {
    PGK_FN static void apply(const Words& x, f32 (&v)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i += 2) {
            const u32 turn = x.w[i + 1];
            normal_pair(positive(x.w[i]), angle(turn), turn >> 31, turn >> 30 & 1, v + i);
        }
    }
    PGK_FN static void apply(const Words& x, f64 (&v)[2]) {
        const u64 turn = pair_of(x.w[2], x.w[3]);
        normal_pair(positive(pair_of(x.w[0], x.w[1])), angle(turn), turn >> 63, turn >> 62 & 1, v);
    }
};

// A number per word of 32 bits, or per pair of words.
template <class F> struct EachWord {
    PGK_FN static void apply(const Words& x, f32 (&v)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = F::of(x.w[i]);
    }
    PGK_FN static void apply(const Words& x, f64 (&v)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) v[i] = F::of(pair_of(x.w[2 * i], x.w[2 * i + 1]));
    }
};

struct ExponentialOf {
    template <class U> PGK_FN static auto of(U x) { return minus_log(positive(x)); }
};
struct RayleighOf {
    template <class U> PGK_FN static auto of(U x) {
        const auto e = minus_log(positive(x));
        return sqrt_rn(add_rn(e, e));
    }
};
// Large numbers come of small fractions, which are the finer ones.
struct GumbelOf {
    template <class U> PGK_FN static auto of(U x) { return minus_log(minus_log_rest(positive(x))); }
};
struct LaplaceOf {
    template <class U> PGK_FN static auto of(U x) {
        const auto e = minus_log(positive_half(x));
        return x & 1 ? -e : e;
    }
};
template <class T> PGK_FN T rest_of_two(T u) { return add_rn(T(2), -u); }

// The logarithm of (2 - u) / u for the upper half, and the same below 0.
struct LogisticOf {
    template <class U> PGK_FN static auto of(U x) {
        const auto u = positive_half(x);
        const auto e = add_rn(minus_log(u), -minus_log(rest_of_two(u)));
        return x & 1 ? -e : e;
    }
};
// The tangent of an angle.
struct CauchyOf {
    template <class U> PGK_FN static auto of(U x) {
        const auto a = angle(x);
        auto s = a, c = a;
        sine_cosine(a, s, c);
        return x >> (8 * sizeof(U) - 1) ? div_rn(c, s) : div_rn(s, c);
    }
};

template <class To> struct Exponential : EachWord<ExponentialOf> {};
template <class To> struct Rayleigh : EachWord<RayleighOf> {};
template <class To> struct Gumbel : EachWord<GumbelOf> {};
template <class To> struct Laplace : EachWord<LaplaceOf> {};
template <class To> struct Logistic : EachWord<LogisticOf> {};
template <class To> struct Cauchy : EachWord<CauchyOf> {};

template <class To, class T, class D>
PGK_FN void fill(To* out, const u64* counter, i64 n, int vec, u64 key, u64 offset, u32 stream, T a, T b) {
    await_predecessor();
    constexpr int count = 16 / (sizeof(T) == 8 ? 8 : 4);
    if (stream & 1) offset += *counter;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
        const i64 block = blockIdx.x * 1024ll + j * 256 + threadIdx.x, first = block * count;
        if (first >= n) break;
        T v[count];
        D::apply(philox(key, offset + block, 0, stream), v);
#pragma unroll
        for (int i = 0; i < count; ++i) v[i] = add_rn(a, mul_rn(b, v[i]));
        if (vec && first + count <= n) {
            store(out + first, outputs<To>(v));
        } else {
#pragma unroll
            for (int i = 0; i < count; ++i) {
                if (first + i < n) out[first + i] = output<To>(v[i]);
            }
        }
    }
}

}  // namespace pgk::rng

#define PGK_FILL(name, To, T, D) \
    extern "C" __global__ void __launch_bounds__(256) name(pgk::To* out, const unsigned long long* counter, long long n, \
        int vec, unsigned long long key, unsigned long long offset, unsigned stream, pgk::T a, pgk::T b) { \
        pgk::rng::fill<pgk::To, pgk::T, pgk::rng::D<pgk::To>>(out, counter, n, vec, key, offset, stream, a, b); \
    }
