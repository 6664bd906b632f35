// What all attention kernels share: arguments, positions, what a query sees, and the arithmetic of chunks and their fold.
//
// Order of sums (docs/attention.md): keys are taken in chunks at absolute positions c * CHUNK. Of one chunk and one query:
//   s_j  = chain of k16 groups over the elements of a head, ascending, float32, from zero
//   m    = largest visible s_j, times `scale2`; p_j = 2^(s_j * scale2 - m), one fused operation; 0 where not visible
//   l    = sum of the p_j: four runs of CHUNK / 4 keys, each in lanes t = 0..3 that add the keys 8 i + 2 t, 8 i + 2 t + 1 of
//          the run in order; per lane ((run0 + run1) + run2) + run3; then (lane0 + lane1) + (lane2 + lane3)
//   o    = chain of k16 groups over the keys, ascending, float32, from zero, of p_j rounded to the type of v
// and chunks are folded in ascending order (Fold). A chunk in which a query sees nothing has m = -inf, l = 0, o = 0, and
// folding it changes nothing: 2^0 = 1 exactly, and x * 1 + 0 * 0 = x. So it does not matter which such chunks are visited.
#pragma once
#include "pygpukit/fp8.cuh"
#include "pygpukit/math.cuh"
#include "pygpukit/mma.cuh"

namespace pgk {

// The score of a key that is not visible.
#define PGK_NO_KEY bit_cast<f32>(0xff800000u)
constexpr int CHUNK_RUNS = 4;

// Sizes, element strides and options of a call. Dense arrays: `seqs` batches of `queries` tokens each. Paged: sequence s has
// the rows starts[s] to starts[s + 1] - 1 of q, and key j is at place j % page_tokens of page table[s][j / page_tokens].
struct Attention {
    i64 seqs, tokens, queries, keys, start, dim, kv_heads, group;  // paged: `queries` is the most of a sequence
    i64 q_seq, q_head, q_token, o_seq, o_head, o_token;
    i64 k_seq, k_head, k_token, v_seq, v_head, v_token, v_offset;
    i64 pages, page_tokens, table_row;
    i64 page_shift;  // page_tokens = 1 << page_shift, or -1
    i64 length_step;  // 0: one length for all, 1: one per sequence, -1: none, all keys are there
    i64 window, causal;
    i64 mask_kind, mask_seq, mask_head, mask_token, mask_key;  // 0: none, 1: bool, 2: float32, 3: the type of q
    i64 few;      // sequences with at most so many rows (queries times group) belong to the decode kernel
    i64 section;  // heads that are worked on at a time, so that their keys stay in the L2 cache
    i64 slots, slot_rows;  // of partial results: how many there are, and rows of each
    i64 scale_page, scale_part, scale_token, scale_head;  // of codes: strides of their scales, part from keys to values
    f32 scale, scale2, cap;  // scale2 = scale * log2(e)
    i32 pad;
};

// The arrays a kernel may read; those that are not given are never touched. Keys and values of another type K than queries
// are codes: a number is code * scale in float32, rounded once to T, and without scales the code itself.
template <class T, class K = T> struct Arrays {
    const T* q;
    const K *k, *v;
    const i32 *lengths, *starts, *table;
    const void* mask;
    const f32* scales;
};
template <class T> PGK_FN T number(e4m3 code, f32 scale) { return convert<T>(__fmul_rn(widen(code), scale)); }
template <class T> PGK_FN T number(i8 code, f32 scale) { return convert<T>(__fmul_rn(static_cast<f32>(code), scale)); }
template <> PGK_FN f64 number<f64>(e4m3 code, f32 scale) { return static_cast<f64>(__fmul_rn(widen(code), scale)); }
template <> PGK_FN f64 number<f64>(i8 code, f32 scale) { return static_cast<f64>(__fmul_rn(static_cast<f32>(code), scale)); }

// One sequence: its rows of q and what is where.
struct Sequence {
    int index, first_row, queries, length;
    int position;  // of the first query

