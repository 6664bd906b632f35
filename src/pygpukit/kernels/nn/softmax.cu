// Softmax over the middle axis: out[o, k, i] = exp(x[o, k, i] - m) / s, with m the largest x[o, :, i] and s the sum of
// exp(x[o, k, i] - m) over k. LOG: x[o, k, i] - m - log(s).
//
// out: contiguous [outer, n, inner], n at least 1. x: element strides stride_outer, stride_n, stride_inner.
// Launch and shared memory: common/rows.cuh; `rows` is outer * inner, grid = ceil(rows / rows per block).
// Numerics: the accumulator A is double for double and float for all others; types of 16 bits and fewer take the
// exponential of two-ulp instructions. A row with a NaN, with +inf or of -inf only is NaN. Sums are in an order that
// depends on n and the type alone. Determinism: batch_invariant.
#include "pygpukit/rows.cuh"

namespace pgk {

template <bool LOW, class A> PGK_FN A raised(A a) {
    if constexpr (LOW) return exp2_approx(a * 1.4426950408889634f);
    else return exp<false>(a);
}

template <class T, class A, int G, int C, bool VEC, bool LOG>
PGK_FN void softmax(T* out, const T* x, i64 rows, i64 n, i64 inner, i64 stride_outer, i64 stride_n, i64 stride_inner,
                    i64 cached) {
    using P = rows::Part<T, G, C, VEC>;
    constexpr bool LOW = sizeof(T) < 4;
    constexpr int E = P::E, WARPS = (G < 128 ? 128 : G) / 32;
    __shared__ A largest[WARPS], sums[WARPS];
    extern __shared__ uint4 held[];
    await_predecessor();
    const i64 row = P::row();
    const bool on = row < rows;
    const i64 o = VEC ? row : quotient(row, inner), i = row - o * inner;
    T* to = out + o * n * inner + i;
    P part = [&] {
        if constexpr (C == 0) return P(n, on, cached, held);
        else return P(n, on);
    }();
    // What stands behind the end changes no maximum, and its exponential is 0.
    A m = -A(1e38) * A(1e300) * A(1e300);
    part.read(x + o * stride_outer + i * stride_inner, stride_n, convert<T>(m));
    part.each([&](int, i64, auto& v, int count) {
        A x[E];
        rows::widen_all(x, v);
#pragma unroll
        for (int e = 0; e < E; ++e) m = VEC || e < count ? rows::Larger::of(m, x[e]) : m;
    });
    m = rows::over_group<rows::Larger, G>(m, largest);

    // Kept where registers allow: a second exponential per element would bind.
    constexpr bool KEPT = C > 0 && C * E <= 64 && !LOG;
    A kept[KEPT ? C : 1][E];
    A total = A(0);
    part.each([&](int c, i64, auto& v, int count) {
        A terms[E];
        rows::widen_all(terms, v);
#pragma unroll
        for (int e = 0; e < E; ++e) terms[e] = VEC || e < count ? raised<LOW>(terms[e] - m) : A(0);
        total = total + rows::sum_of(terms);
        if constexpr (KEPT) {
#pragma unroll
            for (int e = 0; e < E; ++e) kept[c][e] = terms[e];
        }
    });
    const A s = rows::over_group<rows::Adding, G>(total, sums);
    const A scale = LOG ? log(s) : A(1) / s;
    part.each([&](int c, i64 at, auto& v, int) {
        A r[E];
        if constexpr (!KEPT) rows::widen_all(r, v);
#pragma unroll
        for (int e = 0; e < E; ++e) {
            if constexpr (LOG) r[e] = (r[e] - m) - scale;
            else if constexpr (KEPT) r[e] = kept[c][e] * scale;
            else r[e] = raised<LOW>(r[e] - m) * scale;
        }
        rows::put<VEC>(to, inner, at, n, on, r);
    });
}

}  // namespace pgk

#define PGK_SOFTMAX(entry, T, A, G, C, VEC, LOG) \
    extern "C" __global__ void __launch_bounds__((G) < 128 ? 128 : (G)) entry( \
        pgk::T* out, const pgk::T* x, long long rows, long long n, long long inner, long long stride_outer, \
        long long stride_n, long long stride_inner, long long cached) { \
        pgk::softmax<pgk::T, pgk::A, G, C, VEC, LOG>(out, x, rows, n, inner, stride_outer, stride_n, stride_inner, cached); \
    }
