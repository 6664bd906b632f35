// Search in sorted arrays, and the places where a sorted array changes. Elements have `size` bytes and become keys of
// 64 bits (pygpukit/keys.cuh), in which both zeros are equal, and all NaN, which come last.
//
// pgk_searchsorted: out[i] = how many elements of a[sorter] are below v[i] (right: not above). 256 threads,
//   grid = ceil(m / 256).
// pgk_sort_runs: a run is a stretch of equal elements of x; starts[g] = first position of run g, groups[i] = the run of
//   element i (with_groups), count[0] = number of runs. mode 1: each NaN is a run of its own. mode 2: x holds flags,
//   and starts has the positions of those that are not 0. 256 threads, a tile of 4096 elements per block in order of
//   start; tiles hand on their counts by look-back over words of 2 bits of state and 62 of count, zero at the
//   beginning.
// pgk_sort_extent: out = smallest and largest element. 256 threads, any grid. The counters hold the largest key, the
//   largest inverted key and how many blocks are done; the last block leaves them zero.
// Determinism: batch_invariant.
#include "pygpukit/keys.cuh"

namespace pgk {

constexpr u64 TILES_BEFORE = 1ull << 63;
constexpr u64 THIS_TILE = 1ull << 62;
constexpr int RUN_ITEMS = 16;
constexpr int RUN_TILE = 256 * RUN_ITEMS;

// The number of runs that begin in tiles before this one; called by the first warp.
PGK_FN u64 runs_before(u64* look_back, i64 tile) {
    const int lane = threadIdx.x;
    u64 sum = 0;
    for (i64 at = tile - 1; at >= 0;) {
        const u64 word = at - lane >= 0 ? load_relaxed(look_back + at - lane) : TILES_BEFORE;
        const u32 whole = __ballot_sync(0xffffffffu, (word & TILES_BEFORE) != 0);
        const u32 missing = __ballot_sync(0xffffffffu, word == 0);
        const int stop = whole ? __ffs(static_cast<int>(whole)) - 1 : 31;
        if (missing & (0xffffffffu >> (31 - stop))) continue;
        u64 part = lane <= stop ? word & (THIS_TILE - 1) : 0;
#pragma unroll
        for (int d = 16; d > 0; d /= 2) part += __shfl_xor_sync(0xffffffffu, part, d);
        sum += part;
        if (whole) break;
        at -= 32;
    }
    return sum;
}

}  // namespace pgk

extern "C" __global__ void __launch_bounds__(256) pgk_searchsorted(
    long long* out, const void* a, const void* v, const long long* sorter, long long n, long long m, int size,
    int right, int sorted_by, const __grid_constant__ pgk::KeyMap map) {
    pgk::await_predecessor();
    const long long i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= m) return;
    const pgk::u64 key = pgk::encode(pgk::load_bits<pgk::u64>(v, i, size), map);
    long long low = 0, high = n;
    while (low < high) {
        const long long middle = low + (high - low) / 2;
        const long long at = sorted_by ? sorter[middle] : middle;
        const pgk::u64 other = pgk::encode(pgk::load_bits<pgk::u64>(a, at, size), map);
        if (right ? other <= key : other < key) low = middle + 1;
        else high = middle;
    }
    out[i] = low;
}

