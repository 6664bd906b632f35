// Reduction over one or two axes: out[r] = finish(all of x[r, k] combined), Op as in pygpukit/reduce.cuh.
//
// out: contiguous, one element per result r. x: a result begins at the offset `kept` gives for r; element k lies
// k * s2 further on, or (k / n2) * s1 + (k % n2) * s2 where n2 is not 0. partial: [results, chunks] states, used where
// there is more than one chunk; reduce_fold combines them then, once or twice.
//
// Order, of n and the type T alone: V elements fill 16 bytes, and a chunk is 1024 vectors. Vector v of a chunk
// belongs to slot v % 32. Within a vector groups of up to 4 elements are combined in pairs (elements of an incomplete
// group one by one), a slot combines its groups in order, and the slots of a chunk are combined by a binary tree
// (slot i with i + 16, then i + 8, ...). Partial result c belongs to slot c % 1024 of its fold, in order, and those are
// combined by a tree again; more than 4096 partial results are folded 2048 at a time first. So the bits depend on
// neither the layout, the grid, the kernel nor the other results. Determinism: batch_invariant.
// Error of a sum of n floats: at most (67 + n / 2^33) eps sum |x| for 4-byte elements, 2^-24 being eps.
//
// reduce_rows: 128 threads; `lanes` (a power of two up to 32) per chunk; grid = ceil(results * chunks * lanes / 128).
// reduce_cols: 32 * parts threads, parts a power of two up to 16, a warp per slot or for two; neighbouring results are
//   neighbours in memory, `width` of them per block; grid = outer * chunks * tiles. Dynamic shared memory: parts / 2 *
//   32 * E states.
// reduce_fold: 1024 threads; a warp per result for up to 32 chunks, else a block per `span` of them, which gives a
//   result in out, or of several spans each its partial result in next. Static shared memory: 512 states.
#include "pygpukit/reduce.cuh"

namespace pgk {

template <class T> struct Shape {
    static constexpr int vector = 16 / sizeof(T);
    static constexpr int group = vector < 4 ? vector : 4;
    static constexpr int row = 32 * vector;
    static constexpr int chunk = 32 * row;
    // Columns of a thread in reduce_cols, and groups of rows it loads before it combines any.
    static constexpr int columns = vector < 4 ? vector : 4;
    static constexpr int ahead = 64 / static_cast<int>(group * columns * sizeof(T));
};

// The elements of one chunk of a result. n2 is below 2^31 - 2^15.
template <class T> struct Line {
    const T* p;
    u32 n2, position;
    i64 s1, s2;
    PGK_FN static Line of(const T* x, i64 first, i64 n2, i64 s1, i64 s2) {
        if (n2 == 0) return {x + first * s2, 0, 0, s1, s2};
        const i64 rest = quotient(first, n2);
        return {x + rest * s1, static_cast<u32>(n2), static_cast<u32>(first - rest * n2), s1, s2};
    }
    PGK_FN const T* at(int k) const {
        if (n2 == 0) return p + k * s2;
        const u32 to = position + k, rest = to / n2;
        return p + rest * s1 + (to - rest * n2) * s2;
    }
    // Are `count` elements from every multiple of `count` one aligned vector?
    PGK_FN bool in_vectors(u32 count) const {
        return s2 == 1 && (n2 == 0 || (n2 % count == 0 && s1 % count == 0)) &&
               reinterpret_cast<u64>(p) % (count * sizeof(T)) == 0;
    }
};

template <class Op, int G, class T> PGK_FN typename Op::State combine(const T (&x)[G], i64 k) {
    typename Op::State s[G];
#pragma unroll
    for (int e = 0; e < G; ++e) s[e] = Op::of(x[e], k + e);
#pragma unroll
    for (int d = 1; d < G; d *= 2) {
#pragma unroll
        for (int e = 0; e + d < G; e += 2 * d) s[e] = Op::append(s[e], s[e + d]);
    }
    return s[0];
}

// Add up to G elements, `count` of them there, to what a slot has.
template <class Op, int G, class T>
PGK_FN void take(typename Op::State& state, const T (&x)[G], int count, i64 k) {
    if (count >= G) {
        state = Op::extend(state, combine<Op, G>(x, k));
        return;
    }
#pragma unroll
    for (int e = 0; e < G; ++e) {
        if (e < count) state = Op::extend(state, Op::of(x[e], k + e));
    }
}

template <class Op, class T>
PGK_FN void take_vector(typename Op::State& state, const Vec<T, Shape<T>::vector>& v, int count, i64 k) {
    constexpr int V = Shape<T>::vector, G = Shape<T>::group;
#pragma unroll
    for (int g = 0; g < V; g += G) {
        T x[G];
#pragma unroll
        for (int e = 0; e < G; ++e) x[e] = v.e[g + e];
        take<Op, G>(state, x, count - g, k + g);
    }
}

// Whole vectors of a slot, U loaded at a time.
template <class Op, class T, int U, bool VECTORS>
PGK_FN void sweep(typename Op::State& state, const Line<T>& line, i64 first, int at, int stop) {
    constexpr int V = Shape<T>::vector;
#pragma unroll 1
    for (; at < stop; at += U * Shape<T>::row) {
        Vec<T, V> v[U];
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int k = at + u * Shape<T>::row;
            const bool on = k < stop;
#pragma unroll
            for (int e = 0; e < V; ++e) v[u].e[e] = T{};
            if constexpr (VECTORS) {
                load(v[u], line.at(k), on);
            } else {
#pragma unroll
                for (int e = 0; e < V; ++e) v[u].e[e] = element(line.at(k + e), on, T{});
            }
        }
#pragma unroll
        for (int u = 0; u < U; ++u) {
            const int k = at + u * Shape<T>::row;
            if (k < stop) take_vector<Op, T>(state, v[u], V, first + k);
        }
    }
}

