// Sums over bands of a spectrum: out[r, m] = sum over k < count[m] of weights[offset[m] + k] * p(x[r, start[m] + k]),
// with p(x) = x for POWER 0, |x| for 1 and |x|^2 for 2.
//
// out: contiguous [rows, bands]; x: contiguous [rows, bins] of T, or of pairs of T (COMPLEX); places: [3, bands] of start,
// offset and count. One block of 128 threads per row, grid = rows; a warp per band, its lanes over the band's bins.
// HELD: powers are in dynamic shared memory, bins * sizeof(T); else they are computed where they are used.
// Narrow bands: a block of 128 threads per BAND_ROWS rows, a thread per band, which reads a weight once for all of them;
// shared memory BAND_ROWS * bins * sizeof(T).
// Numerics: all in T; each lane adds its bins in ascending order, then lanes are added by halves; of narrow bands a thread
// adds all bins in ascending order. Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"

namespace pgk {

template <class T, bool COMPLEX, int POWER> PGK_FN T power_of(const T* row, i64 k) {
    if constexpr (COMPLEX) {
        const T re = row[2 * k], im = row[2 * k + 1];
        return POWER == 2 ? re * re + im * im : hypot(re, im);
    } else {
        const T v = row[k];
        return POWER == 0 ? v : POWER == 1 ? abs(v) : v * v;
    }
}

template <class T, bool COMPLEX, int POWER, bool HELD>
PGK_FN void bands(T* out, const T* x, const T* weights, const i64* places, i64 bins, i64 bands) {
    extern __shared__ double raw[];
    T* p = reinterpret_cast<T*>(raw);
    await_predecessor();
    const i64 row = blockIdx.x;
    const T* spectrum = x + row * bins * (COMPLEX ? 2 : 1);
    if constexpr (HELD) {
        for (i64 k = threadIdx.x; k < bins; k += 128) p[k] = power_of<T, COMPLEX, POWER>(spectrum, k);
        __syncthreads();
    }
    const int lane = threadIdx.x % 32;
    for (i64 m = threadIdx.x / 32; m < bands; m += 4) {
        const i64 start = places[m], offset = places[bands + m], count = places[2 * bands + m];
        T sum = T(0);
        for (i64 k = lane; k < count; k += 32) {
            const T v = HELD ? p[start + k] : power_of<T, COMPLEX, POWER>(spectrum, start + k);
            sum += weights[offset + k] * v;
        }
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        if (lane == 0) out[row * bands + m] = sum;
    }
}

constexpr int BAND_ROWS = 4;

template <class T, bool COMPLEX, int POWER>
PGK_FN void narrow_bands(T* out, const T* x, const T* weights, const i64* places, i64 rows, i64 bins_, i64 bands) {
    extern __shared__ double raw[];
    T* p = reinterpret_cast<T*>(raw);
    await_predecessor();
    const i64 first = blockIdx.x * (i64)BAND_ROWS;
    const int bins = (int)bins_, count = (int)(rows - first < BAND_ROWS ? rows - first : BAND_ROWS);
    for (int row = 0; row < BAND_ROWS; ++row) {
        const T* spectrum = x + (first + row) * bins_ * (COMPLEX ? 2 : 1);
        for (int k = threadIdx.x; k < bins; k += 128)
            p[row * bins + k] = row < count ? power_of<T, COMPLEX, POWER>(spectrum, k) : T(0);
    }
    __syncthreads();
    for (i64 m = threadIdx.x; m < bands; m += 128) {
        const int start = (int)places[m], width = (int)places[2 * bands + m];
        const T* w = weights + places[bands + m];
        T sums[BAND_ROWS] = {};
        for (int k = 0; k < width; ++k) {
            const T factor = w[k];
#pragma unroll
            for (int row = 0; row < BAND_ROWS; ++row) sums[row] += factor * p[row * bins + start + k];
        }
#pragma unroll
        for (int row = 0; row < BAND_ROWS; ++row)
            if (row < count) out[(first + row) * bands + m] = sums[row];
    }
}

}  // namespace pgk

#define PGK_NARROW_BANDS(entry, T, COMPLEX, POWER) \
    extern "C" __global__ void __launch_bounds__(128) entry(pgk::T* out, const pgk::T* x, const pgk::T* weights, \
        const long long* places, long long rows, long long bins, long long bands) { \
        pgk::narrow_bands<pgk::T, COMPLEX, POWER>(out, x, weights, places, rows, bins, bands); \
    }

#define PGK_BANDS(entry, T, COMPLEX, POWER, HELD) \
    extern "C" __global__ void __launch_bounds__(128) entry(pgk::T* out, const pgk::T* x, const pgk::T* weights, \
        const long long* places, long long bins, long long bands) { \
        pgk::bands<pgk::T, COMPLEX, POWER, HELD>(out, x, weights, places, bins, bands); \
    }
