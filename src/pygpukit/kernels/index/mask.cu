// Masks: which elements are not zero, where they are, and elements by that.
//
// pgk_mask_bits: bit i % 32 of bits[i / 32] = element i of x is not zero; before[t] = how many there are in the tile t of
//   8192 elements. x: contiguous, `n` elements of `size` bytes, of which those in `low` and `high` count (the sign of a
//   float does not). 256 threads, grid = tiles. bool, 16 bytes per load where x is aligned: `vec`.
// pgk_mask_scan: before[t] becomes the number in tiles 0 .. t - 1, before[tiles] that of all. One block of 1024 threads.
// pgk_mask_nonzero: out[d * stride + j] = position along axis d of the j-th of them, in row-major order of the `ndim`
//   axes `shape`. pgk_mask_take: out[j] = x[p], with p the position of the j-th. pgk_mask_put: x[p] = value[j],
//   or value[j % m] where m is not 0. pgk_mask_repeat: x[p] = value[p % m]. x of 1 to 16 bytes, contiguous. 256 threads, a block per tile: its positions are brought together in
//   shared memory (16 KiB), so that accesses by j are coalesced.
// Determinism: batch_invariant.
#include "pygpukit/places.cuh"

namespace pgk {

constexpr int TILE = 8192;
constexpr int WORDS = TILE / 32;
constexpr int WARPS = THREADS / 32;

struct Shape {
    long long at[8];
};

// The sum over the block, and what the threads before this one have. Ends with a barrier.
template <class T, int W> PGK_FN T scan_block(T value, T& total, T* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T sum = value;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    if (lane == 31) shared[warp] = sum;
    __syncthreads();
    T before = sum - value;
    total = 0;
#pragma unroll
    for (int w = 0; w < W; ++w) {
        if (w < warp) before += shared[w];
        total += shared[w];
    }
    __syncthreads();
    return before;
}

template <class T> PGK_FN bool is_set(T x, u64 low, u64) { return (x & static_cast<T>(low)) != 0; }
PGK_FN bool is_set(b64x2 x, u64 low, u64 high) { return (x.re & low) != 0 || (x.im & high) != 0; }

// A word of bits from 32 bytes of bool.
PGK_FN u32 packed(const u32 (&v)[8]) {
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        // A byte that is not 0 has some bit: bring all to its lowest one, and the four bytes' together.
        u32 x = v[i];
        x |= x >> 4 & 0x0f0f0f0fu;
        x |= x >> 2 & 0x03030303u;
        x = (x | x >> 1) & 0x01010101u;
        word |= (x * 0x01020408u >> 24 & 15u) << (4 * i);
    }
    return word;
}

template <class T>
PGK_FN u32 bits_of(u32* bits, const T* x, i64 first, i64 n, u64 low, u64 high) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int each = WORDS / WARPS, unroll = 8;
    u32 count = 0;
    const i64 mine = first + warp * (each * 32) + lane;
#pragma unroll 1
    for (int w = 0; w < each; w += unroll) {
        T v[unroll];
#pragma unroll
        for (int j = 0; j < unroll; ++j) {
            const i64 at = mine + (w + j) * 32;
            v[j] = T{};
            if (at < n) v[j] = x[at];
        }
#pragma unroll
        for (int j = 0; j < unroll; ++j) {
            const u32 word = __ballot_sync(0xffffffffu, is_set(v[j], low, high));
            const i64 at = mine - lane + (w + j) * 32;
            if (lane == 0 && at < n) {
                bits[at / 32] = word;
                count += __popc(word);
            }
        }
    }
    return count;
}

}  // namespace pgk

extern "C" __global__ void __launch_bounds__(256) pgk_mask_bits(unsigned* bits, long long* before, const void* x,
                                                                long long n, long long low, long long high, int size,
                                                                int vec) {
    using namespace pgk;
    await_predecessor();
    __shared__ u32 sums[WARPS];
    const i64 first = static_cast<i64>(blockIdx.x) * TILE;
    u32 count = 0;
    if (vec) {
        const i64 at = first + threadIdx.x * 32ll;
        const u8* p = static_cast<const u8*>(x) + at;
        u32 v[8] = {};
        if (at + 32 <= n) {
            const uint4 a = reinterpret_cast<const uint4*>(p)[0], b = reinterpret_cast<const uint4*>(p)[1];
            v[0] = a.x; v[1] = a.y; v[2] = a.z; v[3] = a.w;
            v[4] = b.x; v[5] = b.y; v[6] = b.z; v[7] = b.w;
        } else {
            for (int i = 0; i < 32 && at + i < n; ++i) v[i / 4] |= static_cast<u32>(p[i]) << (8 * (i % 4));
        }
        const u32 word = packed(v);
        count = __popc(word);
        if (at < n) bits[at / 32] = word;
    } else if (size == 1) {
        count = bits_of(bits, static_cast<const u8*>(x), first, n, low, high);
    } else if (size == 2) {
        count = bits_of(bits, static_cast<const u16*>(x), first, n, low, high);
    } else if (size == 4) {
        count = bits_of(bits, static_cast<const u32*>(x), first, n, low, high);
    } else if (size == 8) {
        count = bits_of(bits, static_cast<const u64*>(x), first, n, low, high);
    } else {
        count = bits_of(bits, static_cast<const b64x2*>(x), first, n, low, high);
    }
    u32 total;
    scan_block<u32, WARPS>(count, total, sums);
    if (threadIdx.x == 0) before[blockIdx.x] = total;
}