template <class Op, class T, class To>
PGK_FN void reduce_rows(To* out, typename Op::State* partial, const T* x, const Nd<1>& kept, i64 n, i64 n2, i64 s1,
                        i64 s2, i64 results, i64 chunks, i64 lanes, f64 correction) {
    await_predecessor();
    using State = typename Op::State;
    constexpr int V = Shape<T>::vector;
    const i64 thread = static_cast<i64>(blockIdx.x) * 128 + threadIdx.x;
    const int width = static_cast<int>(lanes);
    const i64 row = thread >> __popc(width - 1);
    const int lane = static_cast<int>(thread) & (width - 1);
    const bool active = row < results * chunks;
    const i64 r = !active ? 0 : chunks == 1 ? row : quotient(row, chunks);
    const i64 c = active ? row - r * chunks : 0;
    const i64 first = c * Shape<T>::chunk;
    const i64 left = n - first;
    const int length = !active ? 0 : left < Shape<T>::chunk ? static_cast<int>(left) : Shape<T>::chunk;
    const int whole = length / V * V;
    const Line<T> line = Line<T>::of(x + offset_of(r, kept), first, n2, s1, s2);

    State state = Op::neutral();
    if (line.in_vectors(V)) sweep<Op, T, 8, true>(state, line, first, lane * V, whole);
    else sweep<Op, T, (V < 8 ? 8 / V : 1), false>(state, line, first, lane * V, whole);
    if (whole < length && whole / V % 32 == lane) {
        Vec<T, V> v;
#pragma unroll
        for (int e = 0; e < V; ++e) v.e[e] = element(line.at(whole + e), e < length - whole, T{});
        take_vector<Op, T>(state, v, length - whole, first + whole);
    }
    const int slots = (length + V - 1) / V;
    const int used = slots < width ? slots : width;
#pragma unroll 1
    for (int d = width / 2; d > 0; d /= 2) {
        const State other = from_lane(state, d);
        if (lane + d < used) state = Op::merge(state, other);
    }
    if (active && lane == 0) {
        if (chunks > 1) partial[row] = state;
        else out[row] = Op::template finish<To>(n == 0 ? Op::nothing() : state, n, correction);
    }
}

