// Overlap-add of windowed frames, divided by the sum of the squared window:
// out[r, t] = sum over f of w[t - f hop] x[r, f, t - f hop] / sum over f of w[t - f hop]^2, with t counted from `start`.
//
// out: contiguous [rows, length]; x: contiguous [rows, frames, n]; window: n factors. One thread per output, grid =
// ceil(rows * length / 256). Frames are added in ascending order; where the sum of squares is at most `least`, the sum is
// not divided. Numerics: all in T. Determinism: batch_invariant; a sample depends on the frames that touch it alone.
#include "pygpukit/elementwise.cuh"

namespace pgk {

template <class T>
PGK_FN void overlap_add(T* out, const T* x, const T* window, i64 rows, i64 frames, i64 n, i64 hop, i64 start, i64 length,
                        T least) {
    await_predecessor();
    const i64 g = blockIdx.x * 256ll + threadIdx.x;
    if (g >= rows * length) return;
    const i64 r = quotient(g, length), t = g - r * length + start;
    i64 last = quotient(t, hop);
    if (last > frames - 1) last = frames - 1;
    const i64 first = t < n ? 0 : quotient(t - n, hop) + 1;
    T sum = T(0), squares = T(0);
    for (i64 f = first; f <= last; ++f) {
        const i64 i = t - f * hop;
        const T w = window[i];
        sum += w * x[(r * frames + f) * n + i];
        squares += w * w;
    }
    out[g] = squares > least ? sum / squares : sum;
}

}  // namespace pgk

#define PGK_OVERLAP_ADD(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry(pgk::T* out, const pgk::T* x, const pgk::T* window, long long rows, \
        long long frames, long long n, long long hop, long long start, long long length, pgk::T least) { \
        pgk::overlap_add<pgk::T>(out, x, window, rows, frames, n, hop, start, length, least); \
    }
