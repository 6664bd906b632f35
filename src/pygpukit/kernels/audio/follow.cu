// A level that follows its input with one factor upwards and another downwards, along rows:
// s[t] = s[t - 1] + (1 - c) (x[t] - s[t - 1]), with c = `rise` where x[t] > s[t - 1], else `fall`.
//
// out, x: contiguous [rows, n]; initial: [rows], s before the first sample. One thread per row, grid = ceil(rows / 32):
// which factor applies depends on the sample before, so a row is run in order. Numerics: float64 inside, rounded once per
// sample for the result. Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"

namespace pgk {

template <class T>
PGK_FN void follow(T* out, f64* ends, const T* x, const f64* initial, i64 rows, i64 n, f64 rise, f64 fall) {
    await_predecessor();
    const i64 r = blockIdx.x * 32ll + threadIdx.x;
    if (r >= rows) return;
    f64 s = initial[r];
    for (i64 t = 0; t < n; ++t) {
        const f64 v = static_cast<f64>(x[r * n + t]);
        s = add_rn(s, mul_rn(1.0 - (v > s ? rise : fall), v - s));
        out[r * n + t] = static_cast<T>(s);
    }
    ends[r] = s;
}

}  // namespace pgk

#define PGK_FOLLOW(entry, T) \
    extern "C" __global__ void __launch_bounds__(32) entry(pgk::T* out, double* ends, const pgk::T* x, \
        const double* initial, long long rows, long long n, double rise, double fall) { \
        pgk::follow<pgk::T>(out, ends, x, initial, rows, n, rise, fall); \
    }
