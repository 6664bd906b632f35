// Sort of rows of any length: least significant digit first, 8 bits per pass, stable. out[r, :] = x[r, :] in order, or
// the positions in the row that bring it in order.
//
// x: contiguous [rows, n], elements of `size` bytes; map says how they become keys (pygpukit/keys.cuh).
// digit_counts: 256 threads, grid = rows * chunks of `chunk` elements; adds to counts[rows, passes, 256] how often each
//   digit occurs. Static shared memory: 16 KiB.
// sort_bases: 256 threads, grid = rows * passes; counts become the place of each digit's first key in its row.
// sort_pass: 384 threads, grid = rows * tiles, one tile of 384 * ITEMS keys per block. A block ranks its keys within
//   warps (ballots), publishes how many it has of each digit, adds up what the tiles before it have (look-back over
//   their published words: bit 31 says that a word covers all tiles up to there, bit 30 that it covers its own), brings
//   the keys in order in shared memory and writes runs of equal digits. `cleared` is the look-back memory of the next
//   launch. Counts of a word are below 2^30, so longer rows take several launches per pass, which hand on the places in
//   `next_bases`.
//   Static shared memory: up to 47 KiB.
// Determinism: batch_invariant: a stable sort has one result.
#include "pygpukit/keys.cuh"

namespace pgk {

constexpr int DIGITS = 256;
constexpr int SORT_THREADS = 384;
constexpr int SORT_WARPS = SORT_THREADS / 32;
constexpr u32 INCLUSIVE = 1u << 31;
constexpr u32 AGGREGATE = 1u << 30;
constexpr u32 COUNT = AGGREGATE - 1;
template <class U> constexpr int ITEMS = sizeof(U) == 4 ? 20 : 14;

enum : int { FIRST = 1, LAST = 2, MORE_TILES = 4 };

template <class U>
PGK_FN void digit_counts(u64* counts, const void* x, i64 n, i64 chunks, i64 chunk, int size, const KeyMap& map) {
    await_predecessor();
    constexpr int passes = sizeof(U);
    constexpr int copies = 16 / passes;
    constexpr int unroll = 8;
    __shared__ u32 seen[passes * DIGITS * copies];
    for (int i = threadIdx.x; i < passes * DIGITS * copies; i += blockDim.x) seen[i] = 0;
    __syncthreads();
    const i64 row = static_cast<i64>(blockIdx.x) / chunks;
    const i64 first = static_cast<i64>(blockIdx.x) % chunks * chunk;
    const i64 stop = first + chunk < n ? first + chunk : n;
    const int copy = threadIdx.x % copies;
    for (i64 at = first + threadIdx.x; at < stop; at += unroll * static_cast<int>(blockDim.x)) {
        U key[unroll];
        load_all(key, x, row * n, at, static_cast<i64>(blockDim.x), stop, size, U(0));
#pragma unroll
        for (int e = 0; e < unroll; ++e) {
            if (at + e * static_cast<i64>(blockDim.x) >= stop) break;
            const U k = encode(key[e], map);
            for (int p = 0; p < size; ++p) {
                const int digit = static_cast<int>(k >> (8 * p) & 255u);
                atomicAdd(&seen[(p * DIGITS + digit) * copies + copy], 1u);
            }
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < size * DIGITS; i += blockDim.x) {
        u32 sum = 0;
#pragma unroll
        for (int c = 0; c < copies; ++c) sum += seen[i * copies + c];
        if (sum) atomicAdd(counts + row * size * DIGITS + i, static_cast<u64>(sum));
    }
}

// Exclusive sum over the first 256 threads; others pass 0. Contains barriers; `sums` has room for 8.
template <class T> PGK_FN T before_me(T value, T* sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    T sum = value;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const T other = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += other;
    }
    if (warp < DIGITS / 32 && lane == 31) sums[warp] = sum;
    __syncthreads();
    T before = sum - value;
    for (int w = 0; w < warp && w < DIGITS / 32; ++w) before += sums[w];
    return before;
}

// The lanes of the warp with the same digit.
PGK_FN u32 same_digit(u32 digit) {
    u32 peers = 0xffffffffu;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
        const bool set = (digit & 1u << b) != 0;
        const u32 with = __ballot_sync(0xffffffffu, set);
        peers &= set ? with : ~with;
    }
    return peers;
}

