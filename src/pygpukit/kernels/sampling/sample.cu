// One token per row of logits: keys, then digits of the borders of top-k and top-p, then the draw.
//
// z = the logit in float after mask, bias and penalties; d = (z - largest z) / temperature. Tokens are in order by (z
// descending, id ascending), and what is kept is a prefix of that order: of `top_k` tokens, of those with
// d >= ln(min_p), and the shortest whose mass is top_p of theirs. The mass of a token is an integer, 2^39 exp(d) rounded
// down, so a border depends on no order of sums. The token drawn is the one with the largest d + g, g = -ln(-ln(1 - u))
// with u from Philox by (seed, position, token id); temperature <= 0: with the largest z. Of equal ones it is the lowest
// id. NaN counts as -inf, -inf is never drawn; a row without a finite or +inf logit gives -1.
//
// prepare: keys (order-preserving bits of z, 0 behind the vocabulary), the largest per segment, zeros in `bins`.
// narrow: one digit (11, 11, 10 bits) of a border: first the digit before is read off the counts of the launch before.
// draw: the borders, the largest score; the last block of a row writes the token.
//
// keys: [rows, segments * 4096]. largest: [rows, segments]. bins: [rows, stages, 2048]. states: [rows, 8, 4]: before digits
// 0 to 3 of top-k, then of top-p: what is left to count, the digits so far, whether it is on, what the last bin held.
// Parameters of rows are null where they are off. best: [rows, 2], the winner so far and the blocks that are done: zeros,
// left as zeros.
// Launch: grid (segments, rows), 256 threads, 16 tokens each. Shared memory: 33 KiB. Every step of float is rounded by
// itself, so that NumPy's steps have the same bits. Determinism: batch_invariant.
#include "pygpukit/philox.cuh"

