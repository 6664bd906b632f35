// A quantised weight as numbers: out[j, k] = w[j, k], w as decode.cuh reads it, rounded to T once.
//
// out: [n, k], contiguous; `aligned`: k is a multiple of 4. planes: codes, high, scales, extra, which nothing in flight
// writes. Launch: 8 warps, a warp per chunk of 16 rows and 64 columns, grid = ceil(tiles * chunks / 8). No shared memory.
// Determinism: batch_invariant.
#include "pygpukit/decode.cuh"

namespace pgk {

template <class T> struct alignas(4 * sizeof(T)) Four { T v[4]; };

template <class R, class S, class T>
PGK_FN void dequantize(T* out, const Planes& w, i64 n, i64 k, int aligned) {
    const int lane = threadIdx.x % 32;
    const int g = lane / 4, t = lane % 4;
    const i64 tiles = (n + 15) / 16;
    const i64 item = static_cast<i64>(blockIdx.x) * 8 + threadIdx.x / 32;
    const bool inside = item < tiles * w.chunks;
    const i64 tile = inside ? item / w.chunks : 0, chunk = inside ? item % w.chunks : 0;
    typename R::Raw raw;
    R::load(raw, w, tile, chunk, lane);
    await_predecessor();
    if (!inside) return;
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        f32 v[2][4];
        if constexpr (same<T, f32>::value) {
            const typename R::Group group = R::group(raw, s / (STEPS / R::SUBS));
#pragma unroll
            for (int p = 0; p < 4; ++p) R::numbers(v[p % 2][p / 2 * 2], v[p % 2][p / 2 * 2 + 1], raw, group, s, p);
        } else {
            Decoder<R, T, S> decoder;
            decoder.begin(raw, s / (STEPS / R::SUBS));
#pragma unroll
            for (int p = 0; p < 4; ++p) {
                const u32 pair = decoder.pair(raw, s, p);
                v[p % 2][p / 2 * 2] = widen(T{static_cast<u16>(pair)});
                v[p % 2][p / 2 * 2 + 1] = widen(T{static_cast<u16>(pair >> 16)});
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 row = tile * 16 + g + 8 * h, column = chunk * CHUNK + s * 16 + t * 4;
            Four<T> four;
#pragma unroll
            for (int e = 0; e < 4; ++e) four.v[e] = convert<T>(v[h][e]);
            if (row >= n) continue;
            if (aligned) {
                if (column < k) *reinterpret_cast<Four<T>*>(out + row * k + column) = four;
            } else {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    if (column + e < k) out[row * k + column + e] = four.v[e];
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
