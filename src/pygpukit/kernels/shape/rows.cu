// Parts of an array by their places along one axis.
//
// out[o, j, i] = x[o, index[j], i]; x and out contiguous as [outer, n, inner] and [outer, m, inner] elements of 1, 2,
// 4, 8 or 16 bytes; 0 <= index < n.
// Launch: 256 threads, 1024 elements per block. Determinism: batch_invariant, bits are moved.
#include "pygpukit/units.cuh"

namespace pgk {

template <class T>
PGK_FN void rows(T* out, const T* x, const i64* index, i64 total, i64 n, i64 m, i64 inner) {
    await_predecessor();
    constexpr int U = 4;
    const bool narrow = is_narrow(total);
    T found[U];
    const i64 base = blockIdx.x * static_cast<i64>(U * 256) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < U; ++j) {
        const i64 at = base + j * 256;
        if (at >= total) continue;
        const i64 row = quotient(at, inner, narrow), batch = quotient(row, m, narrow);
        found[j] = x[(batch * n + index[row - batch * m]) * inner + at - row * inner];
    }
#pragma unroll
    for (int j = 0; j < U; ++j) {
        if (base + j * 256 < total) out[base + j * 256] = found[j];
    }
}

}  // namespace pgk

#define PGK_ROWS(name, T)                                                                                          \
    extern "C" __global__ void __launch_bounds__(256) name(pgk::T* out, const pgk::T* x, const long long* index,   \
                                                           long long total, long long n, long long m, long long inner) { \
        pgk::rows(out, x, index, total, n, m, inner);                                                              \
    }
