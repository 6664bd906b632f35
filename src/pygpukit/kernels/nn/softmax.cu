// Softmax over the middle axis: out[o, k, i] = exp(x[o, k, i] - m) / s, with m the largest x[o, :, i] and s the sum of
// exp(x[o, k, i] - m) over k.
//
// x: element strides stride_outer, stride_n, stride_inner. out: contiguous [outer, n, inner], n at least 1.
// Launch: 256 threads, a block per row, grid = outer * inner. Static shared memory: 256 accumulators.
// Numerics: the accumulator A is double for double and float for all others. Thread t adds the terms t, t + 256, ... in
// order, and the threads' sums are added by a fixed binary tree, so the bits depend on n and the row alone. A row with a
// NaN, with +inf or of -inf only is NaN. Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"

namespace pgk {

constexpr int SOFTMAX_THREADS = 256;

template <class A> struct Larger {
    PGK_FN static A of(A a, A b) { return maximum(a, b); }
};
template <class A> struct Sum {
    PGK_FN static A of(A a, A b) { return add(a, b); }
};

// Combines one value per thread; every thread gets the result. Ends with the shared memory free for the next call.
template <class Op, class A> PGK_FN A over_block(A value, A* shared) {
    shared[threadIdx.x] = value;
    __syncthreads();
    for (int d = SOFTMAX_THREADS / 2; d > 0; d /= 2) {
        if (threadIdx.x < d) shared[threadIdx.x] = Op::of(shared[threadIdx.x], shared[threadIdx.x + d]);
        __syncthreads();
    }
    const A all = shared[0];
    __syncthreads();
    return all;
}

template <class T, class A>
PGK_FN void softmax(T* out, const T* x, i64 n, i64 inner, i64 stride_outer, i64 stride_n, i64 stride_inner) {
    await_predecessor();
    __shared__ A shared[SOFTMAX_THREADS];
    const i64 row = static_cast<i64>(blockIdx.x);
    const i64 o = row / inner, i = row % inner;
    const T* from = x + o * stride_outer + i * stride_inner;
    T* to = out + o * n * inner + i;

    A largest = convert<A>(from[0]);
    for (i64 k = threadIdx.x; k < n; k += SOFTMAX_THREADS) largest = maximum(largest, convert<A>(from[k * stride_n]));
    largest = over_block<Larger<A>>(largest, shared);
    A sum = A{};
    for (i64 k = threadIdx.x; k < n; k += SOFTMAX_THREADS) {
        sum = add(sum, exp<false>(sub(convert<A>(from[k * stride_n]), largest)));
    }
    sum = over_block<Sum<A>>(sum, shared);
    for (i64 k = threadIdx.x; k < n; k += SOFTMAX_THREADS) {
        to[k * inner] = convert<T>(div(exp<false>(sub(convert<A>(from[k * stride_n]), largest)), sum));
    }
}

}  // namespace pgk

#define PGK_SOFTMAX(entry, T, A) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const pgk::T* x, long long n, long long inner, long long stride_outer, long long stride_n, \
        long long stride_inner) { \
        pgk::softmax<pgk::T, pgk::A>(out, x, n, inner, stride_outer, stride_n, stride_inner); \
    }
