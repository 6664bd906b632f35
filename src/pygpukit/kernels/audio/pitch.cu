// Probabilistic YIN: what each frame says about its pitch, and the likeliest path through pitches with voice and without.
//
// candidates: logs[r, i] = log(p + tiny) of pitch i, and voiced[r] = the sum of p, clipped to 1. frames, shifts: contiguous
// [rows, periods]; edges: [thresholds + 1] ascending; weights: [thresholds]. A block per row, a thread per threshold (the
// block's size, whole warps). A trough counts under each threshold above it, an earlier one more: a block finds the troughs,
// each thread goes through them in order, and sums over thresholds are made by halves in warps, then warp by warp.
// Shared memory: 16 + (periods / 2 + 1) * (8 + 8 * warps) bytes.
//
// path: states[s, t] of the likeliest path (Viterbi). logs: [items, frames, bins]; voiced: [items, frames]; steps: [reach]
// logarithms of moving by r - half + q pitches; leave: [bins] logarithms of their sums; turns: the logarithms of keeping and
// of changing the voicing. back: workspace [items, frames, 2, bins]. A block per item, a thread for two neighbouring
// pitches. Of equal routes the one from the lowest state counts. Shared memory: ((bins + reach + 2) * 4 + reach) doubles.
//
// Numerics: float64 from the heights of troughs on. Determinism: batch_invariant; a row, and an item, by itself.
#include "pygpukit/elementwise.cuh"

