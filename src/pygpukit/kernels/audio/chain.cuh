// Effects of a real-time chain over one block of samples, by a group of threads.
//
// x: [C][B] float32 samples, changed in place. A group G has `lane`, `width` and `sync()`, which all its threads call; every
// function begins and ends with the group in step. Values: numbers that move linearly over the block (`Ramp`), of an effect
// from `first` on. wide (float64) and narrow (float32): what an effect keeps from block to block, zeros at first. tables:
// float32 constants. scratch: float32 of any content. Layouts are those of `Plan` in audio/chain/effects.py.
// Sequences that depend on the sample before are run by one thread per channel, the rest by all.
// Numerics: levels and filters in float64, transforms in float32. Every sum and product is rounded as written, so that the
// ring kernel and the kernel over whole arrays give the same bits. Determinism: batch_invariant.
// This text is pasted into both programs, inside a namespace: it includes nothing.
#pragma once

namespace chain {

using i64 = long long;

__device__ __forceinline__ double add(double a, double b) { return __dadd_rn(a, b); }
__device__ __forceinline__ double mul(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ double sub(double a, double b) { return __dsub_rn(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return a > b ? a : b; }

__device__ __forceinline__ double decibels(double x) { return mul(20.0, log10(larger(fabs(x), 1e-10))); }
__device__ __forceinline__ double gain(double db) { return exp10(mul(db, 0.05)); }

// Numbers at the ends of two blocks; sample i of B has (i + 1) / B of the way behind it.
struct Ramp {
    const double* from;
    const double* to;
    double block;
    __device__ __forceinline__ double at(int k, int i) const {
        const double a = from[k], b = to[k];
        return a == b ? a : add(a, mul(sub(b, a), __ddiv_rn(i + 1, block)));
    }
    __device__ __forceinline__ bool moves(int k) const { return from[k] != to[k]; }
    // One of the numbers, held in a register while it does not move.
    struct Value {
        const Ramp& ramp;
        int k;
        bool moves;
        double fixed;
        __device__ __forceinline__ double at(int i) const { return moves ? ramp.at(k, i) : fixed; }
    };
    __device__ __forceinline__ Value value(int k) const { return {*this, k, moves(k), from[k]}; }
    __device__ __forceinline__ Ramp after(int k) const { return {from + k, to + k, block}; }
};

__device__ __forceinline__ double followed(double s, double v, double rise, double fall) {
    return add(s, mul(sub(1.0, v > s ? rise : fall), sub(v, s)));
}

// Sections of second order, transposed direct form II.
template <int C, int B, int S, class G>
__device__ __forceinline__ void highpass(const G& g, float* x, Ramp p, double* wide) {
    for (int c = g.lane; c < C; c += g.width) {
        double* kept = wide + c * 2 * S;
        double s[S], t[S], k[S][5];
        bool moves = false;
#pragma unroll
        for (int j = 0; j < S; ++j) {
            s[j] = kept[2 * j];
            t[j] = kept[2 * j + 1];
#pragma unroll
            for (int m = 0; m < 5; ++m) {
                k[j][m] = p.at(5 * j + m, 0);
                moves |= p.moves(5 * j + m);
            }
        }
        for (int i = 0; i < B; ++i) {
            double v = x[c * B + i];
#pragma unroll
            for (int j = 0; j < S; ++j) {
                if (moves) {
#pragma unroll
                    for (int m = 0; m < 5; ++m) k[j][m] = p.at(5 * j + m, i);
                }
                const double y = add(mul(k[j][0], v), s[j]);
                s[j] = add(sub(mul(k[j][1], v), mul(k[j][3], y)), t[j]);
                t[j] = sub(mul(k[j][2], v), mul(k[j][4], y));
                v = y;
            }
            x[c * B + i] = (float)v;
        }
#pragma unroll
        for (int j = 0; j < S; ++j) {
            kept[2 * j] = s[j];
            kept[2 * j + 1] = t[j];
        }
    }
    g.sync();
}

// values: threshold as an amplitude, decibels when closed, attack, release, the meter's release.
template <int C, int B, class G>
__device__ __forceinline__ void gate(const G& g, float* x, Ramp p, double* wide, float* scratch) {
    double* opened = (double*)scratch;
    for (int c = g.lane; c < C; c += g.width) {
        const Ramp::Value threshold = p.value(0), attack = p.value(2), release = p.value(3), meter = p.value(4);
        double level = wide[2 * c], open = wide[2 * c + 1];
        for (int i = 0; i < B; ++i) {
            level = followed(level, fabs((double)x[c * B + i]), 0.0, meter.at(i));
            open = followed(open, level >= threshold.at(i) ? 1.0 : 0.0, attack.at(i), release.at(i));
            opened[c * B + i] = open;
        }
        wide[2 * c] = level;
        wide[2 * c + 1] = open;
    }
    g.sync();
    for (int t = g.lane; t < C * B; t += g.width) {
        x[t] = (float)mul(x[t], gain(mul(sub(1.0, opened[t]), p.at(1, t % B))));
    }
    g.sync();
}

// values: threshold, slope, knee, makeup, attack, release.
template <int C, int B, class G>
__device__ __forceinline__ void compressor(const G& g, float* x, Ramp p, double* wide, float* scratch) {
    double* down = (double*)scratch;
    for (int t = g.lane; t < C * B; t += g.width) {
        const int i = t % B;
        const double over = sub(decibels(x[t]), p.at(0, i)), knee = p.at(2, i);
        double d = larger(over, 0.0);
        if (knee > 0.0 && mul(over, 2.0) < knee) {
            const double bent = larger(add(over, mul(0.5, knee)), 0.0);
            d = __ddiv_rn(mul(bent, bent), mul(2.0, knee));
        }
        down[t] = mul(d, p.at(1, i));
    }
    g.sync();
    for (int c = g.lane; c < C; c += g.width) {
        const Ramp::Value attack = p.value(4), release = p.value(5);
        double s = wide[c];
        for (int i = 0; i < B; ++i) {
            s = followed(s, down[c * B + i], attack.at(i), release.at(i));
            down[c * B + i] = s;
        }
        wide[c] = s;
    }
    g.sync();
    for (int t = g.lane; t < C * B; t += g.width) x[t] = (float)mul(x[t], gain(sub(p.at(3, t % B), down[t])));
    g.sync();
}

// values: ceiling, release. D: samples of look-ahead. Rings of D + B samples begin at the block that was first.
template <int C, int B, int D, class G>
__device__ __forceinline__ void limiter(const G& g, float* x, Ramp p, i64 position, double* wide, float* narrow,
                                        float* scratch) {
    constexpr int R = D + B;
    double *needs = wide, *held = wide + C * R, *level = wide + 2 * C * R, *most = (double*)scratch;
    const int at = (int)(position % R);
    for (int t = g.lane; t < C * B; t += g.width) {
        const int c = t / B, i = t % B, to = c * R + (at + i) % R;
        needs[to] = larger(sub(decibels(x[t]), p.at(0, i)), 0.0);
        narrow[to] = x[t];
    }
    g.sync();
    for (int t = g.lane; t < C * B; t += g.width) {
        const int c = t / B;
        int from = (at + t % B + B) % R;
        double m = 0.0;
        for (int j = 0; j <= D; ++j) {
            m = larger(m, needs[c * R + from]);
            from = from + 1 == R ? 0 : from + 1;
        }
        most[t] = m;
    }
    g.sync();
    for (int c = g.lane; c < C; c += g.width) {
        const Ramp::Value release = p.value(1);
        double s = level[c];
        for (int i = 0; i < B; ++i) {
            s = followed(s, most[c * B + i], 0.0, release.at(i));
            held[c * R + (at + i) % R] = s;
        }
        level[c] = s;
    }
    g.sync();
    for (int t = g.lane; t < C * B; t += g.width) {
        const int c = t / B, i = t % B, first = (at + i + B) % R;
        int from = first;
        double sum = 0.0;
        for (int j = 0; j <= D; ++j) {
            sum = add(sum, held[c * R + from]);
            from = from + 1 == R ? 0 : from + 1;
        }
        const double top = gain(p.at(0, i)), y = mul(narrow[c * R + first], gain(-__ddiv_rn(sum, D + 1)));
        x[t] = (float)(y > top ? top : y < -top ? -top : y);
    }
    g.sync();
}

__device__ __forceinline__ float2 product(float2 a, float2 b) {
    return {__fmaf_rn(a.x, b.x, -__fmul_rn(a.y, b.y)), __fmaf_rn(a.x, b.y, __fmul_rn(a.y, b.x))};
}

// Fourier transforms of `rows` rows of N numbers from `a`, by Stockham's method with radix 2; returns where they are, `a` or
// `b`. BACK: the inverse, without the factor 1 / N. roots: exp(-2 pi i k / N) for k below N / 2.
template <int N, bool BACK, class G>
__device__ __forceinline__ float2* transform(const G& g, float2* a, float2* b, int rows, const float2* roots) {
    for (int l = 1; l < N; l *= 2) {
        for (int t = g.lane; t < rows * (N / 2); t += g.width) {
            const int row = t / (N / 2) * N, j = t % (N / 2), k = j % l;
            float2 w = roots[k * (N / 2 / l)];
            if (BACK) w.y = -w.y;
            const float2 u = a[row + j], v = product(a[row + j + N / 2], w);
            float2* to = b + row + (j - k) * 2 + k;
            to[0] = {__fadd_rn(u.x, v.x), __fadd_rn(u.y, v.y)};
            to[l] = {__fsub_rn(u.x, v.x), __fsub_rn(u.y, v.y)};
        }
        g.sync();
        float2* other = a;
        a = b;
        b = other;
    }
    return a;
}

// values: wet, dry. M: length of transforms; P parts of the response, of H channels (1 or C), whose spectra are behind the
// roots; threads add up RUNS runs of them. narrow: the last M samples, then the spectra of the last P blocks. Spectra have
// M / 2 pairs: the first is the real numbers of frequency 0 and of the highest one.
template <int C, int B, int M, int P, int H, int RUNS, class G>
__device__ __forceinline__ void convolve(const G& g, float* x, Ramp p, i64 position, float* narrow, const float* tables,
                                         float* scratch) {
    constexpr int K = M / 2, L = (P + RUNS - 1) / RUNS;
    const float2 *roots = (const float2*)tables, *response = roots + K;
    float2 *lines = (float2*)(narrow + C * M), *a = (float2*)scratch, *b = a + C * M;
    const int newest = (int)(position / B % P);
    for (int t = g.lane; t < C * B; t += g.width) {
        narrow[t / B * M + (int)((position + t % B) % M)] = x[t];
    }
    g.sync();
    for (int t = g.lane; t < C * M; t += g.width) {
        a[t] = {narrow[t / M * M + (int)((position + B + t % M) % M)], 0.0f};
    }
    g.sync();
    const float2* z = transform<M, false>(g, a, b, C, roots);
    for (int t = g.lane; t < C * K; t += g.width) {
        const int at = t / K * M, k = t % K;
        const float2 v = z[at + k];
        lines[newest * (C * K) + t] = k == 0 ? float2{v.x, z[at + K].x} : v;
    }
    g.sync();
    // Runs of parts, each in order.
    float2* sums = a + C * M;
    for (int t = g.lane; t < RUNS * C * K; t += g.width) {
        const int run = t / (C * K), bin = t % (C * K), h = H == 1 ? bin % K : bin;
        const bool real = bin % K == 0;
        float2 sum = {0.0f, 0.0f};
        const int last = (run + 1) * L < P ? (run + 1) * L : P;
        int slot = newest - run * L;
        if (slot < 0) slot += P;
#pragma unroll 8
        for (int part = run * L; part < last; ++part) {
            const float2 u = response[part * (H * K) + h], v = lines[slot * (C * K) + bin];
            const float across = real ? 0.0f : v.y, along = real ? v.y : v.x;
            sum.x = __fmaf_rn(u.x, v.x, __fmaf_rn(-u.y, across, sum.x));
            sum.y = __fmaf_rn(u.x, across, __fmaf_rn(u.y, along, sum.y));
            slot = slot == 0 ? P - 1 : slot - 1;
        }
        sums[t] = sum;
    }
    g.sync();
    for (int t = g.lane; t < C * K; t += g.width) {
        float2 sum = sums[t];
        for (int run = 1; run < RUNS; ++run) {
            const float2 v = sums[run * (C * K) + t];
            sum = {__fadd_rn(sum.x, v.x), __fadd_rn(sum.y, v.y)};
        }
        float2* to = a + t / K * M;
        const int k = t % K;
        to[k] = k == 0 ? float2{sum.x, 0.0f} : sum;
        to[k == 0 ? K : M - k] = k == 0 ? float2{sum.y, 0.0f} : float2{sum.x, -sum.y};
    }
    g.sync();
    const float2* y = transform<M, true>(g, a, b, C, roots);
    for (int t = g.lane; t < C * B; t += g.width) {
        const double made = mul(y[t / B * M + M - B + t % B].x, 1.0 / M);
        x[t] = (float)add(mul(p.at(1, t % B), x[t]), mul(p.at(0, t % B), made));
    }
    g.sync();
}

// Frames of N samples, HOP apart, each ending at a multiple of HOP: windowed, changed, back and added up. GATES: values are
// threshold as a magnitude, decibels when closed, attack and release from frame to frame, and wide is how far each bin is
// open. tables: roots, window, its squares added up over frames, a factor for each bin. narrow: the last R samples, and sums.
template <int C, int B, int N, int HOP, int R, bool GATES, class G>
__device__ __forceinline__ void spectral(const G& g, float* x, Ramp p, i64 position, double* wide, float* narrow,
                                         const float* tables, float* scratch) {
    constexpr int K = N / 2 + 1;
    const float2* roots = (const float2*)tables;
    const float *window = tables + N, *squares = window + N, *curve = squares + HOP;
    float *last = narrow, *sums = narrow + C * R;
    float2 *a = (float2*)scratch, *b = a + C * N;
    for (int t = g.lane; t < C * B; t += g.width) last[t / B * R + (int)((position + t % B) & (R - 1))] = x[t];
    g.sync();
    for (i64 end = (position / HOP + 1) * HOP; end <= position + B; end += HOP) {
        const i64 start = end - N;
        for (int t = g.lane; t < C * N; t += g.width) {
            a[t] = {__fmul_rn(window[t % N], last[t / N * R + (int)((start + t % N) & (R - 1))]), 0.0f};
        }
        g.sync();
        float2 *z = transform<N, false>(g, a, b, C, roots), *other = z == a ? b : a;
        for (int t = g.lane; t < C * K; t += g.width) {
            const int c = t / K, k = t % K;
            float2 v = z[c * N + k];
            float factor = curve[k];
            if (GATES) {
                const int i = (int)(end - position) - 1;
                const double size = sqrt(add(mul(v.x, v.x), mul(v.y, v.y)));
                const double open = followed(wide[t], size >= p.at(0, i) ? 1.0 : 0.0, p.at(2, i), p.at(3, i));
                wide[t] = open;
                factor = (float)gain(mul(sub(1.0, open), p.at(1, i)));
            }
            v = {__fmul_rn(v.x, factor), __fmul_rn(v.y, factor)};
            other[c * N + k] = v;
            if (k > 0 && k < N / 2) other[c * N + N - k] = {v.x, -v.y};
        }
        g.sync();
        const float2* y = transform<N, true>(g, other, z, C, roots);
        for (int t = g.lane; t < C * N; t += g.width) {
            const i64 s = start + t % N;
            const float made = __fmul_rn(window[t % N], __fmul_rn(y[t].x, 1.0f / N));
            float* to = sums + t / N * R + (int)(s & (R - 1));
            if (s >= 0) *to = __fadd_rn(*to, made);
        }
        g.sync();
    }
    for (int t = g.lane; t < C * B; t += g.width) {
        const i64 s = position + t % B - (N - 1);
        float* from = sums + t / B * R + (int)(s & (R - 1));
        x[t] = s >= 0 ? __fdiv_rn(*from, squares[s % HOP]) : 0.0f;
        if (s >= 0) *from = 0.0f;
    }
    g.sync();
}

// Samples that are not finite become 0, and are counted; no magnitude is over 1e6, so that no level overflows.
template <int C, int B, class G> __device__ __forceinline__ void admit(const G& g, float* x, double* count) {
    for (int t = g.lane; t < C * B; t += g.width) {
        const float v = x[t];
        const bool finite = fabsf(v) < __int_as_float(0x7f800000);
        // A count is exact in any order.
        if (!finite) atomicAdd(count + t / B, 1.0);
        x[t] = !finite ? 0.0f : v > 1e6f ? 1e6f : v < -1e6f ? -1e6f : v;
    }
    g.sync();
}

}  // namespace chain
