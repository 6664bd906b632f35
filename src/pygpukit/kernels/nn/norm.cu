// Normalised rows. With a = x[i, :], or x[i, :] + residual[i, :] rounded to the type of x and written to `sum`:
//   LAYER:  out[i, k] = (a[k] - mean) / sqrt(mean((a - mean)^2) + eps) * gamma[k] + beta[k]
//   else:   out[i, k] = a[k] / sqrt(mean(a^2) + eps) * gamma[k]
// form & 1: the weights are 1 + gamma. form & 2: the normalised row is rounded to the type of x before it meets them.
//
// out, sum: contiguous [rows, n]. x, residual: rows at stride_x and stride_residual. gamma, beta (null: none): n of type W.
// Launch and shared memory: common/rows.cuh; grid = ceil(rows / rows per block).
// Numerics: the accumulator A is double for double and float for all others. Sums are in an order that depends on n and
// the type alone; the variance is that of the differences to the mean. Determinism: batch_invariant.
#include "pygpukit/rows.cuh"

namespace pgk {

template <class T, class W, class A, int G, int C, bool VEC, bool LAYER, bool RESIDUAL>
PGK_FN void norm(T* out, T* sum, const T* x, const T* residual, const W* gamma, const W* beta, i64 rows_total, i64 n,
                 i64 stride_x, i64 stride_residual, A eps, i64 form, i64 cached) {
    using P = rows::Part<T, G, C, VEC>;
    constexpr int E = P::E, WARPS = (G < 128 ? 128 : G) / 32;
    __shared__ A first[WARPS], second[WARPS];
    extern __shared__ uint4 held[];
    // Weights of AHEAD vectors are on their way at a time. Those of an RMS norm are all where registers allow, while the
    // predecessor ends: they are constants.
    constexpr bool EARLY = C > 0 && C <= 8 && !LAYER;
    constexpr int AHEAD = EARLY ? C : C < 4 ? (C == 0 ? 1 : C) : 4;
    Vec<W, E> weights[AHEAD], shifts[LAYER ? AHEAD : 1];
    const auto load_weights = [&](int first, i64 at) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            i64 place = at;
            if constexpr (C > 0) place = P::place(first + i);
            rows::consecutive<VEC>(weights[i], gamma, place, n);
            if (LAYER && beta != nullptr) rows::consecutive<VEC>(shifts[LAYER ? i : 0], beta, place, n);
        }
    };
    if constexpr (EARLY) load_weights(0, 0);
    await_predecessor();
    const i64 row = P::row();
    const bool on = row < rows_total;
    P part = [&] {
        if constexpr (C == 0) return P(n, on, cached, held);
        else return P(n, on);
    }();
    part.read(x + row * stride_x, 1);
    if constexpr (RESIDUAL && C > 0) {
        P other(n, on);
        other.read(residual + row * stride_residual, 1);
        part.each([&](int c, i64 at, auto& v, int) {
            A r[E], s[E];
            rows::widen_all(r, v);
            rows::widen_all(s, other.v[c]);
#pragma unroll
            for (int e = 0; e < E; ++e) r[e] = r[e] + s[e];
            v = outputs<T>(r);
            rows::put<VEC>(sum + row * n, 1, at, n, on, r);
        });
    } else if constexpr (RESIDUAL) {
        for (i64 i = P::lane(); i * E < n; i += G) {
            Vec<T, E> v{}, other{};
            rows::fetch<T, VEC>(v, x + row * stride_x, 1, i * E, n, true);
            rows::fetch<T, VEC>(other, residual + row * stride_residual, 1, i * E, n, true);
            A r[E];
#pragma unroll
            for (int e = 0; e < E; ++e) r[e] = input<A>(v.e[e]) + input<A>(other.e[e]);
            rows::put<VEC>(sum + row * n, 1, i * E, n, true, r);
        }
        // A thread reads what it has written itself.
        part.read(sum + row * n, 1);
    }

    A mean = A(0);
    if constexpr (LAYER) mean = rows::sum<false, A, G>(part, first, A(0)) / A(n);
    if constexpr (LAYER && C > 0) load_weights(0, 0);
    const A squares = rows::sum<true, A, G>(part, second, mean);
    const A scale = A(1) / sqrt(squares / A(n) + eps);
    part.each([&](int c, i64 at, auto& v, int) {
        A r[E], w[E];
        rows::widen_all(r, v);
        if (C == 0 || (!EARLY && c % AHEAD == 0 && (c > 0 || !LAYER))) load_weights(c, at);
        rows::widen_all(w, weights[c % AHEAD]);
#pragma unroll
        for (int e = 0; e < E; ++e) r[e] = mul_rn(LAYER ? r[e] - mean : r[e], scale);
        if constexpr (!LAYER) rows::adapt<T>(r, w, form);
#pragma unroll
        for (int e = 0; e < E; ++e) r[e] = mul_rn(r[e], w[e]);
        if (LAYER && beta != nullptr) {
            rows::widen_all(w, shifts[LAYER ? c % AHEAD : 0]);
#pragma unroll
            for (int e = 0; e < E; ++e) r[e] = r[e] + w[e];
        }
        rows::put<VEC>(out + row * n, 1, at, n, on, r);
    });
}

}  // namespace pgk

#define PGK_NORM(entry, T, W, A, G, C, VEC, LAYER, RESIDUAL) \
    extern "C" __global__ void __launch_bounds__((G) < 128 ? 128 : (G)) entry( \
        pgk::T* out, pgk::T* sum, const pgk::T* x, const pgk::T* residual, const pgk::W* gamma, const pgk::W* beta, \
        long long rows, long long n, long long stride_x, long long stride_residual, pgk::A eps, long long form, \
        long long cached) { \
        pgk::norm<pgk::T, pgk::W, pgk::A, G, C, VEC, LAYER, RESIDUAL>( \
            out, sum, x, residual, gamma, beta, rows, n, stride_x, stride_residual, eps, form, cached); \
    }
