// Reduction of what a fused function computes: out[r] = finish(f(x0[r, k], x1[r, k], ...) combined over k).
//
// This text follows reduce/reduce.cu, whose order of combination it keeps: the bits are those of the same reduction of an
// array that holds f's results. F is generated. F::Loaded<V> holds V elements of every input, f.line(r) gives the inputs
// at result r, line.load(to, k, count, on) reads up to V elements from k on, and line.apply(v, loaded) computes V elements
// of the type T.
//
// fused_rows: 128 threads; `lanes` (a power of two up to 32) per chunk; grid = ceil(results * chunks * lanes / 128).
// fused_cols: 32 * parts threads, a warp per slot, parts a power of two up to 32; lanes are neighbouring results; grid =
//   ceil(results / 32) * chunks. Dynamic shared memory: parts / 2 * 32 states.
// Partial results are combined by reduce_fold. Determinism: batch_invariant.
#include "pygpukit/fuse.cuh"

namespace pgk {

// x[0 .. count) = p[0 .. count) with a stride; in vectors where they are contiguous, all there and aligned.
template <int V, class T> PGK_FN void load_run(T (&x)[V], const T* p, i64 stride, int count) {
    constexpr int E = V * sizeof(T) <= 16 ? V : 16 / static_cast<int>(sizeof(T));
    if (stride == 1 && count >= V && reinterpret_cast<u64>(p) % (E * sizeof(T)) == 0) {
#pragma unroll
        for (int g = 0; g < V; g += E) {
            Vec<T, E> v;
#pragma unroll
            for (int e = 0; e < E; ++e) v.e[e] = T{};
            load(v, p + g, true);
#pragma unroll
            for (int e = 0; e < E; ++e) x[g + e] = v.e[e];
        }
    } else {
#pragma unroll
        for (int e = 0; e < V; ++e) x[e] = element(p + e * stride, e < count, T{});
    }
}

// Offsets of an element of axes in every input, counted in row-major order; the last axis is left to the caller.
template <int K> PGK_FN i64 locate_outer(i64 (&offset)[K], i64 at, const Nd<K>& nd) {
    i64 position = at;
#pragma unroll
    for (int k = 0; k < K; ++k) offset[k] = 0;
#pragma unroll 1
    for (int d = nd.ndim - 1; d >= 0; --d) {
        const i64 rest = d ? quotient(at, nd.shape[d]) : 0, here = at - rest * nd.shape[d];
        if (d == nd.ndim - 1) position = here;
        else {
#pragma unroll
            for (int k = 0; k < K; ++k) offset[k] += here * nd.stride[k][d];
        }
        at = rest;
    }
    return position;
}

template <int K> PGK_FN void locate_all(i64 (&offset)[K], i64 at, const Nd<K>& nd) {
    const i64 last = locate_outer(offset, at, nd);
    if (nd.ndim > 0) {
#pragma unroll
        for (int k = 0; k < K; ++k) offset[k] += last * nd.stride[k][nd.ndim - 1];
    }
}

template <class Op, class T, class To, int U, class F>
PGK_FN void fused_rows(To* out, typename Op::State* partial, const F& f, i64 n, i64 results, i64 chunks, i64 lanes,
                       f64 correction) {
    using State = typename Op::State;
    constexpr int V = Shape<T>::vector, R = Shape<T>::row;
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
    const auto line = f.line(r);

    State state = Op::neutral();
#pragma unroll 1
    for (int at = lane * V; at < whole; at += U * R) {
        typename F::template Loaded<V> loaded[U];
#pragma unroll
        for (int u = 0; u < U; ++u) line.load(loaded[u], first + at + u * R, V, at + u * R < whole);
#pragma unroll
        for (int u = 0; u < U; ++u) {
            if (at + u * R < whole) {
                Vec<T, V> v;
                line.apply(v, loaded[u]);
                take_vector<Op, T>(state, v, V, first + at + u * R);
            }
        }
    }
    if (whole < length && whole / V % 32 == lane) {
        typename F::template Loaded<V> loaded;
        line.load(loaded, first + whole, length - whole, true);
        Vec<T, V> v;
        line.apply(v, loaded);
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

template <class Op, class T, class To, class F>
PGK_FN void fused_cols(To* out, typename Op::State* partial, const F& f, i64 n, i64 results, i64 chunks, f64 correction) {
    using State = typename Op::State;
    constexpr int V = Shape<T>::vector;
    extern __shared__ char memory[];
    State* const shared = reinterpret_cast<State*>(memory);
    const int parts = static_cast<int>(blockDim.x) / 32;
    const int part = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 block = static_cast<i64>(blockIdx.x), tile = quotient(block, chunks), c = block - tile * chunks;
    const i64 r = tile * 32 + lane;
    const bool active = r < results;
    const i64 first = c * Shape<T>::chunk;
    const i64 left = n - first;
    const int length = left < Shape<T>::chunk ? static_cast<int>(left) : Shape<T>::chunk;
    const auto line = f.line(active ? r : 0);

    State state = Op::neutral();
#pragma unroll 1
    for (int at = part * V; at < length; at += Shape<T>::row) {
        const int count = length - at < V ? length - at : V;
        typename F::template Loaded<V> loaded;
        line.load(loaded, first + at, count, active);
        Vec<T, V> v;
        line.apply(v, loaded);
        take_vector<Op, T>(state, v, count, first + at);
    }
    const int slots = (length + V - 1) / V;
    const int used = slots < parts ? slots : parts;
#pragma unroll 1
    for (int d = parts / 2; d > 0; d /= 2) {
        if (part >= d && part < 2 * d) shared[(part - d) * 32 + lane] = state;
        __syncthreads();
        if (part < d && part + d < used) state = Op::merge(state, shared[part * 32 + lane]);
        __syncthreads();
    }
    if (active && part == 0) {
        if (chunks > 1) partial[r * chunks + c] = state;
        else out[r] = Op::template finish<To>(n == 0 ? Op::nothing() : state, n, correction);
    }
}

}  // namespace pgk
