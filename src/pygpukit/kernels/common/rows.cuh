// Rows that a group of threads reads once: kept in registers, or, from 64 KiB, in shared memory as far as that goes.
//
// A row of n elements is cut into vectors of E = 16 / sizeof(T). Thread t of the group of G has vectors t, t + G, ... in
// order. The host chooses G by the bytes of a row alone (ops/nn/layout.py), so the order of every sum depends on the row's
// length and type and on nothing else: not on the number of rows, their addresses or strides. C is the most vectors a
// thread has; 0 means a row of any length, G = 1024. VEC: rows are dense, and row lengths and addresses multiples of 16
// bytes; otherwise elements are moved one by one, and summed in the same order.
//
// Launch: blocks of max(G, 128) threads, which hold max(G, 128) / G rows. C = 0: dynamic shared memory for the first
// `cached` vectors of the row.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk::rows {

// Where a row begins and how its elements lie.
template <class T> struct Place {
    T* p;
    i64 step;
};

template <class T, bool VEC> PGK_FN void fetch(Vec<T, 16 / sizeof(T)>& v, const T* p, i64 step, i64 at, i64 n, bool on) {
    constexpr int E = 16 / sizeof(T);
    if constexpr (VEC) {
        load(v, p + at, on && at < n);
    } else {
#pragma unroll
        for (int e = 0; e < E; ++e) v.e[e] = element(p + (at + e) * step, on && at + e < n, T{});
    }
}

template <bool VEC, class T, class A, int E>
PGK_FN void put(T* p, i64 step, i64 at, i64 n, bool on, const A (&values)[E]) {
    const Vec<T, E> v = outputs<T>(values);
    if constexpr (VEC) {
        if (on && at < n) store(p + at, v);
    } else {
#pragma unroll
        for (int e = 0; e < E; ++e) {
            if (on && at + e < n) p[(at + e) * step] = v.e[e];
        }
    }
}

// E neighbours from place `at` of n; VEC promises an address that is a multiple of all of them, or of 16 bytes.
template <bool VEC, class W, int E> PGK_FN void consecutive(Vec<W, E>& w, const W* p, i64 at, i64 n) {
    constexpr int K = VEC ? (Vec<W, E>::bytes > 16 ? 16 / static_cast<int>(sizeof(W)) : E) : 1;
#pragma unroll
    for (int e = 0; e < E; e += K) {
        Vec<W, K> v{};
        load(v, p + at + e, at + e < n);
        if constexpr (VEC) {
#pragma unroll
            for (int i = 0; i < Vec<W, K>::bytes / 4; ++i) w.w[e / K * (Vec<W, K>::bytes / 4) + i] = v.w[i];
        } else {
            w.e[e] = v.e[0];
        }
    }
}

// All elements in the accumulator's type; those of bfloat16 by one instruction each.
template <class A, class T, int E> PGK_FN void widen_all(A (&to)[E], const Vec<T, E>& v) {
#pragma unroll
    for (int e = 0; e < E; ++e) {
        if constexpr (same<T, bf16>::value && same<A, f32>::value && E % 2 == 0) {
            to[e] = bit_cast<f32>(e % 2 ? v.w[e / 2] & 0xFFFF0000u : v.w[e / 2] << 16);
        } else {
            to[e] = input<A>(v.e[e]);
        }
    }
}

// The forms of an RMS norm: 1, the weights are stored less 1; 2, a normalised row is rounded to T.
template <class T, class A, int E> PGK_FN void adapt(A (&row)[E], A (&weights)[E], i64 form) {
    if (form & 1) {
#pragma unroll
        for (int e = 0; e < E; ++e) weights[e] = A(1) + weights[e];
    }
    if (form & 2) widen_all(row, outputs<T>(row));
}

#if PGK_ON_DEVICE
template <class A> PGK_FN A swap_lanes(A v, int d) { return __shfl_xor_sync(~0u, v, d); }

struct Adding {
    template <class A> PGK_FN static A of(A a, A b) { return a + b; }
};
struct Larger {
    PGK_FN static f64 of(f64 a, f64 b) { return maximum(a, b); }
    PGK_FN static f32 of(f32 a, f32 b) {
        f32 r;
        asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
        return r;
    }
};

// One value per thread of a group, combined by a butterfly within warps, then one over the warps. Every thread gets the
// result. `shared` has a value per warp of the block, and serves one call.
template <class Op, int G, class A> PGK_FN A over_group(A v, A* shared) {
#pragma unroll
    for (int d = (G < 32 ? G : 32) / 2; d > 0; d /= 2) v = Op::of(v, swap_lanes(v, d));
    if constexpr (G > 32) {
        constexpr int W = G / 32;
        const int warp = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0) shared[warp] = v;
        __syncthreads();
        v = shared[warp / W * W + threadIdx.x % W];
#pragma unroll
        for (int d = W / 2; d > 0; d /= 2) v = Op::of(v, swap_lanes(v, d));
    }
    return v;
}

