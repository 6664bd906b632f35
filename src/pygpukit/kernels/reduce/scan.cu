// Scan along one axis: out[r, k] = x[r, 0] combined with ... and x[r, k], Op as in pygpukit/reduce.cuh with A its
// state.
//
// out: contiguous, results in row-major order with `inner` of them after the scanned axis; element k of result r lies
// at (r / inner) * n * inner + k * inner + r % inner. x: a result begins at the offset `kept` gives for r, element k
// lies k * stride further on. totals: [results, chunks], contiguous; where there is more than one chunk, their scan is
// what chunk c > 0 begins with: totals[r, c - 1].
//
// Order, of n and the type T alone: a vector is 4 elements, of 8 and 16 bytes 2 and 1. A tile is 32 vectors: a lane
// combines its vector one by one, lanes are combined by doubling distances (1, 2, 4, 8, 16), and a tile begins with the
// tiles before it in its span. Four tiles are a span, eight spans a step, four steps a chunk: a span begins with the
// spans before it in its step, in order, a step with those before it in its chunk, a chunk with the scan of the totals
// of those before it. The bits depend on neither the layout, the grid nor the other results. Determinism:
// batch_invariant.
//
// scan_chunk: 256 threads, inner is 1; without WRITE only the totals. A warp per result of at most a span: grid =
//   ceil(results / 8); else a block per result and chunk: grid = results * chunks. Static shared memory: 16 states.
// scan_columns: 256 threads, 32 neighbouring results per block; grid = outer * chunks * ceil(inner / 32). Static shared
//   memory: 32 tiles of states.
#include "pygpukit/reduce.cuh"

namespace pgk {

constexpr int SPANS = 8;
constexpr int TILES = 4;
constexpr int STEPS = 4;

template <class T> struct Pieces {
    static constexpr int vector = sizeof(T) <= 4 ? 4 : 16 / sizeof(T);
    static constexpr int tile = 32 * vector;
    static constexpr int span = TILES * tile;
    static constexpr int step = SPANS * span;
    static constexpr int chunk = STEPS * step;
};

template <class S> PGK_FN S from_lane_before(S s, int d) {
    union Words {
        S s;
        u32 w[(sizeof(S) + 3) / 4];
        PGK_FN Words() {}
    } u;
    u.w[sizeof(u.w) / 4 - 1] = 0;
    u.s = s;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(u.w) / 4); ++i) u.w[i] = __shfl_up_sync(~0u, u.w[i], d);
    return u.s;
}
template <class S> PGK_FN S from_last_lane(S s) {
    union Words {
        S s;
        u32 w[(sizeof(S) + 3) / 4];
        PGK_FN Words() {}
    } u;
    u.w[sizeof(u.w) / 4 - 1] = 0;
    u.s = s;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(u.w) / 4); ++i) u.w[i] = __shfl_sync(~0u, u.w[i], 31);
    return u.s;
}

// What has been combined so far: nothing, or a value.
template <class A> struct Before {
    A value;
    bool some;
};
template <class Op, class A> PGK_FN Before<A> after(Before<A> a, A b) {
    return {a.some ? Op::append(a.value, b) : b, true};
}

// Scan a tile in place, `v[e]` of a lane being its elements. Those after the end of an axis change none before it.
template <class Op, int V, class A> PGK_FN A scan_tile(A (&v)[V], int lane) {
#pragma unroll
    for (int e = 1; e < V; ++e) v[e] = Op::append(v[e - 1], v[e]);
    A total = v[V - 1];
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const A other = from_lane_before(total, d);
        if (lane >= d) total = Op::append(other, total);
    }
    const A before = from_lane_before(total, 1);
#pragma unroll
    for (int e = 0; e < V; ++e) {
        if (lane > 0) v[e] = Op::append(before, v[e]);
    }
    return from_last_lane(total);
}

