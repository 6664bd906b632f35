// Discrete Fourier transforms of rows, each held by one block: out[k] = scale * sum over j of x[j] * exp(-2 pi i j k / n).
//
// Row g of `rows` is (o, m, i) with i = g % inner and m = g / inner % middle. x and out have an element stride for each
// of o, m, i and the transformed axis, in elements of their own type; rows of x may overlap. `given` elements of a row
// are read, those up to n are zero. window: n factors of the input, or null.
// Block<T, N, LANES, ROWS, ...>: LANES threads per row, ROWS rows per block; grid = ceil(rows / ROWS).
// Dynamic shared memory: ROWS * STRIDE numbers of T, complex unless SPLIT.
// The method is Stockham's with radices R...: pass p reads element r of butterfly b at b + r * N / R, multiplies it by a
// root of unity, and writes at b % L + (r + b / L * R) * L, where L is the product of the radices before. Data moves
// between passes through shared memory; SPLIT moves real and imaginary parts in turn, in half the space. Roots come
// from tables computed in double; roots to powers of no power of two are products of at most log2(R) of them.
// Inverse transforms swap real and imaginary parts at both ends. Real rows of even length 2 N are N complex numbers and
// are separated afterwards; Hermitian ones are joined before. CHIRP: a row of any length n as a convolution of length N.
// Numerics: all in T. The bits of a row depend on n and the row alone. Determinism: batch_invariant.
#include "pygpukit/dft.cuh"
#include "pygpukit/elementwise.cuh"