template <class Op, class T, class To>
PGK_FN void reduce_cols(To* out, typename Op::State* partial, const T* x, const Nd<1>& kept, i64 n, i64 n2, i64 s1,
                        i64 s2, i64 inner, i64 chunks, i64 tiles, i64 width, f64 correction) {
    await_predecessor();
    using State = typename Op::State;
    constexpr int V = Shape<T>::vector, G = Shape<T>::group, E = Shape<T>::columns, Q = Shape<T>::ahead;
    constexpr int groups = V / G;
    extern __shared__ char memory[];
    State* const shared = reinterpret_cast<State*>(memory);
    const int parts = static_cast<int>(blockDim.x) / 32;
    const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 block = static_cast<i64>(blockIdx.x);
    const i64 rest = quotient(block, tiles), tile = block - rest * tiles;
    const i64 o = quotient(rest, chunks), c = rest - o * chunks;
    const i64 first = c * Shape<T>::chunk;
    const i64 left = n - first;
    const int length = left < Shape<T>::chunk ? static_cast<int>(left) : Shape<T>::chunk;
    const Line<T> line = Line<T>::of(x + offset_of(o, kept) + tile * width, first, n2, s1, s2);
    const bool wide = width > 32;
    const bool vectors = wide && inner % E == 0 && s2 % E == 0 && (n2 == 0 || s1 % E == 0) &&
                         reinterpret_cast<u64>(line.p) % (E * sizeof(T)) == 0;
    int column[E];
    bool on[E];
#pragma unroll
    for (int j = 0; j < E; ++j) {
        column[j] = vectors ? lane * E + j : lane + 32 * j;
        on[j] = (wide || j == 0) && tile * width + column[j] < inner;
    }

    // The slots part, part + parts, ...: of 32 slots, 16 warps have two each, which the tree combines first.
    State state[E], other[E];
    int slot = part;
#pragma unroll
    for (int j = 0; j < E; ++j) other[j] = Op::neutral();
#pragma unroll 1
    for (;;) {
#pragma unroll
        for (int j = 0; j < E; ++j) state[j] = Op::neutral();
#pragma unroll 1
        for (int q = 0;; q += Q) {
            int k[Q];
            Vec<T, E> v[Q][G];
#pragma unroll
            for (int u = 0; u < Q; ++u) {
                k[u] = (q + u) / groups * Shape<T>::row + slot * V + (q + u) % groups * G;
#pragma unroll
                for (int g = 0; g < G; ++g) {
                    const bool there = k[u] + g < length;
                    const T* const p = line.at(k[u] + g);
#pragma unroll
                    for (int j = 0; j < E; ++j) v[u][g].e[j] = T{};
                    if (vectors) {
                        load(v[u][g], p + lane * E, there && on[0]);
                    } else {
#pragma unroll
                        for (int j = 0; j < E; ++j) v[u][g].e[j] = element(p + column[j], there && on[j], T{});
                    }
                }
            }
            if (k[0] >= length) break;
#pragma unroll
            for (int u = 0; u < Q; ++u) {
#pragma unroll
                for (int j = 0; j < E; ++j) {
                    T x[G];
#pragma unroll
                    for (int g = 0; g < G; ++g) x[g] = v[u][g].e[j];
                    take<Op, G>(state[j], x, length - k[u], first + k[u]);
                }
            }
        }
        if (slot >= 16 || parts < 16) break;
#pragma unroll
        for (int j = 0; j < E; ++j) other[j] = state[j];
        slot += 16;
    }
    const int slots = (length + V - 1) / V;
    if (parts == 16) {
#pragma unroll
        for (int j = 0; j < E; ++j) state[j] = slot < slots ? Op::merge(other[j], state[j]) : other[j];
    }
    const int used = slots < parts ? slots : parts;
#pragma unroll 1
    for (int d = parts / 2; d > 0; d /= 2) {
        State* const mine = shared + ((part < d ? part : part - d) * 32 + lane) * E;
        if (part >= d && part < 2 * d) {
#pragma unroll
            for (int j = 0; j < E; ++j) mine[j] = state[j];
        }
        __syncthreads();
        if (part < d && part + d < used) {
#pragma unroll
            for (int j = 0; j < E; ++j) state[j] = Op::merge(state[j], mine[j]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < E; ++j) {
        if (part == 0 && on[j]) {
            const i64 r = o * inner + tile * width + column[j];
            if (chunks > 1) partial[r * chunks + c] = state[j];
            else out[r] = Op::template finish<To>(n == 0 ? Op::nothing() : state[j], n, correction);
        }
    }
}

template <class Op, class To>
PGK_FN void reduce_fold(To* out, typename Op::State* next, const typename Op::State* partial, i64 n, i64 results,
                        i64 all, i64 span, f64 correction) {
    await_predecessor();
    using State = typename Op::State;
    constexpr int ahead = sizeof(State) > 8 ? 4 : 16;
    __shared__ char memory[512 * sizeof(State)];
    State* const shared = reinterpret_cast<State*>(memory);
    const bool by_warp = all <= 32;
    const int slot = by_warp ? threadIdx.x % 32 : threadIdx.x;
    const i64 block = static_cast<i64>(blockIdx.x), spans = by_warp ? 1 : (all + span - 1) / span;
    const i64 r = by_warp ? block * 32 + threadIdx.x / 32 : quotient(block, spans);
    const i64 first = by_warp ? 0 : (block - r * spans) * span;
    const i64 chunks = all - first < span ? all - first : span;
    const bool active = r < results;
    const State* const p = partial + (active ? r : 0) * all + first;

    State state = Op::neutral();
#pragma unroll 1
    for (i64 c = slot; c < chunks; c += 1024 * ahead) {
        State s[ahead];
#pragma unroll
        for (int u = 0; u < ahead; ++u) s[u] = p[c + u * 1024 < chunks ? c + u * 1024 : c];
#pragma unroll
        for (int u = 0; u < ahead; ++u) {
            if (c + u * 1024 < chunks) state = Op::extend(state, s[u]);
        }
    }
    const int used = by_warp ? static_cast<int>(chunks) : chunks < 1024 ? static_cast<int>(chunks) : 1024;
    if (!by_warp) {
#pragma unroll 1
        for (int d = 512; d >= 32; d /= 2) {
            if (slot >= d && slot < 2 * d) shared[slot - d] = state;
            __syncthreads();
            if (slot < d && slot + d < used) state = Op::merge(state, shared[slot]);
            __syncthreads();
        }
    }
#pragma unroll 1
    for (int d = 16; d > 0; d /= 2) {
        const State other = from_lane(state, d);
        if (slot % 32 + d < used) state = Op::merge(state, other);
    }
    if (active && slot == 0) {
        if (spans > 1) next[block] = state;
        else out[r] = Op::template finish<To>(state, n, correction);
    }
}

}  // namespace pgk

// Op is the last argument, which may have commas; BYTES is the size of its state as the host takes it.
#define PGK_REDUCE(rows, cols, fold, T, To, BYTES, ...) \
    static_assert(sizeof(__VA_ARGS__::State) == BYTES, "the host allocates partial results"); \
    extern "C" __global__ void __launch_bounds__(128) rows( \
        pgk::To* out, __VA_ARGS__::State* partial, const pgk::T* x, const pgk::Nd<1> kept, long long n, long long n2, \
        long long s1, long long s2, long long results, long long chunks, long long lanes, double correction) { \
        pgk::reduce_rows<__VA_ARGS__, pgk::T, pgk::To>(out, partial, x, kept, n, n2, s1, s2, results, chunks, lanes, \
                                                       correction); \
    } \
    extern "C" __global__ void __launch_bounds__(512, 2) cols( \
        pgk::To* out, __VA_ARGS__::State* partial, const pgk::T* x, const pgk::Nd<1> kept, long long n, long long n2, \
        long long s1, long long s2, long long inner, long long chunks, long long tiles, long long width, \
        double correction) { \
        pgk::reduce_cols<__VA_ARGS__, pgk::T, pgk::To>(out, partial, x, kept, n, n2, s1, s2, inner, chunks, tiles, \
                                                       width, correction); \
    } \
    extern "C" __global__ void __launch_bounds__(1024) fold( \
        pgk::To* out, __VA_ARGS__::State* next, const __VA_ARGS__::State* partial, long long n, long long results, \
        long long chunks, long long span, double correction) { \
        pgk::reduce_fold<__VA_ARGS__, pgk::To>(out, next, partial, n, results, chunks, span, correction); \
    }
