// What reductions combine: one struct per operator, over elements of type T accumulated as A.
//
// State is the partial result of some elements. of(x, k) is that of element k alone. append(a, b): the elements of b
// come after those of a. merge(a, b): in any order. extend(a, b) is append where a may be neutral(), which changes no
// bit. nothing() is the state of no elements, finish(s, n, correction) the result of n elements as To.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

// An extreme of a type: what every element is at most (or, LOW, at least).
template <class A, bool LOW> struct Extreme {
    PGK_FN static A value() {
        constexpr int bits = 8 * sizeof(A);
        if constexpr (is_float<A>::value) {
            const A infinity = A(1e38) * A(1e300) * A(1e300);
            return LOW ? -infinity : infinity;
        } else if constexpr (is_signed<A>::value) {
            const u64 top = 1ull << (bits - 1);
            return static_cast<A>(LOW ? top : top - 1);
        } else {
            return static_cast<A>(LOW ? 0ull : ~0ull);
        }
    }
};
template <class R, bool LOW> struct Extreme<cx<R>, LOW> {
    PGK_FN static cx<R> value() { return {Extreme<R, LOW>::value(), Extreme<R, LOW>::value()}; }
};

// Minus zero, which added to any float gives that float.
template <class A> PGK_FN A neutral_of_sum() {
    if constexpr (is_complex<A>::value) return {-decltype(A::re)(0), -decltype(A::re)(0)};
    else if constexpr (is_float<A>::value) return -A(0);
    else return A(0);
}

template <class A> PGK_FN A divided(A a, i64 n) {
    if constexpr (is_complex<A>::value) return {a.re / decltype(A::re)(n), a.im / decltype(A::re)(n)};
    else return a / A(n);
}

template <class T, class A> struct Sum {
    using State = A;
    PGK_FN static State of(T x, i64) { return convert<A>(x); }
    PGK_FN static State neutral() { return neutral_of_sum<A>(); }
    PGK_FN static State nothing() { return A{}; }
    PGK_FN static State append(State a, State b) { return add(a, b); }
    PGK_FN static State extend(State a, State b) { return add(a, b); }
    PGK_FN static State merge(State a, State b) { return add(a, b); }
    template <class To> PGK_FN static To finish(State s, i64, f64) { return convert<To>(s); }
};

template <class T, class A> struct Mean : Sum<T, A> {
    template <class To> PGK_FN static To finish(A s, i64 n, f64) { return convert<To>(divided(s, n)); }
};

// Sum of |x|: the norm of order 1.
template <class T, class A> struct SumAbs : Sum<T, A> {
    PGK_FN static A of(T x, i64) { return convert<A>(abs(widen(x))); }
};

// Root of the sum of squares: the norm of order 2.
template <class T, class A> struct RootSumSquares : Sum<T, A> {
    PGK_FN static A of(T x, i64) {
        auto w = widen(x);
        if constexpr (is_complex<decltype(w)>::value) return A(fused(A(w.re), A(w.re), A(w.im) * A(w.im)));
        else return mul(A(w), A(w));
    }
    template <class To> PGK_FN static To finish(A s, i64, f64) { return convert<To>(sqrt(s)); }
};

template <class T, class A> struct Prod {
    using State = A;
    PGK_FN static State of(T x, i64) { return convert<A>(x); }
    PGK_FN static State neutral() {
        if constexpr (is_complex<A>::value) return A{1, 0};
        else return A(1);
    }
    PGK_FN static State nothing() { return neutral(); }
    PGK_FN static State append(State a, State b) { return mul(a, b); }
    PGK_FN static State extend(State a, State b) {
        // A complex one times an infinity would give NaN.
        if constexpr (is_complex<A>::value) return a.re == 1 && a.im == 0 ? b : mul(a, b);
        else return mul(a, b);
    }
    PGK_FN static State merge(State a, State b) { return mul(a, b); }
    template <class To> PGK_FN static To finish(State s, i64, f64) { return convert<To>(s); }
};

// The largest element, or the smallest; NaN if there is one.
template <class T, class A, bool LARGEST> struct Best {
    using State = A;
    PGK_FN static State of(T x, i64) { return convert<A>(x); }
    PGK_FN static State neutral() { return Extreme<A, LARGEST>::value(); }
    PGK_FN static State nothing() { return neutral(); }
    PGK_FN static State append(State a, State b) { return LARGEST ? maximum(a, b) : minimum(a, b); }
    PGK_FN static State extend(State a, State b) { return append(a, b); }
    PGK_FN static State merge(State a, State b) { return append(a, b); }
    template <class To> PGK_FN static To finish(State s, i64, f64) { return convert<To>(s); }
};
template <class T, class A> struct Max : Best<T, A, true> {};
template <class T, class A> struct Min : Best<T, A, false> {};

