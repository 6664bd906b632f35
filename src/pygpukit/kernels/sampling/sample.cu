// One token per row of logits: the largest, then digits of the borders of top-k and top-p, then the draw.
//
// z = the logit in float after mask, bias and penalties; d = (z - largest z) / temperature. Tokens are in order by (z
// descending, id ascending), and what is kept is a prefix of that order: of `top_k` tokens, of those with
// d >= ln(min_p), and the shortest whose mass is top_p of theirs. The mass of a token is an integer, 2^39 exp(d) rounded
// down, so a border depends on no order of sums. The token drawn is the one with the largest d + g, g = -ln(-ln(1 - u))
// with u from Philox by (seed, position, token id); temperature <= 0: with the largest z. Of equal ones it is the lowest
// id. NaN counts as -inf, -inf is never drawn; a row without a finite or +inf logit gives -1.
//
// look: the largest token of each segment; zeros in `bins`. Nothing is written of the logits themselves.
// prepare: the same where z is not the logit: writes keys, order-preserving bits of z, 0 behind the vocabulary.
// narrow: one digit (11, 11, 10 bits) of a border, of logits or keys: first the digit before is read off the counts of the
//   launch before. 16-bit logits have their order in the first 22 bits: two digits.
// draw: the borders, the largest score; the last block of a row writes the token. Scores are computed of the few tokens
//   that may have the largest one: others are ruled out by -ln(u), which is g or more.
//
// keys: [rows, segments * steps * 2048]. winners: [rows, segments], key of the largest << 32 | ~id. bins: [rows, stages,
// 2048]. states: [rows, 8, 4]: before digits 0 to 3 of top-k, then of top-p: what is left to count, the digits so far,
// whether it is on, what the last bin held. ties: [2, rows, segments, 1024] 16-bit counts of the tokens of a segment by the
// last digit, of top-k and of top-p. Parameters of rows are null where they are off. best: [rows, 2], the winner so far and
// the blocks that are done: zeros, left as zeros.
// Launch: grid (segments, rows), 256 threads; a block takes `steps` times 2048 tokens, a thread eight neighbours at a time.
// At most 4096 tokens per block where there are masses, 65535 otherwise. Shared memory: 20 KiB. Every step of float that
// counts is rounded by itself, so that NumPy's steps have the same bits. Determinism: batch_invariant.
#include "pygpukit/philox.cuh"