template <class Op, class T, class A, class To, bool WRITE>
PGK_FN void scan_chunk(To* out, A* totals, const T* x, const Nd<1>& kept, i64 n, i64 stride, i64 results,
                       i64 chunks) {
    await_predecessor();
    constexpr int V = Pieces<T>::vector;
    __shared__ char memory[2 * SPANS * sizeof(A)];
    A* const shared = reinterpret_cast<A*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    // The totals are taken from the last chunk to the first, so that the scan finds the first ones in the L2 cache.
    const i64 block = WRITE ? static_cast<i64>(blockIdx.x) : static_cast<i64>(gridDim.x - 1 - blockIdx.x);
    const bool by_warp = n <= Pieces<T>::span;
    const i64 r = by_warp ? block * SPANS + warp : quotient(block, chunks);
    const i64 c = by_warp ? 0 : block - r * chunks;
    const i64 first = c * Pieces<T>::chunk, left = r < results ? n - first : 0;
    const int length = left < Pieces<T>::chunk ? static_cast<int>(left) : Pieces<T>::chunk;
    const T* const p = x + offset_of(r < results ? r : 0, kept) + first * stride;
    To* const to = out + r * n + first;
    const bool vectors = stride == 1 && reinterpret_cast<u64>(p) % (V * sizeof(T)) == 0;
    constexpr int written = V * sizeof(To) > 16 ? 16 / static_cast<int>(sizeof(To)) : V;
    const bool whole_stores = reinterpret_cast<u64>(to) % (written * sizeof(To)) == 0;

    Before<A> before = {A{}, false};
    if (WRITE && c > 0) before = {totals[r * chunks + c - 1], true};
    int parity = 0;
#pragma unroll 1
    for (int start = 0; start < length; start += Pieces<T>::step, parity ^= SPANS) {
        const int begin = start + (by_warp ? 0 : warp * Pieces<T>::span) + lane * V;
        Vec<T, V> in[TILES];
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            const int k = begin + t * Pieces<T>::tile;
            const bool whole = vectors && k + V <= length;
#pragma unroll
            for (int e = 0; e < V; ++e) in[t].e[e] = T{};
            load(in[t], p + k, whole);
            if (!whole && k < length) {
#pragma unroll
                for (int e = 0; e < V; ++e) in[t].e[e] = element(p + (k + e) * stride, k + e < length, T{});
            }
        }
        A v[TILES][V];
        Before<A> mine = {A{}, false};
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
#pragma unroll
            for (int e = 0; e < V; ++e) v[t][e] = Op::of(in[t].e[e], 0);
            const A total = scan_tile<Op, V>(v[t], lane);
            if (mine.some) {
#pragma unroll
                for (int e = 0; e < V; ++e) v[t][e] = Op::append(mine.value, v[t][e]);
            }
            mine = after<Op, A>(mine, total);
        }
        Before<A> spans = {A{}, false}, step = mine;
        if (!by_warp) {
            if (lane == 0) shared[parity + warp] = mine.value;
            __syncthreads();
            step.some = false;
#pragma unroll
            for (int w = 0; w < SPANS; ++w) {
                if (w == warp) spans = step;
                step = after<Op, A>(step, shared[parity + w]);
            }
        }
        if (WRITE) {
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                const int k = begin + t * Pieces<T>::tile;
#pragma unroll
                for (int e = 0; e < V; ++e) {
                    if (spans.some) v[t][e] = Op::append(spans.value, v[t][e]);
                    if (before.some) v[t][e] = Op::append(before.value, v[t][e]);
                }
                if (k + V <= length && whole_stores) {
#pragma unroll
                    for (int e = 0; e < V; e += written) {
                        Vec<To, written> w;
#pragma unroll
                        for (int i = 0; i < written; ++i) w.e[i] = output<To>(v[t][e + i]);
                        store(to + k + e, w);
                    }
                } else {
#pragma unroll
                    for (int e = 0; e < V; ++e) {
                        if (k + e < length) to[k + e] = output<To>(v[t][e]);
                    }
                }
            }
        }
        before = after<Op, A>(before, step.value);
    }
    if (!WRITE && threadIdx.x == 0) totals[r * chunks + c] = before.value;
}

