// Discrete Fourier transforms of rows held by a block: out[k] = scale * sum over j of x[j] * exp(-2 pi i j k / n).
//
// Row g of `rows` is (o, m, i) with i = g % inner and m = g / inner % middle. x and out have an element stride for each
// of o, m, i and the transformed axis, in elements of their own type; rows of x may overlap. `given` elements of a row
// are read, those up to n are zero. window: n factors of the input, or null.
// Block<T, N, LANES, ROWS, ...>: LANES threads per row, ROWS rows per block; grid = ceil(rows / ROWS).
// Dynamic shared memory: ROWS * STRIDE numbers of T, complex unless SPLIT.
// The method is that of fft_passes.cuh. Inverse transforms write in reverse order, or swap real and imaginary parts at
// both ends. Real rows of even length 2 N are N complex numbers and are separated afterwards; Hermitian ones are joined
// before. CHIRP: a row of any length n as a convolution of length N.
// Numerics: all in T. The bits of a row depend on n and the row alone. Determinism: batch_invariant.
#include "pygpukit/fft_passes.cuh"

namespace pgk {

enum Source_kind { COMPLEX_IN, PACKED_IN, REAL_IN, HERMITIAN_IN, HERMITIAN_ODD_IN };
enum Sink_kind { COMPLEX_OUT, STEP_OUT, ENDS_OUT, HALF_OUT, HALF_ODD_OUT, PACKED_OUT, REAL_OUT };
enum Flag { INVERSE = 1, CONJUGATE = 2, MIRROR = 4, ALIGNED = 8, PLAIN = 16, LAST_STEP = 32, LAST_OF_THREE = 64 };

// Everything a launch says beside the addresses.
template <class T> struct Rows {
    i64 rows, middle, inner, given;
    i64 x[4], out[4];
    T scale;
    int flags;
};

template <class T> struct Row {
    i64 x, out, m, i;
    bool on;
};

template <class T> PGK_FN cx<T> load_pair(const T* p) {
    const Pair<T> v = *reinterpret_cast<const Pair<T>*>(p);
    return {v.re, v.im};
}
template <class T> PGK_FN void store_pair(T* p, T re, T im) {
    Vec<T, 2> v;
    v.e[0] = re;
    v.e[1] = im;
    store(p, v);
}
template <class T> PGK_FN cx<T> swapped(cx<T> v) { return {v.im, v.re}; }
template <class T> PGK_FN cx<T> value(Pair<T> v) { return {v.re, v.im}; }

template <class B, bool COLUMNS, class T> PGK_FN Row<T> row_of(const Rows<T>& a) {
    const i64 g = static_cast<i64>(blockIdx.x) * B::ROWS + B::template row<COLUMNS>();
    // Lanes of rows beyond the last compute the last one again, and write nothing.
    const bool on = g < a.rows;
    const i64 row = on ? g : a.rows - 1;
    const i64 above = a.rows <= a.inner ? 0 : a.inner == 1 ? row : quotient(row, a.inner);
    const i64 o = a.rows <= a.inner * a.middle ? 0 : a.middle == 1 ? above : quotient(above, a.middle);
    const i64 i = row - above * a.inner, m = above - o * a.middle;
    return {o * a.x[0] + m * a.x[1] + i * a.x[2], o * a.out[0] + m * a.out[1] + i * a.out[2], m, i, on};
}

// Reads a row of POINTS elements of kind IN.
template <class T, int POINTS, int IN> struct Reader {
    const T* row;
    const T* window;
    i64 step, last;
    T sign;
    int flags;

    PGK_FN T real(i64 i) const {
        T v = row[(i <= last ? i : last) * step];
        if (window) v *= window[i];
        return i <= last ? v : T(0);
    }
    PGK_FN cx<T> number(i64 i) const {
        cx<T> v = load_pair(row + 2 * (i <= last ? i : last) * step);
        if (window) v = {v.re * window[i], v.im * window[i]};
        return i <= last ? cx<T>{v.re, v.im * sign} : cx<T>{T(0), T(0)};
    }
    // Number i as the transform gets it.
    PGK_FN cx<T> at(int i) const {
        if constexpr (IN == COMPLEX_IN) {
            return number(i);
        } else if constexpr (IN == PACKED_IN) {
            if (!(flags & ALIGNED)) return {real(2 * i), real(2 * i + 1)};
            const cx<T> v = load_pair(row + 2 * i), w = load_pair(window + 2 * i);
            return {v.re * w.re, v.im * w.im};
        } else if constexpr (IN == REAL_IN) {
            return {real(i), T(0)};
        } else {
            // Swapped: the transform is an inverse one.
            const cx<T> v = number(2 * i > POINTS ? POINTS - i : i);
            return {i == 0 || 2 * i == POINTS ? T(0) : 2 * i > POINTS ? -v.im : v.im, v.re};
        }
    }
};

// The inputs of the first pass of a row as it is: neither window nor padding, and pairs of reals aligned.
template <class B, int R, bool COLUMNS, class T> PGK_FN void read_numbers(cx<T> (&v)[B::template per_lane<R>][R],
                                                                          const T* row, i64 step) {
    const int lane = B::template lane<COLUMNS>();
    const T* first = row + lane * step;
    const i64 next = B::N / R * step;
#pragma unroll
    for (int k = 0; k < B::template per_lane<R>; ++k) {
        if (in_row<B, R>(lane + k * B::LANES, k)) {
            const T* p = first;
#pragma unroll
            for (int r = 0; r < R; ++r, p += next) v[k][r] = load_pair(p);
        }
        first += B::LANES * step;
    }
}

// Joins the spectra of the even and the odd elements of a real row, which are the real and imaginary parts of N
// numbers, and leaves those, swapped, as inputs of the first pass.
template <class B, int FIRST, class T, class In>
PGK_FN void read_joined(cx<T> (&v)[B::template per_lane<FIRST>][FIRST], const In& in, const Pair<T>* extra) {
    constexpr int N = B::N, HALF = (N + 1) / 2, PAIRS = (HALF + B::LANES - 1) / B::LANES;
    const int lane = B::template lane<B::IN_COLUMNS>();
    cx<T> z[PAIRS][2];
#pragma unroll
    for (int k = 0; k < PAIRS; ++k) {
        const int i = lane + k * B::LANES;
        if ((k + 1) * B::LANES > HALF && i >= HALF) continue;
        z[k][0] = in.number(i);
        z[k][1] = in.number(N - i);
    }
#pragma unroll
    for (int k = 0; k < PAIRS; ++k) {
        const int i = lane + k * B::LANES;
        if ((k + 1) * B::LANES > HALF && i >= HALF) continue;
        const cx<T> p = z[k][0], q = z[k][1], even = {p.re + q.re, p.im - q.im};
        const cx<T> odd = product(cx<T>{p.re - q.re, p.im + q.im}, cx<T>{extra[i].re, -extra[i].im});
        z[k][0] = {even.im + odd.re, even.re - odd.im};
        z[k][1] = {odd.re - even.im, even.re + odd.im};
        if (k == 0 && i == 0) {
            const cx<T> h = in.number(N / 2);
            z[k][0] = {p.re - q.re, p.re + q.re};
            z[k][1] = {T(-2) * h.im, T(2) * h.re};
        }
    }
    exchange<B, B::IN_COLUMNS, B::OUT_COLUMNS>(
        false,
        [&](auto put) {
#pragma unroll
            for (int k = 0; k < PAIRS; ++k) {
                const int i = lane + k * B::LANES;
                if ((k + 1) * B::LANES > HALF && i >= HALF) continue;
                put(B::at(i), z[k][0]);
                if (k > 0 || i > 0 || N % 2 == 0) put(B::at(k == 0 && i == 0 ? N / 2 : N - i), z[k][1]);
            }
        },
        [&](auto get) { at_inputs<B, FIRST, B::OUT_COLUMNS>(v, get); });
}

// Separates the transform of pairs of reals: numbers i and N - i of the row's N + 1, and all 2 N with MIRROR.
template <class B, int LAST, bool COLUMNS, class T>
PGK_FN void write_halves(T* row, i64 step, bool on, bool again, cx<T> (&z)[B::template per_lane<LAST>][LAST],
                         const Rows<T>& a, const Pair<T>* extra) {
    constexpr int N = B::N, HALF = (N + 1) / 2, PAIRS = (HALF + B::LANES - 1) / B::LANES;
    const int lane = B::template lane<COLUMNS>();
    cx<T> y[PAIRS][2];
    exchange<B, COLUMNS, COLUMNS>(
        again, [&](auto put) { at_inputs<B, LAST, COLUMNS>(z, put); },
        [&](auto get) {
#pragma unroll
            for (int k = 0; k < PAIRS; ++k) {
                const int i = lane + k * B::LANES;
                if ((k + 1) * B::LANES > HALF && i >= HALF) continue;
                get(B::at(i), y[k][0]);
                get(B::at(k == 0 && i == 0 ? N / 2 : N - i), y[k][1]);
            }
        });
    if (!on) return;
    const T scale = a.scale, half = T(0.5) * scale, sign = a.flags & CONJUGATE ? T(-1) : T(1);
    T *up = row + lane * step, *down = row + (N - lane) * step;
#pragma unroll
    for (int k = 0; k < PAIRS; ++k) {
        const int i = lane + k * B::LANES;
        if ((k + 1) * B::LANES > HALF && i >= HALF) break;
        const cx<T> p = y[k][0], q = y[k][1], w = value(extra[i]);
        const cx<T> even = {half * (p.re + q.re), half * (p.im - q.im)};
        const cx<T> odd = product(cx<T>{half * (p.im + q.im), half * (q.re - p.re)}, w);
        y[k][0] = {even.re + odd.re, sign * (even.im + odd.im)};
        y[k][1] = {even.re - odd.re, sign * (odd.im - even.im)};
        if (k == 0 && i == 0) {
            y[k][0] = {scale * (p.re + p.im), T(0)};
            y[k][1] = {scale * (p.re - p.im), T(0)};
            // Number N / 2 is its own partner, and its mirror image is that of every row.
            const T re = scale * q.re, im = sign * scale * -q.im;
            if (N % 2 == 0) store_pair(row + N / 2 * step, re, im);
            if (N % 2 == 0 && a.flags & MIRROR) store_pair(row + (N + N / 2) * step, re, -im);
        }
        store_pair(up, y[k][0].re, y[k][0].im);
        store_pair(down, y[k][1].re, y[k][1].im);
        up += B::LANES * step;
        down -= B::LANES * step;
    }
    if (!(a.flags & MIRROR)) return;
#pragma unroll
    for (int k = 0; k < PAIRS; ++k) {
        const int i = lane + k * B::LANES;
        if (i == 0 || i >= HALF) continue;
        store_pair(row + (2 * N - i) * step, y[k][0].re, -y[k][0].im);
        store_pair(row + (N + i) * step, y[k][1].re, -y[k][1].im);
    }
}

// Writes the results of the last pass as elements of kind OUT. An inverse transform is the transform in reverse order.
template <class B, int POINTS, int OUT, bool CHIRP, int EXTRA, int LAST, bool COLUMNS, class T>
PGK_FN void write_numbers(T* row, i64 step, const Row<T>& to, cx<T> (&z)[B::template per_lane<LAST>][LAST],
                          const Rows<T>& a, const Pair<T>* extra) {
    constexpr int N = B::N, WIDTH = OUT == REAL_OUT ? 1 : 2;
    const int lane = B::template lane<COLUMNS>();
    const T scale = a.scale, sign = a.flags & CONJUGATE ? -scale : scale;
    const bool reverse = OUT == COMPLEX_OUT && a.flags & INVERSE;
    // With several steps only the first number of the first row is not moved.
    const bool stays = !(a.flags & LAST_OF_THREE && to.m > 0) && !(a.flags & LAST_STEP && to.i > 0);
    T* zeroth = reverse && !stays ? row + POINTS * step : row;
    T* first = (reverse ? row + POINTS * step : row) + (reverse ? -lane : lane) * step;
    const i64 next = N / LAST * (reverse ? -step : step), across = B::LANES * (reverse ? -step : step);
    if (!to.on) return;
#pragma unroll
    for (int k = 0; k < B::template per_lane<LAST>; ++k, first += across) {
        const int b = lane + k * B::LANES;
        if (!in_row<B, LAST>(b, k)) continue;
        T* p = first;
#pragma unroll
        for (int r = 0; r < LAST; ++r, p += next) {
            const int i = b + r * (N / LAST);
            if (CHIRP && i >= POINTS) continue;
            cx<T> y = z[k][r];
            if constexpr (CHIRP) y = product(swapped(y), value(extra[i]));
            if constexpr (OUT == STEP_OUT) {
                const u32 turn = static_cast<u32>(to.i) * static_cast<u32>(i);
                y = product(y, product(value(extra[turn >> EXTRA]), value(extra[(1 << EXTRA) + turn % (1 << EXTRA)])));
            }
            if constexpr (OUT == REAL_OUT) {
                *p = y.im * scale;
            } else if constexpr (OUT == PACKED_OUT) {
                // The transform was of swapped numbers: the even element of the pair is the imaginary part.
                if (a.flags & ALIGNED) store_pair(p, y.im * scale, y.re * scale);
                else p[0] = y.im * scale, p[step / 2] = y.re * scale;
            } else if constexpr (OUT == HALF_ODD_OUT) {
                if (2 * i <= POINTS) store_pair(p, y.re * scale, y.im * sign);
                if (a.flags & MIRROR && i > 0 && 2 * i < POINTS)
                    store_pair(row + (POINTS - i) * step, y.re * scale, y.im * -sign);
            } else {
                store_pair(k == 0 && r == 0 && lane == 0 ? zeroth : p, y.re * scale, y.im * scale);
            }
        }
    }
}

// The last step of a long real row: row r of `inner` = a has the numbers r + k * a of N = a * B::N, half of the rows of
// a block are the partners a - r of the others, so that it separates numbers r + k * a and N - r - k * a.
template <class B, class T> PGK_FN Row<T> end_row_of(const Rows<T>& a) {
    constexpr int PAIRS = B::ROWS / 2;
    const i64 groups = (a.inner / 2 + PAIRS) / PAIRS, g = quotient(blockIdx.x, groups);
    const int row = B::template row<B::IN_COLUMNS>();
    const i64 wanted = (blockIdx.x - g * groups) * PAIRS + row % PAIRS;
    const i64 r = wanted <= a.inner / 2 ? wanted : a.inner / 2;
    const i64 o = quotient(g, a.middle), m = g - o * a.middle, i = row < PAIRS || r == 0 ? r : a.inner - r;
    return {o * a.x[0] + m * a.x[1] + i * a.x[2], o * a.out[0] + m * a.out[1], m, i, true};
}
template <class B, int POINTS, int EXTRA, int LAST, class T>
PGK_FN void write_ends(T* out, cx<T> (&z)[B::template per_lane<LAST>][LAST], const Rows<T>& a, const Pair<T>* extra) {
    constexpr int PAIRS = B::ROWS / 2, LANES = B::THREADS / PAIRS, EACH = (B::N + LANES - 1) / LANES;
    const i64 groups = (a.inner / 2 + PAIRS) / PAIRS, g = quotient(blockIdx.x, groups);
    const int pair = threadIdx.x % PAIRS, lane = threadIdx.x / PAIRS;
    const i64 f = (blockIdx.x - g * groups) * PAIRS + pair, o = quotient(g, a.middle), m = g - o * a.middle;
    const bool alone = f == 0 || 2 * f == a.inner;
    cx<T> y[EACH][2];
    const auto places = [&](auto get) {
#pragma unroll
        for (int k = 0; k < EACH; ++k) {
            const int i = lane + k * LANES;
            if ((k + 1) * LANES > B::N && i >= B::N) continue;
            get(B::at(i), B::at(f > 0 ? B::N - 1 - i : i == 0 ? 0 : B::N - i), y[k]);
        }
    };
    const int from = B::template row<B::OUT_COLUMNS>();
    const auto put = [&](auto f) { at_inputs<B, LAST, B::OUT_COLUMNS>(z, f); };
    __syncthreads();
    if constexpr (B::SPLIT) {
        T* s = B::template shared<T>(from);
        const T *p = B::template shared<T>(pair), *q = B::template shared<T>(PAIRS + pair);
        put([=](int i, const cx<T>& v) { s[i] = v.re; });
        __syncthreads();
        places([=](int i, int j, cx<T>* v) { v[0].re = p[i], v[1].re = q[j]; });
        __syncthreads();
        put([=](int i, const cx<T>& v) { s[i] = v.im; });
        __syncthreads();
        places([=](int i, int j, cx<T>* v) { v[0].im = p[i], v[1].im = q[j]; });
    } else {
        Pair<T>* s = B::template shared<Pair<T>>(from);
        const Pair<T> *p = B::template shared<Pair<T>>(pair), *q = B::template shared<Pair<T>>(PAIRS + pair);
        put([=](int i, const cx<T>& v) { s[i] = {v.re, v.im}; });
        __syncthreads();
        places([=](int i, int j, cx<T>* v) { v[0] = value(p[i]), v[1] = value(q[j]); });
    }
    if (2 * f > a.inner) return;
    const i64 step = 2 * a.out[2], half_points = a.inner * B::N;
    T* row = out + 2 * (o * a.out[0] + m * a.out[1]);
    const T half = T(0.5) * a.scale, sign = a.flags & CONJUGATE ? T(-1) : T(1);
    const auto store = [&](i64 k, T re, T im) {
        store_pair(row + k * step, re, im);
        if (a.flags & MIRROR && k > 0 && k < half_points) store_pair(row + (2 * half_points - k) * step, re, -im);
    };
#pragma unroll
    for (int n = 0; n < EACH; ++n) {
        const int i = lane + n * LANES;
        if ((n + 1) * LANES > B::N && i >= B::N) break;
        const u32 k = static_cast<u32>(f) + static_cast<u32>(i) * static_cast<u32>(a.inner);
        const cx<T> w = product(value(extra[k >> EXTRA]), value(extra[(1 << EXTRA) + k % (1 << EXTRA)]));
        const cx<T> p = y[n][0], q = y[n][1];
        const cx<T> even = {half * (p.re + q.re), half * (p.im - q.im)};
        const cx<T> odd = product(cx<T>{half * (p.im + q.im), half * (q.re - p.re)}, w);
        store(k, even.re + odd.re, sign * (even.im + odd.im));
        // Rows that are their own partners have every number twice.
        if (!alone || k == 0) store(half_points - k, even.re - odd.re, sign * (odd.im - even.im));
    }
}

// A row as the transform sees it: POINTS elements of kind IN in, of kind OUT out. table: roots of the passes; extra:
// roots that separate or join real rows, or those between the steps of a long transform, or chirp and its spectrum.
template <class B, int POINTS, int IN, int OUT, bool CHIRP, int EXTRA, class Passes, class T>
PGK_FN void transform(T* out, const T* x, const T* window, const Rows<T>& a, const Pair<T>* table,
                      const Pair<T>* extra) {
    await_predecessor();
    constexpr int N = B::N, FIRST = Passes::first, LAST = Passes::last();
    constexpr bool IN_COLUMNS = B::IN_COLUMNS, joined = IN == HERMITIAN_IN;
    constexpr bool OUT_COLUMNS = Passes::single && !CHIRP && !joined ? IN_COLUMNS : B::OUT_COLUMNS;
    constexpr int IN_WIDTH = IN == PACKED_IN || IN == REAL_IN ? 1 : 2, OUT_WIDTH = OUT == REAL_OUT ? 1 : 2;
    Row<T> from;
    if constexpr (OUT == ENDS_OUT) from = end_row_of<B>(a);
    else from = row_of<B, IN_COLUMNS>(a);
    const T* row = x + IN_WIDTH * from.x;
    const Reader<T, POINTS, IN> in = {row, window, a.x[3], a.given - 1, a.flags & CONJUGATE ? T(-1) : T(1), a.flags};

    cx<T> v[B::template per_lane<FIRST>][FIRST];
    if constexpr (joined) {
        read_joined<B, FIRST>(v, in, extra);
    } else if (!CHIRP && (IN == COMPLEX_IN || IN == PACKED_IN) && a.flags & PLAIN) {
        read_numbers<B, FIRST, IN_COLUMNS>(v, row, IN == PACKED_IN ? 2 : 2 * a.x[3]);
    } else {
        const int lane = B::template lane<IN_COLUMNS>();
#pragma unroll
        for (int k = 0; k < B::template per_lane<FIRST>; ++k) {
            const int b = lane + k * B::LANES;
            if (!in_row<B, FIRST>(b, k)) continue;
#pragma unroll
            for (int r = 0; r < FIRST; ++r) {
                const int i = b + r * (N / FIRST);
                v[k][r] = {T(0), T(0)};
                if (CHIRP && i >= POINTS) continue;
                v[k][r] = in.at(i);
                if constexpr (CHIRP) v[k][r] = product(v[k][r], value(extra[i]));
            }
        }
    }

    const auto sink = [&](cx<T> (&z)[B::template per_lane<LAST>][LAST]) {
        if constexpr (OUT == ENDS_OUT) return write_ends<B, POINTS, EXTRA, LAST>(out, z, a, extra);
        const Row<T> to = OUT_COLUMNS == IN_COLUMNS ? from : row_of<B, OUT_COLUMNS>(a);
        constexpr int STEP = OUT == PACKED_OUT ? 2 : OUT_WIDTH;
        T* target = out + (OUT == PACKED_OUT ? 1 : OUT_WIDTH) * to.out;
        if constexpr (OUT == HALF_OUT) {
            write_halves<B, LAST, OUT_COLUMNS>(target, 2 * a.out[3], to.on, !Passes::single, z, a, extra);
        } else {
            write_numbers<B, POINTS, OUT, CHIRP, EXTRA, LAST, OUT_COLUMNS>(target, STEP * a.out[3], to, z, a, extra);
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
                for (int r = 0; r < LAST; ++r) z[k][r] = swapped(product(z[k][r], value(filter[b + r * (N / LAST)])));
            }
            exchange<B, BETWEEN, B::OUT_COLUMNS>(
                !Passes::single, [&](auto put) { at_inputs<B, LAST, BETWEEN>(z, put); },
                [&](auto get) { at_inputs<B, FIRST, B::OUT_COLUMNS>(v, get); });
            Passes::template run<B, true, B::OUT_COLUMNS>(table, v, sink);
        });
    } else {
        Passes::template run<B, joined, joined ? B::OUT_COLUMNS : IN_COLUMNS>(table, v, sink);
    }
}

}  // namespace pgk

// BLOCK: Block<...>; the rest as `transform` has it. Tables are arrays of words: pairs of T.
#define PGK_FFT(entry, T, BLOCK, POINTS, IN, OUT, CHIRP, EXTRA, PASSES) \
    extern "C" __global__ void __launch_bounds__(BLOCK::THREADS, CHIRP ? BLOCK::FEWER_BLOCKS : BLOCK::BLOCKS) entry( \
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