namespace pgk::sampling {

constexpr int SEGMENT = 4096, BINS = 2048, STREAM = 0x53414D50;
constexpr u32 LOWEST = 0x007FFFFFu;  // the key of -inf

struct State {
    u64 need, prefix, on, whole;
};

PGK_FN u32 key_of(f32 z) {
    const u32 bits = bit_cast<u32>(z);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
PGK_FN f32 value_of(u32 key) { return bit_cast<f32>(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }

// How far below the largest, in units of the temperature; both may be +inf.
PGK_FN f32 distance(u32 key, u32 top, f32 temperature) {
    return key == top ? 0.0f : rng::div_rn(rng::add_rn(value_of(key), -value_of(top)), temperature);
}

// 2^39 exp(d) for d <= 0, by 2^floor times a polynomial of the fraction.
PGK_FN u64 mass_of(f32 d) {
    const f32 t = mul_rn(d, 1.44269504f);
    if (!(t > -40.0f)) return 0;
    const f32 whole = ::floorf(t), f = rng::add_rn(t, -whole);
    constexpr f32 terms[] = {1.24518392e-3f, 9.67643114e-3f, 5.54852292e-2f, 2.40229208e-1f, 6.93147061e-1f, 1.0f};
    f32 p = 2.16887156e-4f;
#pragma unroll
    for (int i = 0; i < 6; ++i) p = rng::add_rn(mul_rn(p, f), terms[i]);
    return static_cast<u64>(mul_rn(p, 8388608.0f)) << 16 >> static_cast<int>(-whole);
}

#if PGK_ON_DEVICE
struct Row {
    u32 top;
    f32 temperature, least;  // least: ln(min_p)
    bool greedy;
    PGK_FN bool among(u32 key) const { return key > LOWEST && distance(key, top, temperature) >= least; }
    PGK_FN u64 mass(u32 key) const { return mass_of(distance(key, top, temperature)); }
};

PGK_FN Row row_of(const u32* largest, const f32* temperatures, const f32* min_p, i64 row, int segments, u32* shared) {
    u32 top = 0;
    for (int s = threadIdx.x; s < segments; s += 256) {
        const u32 one = largest[row * segments + s];
        top = one > top ? one : top;
    }
    for (int d = 16; d > 0; d /= 2) {
        const u32 other = __shfl_xor_sync(~0u, top, d);
        top = other > top ? other : top;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < 8; ++w) top = shared[w] > top ? shared[w] : top;
    const f32 t = temperatures ? temperatures[row] : 1.0f, p = min_p ? min_p[row] : 0.0f;
    const f32 bounded = p < 0x1p-126f ? 0x1p-126f : p < 1.0f ? p : 1.0f;
    return {top, t, p > 0.0f ? -rng::minus_log(bounded) : -bit_cast<f32>(0x7F800000u), !(t > 0.0f)};
}

// The sum of the threads before this one, and of all. Ends with a barrier.
PGK_FN u64 before(u64 mine, u64* shared, u64& all) {
    u64 sum = mine;
    for (int d = 1; d < 32; d *= 2) {
        const u64 other = __shfl_up_sync(~0u, sum, d);
        if (threadIdx.x % 32 >= d) sum += other;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31) shared[threadIdx.x / 32] = sum;
    __syncthreads();
    all = 0;
    u64 warps = 0;
    for (unsigned w = 0; w < 8; ++w) {
        warps += w < threadIdx.x / 32 ? shared[w] : 0;
        all += shared[w];
    }
    __syncthreads();
    return warps + sum - mine;
}

// The state after a digit: the bin, from the highest, at which `need` is reached. share: top_p, of the first's total.
PGK_FN State advance(State s, const u64* bins, int digit, const f32* share, u64* shared, State* found) {
    if (!s.on) return s;
    const int count = digit == 2 ? 1024 : BINS, each = count / 256;
    const int highest = count - 1 - static_cast<int>(threadIdx.x) * each;
    u64 mine[8], sum = 0, all;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += mine[i] = i < each ? bins[highest - i] : 0;
    u64 above = before(sum, shared, all);
    if (share != nullptr && digit == 0) {
        const f64 wanted = ::ceil(mul_rn(static_cast<f64>(*share), static_cast<f64>(all)));
        s.need = wanted >= 1.0 ? static_cast<u64>(wanted) : 1;
        s.need = s.need > all ? all : s.need;
    }
    if (all == 0 || s.need > all) return {0, 0, 0, 0};
    if (above < s.need && s.need <= above + sum) {
        bool reached = false;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (!reached && above + mine[i] >= s.need) {
                const u64 bin = static_cast<u64>(highest - i);
                *found = {s.need - above, s.prefix << (digit == 2 ? 10 : 11) | bin, 1, mine[i]};
                reached = true;
            }
            above += mine[i];
        }
    }
    __syncthreads();
    s = *found;
    __syncthreads();
    return s;
}

PGK_FN State load_state(const u64* p) { return {p[0], p[1], p[2], p[3]}; }
PGK_FN void store_state(u64* p, const State& s) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p[0] = s.need, p[1] = s.prefix, p[2] = s.on, p[3] = s.whole;
}
#endif

struct Sizes {
    i64 vocabulary, stride, segments, stages, stage, kind, digit, has_top_k;
    i64 bias_stride, counts_stride, prompt_stride, allowed_stride;
};

template <class T>
PGK_FN void prepare(u32* keys, u32* largest, u64* bins, const T* logits, const f32* bias, const i32* allowed,
                    const i32* counts, const u8* prompt, const f32* repetition, const f32* frequency,
                    const f32* presence, const Sizes& z) {
    await_predecessor();
    const i64 row = blockIdx.y, first = static_cast<i64>(blockIdx.x) * SEGMENT, place = row * z.segments;
    u64* zeros = bins + row * z.stages * BINS;
    for (i64 i = blockIdx.x * 256ll + threadIdx.x; i < z.stages * BINS; i += z.segments * 256) zeros[i] = 0;
    const f32 lowest = value_of(LOWEST);
    const f32 again = repetition ? repetition[row] : 1.0f, often = frequency ? frequency[row] : 0.0f;
    const f32 once = presence ? presence[row] : 0.0f;
    u32 top = 0;
#pragma unroll 4
    for (int i = threadIdx.x; i < SEGMENT; i += 256) {
        const i64 id = first + i;
        u32 key = 0;
        if (id < z.vocabulary) {
            f32 x = input<f32>(logits[row * z.stride + id]);
            if (allowed && !(static_cast<u32>(allowed[row * z.allowed_stride + id / 32]) >> (id % 32) & 1u)) x = lowest;
            if (bias) x = rng::add_rn(x, bias[row * z.bias_stride + id]);
            const i32 count = counts ? counts[row * z.counts_stride + id] : 0;
            if (count > 0 || (prompt && prompt[row * z.prompt_stride + id])) {
                x = x > 0.0f ? rng::div_rn(x, again) : mul_rn(x, again);
            }
            if (count > 0) x = rng::add_rn(rng::add_rn(x, -mul_rn(often, static_cast<f32>(count))), -once);
            // Adding zero makes one of the two zeros.
            key = key_of(x == x ? rng::add_rn(x, 0.0f) : lowest);
        }
        keys[place * SEGMENT + id] = key;
        top = key > top ? key : top;
    }
    __shared__ u32 warps[8];
    for (int d = 16; d > 0; d /= 2) {
        const u32 other = __shfl_xor_sync(~0u, top, d);
        top = other > top ? other : top;
    }
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = top;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; ++w) top = warps[w] > top ? warps[w] : top;
        largest[place + blockIdx.x] = top;
    }
}