// A sum of one vector's terms, by pairs.
template <class A, int E> PGK_FN A sum_of(const A (&terms)[E]) {
    A t[E];
#pragma unroll
    for (int e = 0; e < E; ++e) t[e] = terms[e];
#pragma unroll
    for (int d = E / 2; d > 0; d /= 2) {
#pragma unroll
        for (int e = 0; e < d; ++e) t[e] = t[2 * e] + t[2 * e + 1];
    }
    return t[0];
}

// The part of a row that one thread has. `each(f)` calls f(c, place, vector, how many of its elements
// exist) in order, for vector c of the thread (0 where they are not counted). With VEC that is all of them, or, of a vector
// behind the row's end, which holds `other`, none.
template <class T, int G, int C, bool VEC> struct Part {
    static constexpr int E = 16 / sizeof(T);
    static constexpr bool WHOLE = VEC;
    Vec<T, E> v[C];
    i64 n;
    bool on;
    PGK_FN static int lane() { return threadIdx.x % G; }
    PGK_FN static i64 row() { return static_cast<i64>(blockIdx.x) * (blockDim.x / G) + threadIdx.x / G; }
    PGK_FN static i64 place(int c) { return static_cast<i64>(c * G + lane()) * E; }
    PGK_FN Part(i64 n, bool on) : n(n), on(on) {}

    PGK_FN void read(const T* p, i64 step, T other = T{}) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
#pragma unroll
            for (int e = 0; e < E; ++e) v[c].e[e] = other;
        }
#pragma unroll
        for (int c = 0; c < C; ++c) fetch<T, VEC>(v[c], p, step, place(c), n, on);
    }
    template <class F> PGK_FN void each(F&& f) {
#pragma unroll
        for (int c = 0; c < C; ++c) f(c, place(c), v[c], left(place(c)));
    }
    PGK_FN int left(i64 at) const {
        if (!on || at >= n) return 0;
        if constexpr (VEC) return E;
        return n - at < E ? static_cast<int>(n - at) : E;
    }
};

// The same for rows of any length: what shared memory does not hold is read again from where it came from.
template <class T, int G, bool VEC> struct Part<T, G, 0, VEC> {
    static constexpr int E = 16 / sizeof(T);
    static constexpr bool WHOLE = VEC;
    const T* p;
    i64 step, n, cached;
    uint4* held;
    bool on, fresh = true;
    PGK_FN static int lane() { return threadIdx.x; }
    PGK_FN static i64 row() { return blockIdx.x; }
    PGK_FN Part(i64 n, bool on, i64 cached, uint4* held) : p(nullptr), step(1), n(n), cached(cached), held(held), on(on) {}

    PGK_FN void read(const T* from, i64 by, T = T{}) { p = from, step = by; }
    template <class F> PGK_FN void each(F&& f) {
#pragma unroll 2
        for (i64 i = lane(); i * E < n; i += G) {
            Vec<T, E> v{};
            // A thread reads what itself has written there.
            if (!fresh && i < cached) {
                const uint4 word = held[i];
                v.w[0] = word.x, v.w[1] = word.y, v.w[2] = word.z, v.w[3] = word.w;
            } else {
                fetch<T, VEC>(v, p, step, i * E, n, true);
                if (i < cached) held[i] = make_uint4(v.w[0], v.w[1], v.w[2], v.w[3]);
            }
            f(0, i * E, v, n - i * E < E ? static_cast<int>(n - i * E) : E);
        }
        fresh = false;
    }
};

// The sum over a row of element - shift, or of its square.
template <bool SQUARES, class A, int G, class P> PGK_FN A sum(P& part, A* shared, A shift) {
    A total = A(0);
    part.each([&](int, i64, auto& v, int count) {
        A d[P::E], pairs[P::E / 2];
        widen_all(d, v);
#pragma unroll
        for (int e = 0; e < P::E; ++e) d[e] = P::WHOLE || e < count ? d[e] - shift : A(0);
#pragma unroll
        for (int e = 0; e < P::E; e += 2) {
            pairs[e / 2] = SQUARES ? fused(d[e + 1], d[e + 1], mul_rn(d[e], d[e])) : d[e] + d[e + 1];
        }
        const A all = sum_of(pairs);
        total = total + (P::WHOLE && count == 0 ? A(0) : all);
    });
    return over_group<Adding, G>(total, shared);
}
#endif

}  // namespace pgk::rows
