// A quantised weight as numbers: out[j, k] = w[j, k], w as decode.cuh reads it, rounded to T once.
//
// out: [n, k], contiguous; `aligned`: k is a multiple of 4. planes: codes, high, scales, extra, which nothing in flight
// writes. Launch: 8 warps, a warp per chunk of 16 rows and 64 columns, grid = ceil(tiles * chunks / 8). No shared memory.
// Determinism: batch_invariant.
#include "pygpukit/decode.cuh"

namespace pgk {

// Four numbers of a row as words.
template <class T> struct alignas(4 * sizeof(T)) Four {
    u32 words[sizeof(T)];
    PGK_FN T at(int e) const {
        if constexpr (sizeof(T) == 4) return bit_cast<T>(words[e]);
        else return T{static_cast<u16>(words[e / 2] >> 16 * (e % 2))};
    }
};

template <class R, class S, class T>
PGK_FN void dequantize(T* out, const Planes& w, i64 n, i64 k, int aligned) {
    constexpr int WORDS = sizeof(T) / 2;
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    const i64 tiles = (n + 15) / 16;
    const i64 item = static_cast<i64>(blockIdx.x) * 8 + threadIdx.x / 32;
    const bool inside = item < tiles * w.chunks;
    const i64 tile = inside ? item / w.chunks : 0, chunk = inside ? item % w.chunks : 0;
    typename R::Raw raw;
    typename R::Cursor cursor = R::cursor(w, tile, lane);
    R::advance(cursor, chunk);
    R::load(raw, cursor, 0, static_cast<u32>(chunk));
    await_predecessor();
    if (!inside) return;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int sub = s / (STEPS / R::SUBS);
        // Registers p of two numbers each: one word of 16-bit numbers, or two of float32.
        u32 held[4][WORDS];
        if constexpr (same<T, f32>::value) {
            const typename R::Group group = R::group(raw, sub);
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                f32 low, high;
                R::numbers(low, high, raw, group, s, p);
                held[p][0] = bit_cast<u32>(low), held[p][WORDS - 1] = bit_cast<u32>(high);
            }
        } else {
            Decoder<R, T, S> decoder;
            decoder.begin(raw, sub);
#pragma unroll
            for (int p = 0; p < 4; ++p) held[p][0] = decoder.pair(raw, s, p);
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            // Two lanes exchange a half, so that each has four columns side by side.
            const bool odd = t % 2;
            Four<T> four;
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                const u32 own = odd ? held[2 + h][i] : held[h][i];
                const u32 other = __shfl_xor_sync(0xffffffffu, odd ? held[h][i] : held[2 + h][i], 1);
                four.words[i] = odd ? other : own;
                four.words[WORDS + i] = odd ? own : other;
            }
            const i64 row = tile * 16 + g + 8 * h, column = chunk * CHUNK + s * 16 + t % 2 * 8 + t / 2 * 4;
            if (row >= n) continue;
            if (aligned) {
                if (column < k) *reinterpret_cast<Four<T>*>(out + row * k + column) = four;
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (column + e < k) out[row * k + column + e] = four.at(e);
                }
            }
        }
    }
}

}  // namespace pgk

#define PGK_QUANT_DEQUANTIZE(entry, rule, S, T) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const pgk::u8* codes, const pgk::u8* high, const pgk::u8* scales, const pgk::u8* extra, \
        long long n, long long k, int aligned, long long chunks, long long records, long long owners) { \
        pgk::dequantize<rule, pgk::S, pgk::T>( \
            out, pgk::Planes{codes, high, scales, extra, chunks, records, owners}, n, k, aligned); \
    }