// Whether a token is in front of the border of top-k, whose tied tokens are counted apart.
PGK_FN bool in_front(u32 key, const State& k) { return !k.on || key > k.prefix; }

PGK_FN void narrow(u64* bins, u64* states, const u32* keys, const u32* largest, const f32* temperature,
                   const i32* top_k, const f32* top_p, const f32* min_p, const Sizes& z) {
    __shared__ u64 shared[8];
    __shared__ u32 tops[8], low[BINS], high[BINS];
    __shared__ uint4 staged[SEGMENT / 4];
    __shared__ State found;
    await_predecessor();
    const i64 row = blockIdx.y;
    const Row r = row_of(largest, temperature, min_p, row, static_cast<int>(z.segments), tops);
    u64* of_row = bins + row * z.stages * BINS;
    u64* state = states + row * 32;
    const bool masses = z.kind == 1;
    const int digit = static_cast<int>(z.digit);
    State s{}, k{};
    if (masses && z.has_top_k) {
        k = digit == 0 ? advance(load_state(state + 8), of_row + (z.stage - 1) * BINS, 2, nullptr, shared, &found)
                       : load_state(state + 12);
        if (digit == 0) store_state(state + 12, k);
    }
    if (digit == 0) {
        if (masses) s.on = !r.greedy && top_p[row] < 1.0f;
        else s = {static_cast<u64>(top_k[row]), 0, !r.greedy && top_k[row] > 0 && top_k[row] < z.vocabulary, 0};
    } else {
        s = advance(load_state(state + (masses ? 16 : 0) + 4 * (digit - 1)), of_row + (z.stage - 1) * BINS, digit - 1,
                    masses ? top_p + row : nullptr, shared, &found);
    }
    store_state(state + (masses ? 16 : 0) + 4 * digit, s);
    if (!s.on) return;

    // All loads are in flight at once, and the code is there once: it has to be fetched too.
    const uint4* own = reinterpret_cast<const uint4*>(keys + (row * z.segments + blockIdx.x) * SEGMENT);
    uint4 loaded[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) loaded[j] = own[j * 256 + threadIdx.x];
    for (int i = threadIdx.x; i < BINS; i += 256) low[i] = high[i] = 0;
    __syncthreads();
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0, length = digit == 2 ? 10 : 11;
    const u32 mask = (1u << length) - 1;
    const auto matches = [&](u32 key) { return digit == 0 || key >> (shift + length) == s.prefix; };
    for (int j = 0; j < 4; ++j) staged[j * 256 + threadIdx.x] = loaded[j];
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
        const uint4 v = staged[j * 256 + threadIdx.x];
        const u32 four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const u32 key = four[e], bin = key >> shift & mask;
            if (key <= LOWEST || !matches(key)) continue;
            if (!masses) {
                atomicAdd(&low[bin], 1u);
            } else if (in_front(key, k) && r.among(key)) {
                // Two halves of 20 bits: a segment's sum of either fits into 32.
                const u64 mass = r.mass(key);
                atomicAdd(&low[bin], static_cast<u32>(mass & 0xFFFFFu));
                atomicAdd(&high[bin], static_cast<u32>(mass >> 20));
            }
        }
    }
    __syncthreads();
    u64* to = of_row + z.stage * BINS;
    for (int i = threadIdx.x; i < BINS; i += 256) {
        const u64 value = (static_cast<u64>(high[i]) << 20) + low[i];
        if (value) atomicAdd(&to[i], value);
    }
    const u32 tied = static_cast<u32>(k.prefix);
    if (masses && k.on && blockIdx.x == 0 && threadIdx.x == 0 && matches(tied) && r.among(tied)) {
        atomicAdd(&to[tied >> shift & mask], k.need * r.mass(tied));
    }
}