// Tiles of 32 columns are turned in shared memory, so that a warp scans each column as scan_chunk scans a row.
template <class Op, class T, class A, class To, bool WRITE>
PGK_FN void scan_columns(To* out, A* totals, const T* x, const Nd<1>& kept, i64 n, i64 stride, i64 inner, i64 chunks) {
    await_predecessor();
    constexpr int V = Pieces<T>::vector, tile = Pieces<T>::tile;
    // A row of 33, and one element more after every V of them: columns and rows are read without bank conflicts.
    constexpr int pitch = 33 * V + 1;
    __shared__ char memory[32 * pitch * sizeof(A)];
    A* const shared = reinterpret_cast<A*>(memory);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 tiles = (inner + 31) / 32;
    const i64 rest = quotient(blockIdx.x, tiles), column = (blockIdx.x - rest * tiles) * 32;
    const i64 o = quotient(rest, chunks), c = rest - o * chunks;
    const i64 first = c * Pieces<T>::chunk, left = n - first;
    const int length = left < Pieces<T>::chunk ? static_cast<int>(left) : Pieces<T>::chunk;
    const bool on = column + lane < inner;
    const T* const p = x + offset_of(o * inner + (on ? column + lane : 0), kept) + first * stride;
    To* const to = out + (o * n + first) * inner + column + lane;

    // Four columns per warp: what comes before the tile in its span, in its step, and in its chunk.
    Before<A> span[4], spans[4], before[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const i64 r = o * inner + column + warp * 4 + i;
        span[i] = spans[i] = before[i] = {A{}, false};
        if (WRITE && c > 0 && column + warp * 4 + i < inner) before[i] = {totals[r * chunks + c - 1], true};
    }
#pragma unroll 1
    for (int start = 0; start < length; start += tile) {
        T in[tile / SPANS];
#pragma unroll
        for (int j = 0; j < tile / SPANS; ++j) {
            const int k = start + warp + j * SPANS;
            in[j] = element(p + k * stride, on && k < length, T{});
        }
#pragma unroll
        for (int j = 0; j < tile / SPANS; ++j) {
            const int k = warp + j * SPANS;
            shared[k / V * pitch + k % V * 33 + lane] = Op::of(in[j], 0);
        }
        __syncthreads();
        const bool span_ends = (start / tile + 1) % TILES == 0, step_ends = (start / tile + 1) % (TILES * SPANS) == 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            A* const mine = shared + lane * pitch + warp * 4 + i;
            A v[V];
#pragma unroll
            for (int e = 0; e < V; ++e) v[e] = mine[e * 33];
            const A total = scan_tile<Op, V>(v, lane);
            if (WRITE) {
#pragma unroll
                for (int e = 0; e < V; ++e) {
                    if (span[i].some) v[e] = Op::append(span[i].value, v[e]);
                    if (spans[i].some) v[e] = Op::append(spans[i].value, v[e]);
                    if (before[i].some) v[e] = Op::append(before[i].value, v[e]);
                    mine[e * 33] = v[e];
                }
            }
            span[i] = after<Op, A>(span[i], total);
            if (span_ends || start + tile >= length) {
                spans[i] = after<Op, A>(spans[i], span[i].value);
                span[i].some = false;
            }
            if (step_ends || start + tile >= length) {
                before[i] = after<Op, A>(before[i], spans[i].value);
                spans[i].some = false;
            }
        }
        __syncthreads();
        if (WRITE) {
#pragma unroll
            for (int j = 0; j < tile / SPANS; ++j) {
                const int k = warp + j * SPANS;
                const A value = shared[k / V * pitch + k % V * 33 + lane];
                if (on && start + k < length) to[(start + k) * inner] = output<To>(value);
            }
            __syncthreads();
        }
    }
    if (!WRITE && lane == 0) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i64 r = o * inner + column + warp * 4 + i;
            if (column + warp * 4 + i < inner) totals[r * chunks + c] = before[i].value;
        }
    }
}

}  // namespace pgk

// Op is the last argument, which may have commas.
#define PGK_SCAN_ROWS(rows, totals_of, T, A, To, ...) \
    extern "C" __global__ void __launch_bounds__(256) rows( \
        pgk::To* out, pgk::A* totals, const pgk::T* x, const pgk::Nd<1> kept, long long n, long long stride, \
        long long results, long long chunks) { \
        pgk::scan_chunk<__VA_ARGS__, pgk::T, pgk::A, pgk::To, true>(out, totals, x, kept, n, stride, results, chunks); \
    } \
    extern "C" __global__ void __launch_bounds__(256) totals_of( \
        pgk::A* totals, const pgk::T* x, const pgk::Nd<1> kept, long long n, long long stride, long long results, \
        long long chunks) { \
        pgk::scan_chunk<__VA_ARGS__, pgk::T, pgk::A, pgk::A, false>(totals, totals, x, kept, n, stride, results, \
                                                                          chunks); \
    }
#define PGK_SCAN_COLS(cols, totals_of, T, A, To, ...) \
    extern "C" __global__ void __launch_bounds__(256, 3) cols( \
        pgk::To* out, pgk::A* totals, const pgk::T* x, const pgk::Nd<1> kept, long long n, long long stride, \
        long long inner, long long chunks) { \
        pgk::scan_columns<__VA_ARGS__, pgk::T, pgk::A, pgk::To, true>(out, totals, x, kept, n, stride, inner, chunks); \
    } \
    extern "C" __global__ void __launch_bounds__(256) totals_of( \
        pgk::A* totals, const pgk::T* x, const pgk::Nd<1> kept, long long n, long long stride, long long inner, \
        long long chunks) { \
        pgk::scan_columns<__VA_ARGS__, pgk::T, pgk::A, pgk::A, false>(totals, totals, x, kept, n, stride, inner, \
                                                                            chunks); \
    }
