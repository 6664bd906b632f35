// Discrete Fourier transforms of 1 to 16 points in registers: v[k] becomes the sum of v[j] * exp(-2 pi i j k / R), in
// natural order. Composite sizes are split in two factors, odd primes use the symmetry of cosine and sine. The
// constants are evaluated by the compiler in double and rounded once.
#pragma once
#include "pygpukit/types.cuh"

namespace pgk {

// cos and sin of x, at most pi / 4.
constexpr double cos_series(double x) {
    double sum = 1.0, term = 1.0;
    for (int i = 1; i < 12; ++i) sum += term *= -x * x / ((2 * i - 1) * (2 * i));
    return sum;
}
constexpr double sin_series(double x) {
    double sum = x, term = x;
    for (int i = 1; i < 12; ++i) sum += term *= -x * x / ((2 * i) * (2 * i + 1));
    return sum;
}
// cos(2 pi k / n) and sin(2 pi k / n) for 0 <= k <= n, exact at multiples of a quarter.
constexpr double cos_turn(int k, int n) {
    constexpr double turn = 6.283185307179586476925;
    if (2 * k > n) k = n - k;
    if (4 * k > n) return -cos_turn(n - 2 * k, 2 * n);
    if (4 * k == n) return 0.0;
    return 8 * k > n ? sin_series(turn * (n - 4 * k) / (4 * n)) : cos_series(turn * k / n);
}
constexpr double sin_turn(int k, int n) { return cos_turn(4 * k > n ? 4 * k - n : n - 4 * k, 4 * n); }

template <class T, int R> struct Roots {
    T c[R], s[R];
    constexpr Roots() : c{}, s{} {
        for (int k = 0; k < R; ++k) {
            c[k] = static_cast<T>(cos_turn(k, R));
            s[k] = static_cast<T>(sin_turn(k, R));
        }
    }
};

// Complex product with fused multiply-adds; complex.cuh has NumPy's, which rounds each term.
template <class T> PGK_FN cx<T> product(cx<T> a, cx<T> b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// x * exp(-2 pi i k / R); k is a constant once loops are unrolled.
template <class T, int R> PGK_FN cx<T> rotate(cx<T> x, int k) {
    constexpr Roots<T, R> w;
    if (k == 0) return x;
    if (4 * k == R) return {x.im, -x.re};
    if (2 * k == R) return {-x.re, -x.im};
    if (4 * k == 3 * R) return {-x.im, x.re};
    if (8 * k == R) return {(x.re + x.im) * w.c[k], (x.im - x.re) * w.c[k]};
    if (8 * k == 3 * R) return {(x.im - x.re) * w.s[k], (x.re + x.im) * -w.s[k]};
    return {x.re * w.c[k] + x.im * w.s[k], x.im * w.c[k] - x.re * w.s[k]};
}

constexpr int first_factor(int r) {
    if (r > 4 && r % 4 == 0) return 4;
    for (int f = 2; f * f <= r; ++f) {
        if (r % f == 0) return f;
    }
    return r;
}

template <class T, int R> PGK_FN void dft(cx<T> (&v)[R]) {
    constexpr int A = first_factor(R), B = R / A;
    if constexpr (R == 2) {
        const cx<T> a = v[0], b = v[1];
        v[0] = {a.re + b.re, a.im + b.im};
        v[1] = {a.re - b.re, a.im - b.im};
    } else if constexpr (R > 1 && B == 1) {
        constexpr int H = R / 2;
        constexpr Roots<T, R> w;
        cx<T> sum[H], difference[H];
        const cx<T> first = v[0];
#pragma unroll
        for (int k = 1; k <= H; ++k) {
            sum[k - 1] = {v[k].re + v[R - k].re, v[k].im + v[R - k].im};
            difference[k - 1] = {v[k].re - v[R - k].re, v[k].im - v[R - k].im};
            v[0].re += sum[k - 1].re;
            v[0].im += sum[k - 1].im;
        }
#pragma unroll
        for (int m = 1; m <= H; ++m) {
            cx<T> even = first, odd = {T(0), T(0)};
#pragma unroll
            for (int k = 1; k <= H; ++k) {
                const int at = k * m % R;
                even.re += sum[k - 1].re * w.c[at];
                even.im += sum[k - 1].im * w.c[at];
                odd.re += difference[k - 1].re * w.s[at];
                odd.im += difference[k - 1].im * w.s[at];
            }
            v[m] = {even.re + odd.im, even.im - odd.re};
            v[R - m] = {even.re - odd.im, even.im + odd.re};
        }
    } else if constexpr (R > 1) {
        cx<T> y[B][A];
#pragma unroll
        for (int b = 0; b < B; ++b) {
#pragma unroll
            for (int a = 0; a < A; ++a) y[b][a] = v[b + B * a];
            dft<T, A>(y[b]);
        }
#pragma unroll
        for (int a = 0; a < A; ++a) {
            cx<T> z[B];
#pragma unroll
            for (int b = 0; b < B; ++b) z[b] = rotate<T, R>(y[b][a], a * b);
            dft<T, B>(z);
#pragma unroll
            for (int b = 0; b < B; ++b) v[a + A * b] = z[b];
        }
    }
}

}  // namespace pgk
