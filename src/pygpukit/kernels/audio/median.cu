// Sliding median along the middle axis: out[o, i, c] is the element of rank size / 2 of x[o, i - size / 2 ...] , size
// elements in all, the ends mirrored with their own element repeated.
//
// out, x: contiguous [outer, n, inner]. A block of 256 threads computes ROWS x COLUMNS outputs of one o, 256 x 1 where inner
// is 1 and 32 x 32 elsewhere; grid = outer * ceil(n / ROWS) * ceil(inner / COLUMNS). Shared memory: (ROWS + size - 1) *
// COLUMNS keys; with HELD false none, and elements are read where they lie. An element's key is an integer in the
// elements' order, NaN above all; the median's key is found bit by bit, by counting smaller keys: no order that depends on
// values. Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"

namespace pgk {

PGK_FN i64 mirrored(i64 i, i64 n) {
    if (i >= 0 && i < n) return i;
    const i64 period = 2 * n;
    i %= period;
    if (i < 0) i += period;
    return i < n ? i : period - 1 - i;
}

template <class T> struct Key;
template <> struct Key<f32> {
    using type = unsigned;
    PGK_FN static unsigned of(f32 x) {
        const unsigned bits = __float_as_uint(x);
        return isnan(x) ? ~0u : bits ^ (bits >> 31 ? ~0u : 1u << 31);
    }
    PGK_FN static f32 value(unsigned key) { return __uint_as_float(key ^ (key >> 31 ? 1u << 31 : ~0u)); }
};
template <> struct Key<f64> {
    using type = unsigned long long;
    PGK_FN static type of(f64 x) {
        const type bits = (type)__double_as_longlong(x);
        return isnan(x) ? ~0ull : bits ^ (bits >> 63 ? ~0ull : 1ull << 63);
    }
    PGK_FN static f64 value(type key) { return __longlong_as_double((long long)(key ^ (key >> 63 ? 1ull << 63 : ~0ull))); }
};

template <class T, int ROWS, int COLUMNS, bool HELD>
PGK_FN void median(T* out, const T* x, i64 n, i64 inner, i64 size) {
    using K = typename Key<T>::type;
    extern __shared__ __align__(16) unsigned char memory[];
    K* keys = reinterpret_cast<K*>(memory);
    const i64 across = (inner + COLUMNS - 1) / COLUMNS, down = (n + ROWS - 1) / ROWS;
    const i64 b = blockIdx.x, above = quotient(b, across), o = quotient(above, down);
    const i64 first = (above - o * down) * ROWS, column = (b - above * across) * COLUMNS;
    const int rows = (int)(n - first < ROWS ? n - first : ROWS);
    const T* line = x + o * n * inner;
    await_predecessor();
    if (HELD) {
        const i64 count = (rows + size - 1) * COLUMNS;
        for (i64 i = threadIdx.x; i < count; i += 256) {
            const i64 row = i / COLUMNS, c = column + i % COLUMNS;
            if (c < inner) keys[i] = Key<T>::of(line[mirrored(first + row - size / 2, n) * inner + c]);
        }
        __syncthreads();
    }
    for (int g = threadIdx.x; g < rows * COLUMNS; g += 256) {
        const int row = g / COLUMNS;
        const i64 c = column + g % COLUMNS;
        if (c >= inner) continue;
        K found = 0;
        for (int bit = 8 * sizeof(K) - 1; bit >= 0; --bit) {
            const K trial = found | (K)1 << bit;
            i64 smaller = 0;
            if (HELD) {
                const K* mine = keys + g;
                int held = 0;
                for (int j = 0; j < (int)size; ++j) held += mine[j * COLUMNS] < trial;
                smaller = held;
            } else {
                const i64 start = first + row - size / 2;
                for (i64 j = 0; j < size; ++j) smaller += Key<T>::of(line[mirrored(start + j, n) * inner + c]) < trial;
            }
            if (smaller <= size / 2) found = trial;
        }
        out[(o * n + first + row) * inner + c] = Key<T>::value(found);
    }
}

}  // namespace pgk

#define PGK_MEDIAN(entry, T, ROWS, COLUMNS, HELD) \
    extern "C" __global__ void __launch_bounds__(256) entry(pgk::T* out, const pgk::T* x, long long n, long long inner, \
        long long size) { \
        pgk::median<pgk::T, ROWS, COLUMNS, HELD>(out, x, n, inner, size); \
    }
