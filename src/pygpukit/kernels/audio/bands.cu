// Sums over bands of a spectrum: out[r, m] = sum over k < count[m] of weights[offset[m] + k] * p(x[r, start[m] + k]),
// with p(x) = x for POWER 0, |x| for 1 and |x|^2 for 2.
//
// out: contiguous [rows, bands]; x: contiguous [rows, bins] of T, or of pairs of T (COMPLEX); places: [3, bands] of start,
// offset and count. One block of 128 threads per row, grid = rows; a warp per band, its lanes over the band's bins.
// HELD: powers are in dynamic shared memory, bins * sizeof(T); else they are computed where they are used. Numerics: all in T; each lane adds its bins in ascending order, then lanes are
// added by halves. Determinism: batch_invariant.
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

}  // namespace pgk

#define PGK_BANDS(entry, T, COMPLEX, POWER, HELD) \
    extern "C" __global__ void __launch_bounds__(128) entry(pgk::T* out, const pgk::T* x, const pgk::T* weights, \
        const long long* places, long long bins, long long bands) { \
        pgk::bands<pgk::T, COMPLEX, POWER, HELD>(out, x, weights, places, bins, bands); \
    }