    template <bool PAGED, class X> PGK_FN static Sequence of(const Attention& a, const X& x, int index) {
        Sequence s;
        s.index = index;
        s.first_row = PAGED ? x.starts[index] : 0;
        s.queries = PAGED ? x.starts[index + 1] - s.first_row : static_cast<int>(a.queries);
        const int keys = static_cast<int>(a.keys);
        s.length = keys;
        if (a.length_step >= 0) {
            const int given = x.lengths[index * a.length_step];
            s.length = given < 0 ? 0 : given < keys ? given : keys;
        }
        s.position = a.length_step >= 0 ? s.length - s.queries : static_cast<int>(a.start);
        return s;
    }
    PGK_FN int rows(const Attention& a) const { return queries * static_cast<int>(a.group); }
    // Keys [low, high) are visible to the query at a position.
    PGK_FN int low(const Attention& a, int at) const {
        const int first = at - static_cast<int>(a.window) + 1;
        return a.window == 0 || first < 0 ? 0 : first;
    }
    PGK_FN int high(const Attention& a, int at) const {
        i64 end = length;
        if (a.causal) end = at + 1;
        else if (a.window) end = at + a.window;
        return end < 0 ? 0 : end < length ? static_cast<int>(end) : length;
    }
};

// Chunks [first, end) in which rows row0 to row1 of a sequence see something; those in [whole_first, whole_end) they all see.
struct Chunks {
    int first, end, whole_first, whole_end;

    template <int CHUNK> PGK_FN static Chunks of(const Attention& a, const Sequence& s, int row0, int row1) {
        const int group = static_cast<int>(a.group);
        const int p0 = s.position + row0 / group, p1 = s.position + row1 / group;
        Chunks c;
        c.first = s.low(a, p0) / CHUNK;
        c.end = (s.high(a, p1) + CHUNK - 1) / CHUNK;
        c.whole_first = (s.low(a, p1) + CHUNK - 1) / CHUNK;
        c.whole_end = s.high(a, p0) / CHUNK;
        if (c.end < c.first) c.end = c.first;
        return c;
    }
    PGK_FN bool whole(int chunk) const { return chunk >= whole_first && chunk < whole_end; }
};

// A row of a tile: which query of which head, and the keys it sees.
struct Row {
    int token, head, low, high;

    PGK_FN static Row of(const Attention& a, const Sequence& s, int row, int kv_head) {
        const int group = static_cast<int>(a.group), last = s.rows(a) - 1;
        const int kept = row < last ? row : last;
        Row r;
        r.token = kept / group;
        r.head = kv_head * group + (kept - r.token * group);
        r.low = s.low(a, s.position + r.token);
        r.high = s.high(a, s.position + r.token);
        return r;
    }
    PGK_FN bool sees(int key) const { return key >= low && key < high; }
};

// Brings lines of an array into the L2 cache, which may be done before the predecessor has ended: nothing is read.
template <int THREADS> PGK_FN void prefetch_lines(const void* from, i64 bytes) {
    const i64 at = (blockIdx.x * static_cast<i64>(THREADS) + threadIdx.x) * 128;
    if (at < bytes) asm volatile("prefetch.global.L2 [%0];" :: "l"(static_cast<const u8*>(from) + at));
}
// A copy that some threads do not make, without a branch.
PGK_FN void copy_async_if(bool wanted, u32 to, const void* from, int bytes) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %3, 0;"
        "  @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2; }"
        :: "r"(to), "l"(from), "r"(bytes), "r"(static_cast<int>(wanted)) : "memory");
}

// Rows of 16-byte pieces in shared memory, arranged so that ldmatrix reads eight rows without bank conflicts.
template <int PIECES> PGK_FN u32 place(int row, int piece) {
    const int turned = PIECES % 8 == 0 ? piece ^ (row & 7) : piece ^ (row >> 1 & 3);
    return static_cast<u32>(row * PIECES + turned) * 16;
}

// Where a key is in a paged cache; a page outside of the cache is not there.
struct Place {
    i64 page, step;
    bool there;