namespace pgk::sampling {

constexpr int EACH = 8, STEP = 256 * EACH, BINS = 2048, TIES = 1024, STREAM = 0x53414D50;
constexpr u32 LOWEST = 0x007FFFFFu;  // the key of -inf

struct State {
    u64 need, prefix, on, whole;
};

struct Sizes {
    i64 vocabulary, stride, segments, steps, stages, stage, kind, digit, digits, has_top_k;
    i64 bias_stride, counts_stride, prompt_stride, allowed_stride;
};

PGK_FN u32 key_of(f32 z) {
    const u32 bits = bit_cast<u32>(z);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
PGK_FN f32 value_of(u32 key) { return bit_cast<f32>(key & 0x80000000u ? key & 0x7FFFFFFFu : ~key); }
PGK_FN f32 infinity() { return bit_cast<f32>(0x7F800000u); }

// The key of a number as it came: NaN counts as -inf, and adding zero makes one of the two zeros.
PGK_FN u32 key_of_logit(f32 z) { return key_of(z == z ? rng::add_rn(z, 0.0f) : -infinity()); }

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
// Eight neighbours of a row of logits, or of keys (S is u32).
template <class S> struct Tokens {
    static constexpr int W = 2 * sizeof(S), EACH_WORD = 4 / sizeof(S);
    u32 w[W];

    // Those from `first` on, of n; what stands behind them is never drawn.
    PGK_FN void load(const S* row, i64 first, i64 n) {
        if (first + EACH <= n) {
#pragma unroll
            for (int i = 0; i < W; i += 4) {
                const uint4 v = *reinterpret_cast<const uint4*>(row + first + i * EACH_WORD);
                w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
            }
        } else {
            constexpr u32 none = same<S, u32>::value ? 0u : same<S, f32>::value ? 0xFF800000u
                               : same<S, bf16>::value ? 0xFF80FF80u : 0xFC00FC00u;
#pragma unroll
            for (int i = 0; i < W; ++i) {
                Vec<S, EACH_WORD> v;
                v.w[0] = none;
#pragma unroll
                for (int e = 0; e < EACH_WORD; ++e) {
                    const i64 at = first + i * EACH_WORD + e;
                    if (at < n) v.e[e] = row[at];
                }
                w[i] = v.w[0];
            }
        }
    }
    // The next two tokens become the first: loops that are not unrolled keep the code short, which has to be fetched too.
    PGK_FN void turn() {
        constexpr int by = 2 / EACH_WORD;
        u32 front[by];
#pragma unroll
        for (int i = 0; i < by; ++i) front[i] = w[i];
#pragma unroll
        for (int i = 0; i < W; ++i) w[i] = i + by < W ? w[i + by] : front[i + by - W];
    }
    PGK_FN f32 value(int e) const {
        if constexpr (same<S, u32>::value) return value_of(w[e]);
        else if constexpr (same<S, f32>::value) return bit_cast<f32>(w[e]);
        else if constexpr (same<S, bf16>::value) return bit_cast<f32>(e % 2 ? w[e / 2] & 0xFFFF0000u : w[e / 2] << 16);
        else return widen_fast(f16{static_cast<u16>(w[e / 2] >> (e % 2 * 16))});
    }
    PGK_FN u32 key(int e) const {
        if constexpr (same<S, u32>::value) return w[e];
        else return key_of_logit(value(e));
    }
};

struct Row {
    u32 top, id, least_top;  // the largest key, and the lowest id that has it; the smallest of the segments' largest
    f32 temperature, least;  // least: ln(min_p)
    bool greedy;
    PGK_FN bool among(u32 key) const { return key > LOWEST && distance(key, top, temperature) >= least; }
    PGK_FN u64 mass(u32 key) const { return mass_of(distance(key, top, temperature)); }
    // The key of d + g.
    PGK_FN u32 score(u32 key, u32 bits) const {
        const f32 g = rng::minus_log(rng::minus_log_rest(rng::positive(bits)));
        return key_of(rng::add_rn(distance(key, top, temperature), g));
    }
};

PGK_FN u64 larger(u64 a, u64 b) { return a > b ? a : b; }
PGK_FN u64 largest_of_warp(u64 v) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) v = larger(v, __shfl_xor_sync(~0u, v, d));
    return v;
}

// Every warp reads the winners of all segments: no barrier.
PGK_FN Row row_of(const u64* winners, const f32* temperatures, const f32* min_p, i64 row, int segments) {
    u64 top = 0;
    u32 least_top = ~0u;
#pragma unroll 4
    for (int s = threadIdx.x % 32; s < segments; s += 32) {
        const u64 winner = winners[row * segments + s];
        const u32 key = static_cast<u32>(winner >> 32);
        top = larger(top, winner);
        least_top = key < least_top ? key : least_top;
    }
    const f32 t = temperatures ? temperatures[row] : 1.0f, p = min_p ? min_p[row] : 0.0f;
    const f32 bounded = p < 0x1p-126f ? 0x1p-126f : p < 1.0f ? p : 1.0f;
    top = largest_of_warp(top);
    return {static_cast<u32>(top >> 32), ~static_cast<u32>(top), __reduce_min_sync(~0u, least_top), t, p > 0.0f ? -rng::minus_log(bounded) : -infinity(),
            !(t > 0.0f)};
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

// The counts of a digit, eight bins of a thread from the highest down.
PGK_FN void load_bins(u64 (&mine)[8], const u64* bins, int digit) {
    const int count = digit == 2 ? 1024 : BINS, each = count / 256;
    const int highest = count - 1 - static_cast<int>(threadIdx.x) * each;
#pragma unroll
    for (int i = 0; i < 8; ++i) mine[i] = i < each ? bins[highest - i] : 0;
}

// The state after a digit: the bin, from the highest, at which `need` is reached. share: top_p, of the first's total. After
// the second of two digits the other bits follow: zeros above zero and ones below.
PGK_FN State advance(State s, const u64 (&mine)[8], int digit, int digits, const f32* share, u64* shared, State* found) {
    if (!s.on) return s;
    const int count = digit == 2 ? 1024 : BINS, each = count / 256;
    const int highest = count - 1 - static_cast<int>(threadIdx.x) * each;
    u64 sum = 0, all;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum += mine[i];
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
                *found = {s.need - above, s.prefix << (digit == 2 ? 10 : 11) | static_cast<u64>(highest - i), 1, mine[i]};
                reached = true;
            }
            above += mine[i];
        }
    }
    __syncthreads();
    s = *found;
    __syncthreads();
    if (digits == 2 && digit == 1) s.prefix = s.prefix << 10 | (s.prefix >> 21 & 1 ? 0 : 0x3FF);
    return s;
}