PGK_FN void draw(i32* out, u64* best, const u64* states, const u64* bins, const u32* keys, const u32* largest,
                 const f32* temperature, const f32* top_p, const f32* min_p, const u64* seeds, const i64* positions,
                 const Sizes& z) {
    __shared__ u64 shared[8];
    __shared__ u32 tops[8];
    __shared__ State found;
    await_predecessor();
    const i64 row = blockIdx.y;
    const Row r = row_of(largest, temperature, min_p, row, static_cast<int>(z.segments), tops);
    const u64* state = states + row * 32;
    const u64* last = bins + (row * z.stages + z.stages - 1) * BINS;
    State s{};
    if (z.has_top_k) {
        s = top_p ? load_state(state + 12) : advance(load_state(state + 8), last, 2, nullptr, shared, &found);
    }
    if (top_p) {
        const State p = advance(load_state(state + 24), last, 2, nullptr, shared, &found);
        if (p.on) {
            const u64 one = r.mass(static_cast<u32>(p.prefix));
            // Where both have one border, only that of top-k has seen all of the tied tokens.
            s = {(p.need + one - 1) / one, p.prefix, 1, s.on && s.prefix == p.prefix ? s.whole : p.whole / one};
        }
    }
    const u32 border = static_cast<u32>(s.prefix);
    const bool cut = s.on && s.need < s.whole;
    const u32* of_row = keys + row * z.segments * SEGMENT;
    u64 all, seen = 0;
    if (cut) {
        // Of the tied tokens the first ones stay: those of the segments before count.
        u64 mine = 0;
        for (i64 i = threadIdx.x; i < static_cast<i64>(blockIdx.x) * SEGMENT; i += 256) mine += of_row[i] == border;
        before(mine, shared, seen);
    }
    const u64 seed = seeds ? seeds[row] : 0, position = positions ? static_cast<u64>(positions[row]) : 0;
    u64 winner = 0;
    const uint4* own = reinterpret_cast<const uint4*>(of_row + static_cast<i64>(blockIdx.x) * SEGMENT);
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
        const uint4 v = own[j * 256 + threadIdx.x];
        const u32 four[4] = {v.x, v.y, v.z, v.w};
        u64 rank = 0;
        if (cut) {
            u64 mine = 0;
            for (int e = 0; e < 4; ++e) mine += four[e] == border;
            rank = seen + before(mine, shared, all);
            seen += all;
        }
        bool kept[4], any = false;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const u32 key = four[e];
            kept[e] = r.greedy ? key > LOWEST : r.among(key);
            if (s.on) {
                kept[e] = kept[e] && (key > border || (key == border && rank < s.need));
                rank += key == border;
            }
            any = any || kept[e];
        }
        if (!any) continue;
        const u64 first = static_cast<u64>(blockIdx.x) * SEGMENT + (j * 256 + threadIdx.x) * 4;
        rng::Words w{};
        if (!r.greedy) w = rng::philox(seed, first / 4, static_cast<u32>(position), STREAM ^ rng::high_half(position));
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            if (!kept[e]) continue;
            u32 score = four[e];
            if (!r.greedy) {
                const f32 g = rng::minus_log(rng::minus_log_rest(rng::positive(w.w[e])));
                score = key_of(rng::add_rn(distance(four[e], r.top, r.temperature), g));
            }
            const u64 one = static_cast<u64>(score) << 32 | static_cast<u32>(~(first + e));
            winner = one > winner ? one : winner;
        }
    }
    for (int d = 16; d > 0; d /= 2) {
        const u64 other = __shfl_xor_sync(~0u, winner, d);
        winner = other > winner ? other : winner;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = winner;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int w = 1; w < 8; ++w) winner = shared[w] > winner ? shared[w] : winner;
        atomicMax(&best[2 * row], winner);
        __threadfence();
        if (static_cast<i64>(atomicAdd(&best[2 * row + 1], 1ull)) == z.segments - 1) {
            __threadfence();
            const u64 found_best = atomicExch(&best[2 * row], 0ull);
            atomicExch(&best[2 * row + 1], 0ull);
            out[row] = found_best ? static_cast<i32>(~static_cast<u32>(found_best)) : -1;
        }
    }
}

}  // namespace pgk::sampling

#define PGK_SAMPLE_PREPARE(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        unsigned* keys, unsigned* largest, unsigned long long* bins, const pgk::T* logits, const float* bias, \
        const int* allowed, const int* counts, const unsigned char* prompt, const float* repetition, \
        const float* frequency, const float* presence, pgk::sampling::Sizes z) { \
        pgk::sampling::prepare(keys, largest, bins, logits, bias, allowed, counts, prompt, repetition, frequency, \
                               presence, z); \
    }

#define PGK_SAMPLE_DRAW(narrow_entry, draw_entry) \
    extern "C" __global__ void __launch_bounds__(256) narrow_entry( \
        unsigned long long* bins, unsigned long long* states, const unsigned* keys, const unsigned* largest, \
        const float* temperature, const int* top_k, const float* top_p, const float* min_p, pgk::sampling::Sizes z) { \
        pgk::sampling::narrow(bins, states, keys, largest, temperature, top_k, top_p, min_p, z); \
    } \
    extern "C" __global__ void __launch_bounds__(256) draw_entry( \
        int* out, unsigned long long* best, const unsigned long long* states, \
        const unsigned long long* bins, const unsigned* keys, const unsigned* largest, const float* temperature, \
        const float* top_p, const float* min_p, const unsigned long long* seeds, const long long* positions, \
        pgk::sampling::Sizes z) { \
        pgk::sampling::draw(out, best, states, bins, keys, largest, temperature, top_p, min_p, seeds, \
                            positions, z); \
    }