    PGK_FN static Place of(const Attention& a, const i32* table, const Sequence& s, int key) {
        const u32 slot = a.page_shift >= 0 ? static_cast<u32>(key) >> a.page_shift
                                           : static_cast<u32>(key) / static_cast<u32>(a.page_tokens);
        const i32 page = table[s.index * a.table_row + slot];
        return {page, key - static_cast<i64>(slot) * a.page_tokens, static_cast<u32>(page) < static_cast<u64>(a.pages)};
    }
    PGK_FN f32 scale(const Attention& a, const f32* scales) const {
        return scales ? scales[page * a.scale_page + step * a.scale_token] : 1.0f;
    }
};

// ROWS keys (or values, from column `column` on) of a head, from key `first` on; zeros behind the sequence's end and beyond
// the elements of a head. A page outside of the cache reads as zeros.
template <bool PAGED, int ROWS, int PIECES, int THREADS, class T>
PGK_FN void copy_keys(u32 to, const T* from, const Attention& a, const i32* table, const Sequence& s, i64 seq_stride,
                      i64 token_stride, int first, int column) {
#pragma unroll
    for (int i = 0; i < (ROWS * PIECES + THREADS - 1) / THREADS; ++i) {
        const int at = i * THREADS + static_cast<int>(threadIdx.x);
        if (ROWS * PIECES % THREADS != 0 && at >= ROWS * PIECES) break;
        const int row = at / PIECES, piece = at % PIECES, key = first + row;
        bool there = key < s.length && column + piece * 8 < a.dim;
        const T* source = from;
        if (there) {
            if (PAGED) {
                const Place at_page = Place::of(a, table, s, key);
                there = at_page.there;
                if (there) source = from + at_page.page * seq_stride + at_page.step * token_stride + column + piece * 8;
            } else {
                source = from + s.index * seq_stride + key * token_stride + column + piece * 8;
            }
        }
        copy_async(to + place<PIECES>(row, piece), source, there ? 16 : 0);
    }
}

// The same of codes of a paged cache, decoded on the way: loads of as many pieces as registers hold, then their numbers. Of a
// plain cache it is `copy_keys`, which `to_at`, the address of `to`, is for.
template <bool PAGED, int ROWS, int PIECES, int THREADS, class T, class K>
PGK_FN void bring_keys(u8* to, u32 to_at, const Arrays<T, K>& x, const K* from, const f32* scales, const Attention& a,
                       const Sequence& s, i64 seq_stride, i64 token_stride, int first, int column) {
    if constexpr (same<T, K>::value) {
        copy_keys<PAGED, ROWS, PIECES, THREADS>(to_at, from, a, x.table, s, seq_stride, token_stride, first, column);
    } else {
        static_assert(PAGED, "codes are in paged caches");
        constexpr int ALL = (ROWS * PIECES + THREADS - 1) / THREADS, HELD = ALL < 8 ? ALL : 8;
#pragma unroll 1
        for (int begin = 0; begin < ALL; begin += HELD) {
            Vec<K, 8> codes[HELD];
            f32 factor[HELD];
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                const int at = (begin + i) * THREADS + static_cast<int>(threadIdx.x);
                const int row = at / PIECES, piece = at % PIECES, key = first + row;
                codes[i].w[0] = codes[i].w[1] = 0;
                factor[i] = 1.0f;
                if (at >= ROWS * PIECES || key >= s.length || column + piece * 8 >= a.dim) continue;
                const Place held = Place::of(a, x.table, s, key);
                if (!held.there) continue;
                factor[i] = held.scale(a, scales);
                load(codes[i], from + held.page * seq_stride + held.step * token_stride + column + piece * 8, true);
            }
#pragma unroll
            for (int i = 0; i < HELD; ++i) {
                const int at = (begin + i) * THREADS + static_cast<int>(threadIdx.x);
                if (at >= ROWS * PIECES) break;
                Vec<T, 8> made;
#pragma unroll
                for (int e = 0; e < 8; ++e) made.e[e] = number<T>(codes[i].e[e], factor[i]);
                *reinterpret_cast<uint4*>(to + place<PIECES>(at / PIECES, at % PIECES)) =
                    make_uint4(made.w[0], made.w[1], made.w[2], made.w[3]);
            }
        }
    }
}
// Scales of a head of keys, or with `part` = 1 of values.
template <class X> PGK_FN const f32* scales_of(const X& x, const Attention& a, int kv_head, int part) {
    return x.scales ? x.scales + kv_head * a.scale_head + part * a.scale_part : nullptr;
}

