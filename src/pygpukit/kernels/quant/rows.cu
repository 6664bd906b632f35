// Rows of a quantised weight as numbers: out[i, k] = w[ids[i], k], w as decode.cuh reads it, rounded to T once. An id outside
// of the weight gives zeros.
//
// out: [count, k], contiguous. ids: int32, or int64 where `wide`. planes: codes, high, scales, extra, which nothing in flight
// writes. Launch: 256 threads, four threads per row and chunk of 64 columns, grid = ceil(count * chunks / 64). No shared
// memory. Numerics: those of dequantize.cu. Determinism: batch_invariant.
#include "pygpukit/decode.cuh"

namespace pgk {

template <class R, class S, class T>
PGK_FN void rows(T* out, const void* ids, const Planes& w, i64 count, i64 n, i64 k, int wide) {
    await_predecessor();
    const i64 unit = blockIdx.x * 64ll + threadIdx.x / 4;
    const i64 row = unit / w.chunks, chunk = unit - row * w.chunks;
    const int t = threadIdx.x % 4;
    if (row >= count) return;
    const i64 id = wide ? static_cast<const i64*>(ids)[row] : static_cast<const i32*>(ids)[row];
    const bool inside = id >= 0 && id < n;
    const i64 place = inside ? id : 0;
    const bool high = place % 16 >= 8;
    typename R::Cursor cursor = R::cursor(w, place / 16, static_cast<int>(place % 8) * 4 + t);
    typename R::Raw raw;
    R::advance(cursor, chunk);
    R::load(raw, cursor, 0, static_cast<u32>(chunk));
#pragma unroll
    for (int s = 0; s < STEPS; ++s) {
        const int sub = s / (STEPS / R::SUBS);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            T two[2];
            if constexpr (same<T, f32>::value) {
                const typename R::Group group = R::group(raw, sub);
                f32 a[2], b[2];
                R::numbers(a[0], a[1], raw, group, s, 2 * half);
                R::numbers(b[0], b[1], raw, group, s, 2 * half + 1);
                two[0] = high ? b[0] : a[0], two[1] = high ? b[1] : a[1];
            } else {
                Decoder<R, T, S> decoder;
                decoder.begin(raw, sub);
                const u32 a = decoder.pair(raw, s, 2 * half), b = decoder.pair(raw, s, 2 * half + 1);
                const u32 pair = high ? b : a;
                two[0] = T{static_cast<u16>(pair)}, two[1] = T{static_cast<u16>(pair >> 16)};
            }
            const i64 column = chunk * CHUNK + s * 16 + half * 8 + t * 2;
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (column + e < k) out[row * k + column + e] = inside ? two[e] : T{};
            }
        }
    }
}

}  // namespace pgk

#define PGK_QUANT_ROWS(entry, rule, S, T) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const void* ids, const pgk::u8* codes, const pgk::u8* high, const pgk::u8* scales, \
        const pgk::u8* extra, long long count, long long n, long long k, int wide, long long chunks, long long records, \
        long long owners) { \
        pgk::rows<rule, pgk::S, pgk::T>( \
            out, ids, pgk::Planes{codes, high, scales, extra, chunks, records, owners}, count, n, k, wide); \
    }
