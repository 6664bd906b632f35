// Integers of equal probability in a range of `span` values from `low`.
//
// Arguments: out contiguous, counter (read where the lowest bit of `stream` is set: blocks that replays of graphs have used),
//   n, vec (nonzero: out is aligned to 16 bytes or a block's elements), key, offset (first block), stream, low, last
//   (span - 1), reject (2^32 or 2^64 modulo span).
// A word x becomes the upper half of x * span, and is drawn again, with the same counter but the next attempt, where the
// lower half is below `reject`: every value then has the same number of words. Words of 32 bits serve spans up to 2^32 (4
// elements of a block of words), those of 64 bits the rest (2 elements).
// Launch: 256 threads, 1024 blocks of words per block of threads. Determinism: batch_invariant.
#include "pygpukit/philox.cuh"

namespace pgk::rng {

template <class T>
PGK_FN void integers_of_32(T* out, const u64* counter, i64 n, int vec, u64 key, u64 offset, u32 stream, u64 low, u64 last,
                           u64 reject) {
    await_predecessor();
    if (stream & 1) offset += *counter;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
        const i64 block = blockIdx.x * 1024ll + j * 256 + threadIdx.x, first = block * 4;
        if (first >= n) break;
        const Words x = philox(key, offset + block, 0, stream);
        T v[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            u64 product = x.w[i] * last + x.w[i];
            for (u32 attempt = 1; static_cast<u32>(product) < reject; ++attempt) {
                const Words again = philox(key, offset + block, attempt, stream);
                const u32 w = i == 0 ? again.w[0] : i == 1 ? again.w[1] : i == 2 ? again.w[2] : again.w[3];
                product = w * last + w;
            }
            v[i] = static_cast<T>(low + high_half(product));
        }
        constexpr int width = sizeof(T) == 8 ? 2 : 4;
        if (vec && first + 4 <= n) {
#pragma unroll
            for (int i = 0; i < 4; i += width) {
                Vec<T, width> part;
#pragma unroll
                for (int k = 0; k < width; ++k) part.e[k] = v[i + k];
                store(out + first + i, part);
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (first + i < n) out[first + i] = v[i];
            }
        }
    }
}

PGK_FN void integers_of_64(u64* out, const u64* counter, i64 n, int vec, u64 key, u64 offset, u32 stream, u64 low, u64 last,
                           u64 reject) {
    await_predecessor();
    if (stream & 1) offset += *counter;
    const bool all = last + 1 == 0;
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
        const i64 block = blockIdx.x * 1024ll + j * 256 + threadIdx.x, first = block * 2;
        if (first >= n) break;
        const Words x = philox(key, offset + block, 0, stream);
        Vec<u64, 2> v;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            u64 w = pair_of(x.w[2 * i], x.w[2 * i + 1]);
            for (u32 attempt = 1; !all && w * (last + 1) < reject; ++attempt) {
                const Words again = philox(key, offset + block, attempt, stream);
                w = i ? pair_of(again.w[2], again.w[3]) : pair_of(again.w[0], again.w[1]);
            }
            v.e[i] = low + (all ? w : high_product(w, last + 1));
        }
        if (vec && first + 2 <= n) {
            store(out + first, v);
        } else {
            out[first] = v.e[0];
            if (first + 1 < n) out[first + 1] = v.e[1];
        }
    }
}

}  // namespace pgk::rng

#define PGK_INTEGERS(name, T, bits) \
    extern "C" __global__ void __launch_bounds__(256) name(pgk::T* out, const unsigned long long* counter, long long n, \
        int vec, unsigned long long key, unsigned long long offset, unsigned stream, unsigned long long low, \
        unsigned long long last, unsigned long long reject) { \
        pgk::rng::integers_of_##bits(out, counter, n, vec, key, offset, stream, low, last, reject); \
    }
