// Sort of rows of up to 4096 elements: a bitonic network in registers, one launch.
//
// x: contiguous [rows, n], elements of `size` bytes; map says how they become keys (pygpukit/keys.cuh). A row is padded
// to a power of two `width` of 8 to 4096; width / 8 neighbouring threads hold it, 8 elements each. Exchanges over less
// than 8 elements stay in a thread, those over less than 256 in a warp, the others go through shared memory.
// The network is not stable; where positions are wanted they are part of the compared value, so no two are equal.
//
// sort_rows: out[r, :] = x[r, :] in order. argsort_rows: out[r, :] = the positions (int64) that sort x[r, :].
// top_rows: the first k of each chunk of `width` elements of a row: keys[r, c, :] and index[r, c, :]; places without an
//   element get the largest of both. The source is x (raw), or keys and index of an earlier stage.
// Launch: 256 threads (512 for width 4096), grid = ceil(rows * width / (8 * threads)).
// Dynamic shared memory: 8 * threads * bytes of a compared value, or 33/32 * 8 * threads * bytes of a result if more.
// Determinism: batch_invariant.
#include "pygpukit/keys.cuh"

namespace pgk {

constexpr int EACH = 8;

// A key of 64 bits and its position.
struct Wide {
    u64 key;
    u32 index;
};

template <class C> PGK_FN bool before(C a, C b) { return a < b; }
PGK_FN bool before(Wide a, Wide b) { return a.key < b.key || (a.key == b.key && a.index < b.index); }

template <class C> PGK_FN void order(C& a, C& b) {
    const C x = a, y = b;
    const bool swapped = before(y, x);
    a = swapped ? y : x;
    b = swapped ? x : y;
}

PGK_FN u32 from_lane(u32 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
PGK_FN u64 from_lane(u64 v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
PGK_FN Wide from_lane(Wide v, int mask) { return Wide{from_lane(v.key, mask), from_lane(v.index, mask)}; }

extern __shared__ u64 pgk_network_memory[];

// Values of all threads in shared memory, laid out so that threads of a warp use different banks.
template <class C> struct Exchange {
    PGK_FN static void put(int at, C v) { reinterpret_cast<C*>(pgk_network_memory)[at] = v; }
    PGK_FN static C get(int at) { return reinterpret_cast<C*>(pgk_network_memory)[at]; }
};
template <> struct Exchange<Wide> {
    PGK_FN static u32* indices() { return reinterpret_cast<u32*>(pgk_network_memory + EACH * blockDim.x); }
    PGK_FN static void put(int at, Wide v) {
        pgk_network_memory[at] = v.key;
        indices()[at] = v.index;
    }
    PGK_FN static Wide get(int at) { return Wide{pgk_network_memory[at], indices()[at]}; }
};

// One step between threads: the partner is the thread `mask` away (exclusive or), its elements are in the same order,
// or in the reverse one at the beginning of a merge.
template <class C, bool REVERSED> PGK_FN void between(C (&v)[EACH], int mask) {
    const int t = threadIdx.x, partner = t ^ mask;
    C other[EACH];
    if (mask < 32) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) other[e] = from_lane(v[REVERSED ? EACH - 1 - e : e], mask);
    } else {
        const int threads = blockDim.x;
#pragma unroll
        for (int e = 0; e < EACH; ++e) Exchange<C>::put(e * threads + t, v[e]);
        __syncthreads();
#pragma unroll
        for (int e = 0; e < EACH; ++e) other[e] = Exchange<C>::get((REVERSED ? EACH - 1 - e : e) * threads + partner);
        __syncthreads();
    }
    const bool low = t < partner;
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const bool keep = before(v[e], other[e]) == low;
        v[e] = keep ? v[e] : other[e];
    }
}

template <class C> PGK_FN void halves(C (&v)[EACH], int from) {
#pragma unroll
    for (int j = EACH / 2; j > 0; j /= 2) {
        if (j > from) continue;
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            if ((e & j) == 0) order(v[e], v[e | j]);
        }
    }
}

// Element e of the thread at place g of its row is number 8 * g + e afterwards; before, the order does not matter.
template <class C> PGK_FN void network(C (&v)[EACH], int width) {
#pragma unroll
    for (int k = 2; k <= EACH; k *= 2) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            if ((e & k / 2) == 0) order(v[e], v[e ^ (k - 1)]);
        }
        halves(v, k / 4);
    }
    for (int k = 2 * EACH; k <= width; k *= 2) {
        between<C, true>(v, k / EACH - 1);
        for (int j = k / 4; j >= EACH; j /= 2) between<C, false>(v, j / EACH);
        halves(v, EACH / 2);
    }
}

template <class U> struct Indexed { using type = u64; };
template <> struct Indexed<u64> { using type = Wide; };
PGK_FN u64 indexed(u32 key, u32 index) { return static_cast<u64>(key) << 32 | index; }
PGK_FN Wide indexed(u64 key, u32 index) { return Wide{key, index}; }
PGK_FN u32 index_of(u64 v) { return static_cast<u32>(v); }
PGK_FN u32 index_of(Wide v) { return v.index; }
PGK_FN u32 key_of(u64 v) { return static_cast<u32>(v >> 32); }
PGK_FN u64 key_of(Wide v) { return v.key; }