PGK_FN State load_state(const u64* p) { return {p[0], p[1], p[2], p[3]}; }
PGK_FN void store_state(u64* p, const State& s) {
    if (blockIdx.x == 0 && threadIdx.x == 0) p[0] = s.need, p[1] = s.prefix, p[2] = s.on, p[3] = s.whole;
}

// The place in `ties` of a segment's tokens by their last digit. The lowest of the eleven bits of the second of two digits
// follows from the others.
PGK_FN i64 ties_of(int kind, const Sizes& z) {
    return ((static_cast<i64>(kind) * gridDim.y + blockIdx.y) * z.segments + blockIdx.x) * TIES;
}
PGK_FN int tie_of(u32 key, int digits) { return digits == 2 ? key >> 11 & 1023 : key & 1023; }

PGK_FN void clear_bins(u64* bins, i64 row, const Sizes& z) {
    u64* zeros = bins + row * z.stages * BINS;
    for (i64 i = blockIdx.x * 256ll + threadIdx.x; i < z.stages * BINS; i += z.segments * 256) zeros[i] = 0;
}

// The largest of a block, by thread 0.
PGK_FN void store_winner(u64* winners, u64 winner, const Sizes& z) {
    __shared__ u64 warps[8];
    winner = largest_of_warp(winner);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = winner;
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll
        for (int w = 1; w < 8; ++w) winner = larger(winner, warps[w]);
        winners[blockIdx.y * z.segments + blockIdx.x] = winner;
    }
}
PGK_FN u64 winner_of(u32 key, i64 id) { return static_cast<u64>(key) << 32 | static_cast<u32>(~id); }
#endif

template <class T> PGK_FN void look(u64* winners, u64* bins, const T* logits, const Sizes& z) {
    await_predecessor();
    const i64 row = blockIdx.y;
    const T* of_row = logits + row * z.stride;
    i64 first = blockIdx.x * z.steps * STEP + threadIdx.x * EACH, at = first;
    Tokens<T> tokens, best;
    tokens.load(of_row, first, z.vocabulary);
    clear_bins(bins, row, z);
    best = tokens;
    f32 most = -infinity();
#pragma unroll 1
    for (i64 i = 0; i < z.steps; ++i) {
        Tokens<T> next;
        if (i + 1 < z.steps) next.load(of_row, first + STEP, z.vocabulary);
        f32 m = tokens.value(0);
#pragma unroll
        for (int e = 1; e < EACH; ++e) m = ::fmaxf(m, tokens.value(e));
        if (m > most) most = m, best = tokens, at = first;
        tokens = next;
        first += STEP;
    }
    int place = 0;
#pragma unroll
    for (int e = EACH - 1; e >= 0; --e) place = best.value(e) == most ? e : place;
    store_winner(winners, winner_of(key_of_logit(most), at + place), z);
}