extern "C" __global__ void __launch_bounds__(1024) pgk_mask_scan(long long* before, long long tiles) {
    using namespace pgk;
    await_predecessor();
    constexpr int each = 8;
    __shared__ i64 sums[32];
    i64 carry = 0;
    for (i64 first = 0; first < tiles; first += 1024 * each) {
        i64 v[each], sum = 0, total;
        const i64 mine = first + threadIdx.x * each;
#pragma unroll
        for (int j = 0; j < each; ++j) v[j] = mine + j < tiles ? before[mine + j] : 0;
#pragma unroll
        for (int j = 0; j < each; ++j) sum += v[j];
        i64 running = carry + scan_block<i64, 32>(sum, total, sums);
#pragma unroll
        for (int j = 0; j < each; ++j) {
            if (mine + j < tiles) before[mine + j] = running;
            running += v[j];
        }
        carry += total;
    }
    if (threadIdx.x == 0) before[tiles] = carry;
}

namespace pgk {

// The positions in the tile of its elements that are set, in order. Returns how many there are.
PGK_FN int positions(u16* list, const u32* bits, i64 n, u32* sums) {
    const i64 word_at = static_cast<i64>(blockIdx.x) * WORDS + threadIdx.x;
    u32 word = word_at * 32 < n ? bits[word_at] : 0;
    u32 total;
    u32 rank = scan_block<u32, WARPS>(__popc(word), total, sums);
    while (word) {
        list[rank++] = static_cast<u16>(threadIdx.x * 32 + __ffs(word) - 1);
        word &= word - 1;
    }
    __syncthreads();
    return static_cast<int>(total);
}

enum : int { TAKE = 0, PUT = 1, REPEAT = 2 };

template <int WHAT, class T>
PGK_FN void move(T* out, const T* from, const u16* list, int count, i64 first, i64 before, i64 m) {
    constexpr int unroll = 4;
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += THREADS * unroll) {
        T v[unroll];
#pragma unroll
        for (int j = 0; j < unroll; ++j) {
            const int k = i + j * THREADS;
            v[j] = T{};
            if (k >= count) continue;
            const i64 p = first + list[k];
            const i64 rank = before + k;
            v[j] = from[WHAT == TAKE ? p : WHAT == PUT ? (m ? rank % m : rank) : p % m];
        }
#pragma unroll
        for (int j = 0; j < unroll; ++j) {
            const int k = i + j * THREADS;
            if (k < count) out[WHAT == TAKE ? before + k : first + list[k]] = v[j];
        }
    }
}

template <int WHAT>
PGK_FN void masked(void* out, const void* from, const u32* bits, const i64* before, i64 n, i64 m, int code) {
    await_predecessor();
    __shared__ u16 list[TILE];
    __shared__ u32 sums[WARPS];
    const int count = positions(list, bits, n, sums);
    const i64 first = static_cast<i64>(blockIdx.x) * TILE, rank = WHAT == REPEAT ? 0 : before[blockIdx.x];
    of_size(code, [&](auto* one) {
        using T = element_of<decltype(one)>;
        move<WHAT>(static_cast<T*>(out), static_cast<const T*>(from), list, count, first, rank, m);
    });
}

}  // namespace pgk

extern "C" __global__ void __launch_bounds__(256) pgk_mask_nonzero(
    long long* out, const unsigned* bits, const long long* before, long long n, long long stride,
    const __grid_constant__ pgk::Shape shape, int ndim) {
    using namespace pgk;
    await_predecessor();
    __shared__ u16 list[TILE];
    __shared__ u32 sums[WARPS];
    const int count = positions(list, bits, n, sums);
    const i64 first = static_cast<i64>(blockIdx.x) * TILE, rank = before[blockIdx.x];
    for (int k = threadIdx.x; k < count; k += THREADS) {
        i64 rest = first + list[k];
        for (int d = ndim - 1; d > 0; --d) {
            const u64 extent = static_cast<u64>(shape.at[d]);
            i64 above;
            if ((static_cast<u64>(rest) | extent) >> 32) above = static_cast<i64>(static_cast<u64>(rest) / extent);
            else above = static_cast<u32>(rest) / static_cast<u32>(extent);
            out[d * stride + rank + k] = rest - above * static_cast<i64>(extent);
            rest = above;
        }
        out[rank + k] = rest;
    }
}

extern "C" __global__ void __launch_bounds__(256) pgk_mask_take(void* out, const void* x, const unsigned* bits,
                                                                const long long* before, long long n, int code) {
    pgk::masked<pgk::TAKE>(out, x, bits, before, n, 1, code);
}

extern "C" __global__ void __launch_bounds__(256) pgk_mask_put(void* x, const void* value, const unsigned* bits,
                                                               const long long* before, long long n, long long m,
                                                               int code) {
    pgk::masked<pgk::PUT>(x, value, bits, before, n, m, code);
}

extern "C" __global__ void __launch_bounds__(256) pgk_mask_repeat(void* x, const void* value, const unsigned* bits,
                                                                  const long long* before, long long n, long long m,
                                                                  int code) {
    pgk::masked<pgk::REPEAT>(x, value, bits, before, n, m, code);
}