// Where a thread's elements are: row, place in it, and how they were loaded.
struct Seat {
    i64 row;
    int lanes, place;
};
PGK_FN Seat seat(int width) {
    const int lanes = width / EACH, t = threadIdx.x;
    const int rows = static_cast<int>(blockDim.x) / lanes;
    return {static_cast<i64>(blockIdx.x) * rows + t / lanes, lanes, t % lanes};
}

template <class U>
PGK_FN void load_keys(U (&key)[EACH], const void* x, i64 rows, i64 n, int size, const KeyMap& map, const Seat& at) {
    load_all(key, x, at.row * n, static_cast<i64>(at.place), static_cast<i64>(at.lanes), at.row < rows ? n : 0, size,
             ~U(0));
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        key[e] = at.row < rows && at.place + e * at.lanes < n ? encode(key[e], map) : ~U(0);
    }
}

// Calls write(position in the output, value) with neighbouring threads at neighbouring positions.
template <class R, class Write> PGK_FN void in_order(const R (&v)[EACH], i64 rows, i64 n, int width, Write write) {
    R* staged = reinterpret_cast<R*>(pgk_network_memory);
    const int t = threadIdx.x, threads = blockDim.x;
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int q = t * EACH + e;
        staged[q + q / 32] = v[e];
    }
    __syncthreads();
    const i64 row0 = static_cast<i64>(blockIdx.x) * (threads * EACH / width);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int q = e * threads + t;
        const i64 row = row0 + q / width;
        const int column = q % width;
        if (row < rows && column < n) write(row * n + column, staged[q + q / 32]);
    }
}

template <class U>
PGK_FN void sort_rows(void* out, const void* x, i64 rows, i64 n, int width, int size, const KeyMap& map) {
    await_predecessor();
    const Seat at = seat(width);
    U key[EACH];
    load_keys(key, x, rows, n, size, map, at);
    network(key, width);
    in_order(key, rows, n, width, [&](i64 to, U k) { store_bits(out, to, size, decode(k, map)); });
}

template <class U>
PGK_FN void argsort_rows(i64* out, const void* x, i64 rows, i64 n, int width, int size, const KeyMap& map) {
    await_predecessor();
    const Seat at = seat(width);
    U key[EACH];
    load_keys(key, x, rows, n, size, map, at);
    typename Indexed<U>::type v[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) v[e] = indexed(key[e], static_cast<u32>(at.place + e * at.lanes));
    network(v, width);
    u32 index[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) index[e] = index_of(v[e]);
    in_order(index, rows, n, width, [&](i64 to, u32 i) { out[to] = i; });
}

template <class U>
PGK_FN void top_rows(U* keys, u32* index, const void* x, const u32* from_index, i64 rows, i64 n, i64 chunks, i64 k,
                     int width, int size, int raw, const KeyMap& map) {
    await_predecessor();
    const Seat at = seat(width);
    const i64 row = at.row / chunks;
    const i64 first = at.row % chunks * width + at.place;
    const bool inside = at.row < rows * chunks;
    U key[EACH];
    u32 position[EACH];
    load_all(key, x, row * n, first, static_cast<i64>(at.lanes), inside ? n : 0, size, ~U(0));
    if (!raw) load_each(position, from_index + row * n, first, static_cast<i64>(at.lanes), inside ? n : 0, ~0u);
    typename Indexed<U>::type v[EACH];
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const i64 i = first + e * at.lanes;
        if (raw) {
            key[e] = inside && i < n ? encode(key[e], map) : ~U(0);
            position[e] = inside && i < n ? static_cast<u32>(i) : ~0u;
        }
        v[e] = indexed(key[e], position[e]);
    }
    network(v, width);
#pragma unroll
    for (int e = 0; e < EACH; ++e) {
        const int j = at.place * EACH + e;
        if (inside && j < k) {
            keys[at.row * k + j] = key_of(v[e]);
            index[at.row * k + j] = index_of(v[e]);
        }
    }
}

}  // namespace pgk

#define PGK_SORT_ROWS(entry, U) \
    extern "C" __global__ void __launch_bounds__(512) entry( \
        void* out, const void* x, long long rows, long long n, int width, int size, \
        const __grid_constant__ pgk::KeyMap map) { \
        pgk::sort_rows<pgk::U>(out, x, rows, n, width, size, map); \
    }

#define PGK_ARGSORT_ROWS(entry, U) \
    extern "C" __global__ void __launch_bounds__(512) entry( \
        long long* out, const void* x, long long rows, long long n, int width, int size, \
        const __grid_constant__ pgk::KeyMap map) { \
        pgk::argsort_rows<pgk::U>(out, x, rows, n, width, size, map); \
    }

#define PGK_TOP_ROWS(entry, U) \
    extern "C" __global__ void __launch_bounds__(512) entry( \
        pgk::U* keys, pgk::u32* index, const void* x, const pgk::u32* from_index, long long rows, long long n, \
        long long chunks, long long k, int width, int size, int raw, const __grid_constant__ pgk::KeyMap map) { \
        pgk::top_rows<pgk::U>(keys, index, x, from_index, rows, n, chunks, k, width, size, raw, map); \
    }
