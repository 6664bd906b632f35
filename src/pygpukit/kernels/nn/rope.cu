// Rotary embedding of heads, with the norm before it and the write to a cache behind it.
//
// Row (t, h) of q, k and, where there is a cache, v: elements x[0 .. dim). NORM: x becomes x / sqrt(mean(x^2) + eps) * w,
// rounded to its type, as nn/norm.cu does it (`form` too); v is not touched. Then, with p = positions[t]
// (null: t), c = cos[p, j] and s = sin[p, j]:
//   halves:  y[j] = x[j] c - x[j + rotary/2] s,  y[j + rotary/2] = x[j + rotary/2] c + x[j] s,  j < rotary/2
//   PAIRS:   y[2j] = x[2j] c - x[2j + 1] s,      y[2j + 1] = x[2j + 1] c + x[2j] s
// Elements from `rotary` on stay. p < 0: nothing turns. p behind the tables: y is NaN.
// q goes to q_to; k and v go to place n = slots[t] (null: t) of k_to and v_to, at (n / page_tokens) * page +
// (n % page_tokens) * step + head * to_head; a place outside of [0, places) is not written. q_to may be q, k_to may be k.
//
// rope_heads: heads of one vector per thread; H divides the heads of q and of k. Launch: 128 threads, G of them for H
// neighbouring heads of a token, whose tables they read once; grid = ceil(tokens * heads / H / (128 / G)). No shared memory.
// rope: all others. Launch: 128 threads, G of them per row (common/rows.cuh; at most a warp), grid = ceil(tokens * heads /
// (128 / G)). Shared memory: the rows of a block. Numerics: products and sums are rounded one by one in A, float or double, so NumPy's
// steps have the same bits. Determinism: batch_invariant, while no two tokens have one place.
#include "pygpukit/rows.cuh"

namespace pgk {

struct Rope {
    i64 tokens, q_heads, kv_heads, dim, rotary, table_rows, table_step, wide_positions, wide_slots, page_tokens, places, form;
    i64 q_token, q_head, k_token, k_head, v_token, v_head, q_to_token, q_to_head;
    i64 k_page, k_step, k_to_head, v_page, v_step, v_to_head;
};

PGK_FN i64 index_at(const void* p, i64 wide, i64 at) {
    if (p == nullptr) return at;
    return wide ? static_cast<const i64*>(p)[at] : static_cast<const i32*>(p)[at];
}

template <class T, class W, class F, class A, int G, int C, bool VEC, bool PAIRS, bool NORM>
PGK_FN void rope(T* q_to, T* k_to, T* v_to, const T* q, const T* k, const T* v, const F* cosines, const F* sines,
                 const void* positions, const void* slots, const W* q_norm, const W* k_norm, const Rope& a, A eps) {
    using P = rows::Part<T, G, C, VEC>;
    constexpr int E = P::E;
    __shared__ Vec<T, E> held[128 / G][G * C];
    await_predecessor();
    const i64 heads = a.q_heads + a.kv_heads * (v == nullptr ? 1 : 2);
    const i64 row = P::row();
    bool on = row < a.tokens * heads;
    const i64 token = quotient(row, heads), h = row - token * heads;
    const bool is_q = h < a.q_heads, is_v = h >= a.q_heads + a.kv_heads;
    const i64 head = is_q ? h : is_v ? h - a.q_heads - a.kv_heads : h - a.q_heads;
    const T* from = is_q ? q + token * a.q_token + head * a.q_head
                  : is_v ? v + token * a.v_token + head * a.v_head : k + token * a.k_token + head * a.k_head;
    P part(a.dim, on);
    part.read(from, 1);

    if constexpr (NORM) {
        // As nn/norm.cu adds and rounds.
        const A squares = rows::sum<true, A, G>(part, static_cast<A*>(nullptr), A(0));
        const A scale = A(1) / sqrt(squares / A(a.dim) + eps);
        const W* weights = is_q ? q_norm : k_norm;
        if (!is_v && weights != nullptr) {
            part.each([&](int, i64 at, auto& x, int) {
                Vec<W, E> loaded;
                rows::consecutive<VEC>(loaded, weights, at, a.dim);
                A y[E], w[E];
                rows::widen_all(y, x);
                rows::widen_all(w, loaded);
#pragma unroll
                for (int e = 0; e < E; ++e) y[e] = mul_rn(y[e], scale);
                rows::adapt<T>(y, w, a.form);
#pragma unroll
                for (int e = 0; e < E; ++e) y[e] = mul_rn(y[e], w[e]);
                x = outputs<T>(y);
            });
        }
    }

    Vec<T, E>* mine = held[threadIdx.x / G];
    part.each([&](int, i64 at, auto& x, int) { mine[at / E] = x; });
    __syncwarp();
    const T* all = &mine[0].e[0];

    const i64 place = on && !is_q ? index_at(slots, a.wide_slots, token) : 0;
    if (!is_q) on = on && place >= 0 && place < a.places;
    const i64 page = place < 0 ? 0 : quotient(place, a.page_tokens), step = place - page * a.page_tokens;
    T* to = is_q ? q_to + token * a.q_to_token + head * a.q_to_head
          : is_v ? v_to + page * a.v_page + step * a.v_step + head * a.v_to_head
                 : k_to + page * a.k_page + step * a.k_step + head * a.k_to_head;
    const i64 position = on ? index_at(positions, a.wide_positions, token) : 0;
    const bool turns = !is_v && position >= 0, known = position < a.table_rows;
    const i64 half = a.rotary / 2, table = turns && known ? position * a.table_step : 0;
    const A nan = (A(1e38) * A(1e300) * A(1e300)) * A(0);
    part.each([&](int, i64 at, auto& x, int) {
        A y[E];
#pragma unroll
        for (int e = 0; e < E; ++e) y[e] = input<A>(x.e[e]);
        if (turns && at < a.rotary) {
            constexpr int K = PAIRS && E > 1 ? E / 2 : E;
            Vec<F, K> c, s;
            A other[E];
            if constexpr (VEC) {
                // Halves and the rotated part end with a vector.
                const i64 j = PAIRS ? at / 2 : at < half ? at : at - half;
                rows::consecutive<true>(c, cosines + table, j, half);
                rows::consecutive<true>(s, sines + table, j, half);
                const Vec<T, E> partner = PAIRS ? x : mine[(at < half ? at + half : at - half) / E];
#pragma unroll
                for (int e = 0; e < E; ++e) other[e] = input<A>(partner.e[PAIRS ? e ^ 1 : e]);
            }
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const i64 i = at + e;
                const bool first = PAIRS ? i % 2 == 0 : i < half;
                A cosine, sine, partner;
                if constexpr (VEC) {
                    cosine = input<A>(c.e[PAIRS ? e / 2 : e]), sine = input<A>(s.e[PAIRS ? e / 2 : e]), partner = other[e];
                } else {
                    const bool there = i < a.rotary;
                    const i64 j = PAIRS ? i / 2 : first ? i : i - half;
                    cosine = input<A>(element(cosines + table + j, there, F{}));
                    sine = input<A>(element(sines + table + j, there, F{}));
                    partner = there ? input<A>(all[PAIRS ? i ^ 1 : first ? i + half : i - half]) : A(0);
                    if (!there) continue;
                }
                const A along = mul_rn(y[e], cosine), turned = mul_rn(partner, sine);
                y[e] = known ? (first ? along - turned : along + turned) : nan;
            }
        }
        rows::put<VEC>(to, 1, at, a.dim, on, y);
    });
}

