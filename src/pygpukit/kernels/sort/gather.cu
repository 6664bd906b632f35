// The first elements of rows by position, and zeros.
//
// pgk_sort_top: values[r, j] = x[r, i] and index[r, j] = i, with i = from[r, j]; x contiguous [rows, n],
//   elements of 1, 2, 4, 8 or 16 bytes (the last aligned to 8).
// pgk_sort_clear: zeroes two buffers of 32-bit words.
// Launch: 256 threads, 1024 elements per block. Determinism: batch_invariant.
#include "pygpukit/keys.cuh"

namespace pgk {

template <class T> PGK_FN void copy_as(void* out, i64 to, const void* x, i64 from) {
    static_cast<T*>(out)[to] = static_cast<const T*>(x)[from];
}

PGK_FN void copy_element(void* out, i64 to, const void* x, i64 from, int size) {
    if (size == 4) copy_as<u32>(out, to, x, from);
    else if (size == 8) copy_as<u64>(out, to, x, from);
    else if (size == 2) copy_as<u16>(out, to, x, from);
    else if (size == 1) copy_as<u8>(out, to, x, from);
    else copy_as<cx<u64>>(out, to, x, from);
}

}  // namespace pgk

extern "C" __global__ void __launch_bounds__(256) pgk_sort_top(void* values, long long* index, const void* x,
                                                               const unsigned* from, long long total, long long k,
                                                               long long n, int size) {
    pgk::await_predecessor();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const long long at = blockIdx.x * 1024ll + e * 256 + threadIdx.x;
        if (at >= total) break;
        const long long i = from[at];
        index[at] = i;
        pgk::copy_element(values, at, x, at / k * n + i, size);
    }
}

extern "C" __global__ void __launch_bounds__(256) pgk_sort_clear(unsigned* a, unsigned* b, long long words_a,
                                                                 long long words_b) {
    pgk::await_predecessor();
    for (int e = 0; e < 4; ++e) {
        const long long at = blockIdx.x * 1024ll + e * 256 + threadIdx.x;
        if (at < words_a) a[at] = 0;
        else if (at < words_a + words_b) b[at - words_a] = 0;
    }
}
