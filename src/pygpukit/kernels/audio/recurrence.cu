// A cascade of recursive filters in sections of order P (transposed direct form II), in parallel over blocks of 64
// samples: what a block gives from a state of zeros is run sample by sample, and the state it begins with adds
// response[k] . state to sample k of the block.
//
// out: contiguous [rows, n] of T; x: contiguous [rows, n]; sections: [S, 2 P + 1] of b0 .. bP, a1 .. aP; powers:
// [65, D, D], the state's transition over k samples; response: [64, D]; initial: [rows, D]; D = S P at most 32. y:
// [rows, blocks, 64] and states: [rows, blocks + 1, D] are workspace; ends: [rows, D] after n samples, bounds: [rows, D]
// after the last whole block.
// zero_state: a thread per block of samples, grid = ceil(rows * blocks / 64). scan: a warp per row, grid = rows. finish: a
// thread per sample, grid = ceil(rows * n / 256).
// Numerics: float64 inside, rounded once. Determinism: batch_invariant; the blocks are those of the row, wherever it ends.
#include "pygpukit/elementwise.cuh"

namespace pgk {

template <class T, int S, int P>
PGK_FN void zero_state(f64* y, f64* states, const T* x, const f64* sections, i64 rows, i64 n, i64 blocks) {
    constexpr int D = S * P;
    await_predecessor();
    const i64 g = blockIdx.x * 64ll + threadIdx.x;
    if (g >= rows * blocks) return;
    const i64 r = quotient(g, blocks), b = g - r * blocks;
    const i64 count = n - b * 64 < 64 ? n - b * 64 : 64;
    f64 s[S][P + 1];
#pragma unroll
    for (int i = 0; i < S; ++i)
#pragma unroll
        for (int j = 0; j <= P; ++j) s[i][j] = 0.0;
    for (i64 k = 0; k < count; ++k) {
        f64 v = static_cast<f64>(x[r * n + b * 64 + k]);
#pragma unroll
        for (int i = 0; i < S; ++i) {
            const f64* c = sections + i * (2 * P + 1);
            const f64 u = add_rn(mul_rn(c[0], v), s[i][0]);
#pragma unroll
            for (int j = 0; j < P; ++j)
                s[i][j] = add_rn(add_rn(mul_rn(c[1 + j], v), -mul_rn(c[1 + P + j], u)), s[i][j + 1]);
            v = u;
        }
        y[g * 64 + k] = v;
    }
    f64* to = states + (r * (blocks + 1) + b + 1) * D;
#pragma unroll
    for (int i = 0; i < S; ++i)
#pragma unroll
        for (int j = 0; j < P; ++j) to[i * P + j] = s[i][j];
}

// Turns what each block adds to the state into the state that each block begins with.
template <int D>
PGK_FN void scan_states(f64* states, f64* ends, f64* bounds, const f64* powers, const f64* initial, i64 n, i64 blocks) {
    await_predecessor();
    const i64 r = blockIdx.x;
    const int i = threadIdx.x < D ? threadIdx.x : 0;
    f64* row = states + r * (blocks + 1) * D;
    const i64 whole = n / 64;
    f64 s = initial[r * D + i], bound = s;
    f64 m[D];
#pragma unroll
    for (int j = 0; j < D; ++j) m[j] = powers[(64 * D + i) * D + j];
    f64 next = blocks > 0 ? row[D + i] : 0.0;
    for (i64 b = 0; b < blocks; ++b) {
        const f64 z = next;
        if (b + 1 < blocks) next = row[(b + 2) * D + i];
        if (threadIdx.x < D) row[b * D + i] = s;
        const bool partial = b == whole;
        f64 sum = 0.0;
#pragma unroll
        for (int j = 0; j < D; ++j) {
            const f64 c = partial ? powers[((n - whole * 64) * D + i) * D + j] : m[j];
            sum = add_rn(sum, mul_rn(c, __shfl_sync(0xffffffffu, s, j)));
        }
        s = add_rn(sum, z);
        if (!partial) bound = s;
    }
    if (threadIdx.x < D) {
        ends[r * D + i] = s;
        bounds[r * D + i] = bound;
    }
}

template <class T, int D>
PGK_FN void finish(T* out, const f64* y, const f64* states, const f64* response, i64 rows, i64 n, i64 blocks) {
    await_predecessor();
    const i64 g = blockIdx.x * 256ll + threadIdx.x;
    if (g >= rows * n) return;
    const i64 r = quotient(g, n), t = g - r * n, b = t / 64, k = t % 64;
    const f64* s = states + (r * (blocks + 1) + b) * D;
    f64 sum = 0.0;
#pragma unroll
    for (int j = 0; j < D; ++j) sum = add_rn(sum, mul_rn(response[k * D + j], s[j]));
    out[g] = static_cast<T>(add_rn(y[(r * blocks + b) * 64 + k], sum));
}

}  // namespace pgk

#define PGK_RECURRENCE(first, second, third, T, S, P) \
    extern "C" __global__ void __launch_bounds__(64) first(double* y, double* states, const pgk::T* x, \
        const double* sections, long long rows, long long n, long long blocks) { \
        pgk::zero_state<pgk::T, S, P>(y, states, x, sections, rows, n, blocks); \
    } \
    extern "C" __global__ void __launch_bounds__(32) second(double* states, double* ends, double* bounds, \
        const double* powers, const double* initial, long long n, long long blocks) { \
        pgk::scan_states<S * P>(states, ends, bounds, powers, initial, n, blocks); \
    } \
    extern "C" __global__ void __launch_bounds__(256) third(pgk::T* out, const double* y, const double* states, \
        const double* response, long long rows, long long n, long long blocks) { \
        pgk::finish<pgk::T, S * P>(out, y, states, response, rows, n, blocks); \
    }