template <class T, class W, class F, class A, int G, int H, bool PAIRS, bool NORM>
PGK_FN void rope_heads(T* q_to, T* k_to, T* v_to, const T* q, const T* k, const T* v, const F* cosines, const F* sines,
                       const void* positions, const void* slots, const W* q_norm, const W* k_norm, const Rope& a, A eps) {
    constexpr int E = 16 / sizeof(T), K = PAIRS && E > 1 ? E / 2 : E;
    const u32 q_units = static_cast<u32>(a.q_heads) / H, kv_units = static_cast<u32>(a.kv_heads) / H;
    const u32 units = q_units + kv_units * (v == nullptr ? 1 : 2);
    const int lane = threadIdx.x % G, at = lane * E, group = threadIdx.x % 32 / G * G;
    const i64 unit = static_cast<i64>(blockIdx.x) * (128 / G) + threadIdx.x / G;
    const i64 token = quotient(unit, units);
    u32 mine = static_cast<u32>(unit - token * units);
    const bool is_q = mine < q_units, is_v = mine >= q_units + kv_units, on = token < a.tokens && at < a.dim;
    mine = (is_q ? mine : is_v ? mine - q_units - kv_units : mine - q_units) * H;
    const T* from = is_q ? q + token * a.q_token : is_v ? v + token * a.v_token : k + token * a.k_token;
    const i64 from_head = is_q ? a.q_head : is_v ? a.v_head : a.k_head;
    from += mine * from_head + at;
    const W* norm = is_q ? q_norm : is_v ? nullptr : k_norm;
    Vec<W, E> weights{};
    // They are constants.
    if (NORM && norm != nullptr) rows::consecutive<true>(weights, norm, at, a.dim);
    await_predecessor();
    Vec<T, E> x[H];
#pragma unroll
    for (int j = 0; j < H; ++j) {
#pragma unroll
        for (int e = 0; e < E; ++e) x[j].e[e] = T{};
        load(x[j], from + j * from_head, on);
    }
    const i64 position = on && !is_v ? index_at(positions, a.wide_positions, token) : -1;
    const i64 place = on && !is_q ? index_at(slots, a.wide_slots, token) : 0;
    const bool turns = position >= 0 && at < a.rotary, known = position < a.table_rows;
    const int half = static_cast<int>(a.rotary / 2);
    Vec<F, K> c{}, s{};
    if (turns) {
        const i64 angle = (known ? position * a.table_step : 0) + (PAIRS ? at / 2 : at < half ? at : at - half);
        rows::consecutive<true>(c, cosines + angle, 0, K);
        rows::consecutive<true>(s, sines + angle, 0, K);
    }
    // Of halves the first takes the other's sines off; behind the tables all is NaN.
    A cosine[K], sine[K];
#pragma unroll
    for (int e = 0; e < K; ++e) {
        cosine[e] = known ? input<A>(c.e[e]) : (A(1e38) * A(1e300) * A(1e300)) * A(0);
        sine[e] = !PAIRS && at < half ? -input<A>(s.e[e]) : input<A>(s.e[e]);
    }

    if constexpr (NORM) {
        // As nn/norm.cu adds and rounds; a lane makes the scale of one head for all.
        A sums[H];
#pragma unroll
        for (int j = 0; j < H; ++j) {
            A d[E], pairs[E / 2];
            rows::widen_all(d, x[j]);
#pragma unroll
            for (int e = 0; e < E; e += 2) pairs[e / 2] = fused(d[e + 1], d[e + 1], mul_rn(d[e], d[e]));
            sums[j] = rows::over_group<rows::Adding, G>(A(0) + rows::sum_of(pairs), static_cast<A*>(nullptr));
        }
        A chosen = sums[0];
#pragma unroll
        for (int j = 1; j < H; ++j) chosen = lane % H == j ? sums[j] : chosen;
        const A scales = A(1) / sqrt(chosen / A(a.dim) + eps);
#pragma unroll
        for (int j = 0; j < H; ++j) {
            const A scale = __shfl_sync(~0u, scales, group + j);
            if (norm == nullptr) continue;
            A y[E], w[E];
            rows::widen_all(y, x[j]);
            rows::widen_all(w, weights);
#pragma unroll
            for (int e = 0; e < E; ++e) y[e] = mul_rn(y[e], scale);
            rows::adapt<T>(y, w, a.form);
#pragma unroll
            for (int e = 0; e < E; ++e) y[e] = mul_rn(y[e], w[e]);
            x[j] = outputs<T>(y);
        }
    }

    const bool stored = on && (is_q || (place >= 0 && place < a.places));
    const i64 page = place < 0 ? 0 : quotient(place, a.page_tokens), step = place - page * a.page_tokens;
    T* to = is_q ? q_to + token * a.q_to_token
          : is_v ? v_to + page * a.v_page + step * a.v_step : k_to + page * a.k_page + step * a.k_step;
    const i64 to_head = is_q ? a.q_to_head : is_v ? a.v_to_head : a.k_to_head;
    to += mine * to_head + at;
    const int partner = group + (at < half ? at + half : at < a.rotary ? at - half : at) / E;
#pragma unroll
    for (int j = 0; j < H; ++j) {
        Vec<T, E> other = x[j];
        if constexpr (!PAIRS) {
#pragma unroll
            for (int i = 0; i < 4; ++i) other.w[i] = __shfl_sync(~0u, x[j].w[i], partner);
        }
        if (turns) {
            A y[E], z[E], r[E];
            rows::widen_all(y, x[j]);
            rows::widen_all(z, other);
#pragma unroll
            for (int e = 0; e < E; ++e) {
                const A turned = mul_rn(z[PAIRS ? e ^ 1 : e], sine[PAIRS ? e / 2 : e]);
                const A along = mul_rn(y[e], cosine[PAIRS ? e / 2 : e]);
                r[e] = PAIRS && e % 2 == 0 ? along - turned : along + turned;
            }
            x[j] = outputs<T>(r);
        }
        if (stored) store(to + j * to_head, x[j]);
    }
}

}  // namespace pgk