namespace pgk {

constexpr f64 LEAST = 2.2250738585072014e-308;

template <class T>
PGK_FN void candidates(f64* logs, f64* voiced, const T* frames, const T* shifts, const f64* edges, const f64* weights,
                       i64 periods, i64 bins, i64 thresholds, i64 low, f64 sr, f64 fmin, f64 scale, f64 boltzmann,
                       f64 no_trough) {
    extern __shared__ double raw[];
    const int warps = blockDim.x / 32, most = (int)(periods / 2 + 1), tid = threadIdx.x, lane = tid % 32;
    int* count = reinterpret_cast<int*>(raw);
    f64* parts = raw + 2;
    int* places = reinterpret_cast<int*>(parts + (i64)most * warps);
    int* first = places + most;
    await_predecessor();
    const i64 row = blockIdx.x;
    const T* frame = frames + row * periods;
    f64* log_row = logs + row * bins;
    for (i64 i = tid; i < bins; i += blockDim.x) log_row[i] = 0.0;
    if (tid == 0) {
        int found = 0;
        T before = frame[0], here = frame[0];
        for (i64 i = 0; i < periods; ++i) {
            const bool inner = i + 1 < periods;
            const T after = inner ? frame[i + 1] : here;
            const bool falls = i == 0 ? true : here < before;
            const bool rises = i == 0 ? here < after : inner ? here <= after : true;
            if (falls && rises && found < most) places[found++] = (int)i;
            before = here;
            here = after;
        }
        *count = found;
    }
    __syncthreads();
    const int troughs = *count;
    // The first threshold that a trough is under; it is under all later ones.
    for (int i = tid; i < troughs; i += blockDim.x) {
        const f64 height = (f64)frame[places[i]];
        int j = 0;
        while (j < thresholds && !(height < edges[j + 1])) ++j;
        first[i] = j;
    }
    __syncthreads();
    const bool mine = tid < thresholds;
    int under = 0;
    for (int i = 0; i < troughs; ++i) under += mine && first[i] <= tid;
    const f64 part = mine && under > 0 ? weights[tid] * (1.0 - exp(-boltzmann)) / (1.0 - exp(-boltzmann * under)) : 0.0;
    int position = 0;
    for (int i = 0; i < troughs; ++i) {
        f64 sum = 0.0;
        if (mine && first[i] <= tid) sum = part * exp(-boltzmann * position++);
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
        if (lane == 0) parts[(i64)i * warps + tid / 32] = sum;
    }
    __syncthreads();
    if (tid == 0) {
        int lowest = 0;
        for (int i = 1; i < troughs; ++i)
            if (frame[places[i]] < frame[places[lowest]]) lowest = i;
        for (int i = 0; i < troughs; ++i) {
            f64 p = 0.0;
            for (int w = 0; w < warps; ++w) p += parts[(i64)i * warps + w];
            if (i == lowest) {
                f64 rest = 0.0;
                for (int j = 0; j < first[i]; ++j) rest += weights[j];
                p += no_trough * rest;
            }
            if (p == 0.0) continue;
            const f64 period = (f64)(low + places[i]) + (f64)shifts[row * periods + places[i]];
            const f64 place = rint(scale * log2(sr / period / fmin));
            // Of two troughs of one pitch the later one counts.
            const i64 bin = place < 0.0 ? 0 : place > (f64)bins ? bins : (i64)place;
            if (bin < bins) log_row[bin] = p;
        }
    }
    __syncthreads();
    f64 sum = 0.0;
    for (i64 i = tid; i < bins; i += blockDim.x) {
        sum += log_row[i];
        log_row[i] = log(log_row[i] + LEAST);
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, apart);
    __syncthreads();
    if (lane == 0) parts[tid / 32] = sum;
    __syncthreads();
    if (tid == 0) {
        f64 total = 0.0;
        for (int w = 0; w < warps; ++w) total += parts[w];
        voiced[row] = total < 1.0 ? total : 1.0;
    }
}

struct Best {
    f64 value;
    int state;
};

PGK_FN Best better(Best a, Best b) {
    return b.value > a.value || (b.value == a.value && b.state < a.state) ? b : a;
}

PGK_FN void path(i64* states, int* back, const f64* logs, const f64* voiced, const f64* steps, const f64* leave,
                 i64 frames, i64 bins_, i64 reach_, i64 q, f64 keep, f64 change) {
    extern __shared__ double raw[];
    __shared__ Best tops[2][32];
    const int bins = (int)bins_, reach = (int)reach_, half = reach / 2, width = bins + reach + 2, tid = threadIdx.x;
    // Twice, for the step before and this one: values less what leaving costs, of both voicings, with borders.
    f64* around = raw;
    f64* moves = raw + 4 * width;
    const f64 none = -__longlong_as_double(0x7ff0000000000000ll), far = log(LEAST);
    for (int i = tid; i < 4 * width; i += blockDim.x) around[i] = none;
    await_predecessor();
    for (int i = tid; i < reach; i += blockDim.x) moves[i] = steps[i];
    const i64 item = blockIdx.x;
    logs += item * frames * bins;
    voiced += item * frames;
    back += item * frames * 2 * bins;
    states += item * frames;
    __syncthreads();
    const int i0 = 2 * tid, warps = blockDim.x / 32;
    f64 value[2][2];
    for (i64 t = 0; t < frames; ++t) {
        const f64* old = around + (t % 2) * 2 * width;
        f64* next = around + ((t + 1) % 2) * 2 * width;
        const f64 p = voiced[t], silent = log((1.0 - p) / bins + LEAST);
        const f64 loud[2] = {i0 < bins ? logs[t * bins + i0] : none, i0 + 1 < bins ? logs[t * bins + i0 + 1] : none};
        if (t == 0) {
            const f64 start = log(1.0 / (2.0 * bins) + LEAST);
            for (int c = 0; c < 2; ++c) {
                value[0][c] = loud[c] + start;
                value[1][c] = silent + start;
            }
        } else if (i0 < bins) {
            Best top = tops[t % 2][0];
            for (int w = 1; w < warps; ++w) top = better(top, tops[t % 2][w]);
            f64 near[2][2];
            int source[2][2];
            for (int v = 0; v < 2; ++v) {
                const f64* x = old + v * width + i0 + q;
                f64 best0 = none, best1 = none, before = 0.0;
                int at0 = half - q, at1 = half - q;
                for (int r = 0; r <= reach; ++r) {
                    const f64 from = x[r];
                    if (r < reach) {
                        const f64 move = moves[r], route = from + move;
                        if (route > best0) best0 = route, at0 = r;
                        if (r > 0 && from + before > best1) best1 = from + before, at1 = r - 1;
                        before = move;
                    } else if (from + before > best1) {
                        best1 = from + before, at1 = r - 1;
                    }
                }
                near[v][0] = best0, near[v][1] = best1;
                source[v][0] = i0 + at0 - half + (int)q + v * bins;
                source[v][1] = i0 + 1 + at1 - half + (int)q + v * bins;
            }
            for (int to = 0; to < 2; ++to) {
                for (int c = 0; c < 2; ++c) {
                    const f64 of_voice = near[0][c] + (to == 0 ? keep : change);
                    const f64 of_silence = near[1][c] + (to == 0 ? change : keep);
                    const bool other = of_silence > of_voice;
                    const f64 reached = other ? of_silence : of_voice, jump = top.value + far;
                    const bool jumps = jump > reached;
                    if (i0 + c < bins) back[(t * 2 + to) * bins + i0 + c] = jumps ? top.state : source[other][c];
                    value[to][c] = (jumps ? jump : reached) + (to == 0 ? loud[c] : silent);
                }
            }
        }
        Best mine = {none, 2 * bins};
        for (int v = 0; v < 2; ++v) {
            for (int c = 0; c < 2; ++c) {
                if (i0 + c >= bins) continue;
                next[v * width + half + i0 + c] = value[v][c] - leave[i0 + c];
                mine = better(mine, Best{value[v][c], v * bins + i0 + c});
            }
        }
#pragma unroll
        for (int apart = 16; apart > 0; apart /= 2) {
            const Best other = {__shfl_xor_sync(0xffffffffu, mine.value, apart),
                                __shfl_xor_sync(0xffffffffu, mine.state, apart)};
            mine = better(mine, other);
        }
        if (tid % 32 == 0) tops[(t + 1) % 2][tid / 32] = mine;
        __syncthreads();
    }
    if (tid > 0) return;
    Best top = tops[frames % 2][0];
    for (int w = 1; w < warps; ++w) top = better(top, tops[frames % 2][w]);
    int state = top.state;
    for (i64 t = frames - 1; t > 0; --t) {
        states[t] = state;
        state = back[t * 2 * bins + state];
    }
    states[0] = state;
}

}  // namespace pgk

#define PGK_PITCH_CANDIDATES(entry, T) \
    extern "C" __global__ void __launch_bounds__(1024) entry(double* logs, double* voiced, const pgk::T* frames, \
        const pgk::T* shifts, const double* edges, const double* weights, long long periods, long long bins, \
        long long thresholds, long long low, double sr, double fmin, double scale, double boltzmann, double no_trough) { \
        pgk::candidates<pgk::T>(logs, voiced, frames, shifts, edges, weights, periods, bins, thresholds, low, sr, fmin, scale, \
                                boltzmann, no_trough); \
    }
#define PGK_PITCH_PATH(entry) \
    extern "C" __global__ void __launch_bounds__(1024) entry(long long* states, int* back, const double* logs, \
        const double* voiced, const double* steps, const double* leave, long long frames, long long bins, long long reach, \
        long long q, double keep, double change) { \
        pgk::path(states, back, logs, voiced, steps, leave, frames, bins, reach, q, keep, change); \
    }
