// A window into an array that goes on beyond its edges: padding and rolling.
//
// out[c] = x[f(c)] with f(c)[d] = g(c[d] - before[d]) along each axis. g is the identity from 0 to extent[d] - 1; outside
// it continues by the mode: periodic (wrap), the nearest (edge), mirrored at an element (reflect, period 2 n - 2) or
// between two (symmetric, period 2 n). In mode constant the element is value[d][side], d the last axis that is left.
// Elements of 1, 2, 4, 8 or 16 bytes; strides count elements, out is contiguous.
// Launch: 256 threads, 1024 elements per block. Determinism: batch_invariant, bits are moved.
#include "pygpukit/units.cuh"

namespace pgk {

constexpr int WRAP = 0, EDGE = 1, REFLECT = 2, SYMMETRIC = 3, CONSTANT = 4;
constexpr int WINDOW_AXES = 8;
struct Window {
    i64 ndim;
    i64 shape[WINDOW_AXES];
    i64 extent[WINDOW_AXES];
    i64 stride[WINDOW_AXES];
    i64 before[WINDOW_AXES];
};

PGK_FN i64 positive_remainder(i64 i, i64 n) {
    const i64 r = i % n;
    return r < 0 ? r + n : r;
}

template <int MODE> PGK_FN i64 continued(i64 i, i64 n) {
    if (MODE == EDGE) return i < 0 ? 0 : n - 1;
    if (MODE == REFLECT) {
        if (n == 1) return 0;
        const i64 r = positive_remainder(i, 2 * n - 2);
        return r < n ? r : 2 * n - 2 - r;
    }
    if (MODE == SYMMETRIC) {
        const i64 r = positive_remainder(i, 2 * n);
        return r < n ? r : 2 * n - 1 - r;
    }
    return positive_remainder(i, n);
}

template <class T, int MODE> PGK_FN T seen(const T* x, const T* value, i64 left, bool narrow, const Window& w) {
    i64 from = 0;
    int constant = -1;
#pragma unroll 1
    for (int d = static_cast<int>(w.ndim) - 1; d >= 0; --d) {
        const i64 rest = d ? quotient(left, w.shape[d], narrow) : 0;
        i64 i = left - rest * w.shape[d] - w.before[d];
        left = rest;
        const i64 n = w.extent[d];
        if (i < 0 || i >= n) {
            if (MODE == CONSTANT) {
                if (constant < 0) constant = 2 * d + (i >= 0);
                continue;
            }
            i = continued<MODE>(i, n);
        }
        from += i * w.stride[d];
    }
    return MODE == CONSTANT && constant >= 0 ? value[constant] : x[from];
}

template <class T, int MODE>
PGK_FN void window(T* out, const T* x, const T* value, i64 total, const Window& w) {
    await_predecessor();
    constexpr int U = 4;
    const bool narrow = is_narrow(total);
    T found[U];
    const i64 base = blockIdx.x * static_cast<i64>(U * 256) + threadIdx.x;
#pragma unroll
    for (int j = 0; j < U; ++j) {
        const i64 at = base + j * 256;
        if (at < total) found[j] = seen<T, MODE>(x, value, at, narrow, w);
    }
#pragma unroll
    for (int j = 0; j < U; ++j) {
        if (base + j * 256 < total) out[base + j * 256] = found[j];
    }
}

}  // namespace pgk

#define PGK_WINDOW(name, T, MODE)                                                                                   \
    extern "C" __global__ void __launch_bounds__(256) name(pgk::T* out, const pgk::T* x, const pgk::T* value,       \
                                                           long long total, const __grid_constant__ pgk::Window w) { \
        pgk::window<pgk::T, pgk::MODE>(out, x, value, total, w);                                                    \
    }
