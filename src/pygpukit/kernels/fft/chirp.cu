// Chirps of a transform of length n as a convolution of length m: out[j] = exp(-pi i j^2 / n) for j < n, and
// kernel[t] = exp(pi i t^2 / n) for t = -(n - 1) ... n - 1 modulo m, zero elsewhere; conjugates with sign = -1.
//
// Launch: 256 threads, an element of kernel per thread, grid = ceil(m / 256). No shared memory. Squares are reduced
// modulo 2 n in 64 bits, so n is at most 2^31; angles are computed in double. Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"

namespace pgk {

template <class T> PGK_FN void chirp(T* out, T* kernel, i64 n, i64 m, int sign) {
    await_predecessor();
    const i64 t = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
    if (t >= m) return;
    const i64 j = t < n ? t : m - t;
    T re = T(0), im = T(0);
    if (j < n) {
        double s, c;
        const u64 turn = static_cast<u64>(j) * static_cast<u64>(j) % (2 * static_cast<u64>(n));
        sincospi(static_cast<double>(turn) / n, &s, &c);
        re = static_cast<T>(c);
        im = static_cast<T>(sign * s);
    }
    kernel[2 * t] = re;
    kernel[2 * t + 1] = im;
    if (t < n) {
        out[2 * t] = re;
        out[2 * t + 1] = -im;
    }
}

}  // namespace pgk

#define PGK_CHIRP(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, pgk::T* kernel, long long n, long long m, int sign) { \
        pgk::chirp(out, kernel, n, m, sign); \
    }
