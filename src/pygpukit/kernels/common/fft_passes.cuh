// The passes of a Fourier transform whose rows are held by a block: values in registers, moved through shared memory.
//
// Stockham's method with radices R...: pass p reads element r of butterfly b at b + r * N / R, multiplies it by a root
// of unity, and writes at b % L + (r + b / L * R) * L, where L is the product of the radices before. Roots come from
// tables computed in double; those to powers of no power of two are products of at most log2(R) of them.
// Block<T, N, LANES, ROWS, PAD, STRIDE, SPLIT, IN_COLUMNS, OUT_COLUMNS>: LANES threads per row, ROWS rows per block.
// With columns neighbouring threads have the same element of neighbouring rows, else neighbouring elements of a row.
// Dynamic shared memory: ROWS * STRIDE numbers of T, complex unless SPLIT: then real and imaginary parts move in turn.
#pragma once
#include "pygpukit/dft.cuh"
#include "pygpukit/elementwise.cuh"

namespace pgk {

template <class T> struct alignas(2 * sizeof(T)) Pair { T re, im; };

constexpr int bits_below(int r) {
    int n = 0;
    while ((1 << n) < r) ++n;
    return n;
}
constexpr int highest_bit(int r) {
    int b = 1;
    while (2 * b <= r) b *= 2;
    return b;
}

template <class T, int N_, int LANES_, int ROWS_, int PAD_, int STRIDE_, bool SPLIT_, bool IN_COLUMNS_,
          bool OUT_COLUMNS_>
struct Block {
    using real = T;
    static constexpr int N = N_, LANES = LANES_, ROWS = ROWS_, THREADS = LANES_ * ROWS_;
    static constexpr bool SPLIT = SPLIT_, IN_COLUMNS = IN_COLUMNS_, OUT_COLUMNS = OUT_COLUMNS_;
    // An unused element after every PAD keeps strides of powers of two off the same bank.
    static constexpr int PAD = PAD_, STRIDE = STRIDE_;
    // At least 768 threads per SM, so that some wait for memory while others compute, where registers suffice for that.
    static constexpr int BLOCKS = N <= 16 * LANES ? (767 + THREADS) / THREADS : 1;
    static constexpr int FEWER_BLOCKS = (511 + THREADS) / THREADS;
    template <int R> static constexpr int per_lane = (N / R + LANES - 1) / LANES;

