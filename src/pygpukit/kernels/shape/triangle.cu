// The triangle of matrices below or above a diagonal; zeros elsewhere.
//
// out[b, i, j] = x[b, i, j] where j - i <= k, or >= k for `upper`; else 0. out is contiguous as [batch, n, m]; x has
// strides, 0 for one element everywhere. Elements of 1, 2, 4, 8 or 16 bytes.
// Launch: 256 threads, 1024 elements per block. Determinism: batch_invariant, bits are moved.
#include "pygpukit/units.cuh"

namespace pgk {

template <class T>
PGK_FN void triangle(T* out, const T* x, i64 total, i64 n, i64 m, i64 k, i64 upper, const i64 (&stride)[3]) {
    await_predecessor();
    constexpr int U = 4;
    const bool narrow = is_narrow(total);
    T found[U];
    const i64 base = blockIdx.x * static_cast<i64>(U * 256) + threadIdx.x;
#pragma unroll
    for (int e = 0; e < U; ++e) {
        found[e] = T{};
        const i64 at = base + e * 256;
        if (at >= total) continue;
        const i64 row = quotient(at, m, narrow), batch = quotient(row, n, narrow);
        const i64 i = row - batch * n, j = at - row * m;
        if (upper ? j - i >= k : j - i <= k) found[e] = x[batch * stride[0] + i * stride[1] + j * stride[2]];
    }
#pragma unroll
    for (int e = 0; e < U; ++e) {
        if (base + e * 256 < total) out[base + e * 256] = found[e];
    }
}

}  // namespace pgk

#define PGK_TRIANGLE(name, T)                                                                                       \
    extern "C" __global__ void __launch_bounds__(256) name(pgk::T* out, const pgk::T* x, long long total, long long n, \
                                                           long long m, long long k, long long upper, long long sb,    \
                                                           long long si, long long sj) {                               \
        const long long stride[3] = {sb, si, sj};                                                                     \
        pgk::triangle(out, x, total, n, m, k, upper, stride);                                                         \
    }