// Rows first to first + ROWS - 1 of the queries that share a head of keys; zeros behind the last.
template <bool PAGED, int ROWS, int PIECES, int THREADS, class T>
PGK_FN void copy_queries(u32 to, const T* q, const Attention& a, const Sequence& s, int first, int kv_head) {
    const T* base = q + (PAGED ? s.first_row * a.q_token : s.index * a.q_seq);
#pragma unroll 1
    for (int at = threadIdx.x; at < ROWS * PIECES; at += THREADS) {
        const int row = at / PIECES, piece = at % PIECES;
        const Row r = Row::of(a, s, first + row, kv_head);
        const bool there = first + row < s.rows(a) && piece * 8 < a.dim;
        const T* source = there ? base + r.token * a.q_token + r.head * a.q_head + piece * 8 : q;
        copy_async(to + place<PIECES>(row, piece), source, there ? 16 : 0);
    }
}

// Addresses of the rows of four matrices for ldmatrix: of A (16 rows x 16 k), of keys as B (16 columns x 16 k), and of values
// as B, turned (16 k x 16 columns).
template <int PIECES> PGK_FN u32 a_address(u32 base, int row, int k16) {
    const int lane = threadIdx.x % 32;
    return base + place<PIECES>(row + lane % 16, k16 * 2 + lane / 16);
}
template <int PIECES> PGK_FN u32 key_address(u32 base, int row, int k16) {
    const int lane = threadIdx.x % 32;
    return base + place<PIECES>(row + lane / 16 * 8 + lane % 8, k16 * 2 + lane / 8 % 2);
}
template <int PIECES> PGK_FN u32 value_address(u32 base, int row, int n16) {
    const int lane = threadIdx.x % 32;
    return base + place<PIECES>(row + lane % 16, n16 * 2 + lane / 16);
}

// Fragment n of many.
template <int COUNT> PGK_FN f32 (&four(f32 (&d)[COUNT], int n))[4] { return *reinterpret_cast<f32(*)[4]>(&d[4 * n]); }

// Scores with a softcap, a mask, or both, in units of log2: what `scale2` is for plain ones is 1 here.
enum Form { PLAIN, CAPPED, MASKED };

PGK_FN f32 capped(f32 s, const Attention& a) {
    return __fmul_rn(a.cap, tanh<true>(__fdiv_rn(__fmul_rn(s, a.scale), a.cap)));
}
constexpr f32 LOG2_E = 1.4426950408889634f;

template <class T, class K>
PGK_FN f32 masked(f32 s, const Attention& a, const Arrays<T, K>& x, int seq, const Row& r, int key) {
    const f32 y = a.cap != 0 ? capped(s, a) : __fmul_rn(s, a.scale);
    const i64 at = seq * a.mask_seq + r.head * a.mask_head + r.token * a.mask_token + key * a.mask_key;
    if (a.mask_kind == 1) return static_cast<const u8*>(x.mask)[at] ? __fmul_rn(y, LOG2_E) : PGK_NO_KEY;
    const f32 added = a.mask_kind == 2 ? static_cast<const f32*>(x.mask)[at] : convert<f32>(static_cast<const T*>(x.mask)[at]);
    return __fmul_rn(__fadd_rn(y, added), LOG2_E);
}

// Hides what a row does not see, with a mask also what that hides. `key` is that of d[0].
template <int FORM, class X>
PGK_FN void hide(f32 (&d)[4], const Attention& a, const X& x, int seq, const Row& upper, const Row& lower, int key) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Row& r = i < 2 ? upper : lower;
        const bool seen = r.sees(key + i % 2);
        if constexpr (FORM == MASKED) d[i] = seen ? masked(d[i], a, x, seq, r, key + i % 2) : PGK_NO_KEY;
        else d[i] = seen ? d[i] : PGK_NO_KEY;
    }
}