    // Position of element base + r * STEP of a row, for constant r.
    template <int STEP, int R, bool WHOLE> PGK_FN static int at(int base, int r) {
        if constexpr (PAD > N) return base + r * STEP;
        else if constexpr (STEP % PAD == 0) return base + base / PAD + r * (STEP + STEP / PAD);
        else if constexpr (WHOLE && PAD % (STEP * R) == 0) return base + base / PAD + r * STEP;
        else return base + r * STEP + (base + r * STEP) / PAD;
    }
    PGK_FN static int at(int i) { return PAD > N ? i : i + i / PAD; }
    template <bool COLUMNS> PGK_FN static int row() {
        return COLUMNS ? threadIdx.x % ROWS : threadIdx.x / LANES;
    }
    template <bool COLUMNS> PGK_FN static int lane() {
        return COLUMNS ? threadIdx.x / ROWS : threadIdx.x % LANES;
    }
    template <class E> PGK_FN static E* shared(int row) {
        extern __shared__ __align__(16) unsigned char pgk_fft_shared[];
        return reinterpret_cast<E*>(pgk_fft_shared) + row * STRIDE;
    }
};

// Moves one value per `write` to where `read` expects it; each is called as f(action(index in the row, value)).
template <class B, bool FROM_COLUMNS, bool TO_COLUMNS, class Write, class Read>
PGK_FN void exchange(bool again, Write write, Read read) {
    using T = typename B::real;
    const int from = B::template row<FROM_COLUMNS>(), to = B::template row<TO_COLUMNS>();
    if (again) __syncthreads();
    if constexpr (B::SPLIT) {
        T* s = B::template shared<T>(from);
        const T* t = B::template shared<T>(to);
        write([=](int i, const cx<T>& v) { s[i] = v.re; });
        __syncthreads();
        read([=](int i, cx<T>& v) { v.re = t[i]; });
        __syncthreads();
        write([=](int i, const cx<T>& v) { s[i] = v.im; });
        __syncthreads();
        read([=](int i, cx<T>& v) { v.im = t[i]; });
    } else {
        Pair<T>* s = B::template shared<Pair<T>>(from);
        const Pair<T>* t = B::template shared<Pair<T>>(to);
        write([=](int i, const cx<T>& v) { s[i] = {v.re, v.im}; });
        __syncthreads();
        read([=](int i, cx<T>& v) { v = {t[i].re, t[i].im}; });
    }
}

template <class B, int R> PGK_FN bool in_row(int b, int k) {
    return (k + 1) * B::LANES <= B::N / R || b < B::N / R;
}

// f(index, value) for the values of all butterflies, at the places they are read from or, after a pass, written to.
template <class B, int R, bool COLUMNS, class V, class F> PGK_FN void at_inputs(V& v, F f) {
    const int lane = B::template lane<COLUMNS>();
#pragma unroll
    for (int k = 0; k < B::template per_lane<R>; ++k) {
        const int b = lane + k * B::LANES;
        if (in_row<B, R>(b, k)) {
#pragma unroll
            for (int r = 0; r < R; ++r) f(B::template at<B::N / R, R, false>(b, r), v[k][r]);
        }
    }
}
template <class B, int L, int R, bool COLUMNS, class V, class F> PGK_FN void at_outputs(V& v, F f) {
    const int lane = B::template lane<COLUMNS>();
#pragma unroll
    for (int k = 0; k < B::template per_lane<R>; ++k) {
        const int b = lane + k * B::LANES;
        if (in_row<B, R>(b, k)) {
            const int base = b % L + b / L * (L * R);
#pragma unroll
            for (int r = 0; r < R; ++r) f(B::template at<L, R, L == 1>(base, r), v[k][r]);
        }
    }
}

// Multiplies element r of butterfly b by exp(-2 pi i r (b % L) / (L R)).
template <class B, int L, int R, bool COLUMNS, class T>
PGK_FN void twiddle(cx<T> (&v)[B::template per_lane<R>][R], const Pair<T>* table) {
    const int lane = B::template lane<COLUMNS>();
#pragma unroll
    for (int k = 0; k < B::template per_lane<R>; ++k) {
        const int b = lane + k * B::LANES;
        if (in_row<B, R>(b, k)) {
            cx<T> w[R];
#pragma unroll
            for (int s = 0; s < bits_below(R); ++s) {
                const Pair<T> p = table[s * L + b % L];
                w[1 << s] = {p.re, p.im};
            }
#pragma unroll
            for (int r = 1; r < R; ++r) {
                if (r & (r - 1)) w[r] = product(w[highest_bit(r)], w[r - highest_bit(r)]);
                v[k][r] = product(v[k][r], w[r]);
            }
        }
    }
}

// The passes from the one of radix R on, for values in registers; then sink(values), element r of butterfly b being
// number b + r * N / R of the transform.
template <class B, bool AGAIN, bool COLUMNS, int L, int R, class T, class Sink>
PGK_FN void passes(const Pair<T>*, cx<T> (&v)[B::template per_lane<R>][R], Sink sink) {
#pragma unroll
    for (int k = 0; k < B::template per_lane<R>; ++k) dft<T, R>(v[k]);
    sink(v);
}
template <class B, bool AGAIN, bool COLUMNS, int L, int R, int NEXT, int... REST, class T, class Sink>
PGK_FN void passes(const Pair<T>* table, cx<T> (&v)[B::template per_lane<R>][R], Sink sink) {
#pragma unroll
    for (int k = 0; k < B::template per_lane<R>; ++k) dft<T, R>(v[k]);
    cx<T> u[B::template per_lane<NEXT>][NEXT];
    exchange<B, COLUMNS, B::OUT_COLUMNS>(
        AGAIN, [&](auto put) { at_outputs<B, L, R, COLUMNS>(v, put); },
        [&](auto get) { at_inputs<B, NEXT, B::OUT_COLUMNS>(u, get); });
    twiddle<B, L * R, NEXT, B::OUT_COLUMNS>(u, table);
    passes<B, true, B::OUT_COLUMNS, L * R, NEXT, REST...>(table + bits_below(NEXT) * L * R, u, sink);
}

template <int FIRST, int... REST> struct Radices {
    static constexpr int first = FIRST;
    static constexpr int last() {
        const int all[] = {FIRST, REST...};
        return all[sizeof...(REST)];
    }
    template <class B, bool AGAIN, bool COLUMNS, class T, class Sink>
    PGK_FN static void run(const Pair<T>* table, cx<T> (&v)[B::template per_lane<FIRST>][FIRST], Sink sink) {
        passes<B, AGAIN, COLUMNS, 1, FIRST, REST...>(table, v, sink);
    }
    static constexpr bool single = sizeof...(REST) == 0;
};

}  // namespace pgk
