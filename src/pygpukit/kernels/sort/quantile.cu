// Quantiles of sorted rows: out[q, r] of x[r, :], contiguous [rows, n] with NaN last.
//
// The virtual index is v = (count - 1) * quantiles[q] in double. A row with a NaN gives NaN, unless skip: then only its
// numbers count, and a row without numbers gives NaN.
// pgk_quantile_pick: the element at floor(v) (rule 0), ceil(v) (1) or the nearest integer, ties to even (2), as it is.
// quantile_between: float or double: between the elements a, b beside v, at t = v - floor(v) (rule 0) or halfway unless
//   v is an integer (rule 1): a + (b - a) * t below t = 1/2, else b - (b - a) * (1 - t). Rule 2 is the median: a, or (a
//   + b) / 2.
// Launch: 256 threads, a thread per result, grid = ceil(quantiles * rows / 256). Determinism: batch_invariant.
#include "pygpukit/keys.cuh"

namespace pgk {

// Rounded by themselves, as NumPy's are: never part of a fused multiply-add.
PGK_FN f32 scaled(f32 a, f32 b) { return __fmul_rn(a, b); }
PGK_FN f64 scaled(f64 a, f64 b) { return __dmul_rn(a, b); }

// How many elements of a row come before its first NaN.
PGK_FN i64 numbers_in(const void* x, i64 row, i64 n, int size, const KeyMap& map) {
    if (map.last == map.mask || n == 0 || encode(load_bits<u64>(x, row + n - 1, size), map) < map.last) return n;
    i64 low = 0, high = n - 1;
    while (low < high) {
        const i64 middle = (low + high) / 2;
        if (encode(load_bits<u64>(x, row + middle, size), map) < map.last) low = middle + 1;
        else high = middle;
    }
    return low;
}

// The number of elements that count; 0 where the result is the row's last element, a NaN.
PGK_FN i64 counted(const void* x, i64 row, i64 n, int size, int skip, const KeyMap& map) {
    const i64 numbers = numbers_in(x, row, n, size, map);
    return numbers == n || skip ? numbers : 0;
}

template <class T>
PGK_FN void quantile_between(T* out, const T* x, const f64* quantiles, i64 rows, i64 n, i64 total, int rule, int skip,
                             const KeyMap& map) {
    await_predecessor();
    const i64 i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= total) return;
    const i64 row = i % rows * n;
    const i64 count = counted(x, row, n, sizeof(T), skip, map);
    if (count == 0) {
        out[i] = n > 0 ? x[row + n - 1] : T(0) / T(0);
        return;
    }
    const f64 v = static_cast<f64>(count - 1) * quantiles[i / rows];
    // NaN is no index: of a quantile that is NaN.
    if (v != v) {
        out[i] = static_cast<T>(v);
        return;
    }
    i64 at = static_cast<i64>(::floor(v));
    at = at < 0 ? 0 : at < count ? at : count - 1;
    const i64 next = at + 1 < count ? at + 1 : count - 1;
    f64 t = v - static_cast<f64>(at);
    if (rule == 1) t = t == 0.0 ? 0.0 : 0.5;
    const T a = x[row + at], b = x[row + next];
    if (rule == 2) {
        out[i] = t == 0.0 ? a : (a + b) / T(2);
        return;
    }
    const T apart = b - a, weight = static_cast<T>(t);
    out[i] = weight < T(0.5) ? a + scaled(apart, weight) : b - scaled(apart, static_cast<T>(1.0 - t));
}

}  // namespace pgk

extern "C" __global__ void __launch_bounds__(256) pgk_quantile_pick(
    void* out, const void* x, const double* quantiles, long long rows, long long n, long long total, int rule, int skip,
    int size, const __grid_constant__ pgk::KeyMap map) {
    using namespace pgk;
    await_predecessor();
    const i64 i = blockIdx.x * 256ll + threadIdx.x;
    if (i >= total) return;
    const i64 row = i % rows * n;
    const i64 count = counted(x, row, n, size, skip, map);
    const f64 v = static_cast<f64>(count - 1) * quantiles[i / rows];
    const f64 whole = rule == 0 ? ::floor(v) : rule == 1 ? ::ceil(v) : ::rint(v);
    i64 at = whole != whole ? n - 1 : static_cast<i64>(whole);
    at = count == 0 ? n - 1 : at < 0 ? 0 : at < count || whole != whole ? at : count - 1;
    store_bits<u64>(out, i, size, load_bits<u64>(x, row + at, size));
}

#define PGK_QUANTILE_BETWEEN(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const pgk::T* x, const double* quantiles, long long rows, long long n, long long total, int rule, \
        int skip, const __grid_constant__ pgk::KeyMap map) { \
        pgk::quantile_between<pgk::T>(out, x, quantiles, rows, n, total, rule, skip, map); \
    }