template <class T>
PGK_FN void prepare(u32* keys, u64* winners, u64* bins, const T* logits, const f32* bias, const i32* allowed,
                    const i32* counts, const u8* prompt, const f32* repetition, const f32* frequency,
                    const f32* presence, const Sizes& z) {
    await_predecessor();
    const i64 row = blockIdx.y, first = blockIdx.x * z.steps * STEP;
    clear_bins(bins, row, z);
    u32* to = keys + row * z.segments * z.steps * STEP;
    const f32 again = repetition ? repetition[row] : 1.0f, often = frequency ? frequency[row] : 0.0f;
    const f32 once = presence ? presence[row] : 0.0f;
    u64 winner = 0;
#pragma unroll 4
    for (i64 i = threadIdx.x; i < z.steps * STEP; i += 256) {
        const i64 id = first + i;
        u32 key = 0;
        if (id < z.vocabulary) {
            f32 x = input<f32>(logits[row * z.stride + id]);
            if (allowed && !(static_cast<u32>(allowed[row * z.allowed_stride + id / 32]) >> (id % 32) & 1u)) x = -infinity();
            if (bias) x = rng::add_rn(x, bias[row * z.bias_stride + id]);
            const i32 count = counts ? counts[row * z.counts_stride + id] : 0;
            if (count > 0 || (prompt && prompt[row * z.prompt_stride + id])) {
                x = x > 0.0f ? rng::div_rn(x, again) : mul_rn(x, again);
            }
            if (count > 0) x = rng::add_rn(rng::add_rn(x, -mul_rn(often, static_cast<f32>(count))), -once);
            key = key_of_logit(x);
        }
        to[id] = key;
        winner = larger(winner, winner_of(key, id));
    }
    store_winner(winners, winner, z);
}

// Whether a token is in front of the border of top-k, whose tied tokens are counted apart.
PGK_FN bool in_front(u32 key, const State& k) { return !k.on || key > k.prefix; }