// Scores as their form has them, of COUNT fragments of 8 keys each, and hidden where a row does not see the key; `whole`: the
// rows see all of the chunk. Rows are worked out where they are needed, which is seldom: registers are short.
template <int FORM, class X, int COUNT>
PGK_FN void shape_scores(f32 (&d)[COUNT], const Attention& a, const X& x, const Sequence& s, int row, int kv_head,
                         int key, bool whole) {
    if constexpr (FORM == CAPPED) {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) d[i] = __fmul_rn(capped(d[i], a), LOG2_E);
    }
    if (FORM == MASKED || !whole) {
        const Row upper = Row::of(a, s, row, kv_head), lower = Row::of(a, s, row + 8, kv_head);
#pragma unroll
        for (int n = 0; n < COUNT / 4; ++n) hide<FORM>(four(d, n), a, x, s.index, upper, lower, key + 8 * n);
    }
}

// 2^(s * scale2 - m), with m = -inf where no key is visible.
PGK_FN f32 weight(f32 s, f32 scale2, f32 m) { return exp2_approx(__fmaf_rn(s, scale2, m == PGK_NO_KEY ? 0.0f : -m)); }

PGK_FN f32 largest_of_quad(f32 x) {
    x = ::fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return ::fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
PGK_FN f32 sum_of_quad(f32 x) {
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// Chunks so far: largest score and sum of weights, and what the sums of a new chunk and the old ones are multiplied by.
struct Fold {
    f32 m, l;
    PGK_FN static Fold none() { return {PGK_NO_KEY, 0.0f}; }
    PGK_FN void add(f32 chunk_m, f32 chunk_l, f32& old_factor, f32& new_factor) {
        const f32 both = ::fmaxf(m, chunk_m), base = both == PGK_NO_KEY ? 0.0f : both;
        old_factor = exp2_approx(__fsub_rn(m, base));
        new_factor = exp2_approx(__fsub_rn(chunk_m, base));
        m = both;
        l = __fmaf_rn(chunk_l, new_factor, __fmul_rn(l, old_factor));
    }
    PGK_FN static f32 sum(f32 old, f32 old_factor, f32 chunk, f32 new_factor) {
        return __fmaf_rn(chunk, new_factor, __fmul_rn(old, old_factor));
    }
    // What sums are multiplied by at the end; a row that sees no key gives zeros.
    PGK_FN f32 reciprocal() const { return l == 0.0f ? 0.0f : __frcp_rn(l); }
    // Adding zero makes -0 a 0: what an empty chunk leaves of a sum that is -0.
    PGK_FN static f32 result(f32 o, f32 factor) { return __fmaf_rn(o, factor, 0.0f); }
};

// Of one warp and a whole chunk: scores, in fragments d[4 n + i] of 8 keys each, become the weights of two rows of a thread,
// packed for the product with values, the largest score `m` and the sum of weights `l`. `row` and `key` are those of d[0].
template <int FORM, class T, class K, int N8>
PGK_FN void weigh(f32 (&d)[4 * N8], u32 (&p)[N8][2], f32 (&m)[2], f32 (&l)[2], const Attention& a, const Arrays<T, K>& x,
                  const Sequence& s, int row, int kv_head, int key, bool whole) {
    m[0] = m[1] = PGK_NO_KEY;
    shape_scores<FORM>(d, a, x, s, row, kv_head, key, whole);
#pragma unroll
    for (int n = 0; n < N8; ++n) {
        m[0] = ::fmaxf(m[0], ::fmaxf(d[4 * n], d[4 * n + 1]));
        m[1] = ::fmaxf(m[1], ::fmaxf(d[4 * n + 2], d[4 * n + 3]));
    }
    const f32 scale2 = FORM == PLAIN ? a.scale2 : 1.0f;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        m[r] = __fmul_rn(largest_of_quad(m[r]), scale2);
        f32 total = 0.0f;
#pragma unroll
        for (int run = 0; run < CHUNK_RUNS; ++run) {
            f32 sum = 0.0f;
#pragma unroll
            for (int i = 0; i < N8 / CHUNK_RUNS; ++i) {
                const int n = run * (N8 / CHUNK_RUNS) + i;
                const f32 e0 = weight(d[4 * n + 2 * r], scale2, m[r]), e1 = weight(d[4 * n + 2 * r + 1], scale2, m[r]);
                sum = __fadd_rn(__fadd_rn(sum, e0), e1);
                p[n][r] = pack(T{}, e0, e1);
            }
            total = run ? __fadd_rn(total, sum) : sum;
        }
        l[r] = sum_of_quad(total);
    }
}

// The sums of a chunk, in fragments as above, added to those so far.
template <int COUNT>
PGK_FN void fold_chunk(Fold (&fold)[2], f32 (&o)[COUNT], const f32 (&part)[COUNT], const f32 (&m)[2], const f32 (&l)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        f32 old_factor, new_factor;
        fold[r].add(m[r], l[r], old_factor, new_factor);
#pragma unroll
        for (int j = 0; j < COUNT; j += 4) {
            o[j + 2 * r] = Fold::sum(o[j + 2 * r], old_factor, part[j + 2 * r], new_factor);
            o[j + 2 * r + 1] = Fold::sum(o[j + 2 * r + 1], old_factor, part[j + 2 * r + 1], new_factor);
        }
    }
}

