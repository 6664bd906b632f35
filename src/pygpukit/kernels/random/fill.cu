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

template <class To> struct Exponential {
    PGK_FN static void apply(const Words& x, f32 (&v)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) v[i] = minus_log(positive(x.w[i]));
    }
    PGK_FN static void apply(const Words& x, f64 (&v)[2]) {
#pragma unroll
        for (int i = 0; i < 2; ++i) v[i] = minus_log(positive(pair_of(x.w[2 * i], x.w[2 * i + 1])));
    }
};

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