template <class S>
PGK_FN void narrow(u64* bins, u64* states, u16* ties, const S* tokens, const u64* winners, const f32* temperature,
                   const i32* top_k, const f32* top_p, const f32* min_p, const Sizes& z) {
    __shared__ u64 shared[8];
    __shared__ u32 low[BINS], high[BINS], many[TIES];
    __shared__ State found;
    await_predecessor();
    const i64 row = blockIdx.y, n = same<S, u32>::value ? z.stride : z.vocabulary;
    const S* of_row = tokens + row * z.stride;
    i64 first = blockIdx.x * z.steps * STEP + threadIdx.x * EACH;
    u64* of_bins = bins + row * z.stages * BINS;
    u64* state = states + row * 32;
    const bool masses = z.kind == 1;
    const int digit = static_cast<int>(z.digit), digits = static_cast<int>(z.digits);
    const bool ends_top_k = masses && z.has_top_k && digit == 0, last = digit + 1 == digits;
    // All loads are in flight at once.
    Tokens<S> t;
    t.load(of_row, first, n);
    u64 mine[8];
    if (digit > 0 || ends_top_k) load_bins(mine, of_bins + (z.stage - 1) * BINS, digit > 0 ? digit - 1 : digits - 1);
    const Row r = row_of(winners, temperature, min_p, row, static_cast<int>(z.segments));
    for (int i = threadIdx.x; i < BINS; i += 256) low[i] = high[i] = 0;
    for (int i = threadIdx.x; i < TIES; i += 256) many[i] = 0;
    State s{}, k{};
    if (digit > 0 || ends_top_k) {
        const u64* from = state + (ends_top_k ? 4 * (digits - 1) : (masses ? 16 : 0) + 4 * (digit - 1));
        const f32* share = masses && !ends_top_k ? top_p + row : nullptr;
        s = advance(load_state(from), mine, ends_top_k ? digits - 1 : digit - 1, digits, share, shared, &found);
    }
    if (ends_top_k) {
        k = s;
        store_state(state + 12, k);
    } else if (masses && z.has_top_k) {
        k = load_state(state + 12);
    }
    if (digit == 0) {
        if (masses) s = {0, 0, !r.greedy && top_p[row] < 1.0f, 0};
        else s = {static_cast<u64>(top_k[row]), 0, !r.greedy && top_k[row] > 0 && top_k[row] < z.vocabulary, 0};
    }
    store_state(state + (masses ? 16 : 0) + 4 * digit, s);
    if (!s.on) return;

    // The first top_k of as many segments' largest or more are not below the smallest of those: the rest is not counted.
    const u32 floor = !masses && static_cast<i64>(top_k[row]) <= z.segments ? larger(r.least_top, LOWEST + 1) : LOWEST + 1;
    __syncthreads();
    const int shift = digit == 0 ? 21 : digit == 1 ? 10 : 0, length = digit == 2 ? 10 : 11;
    const u32 mask = (1u << length) - 1;
    const auto matches = [&](u32 key) { return digit == 0 || key >> (shift + length) == s.prefix; };
#pragma unroll 1
    for (i64 i = 0; i < z.steps; ++i) {
        Tokens<S> next;
        first += STEP;
        if (i + 1 < z.steps) next.load(of_row, first, n);
#pragma unroll 1
        for (int pair = 0; pair < EACH / 2; ++pair, t.turn()) {
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const u32 key = t.key(e), bin = key >> shift & mask;
                if (key < floor || !matches(key)) continue;
                if (!masses) {
                    atomicAdd(&low[bin], 1u);
                } else if (in_front(key, k) && r.among(key)) {
                    // Two halves of 20 bits: the sum of either over a block's tokens fits into 32.
                    const u64 mass = r.mass(key);
                    if (mass == 0) continue;
                    atomicAdd(&low[bin], static_cast<u32>(mass & 0xFFFFFu));
                    if (mass >> 20) atomicAdd(&high[bin], static_cast<u32>(mass >> 20));
                } else {
                    continue;
                }
                if (last) atomicAdd(&many[tie_of(key, digits)], 1u);
            }
        }
        t = next;
    }
    __syncthreads();
    u64* to = of_bins + z.stage * BINS;
    for (int i = threadIdx.x; i < BINS; i += 256) {
        const u64 value = (static_cast<u64>(high[i]) << 20) + low[i];
        if (value) atomicAdd(&to[i], value);
    }
    if (last) {
        u16* counts = ties + ties_of(static_cast<int>(z.kind), z);
        for (int i = threadIdx.x; i < TIES; i += 256) counts[i] = static_cast<u16>(many[i]);
    }
    const u32 tied = static_cast<u32>(k.prefix);
    if (masses && k.on && blockIdx.x == 0 && threadIdx.x == 0 && matches(tied) && r.among(tied)) {
        atomicAdd(&to[tied >> shift & mask], k.need * r.mass(tied));
    }
}