// Results of the rows `row` and `row + 8` of a sequence, from column `column` on, which is that of o[0].
template <class T, int COUNT>
PGK_FN void write_rows(T* base, const Attention& a, const Sequence& s, const Fold (&fold)[2], const f32 (&o)[COUNT], int row,
                       int kv_head, int column) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        if (row + 8 * r >= s.rows(a)) continue;
        const Row at = Row::of(a, s, row + 8 * r, kv_head);
        T* to = base + at.token * a.o_token + at.head * a.o_head + column;
        const f32 factor = fold[r].reciprocal();
#pragma unroll
        for (int j = 0; j < COUNT / 4; ++j) {
            if (column + 8 * j >= a.dim) break;
            *reinterpret_cast<u32*>(to + 8 * j) =
                pack(T{}, Fold::result(o[4 * j + 2 * r], factor), Fold::result(o[4 * j + 2 * r + 1], factor));
        }
    }
}

// Which sequence an item belongs to, where sequence s has count(s) of them: thread t adds those of PER = ceil(seqs / THREADS)
// sequences and keeps the sum of all threads up to it in `sums`. Returns the number of items.
template <int THREADS, class Count> PGK_FN i64 count_items(i64* sums, int seqs, const Count& count) {
    const int thread = threadIdx.x, per = (seqs + THREADS - 1) / THREADS;
    i64 own = 0;
    for (int s = thread * per; s < seqs && s < thread * per + per; ++s) own += count(s);
    sums[thread] = own;
    __syncthreads();
#pragma unroll 1
    for (int d = 1; d < THREADS; d *= 2) {
        const i64 before = thread >= d ? sums[thread - d] : 0;
        __syncthreads();
        sums[thread] += before;
        __syncthreads();
    }
    return sums[THREADS - 1];
}
// The sequence of an item; `item` becomes its number in that.
template <int THREADS, class Count> PGK_FN int find_item(const i64* sums, int seqs, const Count& count, i64& item) {
    int low = 0, high = THREADS - 1;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (sums[middle] > item) high = middle;
        else low = middle + 1;
    }
    if (low) item -= sums[low - 1];
    int s = low * ((seqs + THREADS - 1) / THREADS);
    for (i64 own = count(s); item >= own; own = count(++s)) item -= own;
    return s;
}

// The tile of an item of a dense call: the last tiles first, since with causal attention they see the most keys, and
// `section` heads at a time.
template <int ROWS> PGK_FN void dense_item(const Attention& a, i64 item, int& index, int& kv_head, int& tile) {
    const i64 heads = a.seqs * a.kv_heads, tiles = (a.queries * a.group + ROWS - 1) / ROWS;
    const i64 part = item / (a.section * tiles), left = heads - part * a.section;
    const i64 width = left < a.section ? left : a.section;
    item -= part * a.section * tiles;
    tile = static_cast<int>(tiles - 1 - item / width);
    const i64 head = part * a.section + item % width;
    index = static_cast<int>(head / a.kv_heads);
    kv_head = static_cast<int>(head % a.kv_heads);
}

}  // namespace pgk
