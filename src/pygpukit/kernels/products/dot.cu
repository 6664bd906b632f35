// Products of vectors: out[r] = sum over k of a[r, k] * b[r, k], or of conj(a[r, k]) * b[r, k].
//
// `batch` holds the shape of the results and the element strides of out, a and b (0 to broadcast); a_step and b_step
// are those along k. partial: [results, chunks] sums, used where there is more than one chunk; dot_fold adds them then.
// dot: 128 threads; `lanes` (a power of two up to 32) per chunk; grid = ceil(results * chunks * lanes / 128).
// dot_fold: 256 threads, grid = results. Static shared memory: 256 sums.
// Order, of n and the type T alone: V elements fill 16 bytes, a chunk is 1024 vectors, and vector v of a chunk belongs
// to lane v % lanes. A lane's elements are one chain of multiply-adds, and lanes are added by a binary tree. Partial sum
// c belongs to thread c % 256 of its fold, in order, and those are added by a tree again. So the bits depend on neither
// the layout nor the other results. Determinism: batch_invariant.
// Numerics: as of the matrix product (gemm/simt.cu).
#include "pygpukit/multiply.cuh"
#include "pygpukit/reduce.cuh"

namespace pgk {

constexpr int DOT_THREADS = 128;
constexpr int FOLD_THREADS = 256;
// Vectors that a lane loads before it multiplies any.
constexpr int AHEAD = 4;

template <bool LOGICAL, class A> PGK_FN A joined(A a, A b) {
    if constexpr (LOGICAL) return A(a | b);
    else return add(a, b);
}

template <class A, bool CONJ, class T> PGK_FN A first_factor(T x) {
    const A wide = convert<A>(x);
    if constexpr (CONJ) return conj(wide);
    else return wide;
}

// Loads a vector; elements from `count` on are not there.
template <class T, int V> PGK_FN void load_some(Vec<T, V>& v, const T* p, i64 step, bool dense, int count) {
#pragma unroll
    for (int e = 0; e < V; ++e) v.e[e] = T{};
    if (dense && count >= V) {
        load(v, p, true);
    } else {
#pragma unroll
        for (int e = 0; e < V; ++e) v.e[e] = element(p + (e < count ? e * step : 0), e < count, T{});
    }
}

template <class T, class A, bool LOGICAL, bool CONJ>
PGK_FN A lane_sum(const T* a, const T* b, i64 a_step, i64 b_step, int count, int lane, int lanes) {
    constexpr int V = 16 / sizeof(T);
    const bool a_dense = a_step == 1 && reinterpret_cast<u64>(a) % 16 == 0;
    const bool b_dense = b_step == 1 && reinterpret_cast<u64>(b) % 16 == 0;
    A sum{};
    for (int at = lane * V; at < count; at += AHEAD * lanes * V) {
        Vec<T, V> x[AHEAD], y[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int k = at + u * lanes * V;
            const int left = count - k > 0 ? count - k : 0;
            const i64 first = left > 0 ? k : 0;
            load_some(x[u], a + first * a_step, a_step, a_dense, left);
            load_some(y[u], b + first * b_step, b_step, b_dense, left);
        }
#pragma unroll
        for (int u = 0; u < AHEAD; ++u) {
            const int left = count - at - u * lanes * V;
#pragma unroll
            for (int e = 0; e < V; ++e) {
                // An element that is not there must not turn a sum of minus zero into zero.
                if (e < left) {
                    sum = multiply_add<LOGICAL>(first_factor<A, CONJ>(x[u].e[e]), convert<A>(y[u].e[e]), sum);
                }
            }
        }
    }
    return sum;
}

template <class T, class A, class R, bool LOGICAL, bool CONJ>
PGK_FN void dot(T* out, A* partial, const T* a, const T* b, const Nd<3>& batch, i64 results, i64 n, i64 a_step,
                i64 b_step, i64 chunks, int lanes) {
    await_predecessor();
    constexpr int CHUNK = 1024 * (16 / sizeof(T));
    const i64 thread = static_cast<i64>(blockIdx.x) * DOT_THREADS + threadIdx.x;
    const int lane = threadIdx.x % lanes;
    const i64 task = quotient(thread, lanes);
    const bool on = task < results * chunks;
    A sum{};
    i64 row = 0, chunk = 0, out_at = 0;
    if (on) {
        row = chunks == 1 ? task : quotient(task, chunks);
        chunk = task - row * chunks;
        i64 rest = row, a_at = 0, b_at = 0;
#pragma unroll 1
        for (int d = batch.ndim - 1; d >= 0; --d) {
            const i64 next = d ? quotient(rest, batch.shape[d]) : 0;
            const i64 at = rest - next * batch.shape[d];
            out_at += at * batch.stride[0][d];
            a_at += at * batch.stride[1][d];
            b_at += at * batch.stride[2][d];
            rest = next;
        }
        const i64 first = chunk * CHUNK;
        const int count = n - first < CHUNK ? static_cast<int>(n - first) : CHUNK;
        sum = lane_sum<T, A, LOGICAL, CONJ>(a + a_at + first * a_step, b + b_at + first * b_step, a_step, b_step, count,
                                            lane, lanes);
    }
    for (int d = lanes / 2; d > 0; d /= 2) sum = joined<LOGICAL>(sum, from_lane(sum, d));
    if (on && lane == 0) {
        if (chunks == 1) out[out_at] = convert<T>(convert<R>(sum));
        else partial[row * chunks + chunk] = sum;
    }
}

template <class T, class A, class R, bool LOGICAL>
PGK_FN void dot_fold(T* out, const A* partial, const Nd<3>& batch, i64 chunks) {
    await_predecessor();
    __shared__ A sums[FOLD_THREADS];
    const int t = threadIdx.x;
    const i64 row = blockIdx.x;
    A sum{};
    for (i64 c = t; c < chunks; c += FOLD_THREADS) sum = joined<LOGICAL>(sum, partial[row * chunks + c]);
    sums[t] = sum;
    __syncthreads();
#pragma unroll 1
    for (int d = FOLD_THREADS / 2; d > 0; d /= 2) {
        if (t < d) sums[t] = joined<LOGICAL>(sums[t], sums[t + d]);
        __syncthreads();
    }
    if (t == 0) {
        i64 rest = row, out_at = 0;
#pragma unroll 1
        for (int d = batch.ndim - 1; d >= 0; --d) {
            const i64 next = d ? quotient(rest, batch.shape[d]) : 0;
            out_at += (rest - next * batch.shape[d]) * batch.stride[0][d];
            rest = next;
        }
        out[out_at] = convert<T>(convert<R>(sums[0]));
    }
}

}  // namespace pgk

#define PGK_DOT(entry, T, A, R, logical, conjugated) \
    extern "C" __global__ void __launch_bounds__(128) entry( \
        pgk::T* out, pgk::A* partial, const pgk::T* a, const pgk::T* b, const __grid_constant__ pgk::Nd<3> batch, \
        long long results, long long n, long long a_step, long long b_step, long long chunks, int lanes) { \
        pgk::dot<pgk::T, pgk::A, pgk::R, logical, conjugated>( \
            out, partial, a, b, batch, results, n, a_step, b_step, chunks, lanes); \
    }

#define PGK_DOT_FOLD(entry, T, A, R, logical) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const pgk::A* partial, const __grid_constant__ pgk::Nd<3> batch, long long chunks) { \
        pgk::dot_fold<pgk::T, pgk::A, pgk::R, logical>(out, partial, batch, chunks); \
    }