// Where the first largest (or smallest) element is; the first NaN if there is one.
template <class T, class A, bool LARGEST> struct BestIndex {
    struct State {
        A value;
        i64 index;
    };
    PGK_FN static bool better(A a, A b) {
        return isnan(a) ? !isnan(b) : !isnan(b) && (LARGEST ? less(b, a) : less(a, b));
    }
    PGK_FN static State of(T x, i64 k) { return {convert<A>(x), k}; }
    PGK_FN static State neutral() { return {A{}, -1}; }
    PGK_FN static State nothing() { return neutral(); }
    PGK_FN static State append(State a, State b) {
        const bool other = better(b.value, a.value);
        return {other ? b.value : a.value, other ? b.index : a.index};
    }
    PGK_FN static State extend(State a, State b) {
        const bool other = a.index < 0 || better(b.value, a.value);
        return {other ? b.value : a.value, other ? b.index : a.index};
    }
    PGK_FN static State merge(State a, State b) {
        const bool other = better(b.value, a.value) || (b.index < a.index && !better(a.value, b.value));
        return {other ? b.value : a.value, other ? b.index : a.index};
    }
    template <class To> PGK_FN static To finish(State s, i64, f64) { return convert<To>(s.index); }
};
template <class T, class A> struct ArgMax : BestIndex<T, A, true> {};
template <class T, class A> struct ArgMin : BestIndex<T, A, false> {};

template <class T, class A> struct Any {
    using State = u32;
    PGK_FN static State of(T x, i64) { return truth(widen(x)); }
    PGK_FN static State neutral() { return 0; }
    PGK_FN static State nothing() { return 0; }
    PGK_FN static State append(State a, State b) { return a | b; }
    PGK_FN static State extend(State a, State b) { return a | b; }
    PGK_FN static State merge(State a, State b) { return a | b; }
    template <class To> PGK_FN static To finish(State s, i64, f64) { return convert<To>(s); }
};

// Whether no element is zero: kept as whether one is.
template <class T, class A> struct All : Any<T, A> {
    PGK_FN static u32 of(T x, i64) { return !truth(widen(x)); }
    template <class To> PGK_FN static To finish(u32 s, i64, f64) { return convert<To>(u32(!s)); }
};

template <class T, class A> struct CountNonzero : Sum<b1, i64> {
    PGK_FN static i64 of(T x, i64) { return truth(widen(x)); }
};

// Variance by pairs of means and sums of squared distances (Chan, Golub and LeVeque): one pass, without the
// cancellation of a difference of squares.
template <class T, class A> struct Var {
    struct State {
        A count, mean, distance;
    };
    PGK_FN static State of(T x, i64) { return {A(1), convert<A>(x), A(0)}; }
    PGK_FN static State neutral() { return {A(0), A(0), A(0)}; }
    PGK_FN static State nothing() { return neutral(); }
    PGK_FN static State append(State a, State b) {
        const A count = a.count + b.count, weight = b.count / count, step = b.mean - a.mean;
        return {count, fused(step, weight, a.mean),
                fused(mul_rn(step, mul_rn(a.count, weight)), step, a.distance + b.distance)};
    }
    PGK_FN static State extend(State a, State b) { return append(a, b); }
    PGK_FN static State merge(State a, State b) { return append(a, b); }
    PGK_FN static A variance(State s, i64 n, f64 correction) {
        const f64 freedom = f64(n) - correction;
        return s.distance / A(freedom > 0.0 ? freedom : 0.0);
    }
    template <class To> PGK_FN static To finish(State s, i64 n, f64 correction) {
        return convert<To>(variance(s, n, correction));
    }
};
template <class T, class A> struct Std : Var<T, A> {
    template <class To> PGK_FN static To finish(typename Var<T, A>::State s, i64 n, f64 correction) {
        return convert<To>(sqrt(Var<T, A>::variance(s, n, correction)));
    }
};

// The offset of an element of the axes that stay, counted in row-major order.
PGK_FN i64 offset_of(i64 at, const Nd<1>& kept) {
    i64 offset = 0;
#pragma unroll 1
    for (int d = kept.ndim - 1; d >= 0; --d) {
        const i64 rest = d ? quotient(at, kept.shape[d]) : 0;
        offset += (at - rest * kept.shape[d]) * kept.stride[0][d];
        at = rest;
    }
    return offset;
}

// A state from the lane `d` further on.
template <class S> PGK_FN S from_lane(S s, int d) {
    union Words {
        S s;
        u32 w[(sizeof(S) + 3) / 4];
        PGK_FN Words() {}
    } u;
    u.w[sizeof(u.w) / 4 - 1] = 0;
    u.s = s;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(u.w) / 4); ++i) u.w[i] = __shfl_down_sync(~0u, u.w[i], d);
    return u.s;
}

}  // namespace pgk
