// Evenly spaced numbers.
//
// out[i] = start + i * step, in f64, f32 or i64 (which wraps), then converted. Flags: 1, the last element is `last`;
// 2, out[i] = i / step * span + start, for steps too small for the type (then `step` is the number of steps); 4, rounded
// down first. Products are rounded before the sum, as NumPy rounds them.
// Launch: 256 threads, 1024 elements per block. Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"

namespace pgk {

PGK_FN f64 spaced(f64 i, f64 step, f64 start) { return mul_rn(i, step) + start; }
PGK_FN f32 spaced(f32 i, f32 step, f32 start) { return mul_rn(i, step) + start; }
PGK_FN i64 spaced(i64 i, i64 step, i64 start) {
    return static_cast<i64>(static_cast<u64>(i) * static_cast<u64>(step) + static_cast<u64>(start));
}
PGK_FN f64 rounded_down(f64 x) { return floor(x); }
PGK_FN f32 rounded_down(f32 x) { return floorf(x); }
PGK_FN i64 rounded_down(i64 x) { return x; }

template <class C, class To>
PGK_FN void range(To* out, i64 n, C start, C step, C span, C last, int flags) {
    await_predecessor();
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const i64 at = blockIdx.x * 1024ll + e * 256 + threadIdx.x;
        if (at >= n) break;
        const C i = static_cast<C>(at);
        C value = flags & 2 ? spaced(i / step, span, start) : spaced(i, step, start);
        if (flags & 1 && at == n - 1) value = last;
        if (flags & 4) value = rounded_down(value);
        out[at] = convert<To>(value);
    }
}

}  // namespace pgk

#define PGK_RANGE(name, C, W, To)                                                                                \
    extern "C" __global__ void __launch_bounds__(256) name(pgk::To* out, long long n, W start, W step, W span,   \
                                                           W last, int flags) {                                  \
        pgk::range<pgk::C, pgk::To>(out, n, static_cast<pgk::C>(start), static_cast<pgk::C>(step),               \
                                    static_cast<pgk::C>(span), static_cast<pgk::C>(last), flags);                \
    }
