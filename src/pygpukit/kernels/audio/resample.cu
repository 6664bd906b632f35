// Resampling by a rational ratio with a filter in phases:
// out[r, m] = sum over k < taps of filters[phase, k] * x[r, i - k], with i = (m down + center) / up, phase the remainder.
//
// out: contiguous [rows, length]; x: contiguous [rows, n], zero outside; filters: contiguous [up, taps]. One thread per
// output, grid = ceil(rows * length / 256). Numerics: all in T, taps in ascending order. Determinism: batch_invariant; an
// output depends on the samples under the filter alone.
#include "pygpukit/elementwise.cuh"

namespace pgk {

template <class T>
PGK_FN void resample(T* out, const T* x, const T* filters, i64 rows, i64 n, i64 length, i64 up, i64 down, i64 taps,
                     i64 center) {
    await_predecessor();
    const i64 g = blockIdx.x * 256ll + threadIdx.x;
    if (g >= rows * length) return;
    const i64 r = quotient(g, length), m = g - r * length;
    const i64 place = m * down + center, i = quotient(place, up);
    const T* h = filters + (place - i * up) * taps;
    const T* row = x + r * n;
    T sum = T(0);
    const i64 first = i - n + 1 > 0 ? i - n + 1 : 0, end = i + 1 < taps ? i + 1 : taps;
    for (i64 k = first; k < end; ++k) sum += h[k] * row[i - k];
    out[g] = sum;
}

}  // namespace pgk

#define PGK_RESAMPLE(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry(pgk::T* out, const pgk::T* x, const pgk::T* filters, long long rows, \
        long long n, long long length, long long up, long long down, long long taps, long long center) { \
        pgk::resample<pgk::T>(out, x, filters, rows, n, length, up, down, taps, center); \
    }