#define PGK_ROPE(entry, T, W, F, A, G, C, VEC, PAIRS, NORM) \
    extern "C" __global__ void __launch_bounds__(128) entry( \
        pgk::T* q_to, pgk::T* k_to, pgk::T* v_to, const pgk::T* q, const pgk::T* k, const pgk::T* v, \
        const pgk::F* cosines, const pgk::F* sines, const void* positions, const void* slots, const pgk::W* q_norm, \
        const pgk::W* k_norm, pgk::Rope a, pgk::A eps) { \
        pgk::rope<pgk::T, pgk::W, pgk::F, pgk::A, G, C, VEC, PAIRS, NORM>( \
            q_to, k_to, v_to, q, k, v, cosines, sines, positions, slots, q_norm, k_norm, a, eps); \
    }

#define PGK_ROPE_HEADS(entry, T, W, F, A, G, H, PAIRS, NORM) \
    extern "C" __global__ void __launch_bounds__(128) entry( \
        pgk::T* q_to, pgk::T* k_to, pgk::T* v_to, const pgk::T* q, const pgk::T* k, const pgk::T* v, \
        const pgk::F* cosines, const pgk::F* sines, const void* positions, const void* slots, const pgk::W* q_norm, \
        const pgk::W* k_norm, pgk::Rope a, pgk::A eps) { \
        pgk::rope_heads<pgk::T, pgk::W, pgk::F, pgk::A, G, H, PAIRS, NORM>( \
            q_to, k_to, v_to, q, k, v, cosines, sines, positions, slots, q_norm, k_norm, a, eps); \
    }