// Writes the keys of a tile, in order in shared memory, to their places; keeps the digits, four to a word.
template <class U, class T>
PGK_FN void write_keys(u32 (&digits)[(ITEMS<U> + 3) / 4], const U* key, const i64* place, T* to, int written, int shift,
                       const Codes<U>& back) {
#pragma unroll
    for (int i = 0; i < ITEMS<U>; ++i) {
        const int j = i * SORT_THREADS + static_cast<int>(threadIdx.x);
        const U k = key[j];
        const u32 digit = static_cast<u32>(k >> shift) & 255u;
        digits[i / 4] |= digit << (8 * (i % 4));
        if (j < written) to[place[digit] + j] = static_cast<T>(decode(k, back));
    }
}

template <class U, bool PAIRS>
PGK_FN void sort_pass(void* to, void* to_index, const void* from, const u32* from_index, u32* look_back, u32* cleared,
                      u32* counter, u64* next_bases, const u64* bases, i64 n, i64 tiles, i64 tile0, i64 clear_words,
                      i64 base_stride, i64 base_offset, int size, int shift, int flags, const KeyMap& map) {
    await_predecessor();
    constexpr int items = ITEMS<U>;
    constexpr int tile_keys = SORT_THREADS * items;
    __shared__ union {
        u32 count[SORT_WARPS][DIGITS];
        U key[tile_keys];
        u32 index[tile_keys];
    } s;
    __shared__ i64 place[DIGITS];
    __shared__ u32 sums[DIGITS / 32];
    __shared__ u32 number;
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const i64 block = start_order(counter, &number);
    const i64 row = block / tiles, tile = block % tiles;
    const i64 first = (tile0 + tile) * tile_keys;
    const i64 mine = first + warp * (32 * items) + lane;

    const i64 all_threads = static_cast<i64>(gridDim.x) * SORT_THREADS;
    for (i64 i = block * SORT_THREADS + t; i < clear_words; i += all_threads) cleared[i] = 0;
    for (int i = lane; i < DIGITS; i += 32) s.count[warp][i] = 0;
    U key[items];
    load_all(key, from, row * n, mine, 32, n, size, ~U(0));
    if (flags & FIRST) {
#pragma unroll
        for (int i = 0; i < items; ++i) key[i] = mine + i * 32 < n ? encode(key[i], map) : ~U(0);
    }
    __syncwarp();

    u32 rank[items];
#pragma unroll
    for (int i = 0; i < items; ++i) {
        const u32 digit = static_cast<u32>(key[i] >> shift) & 255u;
        const u32 peers = same_digit(digit);
        const u32 ahead = __popc(peers & ((1u << lane) - 1u));
        const u32 before = s.count[warp][digit];
        __syncwarp();
        if (ahead == 0) s.count[warp][digit] = before + __popc(peers);
        __syncwarp();
        rank[i] = before + ahead;
    }
    __syncthreads();

    u32 total = 0;
    if (t < DIGITS) {
#pragma unroll
        for (int w = 0; w < SORT_WARPS; ++w) total += s.count[w][t];
        store_relaxed(look_back + block * DIGITS + t, (tile == 0 ? INCLUSIVE : AGGREGATE) | total);
    }
    const u32 start = before_me(total, sums);
    if (t < DIGITS) {
        u32 running = start;
#pragma unroll
        for (int w = 0; w < SORT_WARPS; ++w) {
            const u32 own = s.count[w][t];
            s.count[w][t] = running;
            running += own;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < items; ++i) rank[i] += s.count[warp][static_cast<u32>(key[i] >> shift) & 255u];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < items; ++i) s.key[rank[i]] = key[i];

    if (t < DIGITS) {
        u32 before = 0;
        if (tile > 0) {
            bool found = false;
            for (i64 at = block - 1; !found;) {
                constexpr int ahead = 4;
                u32 word[ahead];
#pragma unroll
                for (int j = 0; j < ahead; ++j) {
                    // Tile 0 of the row is always the end, so no word before it is used.
                    const i64 one = at - j < row * tiles ? row * tiles : at - j;
                    word[j] = load_relaxed(look_back + one * DIGITS + t);
                }
#pragma unroll
                for (int j = 0; j < ahead; ++j) {
                    if (found) continue;
                    if (word[j] == 0) break;
                    before += word[j] & COUNT;
                    found = (word[j] & INCLUSIVE) != 0;
                    --at;
                }
            }
            store_relaxed(look_back + block * DIGITS + t, INCLUSIVE | (before + total));
        }
        const u64 base = bases[row * base_stride + base_offset + t];
        place[t] = static_cast<i64>(base) + before - start;
        if ((flags & MORE_TILES) && tile == tiles - 1) next_bases[row * DIGITS + t] = base + before + total;
    }
    __syncthreads();

    const i64 left = n - first;
    const int valid = left < tile_keys ? static_cast<int>(left) : tile_keys;
    u32 digits[(items + 3) / 4] = {};
    const Codes<U> back(map, flags & LAST);
    const int written = PAIRS && (flags & LAST) ? 0 : valid;
    if constexpr (sizeof(U) == 8) {
        write_keys<U, u64>(digits, s.key, place, static_cast<u64*>(to) + row * n, written, shift, back);
    } else if (size == 4) {
        write_keys<U, u32>(digits, s.key, place, static_cast<u32*>(to) + row * n, written, shift, back);
    } else if (size == 2) {
        write_keys<U, u16>(digits, s.key, place, static_cast<u16*>(to) + row * n, written, shift, back);
    } else {
        write_keys<U, u8>(digits, s.key, place, static_cast<u8*>(to) + row * n, written, shift, back);
    }
    if constexpr (PAIRS) {
        u32 index[items];
        if (flags & FIRST) {
#pragma unroll
            for (int i = 0; i < items; ++i) index[i] = static_cast<u32>(mine + i * 32);
        } else {
            load_each(index, from_index + row * n, mine, 32, n, 0u);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < items; ++i) s.index[rank[i]] = index[i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < items; ++i) {
            const int j = i * SORT_THREADS + t;
            if (j >= valid) break;
            const i64 at = row * n + place[digits[i / 4] >> (8 * (i % 4)) & 255u] + j;
            if (flags & LAST) static_cast<i64*>(to_index)[at] = s.index[j];
            else static_cast<u32*>(to_index)[at] = s.index[j];
        }
    }
}

}  // namespace pgk

