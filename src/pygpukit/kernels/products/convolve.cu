// Part of a convolution: out[i] = sum over j of x[start + i - j] * v[j], of the elements that x has.
//
// out: `count` elements. x: n elements, stride x_step. v: m elements, stride v_step; at most as many as x for speed.
// Launch: 256 threads, 7 outputs each; grid = ceil(count / 1792). Static shared memory: 2043 elements of x, 252 of v,
// of type A.
// A thread keeps its 7 elements of x in registers: each tap takes one more. Seven is odd, so that the threads of a warp
// read different banks.
// Numerics: elements are converted to A (float for 16- and 8-bit floats and float; integers wrap in 32 or 64 bits), each
// result is one chain of fused multiply-adds over j = 0, 1, ..., rounded once at the end; an integer sum first wraps to
// its own type R. Elements outside of x take no part, whatever v holds. Determinism: batch_invariant.
#include "pygpukit/multiply.cuh"

namespace pgk {

constexpr int CONVOLVE_THREADS = 256;
constexpr int EACH = 7;
constexpr int TAPS = 36 * EACH;
constexpr int CONVOLVE_TILE = CONVOLVE_THREADS * EACH;
constexpr int WINDOW = CONVOLVE_TILE + TAPS - 1;

// Taps [0, taps) of the chunk for the outputs of one thread; `at` is where the first of them meets tap 0. Where not all
// elements are there, tap j meets one for output r if low <= at + r - j < high.
template <bool LOGICAL, bool ALL, class A>
PGK_FN void take_taps(A (&sum)[EACH], const A* window, const A* taps_of_v, int at, int taps, int low, int high) {
    A x[EACH];
#pragma unroll
    for (int r = 1; r < EACH; ++r) x[r - 1] = window[at + r];
    for (int j0 = 0; j0 < taps; j0 += EACH) {
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const int j = j0 + e;
            if (j < taps) {
                // Elements move up by one output with every tap.
#pragma unroll
                for (int r = EACH - 1; r > 0; --r) x[r] = x[r - 1];
                x[0] = window[at - j];
                const A v = taps_of_v[j];
#pragma unroll
                for (int r = 0; r < EACH; ++r) {
                    const int k = at + r - j;
                    if (ALL || (k >= low && k < high)) sum[r] = multiply_add<LOGICAL>(x[r], v, sum[r]);
                }
            }
        }
    }
}

template <class T, class A, class R, bool LOGICAL>
PGK_FN void convolve(T* out, const T* x, const T* v, i64 count, i64 start, i64 n, i64 x_step, i64 m, i64 v_step,
                     i64 out_step) {
    await_predecessor();
    __shared__ A window[WINDOW];
    __shared__ A taps_of_v[TAPS];
    const int t = threadIdx.x;
    const i64 first = static_cast<i64>(blockIdx.x) * CONVOLVE_TILE;
    const i64 last = count - first < CONVOLVE_TILE ? count - 1 : first + CONVOLVE_TILE - 1;
    // Taps that meet an element for any output of the block.
    i64 j0 = start + first - (n - 1);
    if (j0 < 0) j0 = 0;
    const i64 stop = m - 1 < start + last ? m : start + last + 1;
    A sum[EACH] = {};
    for (; j0 < stop; j0 += TAPS) {
        const int taps = stop - j0 < TAPS ? static_cast<int>(stop - j0) : TAPS;
        const i64 base = start + first - j0 - (TAPS - 1);
        for (int i = t; i < WINDOW; i += CONVOLVE_THREADS) {
            const i64 k = base + i;
            window[i] = k >= 0 && k < n ? convert<A>(x[k * x_step]) : A{};
        }
        if (t < taps) taps_of_v[t] = convert<A>(v[(j0 + t) * v_step]);
        __syncthreads();
        const int at = t * EACH + TAPS - 1;
        const i64 low = -base, high = n - base;
        if (low <= 0 && high >= WINDOW) {
            take_taps<LOGICAL, true>(sum, window, taps_of_v, at, taps, 0, 0);
        } else {
            const int from = low < 0 ? 0 : low > WINDOW ? WINDOW : static_cast<int>(low);
            const int to = high < 0 ? 0 : high > WINDOW ? WINDOW : static_cast<int>(high);
            take_taps<LOGICAL, false>(sum, window, taps_of_v, at, taps, from, to);
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < EACH; ++r) {
        const i64 i = first + t * EACH + r;
        if (i < count) out[i * out_step] = convert<T>(convert<R>(sum[r]));
    }
}

}  // namespace pgk

#define PGK_CONVOLVE(entry, T, A, R, logical) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const pgk::T* x, const pgk::T* v, long long count, long long start, long long n, \
        long long x_step, long long m, long long v_step, long long out_step) { \
        pgk::convolve<pgk::T, pgk::A, pgk::R, logical>(out, x, v, count, start, n, x_step, m, v_step, out_step); \
    }