template <class S>
PGK_FN void draw(i32* out, u64* best, const u64* states, const u64* bins, const u16* ties, const S* tokens,
                 const u64* winners, const f32* temperature, const f32* top_p, const f32* min_p, const u64* seeds,
                 const i64* positions, const Sizes& z) {
    __shared__ u64 shared[8];
    __shared__ State found;
    await_predecessor();
    const i64 row = blockIdx.y, n = same<S, u32>::value ? z.stride : z.vocabulary;
    const S* of_row = tokens + row * z.stride;
    i64 first = blockIdx.x * z.steps * STEP + threadIdx.x * EACH;
    Tokens<S> t;
    t.load(of_row, first, n);
    const u64 seed = seeds ? seeds[row] : 0, position = positions ? static_cast<u64>(positions[row]) : 0;
    const int digits = static_cast<int>(z.digits);
    u64 mine[8];
    if (z.stages) load_bins(mine, bins + (row * z.stages + z.stages - 1) * BINS, digits - 1);
    const Row r = row_of(winners, temperature, min_p, row, static_cast<int>(z.segments));
    if (r.greedy || r.top <= LOWEST) {
        if (blockIdx.x == 0 && threadIdx.x == 0) out[row] = r.top <= LOWEST ? -1 : static_cast<i32>(r.id);
        return;
    }
    const u64* state = states + row * 32;
    State s{};
    int kind = 0;
    if (z.stages) {
        s = load_state(state + (top_p ? 16 : 0) + 4 * (digits - 1));
        s = advance(s, mine, digits - 1, digits, top_p ? top_p + row : nullptr, shared, &found);
    }
    if (top_p) {
        const State k = z.has_top_k ? load_state(state + 12) : State{};
        if (s.on) {
            // Where both have one border, only that of top-k has seen all of the tied tokens.
            const bool both = k.on && s.prefix == k.prefix;
            const u64 one = r.mass(static_cast<u32>(s.prefix));
            kind = both ? 0 : 1;
            s.need = (s.need + one - 1) / one;
            s.whole = both ? k.whole : s.whole / one;
        } else {
            s = k;
        }
    }
    // Of the tied tokens the first ones stay: those of the segments before count.
    const u32 border = static_cast<u32>(s.prefix);
    u64 quota = ~0ull, inside = 0;
    if (s.on && s.need < s.whole) {
        const u16* counts = ties + ties_of(kind, z) + tie_of(border, digits);
        u32 seen = 0;
        for (i64 other = 1 + threadIdx.x % 32; other <= blockIdx.x; other += 32) seen += counts[-other * TIES];
        inside = counts[0];
        seen = __reduce_add_sync(~0u, seen);
        quota = s.need > seen ? s.need - seen : 0;
    }
    const bool ranked = quota > 0 && quota < inside;
    const f32 lowest = value_of(s.on ? border + (quota == 0) : LOWEST + 1), tied = value_of(border);

    // A bound that the winner reaches: the score of the token with the largest z, which is always kept.
    const u32 stream = STREAM ^ rng::high_half(position);
    const f32 top = value_of(r.top), inverse = rng::div_rn(1.0f, r.temperature);
    // Where a product with the inverse is no good distance, or min_p has a say.
    const bool odd = r.top == key_of(infinity()) || !(r.temperature > 0x1p-60f && r.temperature < 0x1p60f) ||
                     r.least > -infinity();
    const rng::Words own = rng::philox(seed, r.id / 4, static_cast<u32>(position), stream);
    const u32 here = r.id % 4;
    f32 bound = value_of(r.score(r.top, here < 2 ? (here ? own.w[1] : own.w[0]) : (here == 2 ? own.w[2] : own.w[3])));
    u64 winner = 0, done = 0;
#pragma unroll 1
    for (i64 i = 0; i < z.steps; ++i) {
        Tokens<S> next;
        if (i + 1 < z.steps) next.load(of_row, first + STEP, n);
        f32 d[EACH]{}, m = -infinity(), reached = -infinity();
        u32 kept = 0;
        u32 among = 0xFF;
        if (odd) {
            among = 0;
#pragma unroll 1
            for (int pair = 0; pair < EACH / 2; ++pair, t.turn()) {
                const f32 x = distance(t.key(0), r.top, r.temperature), y = distance(t.key(1), r.top, r.temperature);
                among = among >> 2 | static_cast<u32>(x >= r.least) << 6 | static_cast<u32>(y >= r.least) << 7;
#pragma unroll
                for (int e = 0; e < EACH; ++e) d[e] = e + 2 < EACH ? d[e + 2] : e + 2 == EACH ? x : y;
            }
        } else {
#pragma unroll
            for (int e = 0; e < EACH; ++e) d[e] = (t.value(e) - top) * inverse;
        }
#pragma unroll
        for (int e = 0; e < EACH; ++e) {
            const bool on = t.value(e) >= lowest && (among >> e & 1);
            kept |= static_cast<u32>(on) << e;
            m = on ? ::fmaxf(m, d[e]) : m;
        }
        if (ranked) {
            u64 count = 0, all;
#pragma unroll
            for (int e = 0; e < EACH; ++e) count += t.value(e) == tied;
            u64 rank = done + before(count, shared, all);
            done += all;
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const bool is_tied = t.value(e) == tied;
                if (is_tied && rank >= quota) kept &= ~(1u << e);
                rank += is_tied;
            }
        }
        // g is below 22.95.
        const bool may = kept != 0 && m > bound - 23.0f;
        rng::Words a{}, b{};
        if (may) {
            // The keys of the rounds are made anew: twenty of them would not fit beside the tokens.
            u64 own_seed = seed;
            asm volatile("" : "+l"(own_seed));
            const u64 group = static_cast<u64>(first) / 4;
            a = rng::philox(own_seed, group, static_cast<u32>(position), stream);
            b = rng::philox(own_seed, group + 1, static_cast<u32>(position), stream);
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const f32 u = ::fmaf(__uint2float_rn(e < 4 ? a.w[e] : b.w[e - 4]), 0x1p-32f, 0x1p-33f);
                // -ln(u), which is at most 0.66 u over g where u is at most a half; both within 1e-4.
                d[e] = ::fmaf(log2_approx(u), -0.69314718f, d[e]);
                if (kept >> e & 1 && u <= 0.5f) reached = ::fmaxf(reached, ::fmaf(u, -0.66f, d[e]));
            }
        }
        bound = ::fmaxf(bound, value_of(__reduce_max_sync(~0u, key_of(reached))) - 1e-4f);
        u32 candidates = 0;
        if (may) {
#pragma unroll
            for (int e = 0; e < EACH; ++e) candidates |= static_cast<u32>(d[e] >= bound - 1e-4f) << e;
            candidates &= kept;
        }