#define PGK_SORT_BASES(entry) \
    extern "C" __global__ void __launch_bounds__(256) entry(pgk::u64* counts) { \
        pgk::await_predecessor(); \
        __shared__ pgk::u64 sums[8]; \
        pgk::u64* mine = counts + blockIdx.x * 256ll + threadIdx.x; \
        *mine = pgk::before_me(*mine, sums); \
    }

#define PGK_DIGIT_COUNTS(entry, U) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::u64* counts, const void* x, long long n, long long chunks, long long chunk, int size, \
        const __grid_constant__ pgk::KeyMap map) { \
        pgk::digit_counts<pgk::U>(counts, x, n, chunks, chunk, size, map); \
    }

#define PGK_SORT_PASS(entry, U, PAIRS) \
    extern "C" __global__ void __launch_bounds__(384, 2) entry( \
        void* to, void* to_index, const void* from, const pgk::u32* from_index, pgk::u32* look_back, \
        pgk::u32* cleared, pgk::u32* counter, pgk::u64* next_bases, const pgk::u64* bases, long long n, \
        long long tiles, long long tile0, long long clear_words, long long base_stride, long long base_offset, \
        int size, int shift, int flags, const __grid_constant__ pgk::KeyMap map) { \
        pgk::sort_pass<pgk::U, PAIRS>(to, to_index, from, from_index, look_back, cleared, counter, next_bases, bases, \
                                      n, tiles, tile0, clear_words, base_stride, base_offset, size, shift, flags, \
                                      map); \
    }
