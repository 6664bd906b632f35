// Sliding median along the middle axis: out[o, i, c] is the element of rank size / 2 of x[o, i - size / 2 ...] , size
// elements in all, the ends mirrored with their own element repeated.
//
// out, x: contiguous [outer, n, inner]. One thread per output, grid = ceil(outer * n * inner / 256). An element's rank is
// counted: no array per thread, and no order that depends on values. NaN ranks above all. Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"

namespace pgk {

PGK_FN i64 mirrored(i64 i, i64 n) {
    const i64 period = 2 * n;
    i %= period;
    if (i < 0) i += period;
    return i < n ? i : period - 1 - i;
}

template <class T> PGK_FN void median(T* out, const T* x, i64 outer, i64 n, i64 inner, i64 size) {
    await_predecessor();
    const i64 g = blockIdx.x * 256ll + threadIdx.x;
    if (g >= outer * n * inner) return;
    const i64 above = quotient(g, inner), c = g - above * inner, o = quotient(above, n), at = above - o * n;
    const T* line = x + o * n * inner + c;
    const i64 start = at - size / 2;
    T found = x[g];
    for (i64 i = 0; i < size; ++i) {
        const T v = line[mirrored(start + i, n) * inner];
        i64 rank = 0;
        for (i64 j = 0; j < size; ++j) {
            const T w = line[mirrored(start + j, n) * inner];
            const bool under = w < v || (isnan(v) && !isnan(w)), tied = w == v || (isnan(v) && isnan(w));
            rank += under || (tied && j < i);
        }
        if (rank == size / 2) found = v;
    }
    out[g] = found;
}

}  // namespace pgk

#define PGK_MEDIAN(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry(pgk::T* out, const pgk::T* x, long long outer, long long n, \
        long long inner, long long size) { \
        pgk::median<pgk::T>(out, x, outer, n, inner, size); \
    }