#pragma unroll 1
        while (candidates) {
            const int e = __ffs(candidates) - 1;
            candidates &= candidates - 1;
            u32 key = 0, bits = 0;
#pragma unroll
            for (int j = 0; j < EACH; ++j) {
                if (e == j) key = t.key(j), bits = j < 4 ? a.w[j] : b.w[j - 4];
            }
            winner = larger(winner, winner_of(r.score(key, bits), first + e));
        }
        t = next;
        first += STEP;
    }
    if (__any_sync(~0u, winner != 0)) {
        winner = largest_of_warp(winner);
        if (threadIdx.x % 32 == 0) {
            atomicMax(&best[2 * row], winner);
            __threadfence();
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
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

#define PGK_SAMPLE_LOOK(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        unsigned long long* winners, unsigned long long* bins, const pgk::T* logits, pgk::sampling::Sizes z) { \
        pgk::sampling::look(winners, bins, logits, z); \
    }

#define PGK_SAMPLE_PREPARE(entry, T) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        unsigned* keys, unsigned long long* winners, unsigned long long* bins, const pgk::T* logits, const float* bias, \
        const int* allowed, const int* counts, const unsigned char* prompt, const float* repetition, \
        const float* frequency, const float* presence, pgk::sampling::Sizes z) { \
        pgk::sampling::prepare(keys, winners, bins, logits, bias, allowed, counts, prompt, repetition, frequency, \
                               presence, z); \
    }

#define PGK_SAMPLE_DRAW(narrow_entry, draw_entry, S) \
    extern "C" __global__ void __launch_bounds__(256) narrow_entry( \
        unsigned long long* bins, unsigned long long* states, unsigned short* ties, const pgk::S* tokens, \
        const unsigned long long* winners, const float* temperature, const int* top_k, const float* top_p, \
        const float* min_p, pgk::sampling::Sizes z) { \
        pgk::sampling::narrow(bins, states, ties, tokens, winners, temperature, top_k, top_p, min_p, z); \
    } \
    extern "C" __global__ void __launch_bounds__(256, 4) draw_entry( \
        int* out, unsigned long long* best, const unsigned long long* states, const unsigned long long* bins, \
        const unsigned short* ties, const pgk::S* tokens, const unsigned long long* winners, const float* temperature, \
        const float* top_p, const float* min_p, const unsigned long long* seeds, const long long* positions, \
        pgk::sampling::Sizes z) { \
        pgk::sampling::draw(out, best, states, bins, ties, tokens, winners, temperature, top_p, min_p, seeds, positions, \
                            z); \
    }