extern "C" __global__ void __launch_bounds__(256) pgk_sort_runs(
    long long* starts, long long* groups, long long* count, const void* x, pgk::u64* look_back, pgk::u32* counter,
    long long n, int size, int mode, int with_groups, const __grid_constant__ pgk::KeyMap map) {
    using namespace pgk;
    await_predecessor();
    __shared__ u32 number;
    __shared__ u32 in_warp[8];
    __shared__ u64 before;
    const i64 tile = start_order(counter, &number);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 first = tile * RUN_TILE + warp * (32 * RUN_ITEMS);
    u32 begins[RUN_ITEMS];
    u32 sum = 0;
    u64 key[RUN_ITEMS];
    load_any(key, x, first + lane, 32, n, size);
    u64 last = 0;
    if (mode != 2) {
#pragma unroll
        for (int r = 0; r < RUN_ITEMS; ++r) key[r] = encode(key[r], map);
        if (first > 0 && first < n) last = encode(load_bits<u64>(x, first - 1, size), map);
    }
    const bool nan_begins = mode == 1 && map.last != map.mask;
#pragma unroll
    for (int r = 0; r < RUN_ITEMS; ++r) {
        const i64 i = first + r * 32 + lane;
        const u64 left = __shfl_up_sync(0xffffffffu, key[r], 1);
        const bool differs = i == 0 || key[r] != (lane == 0 ? last : left) || (nan_begins && key[r] >= map.last);
        begins[r] = __ballot_sync(0xffffffffu, i < n && (mode == 2 ? key[r] != 0 : differs));
        sum += __popc(begins[r]);
        last = __shfl_sync(0xffffffffu, key[r], 31);
    }
    if (lane == 0) in_warp[warp] = sum;
    __syncthreads();
    if (warp == 0) {
        u64 total = 0;
        for (int w = 0; w < 8; ++w) total += in_warp[w];
        if (lane == 0) store_relaxed(look_back + tile, (tile == 0 ? TILES_BEFORE : THIS_TILE) | total);
        const u64 earlier = runs_before(look_back, tile);
        if (lane == 0) {
            if (tile > 0) store_relaxed(look_back + tile, TILES_BEFORE | (earlier + total));
            before = earlier;
            if (tile == static_cast<i64>(gridDim.x) - 1) count[0] = static_cast<i64>(earlier + total);
        }
    }
    __syncthreads();
    i64 at = static_cast<i64>(before);
    for (int w = 0; w < warp; ++w) at += in_warp[w];
#pragma unroll
    for (int r = 0; r < RUN_ITEMS; ++r) {
        const i64 i = first + r * 32 + lane;
        const i64 mine = at + __popc(begins[r] & (1u << lane) - 1u);
        const bool starts_here = begins[r] >> lane & 1u;
        if (starts_here) starts[mine] = i;
        if (with_groups && i < n) groups[i] = starts_here ? mine : mine - 1;
        at += __popc(begins[r]);
    }
}

extern "C" __global__ void __launch_bounds__(256) pgk_sort_extent(
    void* out, const void* x, pgk::u64* counters, long long n, int size, const __grid_constant__ pgk::KeyMap map) {
    using namespace pgk;
    await_predecessor();
    u64 largest = 0, inverted = 0;
    constexpr int unroll = 8;
    const i64 step = gridDim.x * 256ll;
    for (i64 i = blockIdx.x * 256ll + threadIdx.x; i < n; i += unroll * step) {
        u64 bits[unroll];
        load_any(bits, x, i, step, n, size);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const u64 key = encode(bits[u], map);
            const bool inside = i + u * step < n;
            largest = inside && key > largest ? key : largest;
            inverted = inside && ~key > inverted ? ~key : inverted;
        }
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) {
        const u64 a = __shfl_xor_sync(0xffffffffu, largest, d), b = __shfl_xor_sync(0xffffffffu, inverted, d);
        largest = a > largest ? a : largest;
        inverted = b > inverted ? b : inverted;
    }
    if (threadIdx.x % 32 == 0) {
        atomicMax(counters, largest);
        atomicMax(counters + 1, inverted);
    }
    __threadfence();
    __syncthreads();
    if (threadIdx.x != 0) return;
    if (atomicAdd(counters + 2, 1ull) != gridDim.x - 1) return;
    __threadfence();
    store_bits<u64>(out, 0, size, decode(~atomicExch(counters + 1, 0ull), map));
    store_bits<u64>(out, 1, size, decode(atomicExch(counters, 0ull), map));
    atomicExch(counters + 2, 0ull);
}