namespace pgk {

enum Source_kind { COMPLEX_IN, PACKED_IN, REAL_IN, HERMITIAN_IN, HERMITIAN_ODD_IN };
enum Sink_kind { COMPLEX_OUT, STEP_OUT, HALF_OUT, HALF_ODD_OUT, PACKED_OUT, REAL_OUT };
enum Flag { INVERSE = 1, CONJUGATE = 2, MIRROR = 4, ALIGNED = 8 };

template <class T> struct alignas(2 * sizeof(T)) Pair { T re, im; };

// Everything a launch says beside the addresses.
template <class T> struct Rows {
    i64 rows, middle, inner, given;
    i64 x[4], out[4];
    T scale;
    int flags;
};

template <class T> struct Row {
    i64 x, out, inner;
    bool on;
};

PGK_FN u64 quotient(u64 a, u64 b) {
    return (a | b) >> 32 ? a / b : static_cast<u64>(static_cast<u32>(a) / static_cast<u32>(b));
}

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

template <class T, int N_, int LANES_, int ROWS_, bool SPLIT_, bool IN_COLUMNS_, bool OUT_COLUMNS_> struct Block {
    using real = T;
    static constexpr int N = N_, LANES = LANES_, ROWS = ROWS_, THREADS = LANES_ * ROWS_;
    static constexpr bool SPLIT = SPLIT_, IN_COLUMNS = IN_COLUMNS_, OUT_COLUMNS = OUT_COLUMNS_;
    // One unused element after every 128 bytes keeps strides of powers of two off the same bank; rows are an odd number
    // of elements apart, so that neighbouring rows are on different banks too.
    static constexpr int PAD = 128 / (SPLIT ? sizeof(T) : 2 * sizeof(T));
    static constexpr int STRIDE = (N + N / PAD) | 1;
    template <int R> static constexpr int per_lane = (N / R + LANES - 1) / LANES;

    // Position of element base + r * STEP of a row, for constant r.
    template <int STEP, int R, bool WHOLE> PGK_FN static int at(int base, int r) {
        if constexpr (STEP % PAD == 0) return base + base / PAD + r * (STEP + STEP / PAD);
        else if constexpr (WHOLE && PAD % (STEP * R) == 0) return base + base / PAD + r * STEP;
        else return base + r * STEP + (base + r * STEP) / PAD;
    }
    PGK_FN static int at(int i) { return i + i / PAD; }
    template <bool COLUMNS> PGK_FN static int row() { return threadIdx.x % (COLUMNS ? ROWS : THREADS) / (COLUMNS ? 1 : LANES); }
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

template <class T> PGK_FN cx<T> load_pair(const T* p) {
    const Pair<T> v = *reinterpret_cast<const Pair<T>*>(p);
    return {v.re, v.im};
}
template <class T> PGK_FN void store_pair(T* p, T re, T im) { *reinterpret_cast<Pair<T>*>(p) = {re, im}; }
template <class T> PGK_FN cx<T> swapped(cx<T> v, bool on) { return on ? cx<T>{v.im, v.re} : v; }
template <class T> PGK_FN cx<T> conjugated(cx<T> v, bool on) { return on ? cx<T>{v.re, -v.im} : v; }

template <class B, bool COLUMNS, class T> PGK_FN Row<T> row_of(const Rows<T>& a) {
    const i64 g = static_cast<i64>(blockIdx.x) * B::ROWS + B::template row<COLUMNS>();
    // Lanes of rows beyond the last compute the last one again, and write nothing.
    const bool on = g < a.rows;
    const u64 row = static_cast<u64>(on ? g : a.rows - 1);
    const u64 above = a.inner == 1 ? row : quotient(row, static_cast<u64>(a.inner));
    const i64 i = static_cast<i64>(row - above * a.inner);
    const u64 o = a.middle == 1 ? above : quotient(above, static_cast<u64>(a.middle));
    const i64 m = static_cast<i64>(above - o * a.middle);
    const i64 top = static_cast<i64>(o);
    return {top * a.x[0] + m * a.x[1] + i * a.x[2], top * a.out[0] + m * a.out[1] + i * a.out[2], i, on};
}

// A row as the transform sees it: POINTS elements of kind IN in, of kind OUT out. table: roots of the passes; extra:
// roots that separate or join real rows, or those between the steps of a long transform, or chirp and its spectrum.
template <class B, int POINTS, int IN, int OUT, bool CHIRP, int EXTRA, class Passes, class T>
PGK_FN void transform(T* out, const T* x, const T* window, const Rows<T>& a, const Pair<T>* table,
                      const Pair<T>* extra) {
    await_predecessor();
    constexpr int N = B::N, FIRST = Passes::first, LAST = Passes::last(), HALF = (N + 1) / 2;
    constexpr bool IN_COLUMNS = B::IN_COLUMNS;
    constexpr bool OUT_COLUMNS = Passes::single && !CHIRP && IN != HERMITIAN_IN ? IN_COLUMNS : B::OUT_COLUMNS;
    constexpr int PAIRS = (HALF + B::LANES - 1) / B::LANES;
    const bool inverse = a.flags & INVERSE, conjugate = a.flags & CONJUGATE;
    const i64 last = a.given - 1, xn = a.x[3], on = a.out[3];
    const Row<T> in = row_of<B, IN_COLUMNS>(a);

    // Number i of the row, zero from `given` on; conjugated, multiplied by the window.
    const auto real_at = [&](i64 i) {
        T v = x[in.x + (i <= last ? i : last) * xn];
        if (window) v *= window[i];
        return i <= last ? v : T(0);
    };
    const auto complex_at = [&](i64 i) {
        cx<T> v = load_pair(x + 2 * (in.x + (i <= last ? i : last) * xn));
        if (window) v = {v.re * window[i], v.im * window[i]};
        return conjugated(i <= last ? v : cx<T>{T(0), T(0)}, conjugate);
    };
    const auto packed_at = [&](i64 i) -> cx<T> {
        if (!(a.flags & ALIGNED)) return {real_at(2 * i), real_at(2 * i + 1)};
        cx<T> v = load_pair(x + in.x + 2 * i);
        if (window) {
            const cx<T> w = load_pair(window + 2 * i);
            v = {v.re * w.re, v.im * w.im};
        }
        return v;
    };
    const auto hermitian_at = [&](i64 i) -> cx<T> {
        const cx<T> v = complex_at(2 * i > POINTS ? POINTS - i : i);
        return {v.re, i == 0 || 2 * i == POINTS ? T(0) : 2 * i > POINTS ? -v.im : v.im};
    };

    cx<T> v[B::template per_lane<FIRST>][FIRST];
    if constexpr (IN == HERMITIAN_IN) {
        // Even and odd elements of the row are the real and imaginary parts of N numbers: joins their spectra, swapped.
        cx<T> z[PAIRS][2];
        const int lane = B::template lane<IN_COLUMNS>();
        const auto places = [&](auto put) {
#pragma unroll
            for (int k = 0; k < PAIRS; ++k) {
                const int i = lane + k * B::LANES;
                if (i < HALF) {
                    put(B::at(i), z[k][0]);
                    if (i > 0 || N % 2 == 0) put(B::at(i == 0 ? N / 2 : N - i), z[k][1]);
                }
            }
        };
#pragma unroll
        for (int k = 0; k < PAIRS; ++k) {
            const int i = lane + k * B::LANES;
            if (i < HALF) {
                const cx<T> p = complex_at(i), q = complex_at(N - i);
                const Pair<T> w = extra[i];
                const cx<T> even = {p.re + q.re, p.im - q.im};
                const cx<T> odd = product(cx<T>{p.re - q.re, p.im + q.im}, cx<T>{w.re, -w.im});
                z[k][0] = {even.im + odd.re, even.re - odd.im};
                z[k][1] = {odd.re - even.im, even.re + odd.im};
                if (i == 0) {
                    const cx<T> h = complex_at(N / 2);
                    z[k][0] = {p.re - q.re, p.re + q.re};
                    z[k][1] = {T(-2) * h.im, T(2) * h.re};
                }
            }
        }
        exchange<B, IN_COLUMNS, B::OUT_COLUMNS>(false, places,
                                                [&](auto get) { at_inputs<B, FIRST, B::OUT_COLUMNS>(v, get); });
    } else {
        const int lane = B::template lane<IN_COLUMNS>();
#pragma unroll
        for (int k = 0; k < B::template per_lane<FIRST>; ++k) {
            const int b = lane + k * B::LANES;
            if (in_row<B, FIRST>(b, k)) {
#pragma unroll
                for (int r = 0; r < FIRST; ++r) {
                    const int i = b + r * (N / FIRST);
                    v[k][r] = {T(0), T(0)};
                    if (CHIRP && i >= POINTS) continue;
                    if constexpr (IN == COMPLEX_IN) v[k][r] = swapped(complex_at(i), inverse);
                    else if constexpr (IN == PACKED_IN) v[k][r] = packed_at(i);
                    else if constexpr (IN == REAL_IN) v[k][r] = {real_at(i), T(0)};
                    else v[k][r] = swapped(hermitian_at(i), true);
                    if constexpr (CHIRP) v[k][r] = product(v[k][r], cx<T>{extra[i].re, extra[i].im});
                }
            }
        }
    }

    const auto sink = [&](cx<T> (&z)[B::template per_lane<LAST>][LAST]) {
        const Row<T> to = OUT_COLUMNS == IN_COLUMNS ? in : row_of<B, OUT_COLUMNS>(a);
        const int lane = B::template lane<OUT_COLUMNS>();
        const T scale = a.scale;
        const auto store = [&](i64 k, cx<T> y) {
            if (to.on) store_pair(out + 2 * (to.out + k * on), y.re * scale, y.im * scale);
        };
        const auto store_half = [&](i64 k, cx<T> y) {
            y = conjugated(y, conjugate);
            store(k, y);
            if (a.flags & MIRROR && k > 0 && 2 * k < POINTS) store(POINTS - k, conjugated(y, true));
        };
        if constexpr (OUT == HALF_OUT) {
            cx<T> y[PAIRS][2];
            exchange<B, OUT_COLUMNS, OUT_COLUMNS>(
                !Passes::single, [&](auto put) { at_inputs<B, LAST, OUT_COLUMNS>(z, put); },
                [&](auto get) {
#pragma unroll
                    for (int k = 0; k < PAIRS; ++k) {
                        const int i = lane + k * B::LANES;
                        if (i < HALF) {
                            get(B::at(i), y[k][0]);
                            get(B::at(i == 0 ? N / 2 : N - i), y[k][1]);
                        }
                    }
                });
#pragma unroll
            for (int k = 0; k < PAIRS; ++k) {
                const int i = lane + k * B::LANES;
                if (i >= HALF) continue;
                const cx<T> p = y[k][0], q = y[k][1];
                if (i == 0) {
                    store_half(0, {p.re + p.im, T(0)});
                    store_half(N, {p.re - p.im, T(0)});
                    if (N % 2 == 0) store_half(N / 2, {q.re, -q.im});
                } else {
                    const cx<T> w = {T(0.5) * extra[i].re, T(0.5) * extra[i].im};
                    const cx<T> even = {T(0.5) * (p.re + q.re), T(0.5) * (p.im - q.im)};
                    const cx<T> odd = product(cx<T>{p.im + q.im, q.re - p.re}, w);
                    store_half(i, {even.re + odd.re, even.im + odd.im});
                    store_half(N - i, {even.re - odd.re, odd.im - even.im});
                }
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < B::template per_lane<LAST>; ++k) {
            const int b = lane + k * B::LANES;
            if (!in_row<B, LAST>(b, k)) continue;
#pragma unroll
            for (int r = 0; r < LAST; ++r) {
                const int i = b + r * (N / LAST);
                if (CHIRP && i >= POINTS) continue;
                cx<T> y = z[k][r];
                if constexpr (CHIRP) y = product(swapped(y, true), cx<T>{extra[i].re, extra[i].im});
                if constexpr (OUT == STEP_OUT) {
                    const u32 turn = static_cast<u32>(to.inner) * static_cast<u32>(i);
                    const Pair<T> coarse = extra[turn >> EXTRA], fine = extra[(1 << EXTRA) + turn % (1 << EXTRA)];
                    store(i, product(y, product(cx<T>{coarse.re, coarse.im}, cx<T>{fine.re, fine.im})));
                } else if constexpr (OUT == COMPLEX_OUT) {
                    store(i, swapped(y, inverse));
                } else if constexpr (OUT == HALF_ODD_OUT) {
                    if (2 * i <= POINTS) store_half(i, y);
                } else if constexpr (OUT == REAL_OUT) {
                    if (to.on) out[to.out + i * on] = y.im * scale;
                } else if (to.on) {
                    // The transform was of swapped numbers: the even element of the pair is the imaginary part.
                    T* p = out + to.out + 2 * i * on;
                    if (a.flags & ALIGNED) store_pair(p, y.im * scale, y.re * scale);
                    else p[0] = y.im * scale, p[on] = y.re * scale;
                }
            }
        }
    };

    if constexpr (CHIRP) {
        const Pair<T>* filter = extra + POINTS;
        Passes::template run<B, false, IN_COLUMNS>(table, v, [&](cx<T> (&z)[B::template per_lane<LAST>][LAST]) {
            constexpr bool BETWEEN = Passes::single ? IN_COLUMNS : B::OUT_COLUMNS;
            const int lane = B::template lane<BETWEEN>();
#pragma unroll
            for (int k = 0; k < B::template per_lane<LAST>; ++k) {
                const int b = lane + k * B::LANES;
                if (!in_row<B, LAST>(b, k)) continue;
#pragma unroll
                for (int r = 0; r < LAST; ++r) {
                    const Pair<T> f = filter[b + r * (N / LAST)];
                    z[k][r] = swapped(product(z[k][r], cx<T>{f.re, f.im}), true);
                }
            }
            exchange<B, BETWEEN, B::OUT_COLUMNS>(
                !Passes::single, [&](auto put) { at_inputs<B, LAST, BETWEEN>(z, put); },
                [&](auto get) { at_inputs<B, FIRST, B::OUT_COLUMNS>(v, get); });
            Passes::template run<B, true, B::OUT_COLUMNS>(table, v, sink);
        });
    } else {
        constexpr bool joined = IN == HERMITIAN_IN;
        Passes::template run<B, joined, joined ? B::OUT_COLUMNS : IN_COLUMNS>(table, v, sink);
    }
}

}  // namespace pgk

// BLOCK: Block<...>; the rest as `transform` has it. Tables are arrays of words: pairs of T.
#define PGK_FFT(entry, T, BLOCK, POINTS, IN, OUT, CHIRP, EXTRA, PASSES) \
    extern "C" __global__ void __launch_bounds__(BLOCK::THREADS) entry( \
        pgk::T* out, const pgk::T* x, const pgk::T* window, long long rows, long long middle, long long inner, \
        long long given, long long x_o, long long x_m, long long x_i, long long x_n, long long out_o, long long out_m, \
        long long out_i, long long out_n, pgk::T scale, int flags) { \
        using namespace pgk; \
        const Rows<pgk::T> a = {rows, middle, inner, given, {x_o, x_m, x_i, x_n}, {out_o, out_m, out_i, out_n}, \
                                scale, flags}; \
        transform<BLOCK, POINTS, IN, OUT, CHIRP, EXTRA, PASSES, pgk::T>( \
            out, x, window, a, reinterpret_cast<const Pair<pgk::T>*>(fft_roots), \
            reinterpret_cast<const Pair<pgk::T>*>(fft_extra)); \
    }
