// Attention of few queries: the rows (queries times the heads that share a head of keys) of a sequence, 16 * MT at a time,
// with its keys split over blocks. sm_80 and newer, bf16 and f16.
//
// The chunks of all sequences lie in one row: of a sequence runs of chunks, of a run its heads of keys, of a head its chunks.
// Each block takes `run` places of the row, and brings the next chunk while it works on one. A block that has all chunks of a
// head folds them as it goes and writes the result. Otherwise it writes the sums of each chunk to a slot, and the last block
// to arrive at a head folds them in ascending order. Where a call has more chunks than slots, blocks take whole heads. Which
// of these happens changes no bit, and neither does it whether the prefill kernel takes the sequence.
//
// Arguments: out, partial [slots, slot_rows, DP] and stats [slots, slot_rows, 2] (workspace), counters (zero, left zero; one
// per sequence, tile of rows and head of keys), q, k, v (of type K: T, or codes of a paged cache), lengths, starts, table,
// mask, scales of codes, Attention.
// Launch: 128 threads; any grid. Dynamic shared memory: SHARED bytes.
// Each warp computes the scores of a quarter of the chunk, and then the sums of every fourth group of 16 columns.
// Numerics: attention.cuh. Determinism: batch_invariant.
#include "pygpukit/attention.cuh"

namespace pgk {

constexpr int DECODE_THREADS = 128;

extern __shared__ __align__(1024) u8 dynamic_shared[];

// Brings lines of an array into the L2 cache, which may be done before the predecessor has ended: nothing is read.
PGK_FN void prefetch_lines(const void* from, i64 bytes) {
    const i64 at = (blockIdx.x * static_cast<i64>(DECODE_THREADS) + threadIdx.x) * 128;
    if (at < bytes) asm volatile("prefetch.global.L2 [%0];" :: "l"(static_cast<const u8*>(from) + at));
}
PGK_FN void copy_async_if(bool wanted, u32 to, const void* from, int bytes) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %3, 0;"
        "  @p cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2; }"
        :: "r"(to), "l"(from), "r"(bytes), "r"(static_cast<int>(wanted)) : "memory");
}

// Chunks of one head that a block works on, one after the other.
struct __align__(16) Stretch {
    Sequence s;
    int tile, kv_head;
    int head_first, all;  // chunks of the head, over all blocks
    int first, end, whole_first, whole_end;
    u32 span, slot;  // places in the row of all chunks; slot of the head's first chunk
};

template <class T, class K, int DP, int CHUNK, int MT, bool PAGED, int FORM> struct Decode {
    static constexpr int THREADS = DECODE_THREADS, ROWS = 16 * MT, PIECES = DP / 8, K16 = DP / 16, N8 = CHUNK / 8;
    static constexpr int RUN = CHUNK / CHUNK_RUNS, OWN_N8 = N8 / 4, OWN_N16 = (DP / 16 + 3) / 4, P_PIECES = CHUNK / 8;
    static constexpr int V_AT = CHUNK * DP * 2, Q_AT = 2 * V_AT, P_AT = Q_AT + ROWS * DP * 2;
    static constexpr int PLACES_AT = P_AT + ROWS * CHUNK * 2, LARGEST_AT = PLACES_AT + CHUNK * 8;
    static constexpr int SUMS_AT = LARGEST_AT + ROWS * 16, RING_AT = SUMS_AT + ROWS * 64;
    static constexpr int COUNTS_AT = RING_AT + 4 * sizeof(Stretch), SHARED = COUNTS_AT + 48;
    static constexpr bool CODES = !same<T, K>::value;
    static_assert(COUNTS_AT % 16 == 0 && (PAGED || !CODES), "codes are in paged caches");

    T* out;
    f32 *partial, *stats;
    i32* counters;
    const Arrays<T, K>& x;
    const Attention& a;
    // Of the sequences of a thread: places before them in the row of all chunks, and their own.
    u32 before, own;
    u32 run;  // places of a block
    bool split;

    PGK_FN static f32 (*largest())[4] { return reinterpret_cast<f32(*)[4]>(dynamic_shared + LARGEST_AT); }
    PGK_FN static f32 (*lane_sums())[4][4] { return reinterpret_cast<f32(*)[4][4]>(dynamic_shared + SUMS_AT); }
    PGK_FN static Stretch* ring() { return reinterpret_cast<Stretch*>(dynamic_shared + RING_AT); }
    // Where the keys of a chunk are, in bytes; -1: nowhere. Of codes: the page in the upper half, the step in the lower.
    PGK_FN static i64* places() { return reinterpret_cast<i64*>(dynamic_shared + PLACES_AT); }

    // --- Which chunks ---

    PGK_FN u32 heads() const { return static_cast<u32>(a.kv_heads); }
    PGK_FN int sequences_of_thread() const { return (static_cast<int>(a.seqs) + THREADS - 1) / THREADS; }
    // Sequences of other kernels and those without queries have no tiles, nor have those with more than the caller said:
    // slots have no room for them.
    PGK_FN u32 tiles_of(const Sequence& s) const {
        const int rows = s.rows(a);
        return rows > a.few || s.queries > a.queries || rows <= 0 ? 0 : (rows + ROWS - 1) / ROWS;
    }
    PGK_FN void chunks_of(const Sequence& s, int& first, int& all) const {
        first = s.low(a, s.position) / CHUNK;
        const int end = (s.high(a, s.position + s.queries - 1) + CHUNK - 1) / CHUNK;
        // A sequence that sees nothing has one empty chunk: zeros are to be written.
        all = end > first ? end - first : 1;
    }
    // Heads, times tiles, of a sequence in the upper half, and their chunks in the lower.
    PGK_FN u64 count(int index) const {
        const Sequence s = Sequence::of<PAGED>(a, x, index);
        const u32 units = tiles_of(s) * heads();
        if (units == 0) return 0;
        int first, all;
        chunks_of(s, first, all);
        return static_cast<u64>(units) << 32 | units * static_cast<u32>(all);
    }
    // Counts what sequences have; returns the number of places.
    PGK_FN u32 count_all() {
        const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, per = sequences_of_thread();
        u64* const of_warps = reinterpret_cast<u64*>(dynamic_shared + COUNTS_AT);
        u64 mine = 0;
#pragma unroll 1
        for (int i = 0; i < per; ++i) {
            const int index = static_cast<int>(threadIdx.x) * per + i;
            if (index < static_cast<int>(a.seqs)) mine += count(index);
        }
        u64 upto = mine;
        if (a.seqs == 1) {
            upto = __shfl_sync(0xffffffffu, mine, 0);
        } else {
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                const u64 other = __shfl_up_sync(0xffffffffu, upto, d);
                if (lane >= d) upto += other;
            }
        }
        if (lane == 31) of_warps[warp] = upto;
        __syncthreads();
        u64 total = 0, below = 0;
#pragma unroll
        for (int i = 0; i < THREADS / 32; ++i) {
            if (i == warp) below = total;
            total += of_warps[i];
        }
        below += upto - mine;
        split = static_cast<i64>(total & 0xffffffffu) <= a.slots;
        const int shift = split ? 0 : 32;
        own = static_cast<u32>(mine >> shift);
        before = static_cast<u32>(below >> shift);
        return static_cast<u32>(total >> shift);
    }
    // n / d, without a division where that is easy to see: such are latency before the first copy.
    PGK_FN static u32 quotient(u32 n, u32 d) {
        if (n < d) return 0;
        if (d == 1) return n;
        if (n < 2 * d) return 1;
        return n / d;
    }
    // The stretch that begins at a place: the thread that has the sequence writes it.
    PGK_FN void find(Stretch* to, u32 place, u32 last) const {
        if (place >= last || place - before >= own) return;
        u32 rest = place - before;
        int index = static_cast<int>(threadIdx.x) * sequences_of_thread();
        Stretch n;
#pragma unroll 1
        while (true) {
            n.s = Sequence::of<PAGED>(a, x, index);
            chunks_of(n.s, n.head_first, n.all);
            const u32 has = tiles_of(n.s) * heads() * (split ? n.all : 1);
            if (rest < has) break;
            rest -= has;
            ++index;
        }
        const u32 all = split ? n.all : 1, of_tile = heads() * all, tile = quotient(rest, of_tile);
        n.slot = place - rest + tile * of_tile;
        rest -= tile * of_tile;
        // Chunks of a run: `run`, or in the last one what is left.
        const u32 full = a.by_heads ? all : min(run, all), whole_runs = quotient(all, full), in_runs = whole_runs * full * heads();
        const bool in_last = rest >= in_runs;
        const u32 length = in_last ? all - whole_runs * full : full;
        if (in_last) rest -= in_runs;
        const u32 line = quotient(rest, length), at = rest - line * length;
        const u32 number = in_last ? whole_runs : quotient(line, heads());
        n.tile = tile;
        n.kv_head = in_last ? line : line - number * heads();
        n.slot += n.kv_head * all;
        n.span = min(length - at, last - place);
        n.first = n.head_first + static_cast<int>(number * full + at);
        n.end = split ? n.first + static_cast<int>(n.span) : n.head_first + n.all;
        n.whole_first = (n.s.low(a, n.s.position + n.s.queries - 1) + CHUNK - 1) / CHUNK;
        n.whole_end = n.s.high(a, n.s.position) / CHUNK;
        *to = n;
    }

    // --- Copies ---

    // Where key `key` of a sequence is, looked up in its page table.
    PGK_FN i64 place_of(int key, i32 page) const {
        if (static_cast<u32>(page) >= static_cast<u64>(a.pages)) return -1;
        const u32 step = a.page_shift >= 0 ? static_cast<u32>(key) & ((1u << a.page_shift) - 1)
                                           : static_cast<u32>(key) % static_cast<u32>(a.page_tokens);
        if constexpr (CODES) return static_cast<i64>(page) << 32 | step;
        return (page * a.k_seq + step * a.k_token) * static_cast<i64>(sizeof(K));
    }
    PGK_FN const i32* page_of(const Sequence& s, int key) const {
        const u32 slot = a.page_shift >= 0 ? static_cast<u32>(key) >> a.page_shift
                                           : static_cast<u32>(key) / static_cast<u32>(a.page_tokens);
        return x.table + s.index * a.table_row + slot;
    }

    // The keys or values of a chunk; zeros behind the sequence's end, as far as the quarter goes that it ends in: what is
    // behind that is not multiplied.
    // `missing`: some pages are none.
    template <bool VALUES> PGK_FN void bring(const Stretch& n, int chunk, bool missing) const {
        const int head = n.kv_head, held = n.s.length - chunk * CHUNK;
        const int wanted = (held + RUN - 1) / RUN * RUN;
        const K* from = VALUES ? x.v + a.v_offset + head * a.v_head : x.k + head * a.k_head;
        const u32 to = shared_address(dynamic_shared) + (VALUES ? V_AT : 0);
        constexpr int STEPS = CHUNK * PIECES / THREADS;
        static_assert(CHUNK * PIECES % THREADS == 0, "threads have equal shares");
        if constexpr (!CODES) {
            const i64 token = VALUES ? a.v_token : a.k_token;
            if constexpr (!PAGED) from += n.s.index * (VALUES ? a.v_seq : a.k_seq) + chunk * CHUNK * token;
            // Where threads divide evenly into rows, a thread has one column, and rows at one distance.
            constexpr int STEP = THREADS / PIECES;
            if (THREADS % PIECES == 0 && STEP % 8 == 0 && !missing) {
                const int row0 = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
                const int bytes = piece * 8 < a.dim ? 16 : 0;
                const u32 at = to + pgk::place<PIECES>(row0, piece);
                const u8* mine = reinterpret_cast<const u8*>(from + (bytes ? piece * 8 : 0) + (PAGED ? 0 : row0 * token));
                constexpr int AT_A_TIME = STEPS < 8 ? STEPS : 8;
#pragma unroll
                for (int i = 0; i < STEPS; i += AT_A_TIME) {
                    i64 place[AT_A_TIME];
#pragma unroll
                    for (int j = 0; j < AT_A_TIME; ++j) {
                        const int row = (i + j) * STEP;
                        place[j] = PAGED ? places()[row0 + row] : row * token * static_cast<i64>(sizeof(K));
                    }
#pragma unroll
                    for (int j = 0; j < AT_A_TIME; ++j) {
                        const int row = (i + j) * STEP;
                        copy_async_if(row < wanted - row0, at + row * PIECES * 16, mine + place[j],
                                      row < held - row0 ? bytes : 0);
                    }
                }
            } else {
#pragma unroll 1
                for (int at = threadIdx.x; at < min(wanted, CHUNK) * PIECES; at += THREADS) {
                    const int row = at / PIECES, piece = at % PIECES;
                    i64 place = PAGED ? places()[row] : row * token * static_cast<i64>(sizeof(K));
                    if (piece * 8 >= a.dim || row >= held) place = -1;
                    const u8* source = reinterpret_cast<const u8*>(from) + (place < 0 ? 0 : place + piece * 16);
                    copy_async(to + pgk::place<PIECES>(row, piece), source, place < 0 ? 0 : 16);
                }
            }
        } else {
            // Codes become numbers on the way: loads of as many pieces as registers hold, then their numbers.
            constexpr int HELD = STEPS < 8 ? STEPS : 8;
            const f32* scales = scales_of(x, a, head, VALUES);
#pragma unroll 1
            for (int begin = 0; begin < STEPS; begin += HELD) {
                Vec<K, 8> codes[HELD];
                f32 factor[HELD];
#pragma unroll
                for (int i = 0; i < HELD; ++i) {
                    const int at = (begin + i) * THREADS + static_cast<int>(threadIdx.x), row = at / PIECES, piece = at % PIECES;
                    codes[i].w[0] = codes[i].w[1] = 0;
                    factor[i] = 1.0f;
                    const i64 place = row < held ? places()[row] : -1;
                    if (begin + i >= STEPS || place < 0 || piece * 8 >= a.dim) continue;
                    const i64 page = place >> 32, step = place & 0xffffffff;
                    if (scales) factor[i] = scales[page * a.scale_page + step * a.scale_token];
                    load(codes[i], from + page * a.k_seq + step * a.k_token + piece * 8, true);
                }
#pragma unroll
                for (int i = 0; i < HELD; ++i) {
                    const int at = (begin + i) * THREADS + static_cast<int>(threadIdx.x);
                    if (begin + i >= STEPS || at / PIECES >= wanted) break;
                    Vec<T, 8> made;
#pragma unroll
                    for (int e = 0; e < 8; ++e) made.e[e] = number<T>(codes[i].e[e], factor[i]);
                    u8* const place = dynamic_shared + (VALUES ? V_AT : 0) + pgk::place<PIECES>(at / PIECES, at % PIECES);
                    *reinterpret_cast<uint4*>(place) = make_uint4(made.w[0], made.w[1], made.w[2], made.w[3]);
                }
            }
        }
    }

    // The rows of q of a stretch; zeros behind the last.
    PGK_FN void bring_queries(const Stretch& n) const {
        const T* base = x.q + (PAGED ? n.s.first_row * a.q_token : n.s.index * a.q_seq);
        const int group = static_cast<int>(a.group), row0 = n.tile * ROWS, rows = n.s.rows(a) - row0;
#pragma unroll 2
        for (int at = threadIdx.x; at < ROWS * PIECES; at += THREADS) {
            const int row = at / PIECES, piece = at % PIECES;
            // Most sequences have one query; a division would delay the copy.
            const int token = n.s.queries == 1 ? 0 : (row0 + row) / group;
            const int head = n.kv_head * group + (row0 + row - token * group);
            const bool there = row < rows && piece * 8 < a.dim;
            const T* source = there ? base + token * a.q_token + head * a.q_head + piece * 8 : x.q;
            copy_async(shared_address(dynamic_shared) + Q_AT + place<PIECES>(row, piece), source, there ? 16 : 0);
        }
    }

    // --- Fold ---

    // Adds to the counter of a head, after what the block's threads wrote; returns whether all of its chunks are there, whose
    // sums may then be read.
    PGK_FN bool arrive(const Stretch& u) const {
        i32* const flag = reinterpret_cast<i32*>(dynamic_shared + COUNTS_AT + 32);
        __syncthreads();
        if (threadIdx.x == 0) {
            const i64 tiles = (a.few + ROWS - 1) / ROWS;
            i32* const counter = counters + (u.s.index * tiles + u.tile) * a.kv_heads + u.kv_head;
            const i32 more = u.end - u.first;
            i32 came;
            asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], %2;" : "=r"(came) : "l"(counter), "r"(more) : "memory");
            *flag = came + more == u.all;
            if (came + more == u.all) *counter = 0;
        }
        __syncthreads();
        return *flag;
    }

    // Folds the chunks of one head in ascending order, a warp per row.
    PGK_FN void fold_slots(const Stretch& u, int rows) const {
        constexpr int VECTORS = (DP / 4 + 31) / 32, AHEAD = 16 / VECTORS;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
        for (int row = warp; row < rows; row += THREADS / 32) {
            f32 o[VECTORS][4] = {}, m = PGK_NO_KEY, l = 0.0f;
#pragma unroll 1
            for (int begin = 0; begin < u.all; begin += AHEAD) {
                const int count = min(u.all - begin, AHEAD);
                const i64 slot_row = (u.slot + begin) * a.slot_rows + row, step = a.slot_rows;
                float4 part[AHEAD][VECTORS];
                float2 ml = make_float2(PGK_NO_KEY, 0.0f);
                if (lane < count) ml = __ldcg(reinterpret_cast<const float2*>(stats + (slot_row + lane * step) * 2));
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
#pragma unroll
                    for (int v = 0; v < VECTORS; ++v) {
                        const int column = (v * 32 + lane) * 4;
                        part[i][v] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                        if (i < count && (DP % 128 == 0 || column < DP)) {
                            part[i][v] = __ldcg(reinterpret_cast<const float4*>(partial + (slot_row + i * step) * DP + column));
                        }
                    }
                }
                // The largest score of all chunks up to a lane's, and that chunk's factors.
                f32 top = ml.x;
#pragma unroll
                for (int d = 1; d < AHEAD; d *= 2) {
                    const f32 other = __shfl_up_sync(0xffffffffu, top, d);
                    if (lane >= d) top = ::fmaxf(other, top);
                }
                top = ::fmaxf(m, top);
                f32 below = __shfl_up_sync(0xffffffffu, top, 1);
                if (lane == 0) below = m;
                const f32 base = top == PGK_NO_KEY ? 0.0f : top;
                const f32 old_factor = exp2_approx(__fsub_rn(below, base)), new_factor = exp2_approx(__fsub_rn(ml.x, base));
                m = __shfl_sync(0xffffffffu, top, AHEAD - 1);
#pragma unroll
                for (int i = 0; i < AHEAD; ++i) {
                    // Behind the last chunk they are empty: folding those changes nothing.
                    const f32 past = __shfl_sync(0xffffffffu, old_factor, i), now = __shfl_sync(0xffffffffu, new_factor, i);
                    l = Fold::sum(l, past, __shfl_sync(0xffffffffu, ml.y, i), now);
#pragma unroll
                    for (int v = 0; v < VECTORS; ++v) {
                        o[v][0] = Fold::sum(o[v][0], past, part[i][v].x, now);
                        o[v][1] = Fold::sum(o[v][1], past, part[i][v].y, now);
                        o[v][2] = Fold::sum(o[v][2], past, part[i][v].z, now);
                        o[v][3] = Fold::sum(o[v][3], past, part[i][v].w, now);
                    }
                }
            }
            const f32 factor = Fold{m, l}.reciprocal();
            T* const to = row_of(u, Row::of(a, u.s, u.tile * ROWS + row, u.kv_head));
#pragma unroll
            for (int v = 0; v < VECTORS; ++v) {
                const int column = (v * 32 + lane) * 4;
                if (column >= a.dim) break;
                u32* const at = reinterpret_cast<u32*>(to + column);
                at[0] = pack(T{}, Fold::result(o[v][0], factor), Fold::result(o[v][1], factor));
                at[1] = pack(T{}, Fold::result(o[v][2], factor), Fold::result(o[v][3], factor));
            }
        }
    }
    PGK_FN T* row_of(const Stretch& u, const Row& r) const {
        return out + (PAGED ? u.s.first_row * a.o_token : u.s.index * a.o_seq) + r.token * a.o_token + r.head * a.o_head;
    }

    // Rows behind the last sequence are zeros.
    PGK_FN void clear_rest() const {
        const u32 in_head = static_cast<u32>(a.dim) / 8, width = static_cast<u32>(a.kv_heads * a.group) * in_head;
#pragma unroll 1
        for (i64 row = x.starts[a.seqs] + blockIdx.x; row < a.tokens; row += gridDim.x) {
#pragma unroll 1
            for (u32 at = threadIdx.x; at < width; at += THREADS) {
                const u32 head = at / in_head;
                Vec<T, 8> zero = {};
                store(out + row * a.o_token + head * a.o_head + (at - head * in_head) * 8, zero);
            }
        }
    }

    // Scores of a warp's quarter of the chunk.
    PGK_FN static void multiply_keys(f32 (&score)[MT][4 * OWN_N8], int warp, u32 k_at, u32 q_at) {
#pragma unroll
        for (int i = 0; i < K16; ++i) {
            u32 b[OWN_N8 / 2][4];
#pragma unroll
            for (int j = 0; j < OWN_N8 / 2; ++j) {
                load_matrices<false>(b[j], key_address<PIECES>(k_at, warp * RUN + j * 16, i));
            }
#pragma unroll
            for (int t = 0; t < MT; ++t) {
                u32 left[4];
                load_matrices<false>(left, a_address<PIECES>(q_at, 16 * t, i));
#pragma unroll
                for (int j = 0; j < OWN_N8 / 2; ++j) {
                    Mma<T>::step(four(score[t], 2 * j), left, b[j][0], b[j][1]);
                    Mma<T>::step(four(score[t], 2 * j + 1), left, b[j][2], b[j][3]);
                }
            }
        }
    }

    PGK_FN void work() {
        const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
        const u32 k_at = shared_address(dynamic_shared), v_at = k_at + V_AT, q_at = k_at + Q_AT, p_at = k_at + P_AT;
        const u32 total = count_all();
        run = quotient(total + gridDim.x - 1, gridDim.x);
        const u32 begin = blockIdx.x * run, last = min(begin + run, total);
        if (begin >= last) return;

        // Weights of rows that are not there are never written, and multiplied.
#pragma unroll
        for (int i = 0; i < ROWS * P_PIECES / THREADS; ++i) {
            *reinterpret_cast<uint4*>(dynamic_shared + P_AT + (i * THREADS + thread) * 16) = make_uint4(0, 0, 0, 0);
        }
        // Of a ring of stretches the current one, the next, which begins at `next_place`, and the one after it are known.
        int current = -1, next = 0, chunk = -1;
        u32 next_place = begin;

        Row row[MT][2] = {};
        int rows = 0;
        f32 o[MT][2 * OWN_N16][4];
        Fold fold[MT][2];
        const f32 scale2 = FORM == PLAIN ? a.scale2 : 1.0f;
        // The first turn finds the first stretch, the second brings its first chunk.
        bool known = false, live = false;
#pragma unroll 1
        while (true) {
            const Stretch& u = ring()[current & 3];
            if ((!live || chunk == u.first) && next_place < last) {
                find(ring() + (known ? next + 1 & 3 : 0), known ? next_place + ring()[next].span : begin, last);
                if (!known) {
                    known = true;
                    __syncthreads();
                    continue;
                }
            }
            const bool stay = live && chunk + 1 < u.end, more = stay || next_place < last;
            const Stretch& n = ring()[stay ? current : next];
            const int next_chunk = stay ? chunk + 1 : more ? n.first : 0;
            if (live) {
                wait_copies<1>();
                __syncthreads();
            }
            // Pages of the next chunk are looked up while this one's scores are computed.
            i32 page = -1;
            bool there = false;
            if constexpr (PAGED) {
                const int key = next_chunk * CHUNK + thread;
                there = more && thread < CHUNK && key < n.s.length;
                if (there) page = *page_of(n.s, key);
            }
            f32 score[MT][4 * OWN_N8] = {};
            const int held = live ? u.s.length - chunk * CHUNK : 0;
            if (live) {
                if (warp * RUN < held) multiply_keys(score, warp, k_at, q_at);
                const bool whole = chunk >= u.whole_first && chunk < u.whole_end;
                const int key = chunk * CHUNK + warp * RUN + lane % 4 * 2;
#pragma unroll
                for (int t = 0; t < MT; ++t) {
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        if (16 * t + 8 * r >= rows) break;
                        f32 m = PGK_NO_KEY;
#pragma unroll
                        for (int i = 0; i < OWN_N8; ++i) {
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                f32& d = score[t][4 * i + 2 * r + e];
                                const int at = key + 8 * i + e;
                                if constexpr (FORM == CAPPED) d = __fmul_rn(capped(d, a), LOG2_E);
                                if constexpr (FORM == MASKED) {
                                    d = row[t][r].sees(at) ? masked(d, a, x, u.s.index, row[t][r], at) : PGK_NO_KEY;
                                } else if (!whole) {
                                    d = row[t][r].sees(at) ? d : PGK_NO_KEY;
                                }
                                m = ::fmaxf(m, d);
                            }
                        }
                        m = largest_of_quad(m);
                        if (lane % 4 == 0) largest()[16 * t + 8 * r + lane / 4][warp] = m;
                    }
                }
            }
            bool missing = false;
            if constexpr (PAGED) {
                const i64 place = there ? place_of(next_chunk * CHUNK + thread, page) : 0;
                if (thread < CHUNK) places()[thread] = place;
                missing = place < 0;
                missing = __syncthreads_or(missing);
            } else {
                __syncthreads();
            }
            // All warps have read the keys: those of the next chunk may come.
            if (more) {
                bring<false>(n, next_chunk, missing);
                if (!stay) bring_queries(n);
            }
            commit_copies();

            f32 part[MT][2 * OWN_N16][4] = {};
            f32 chunk_m[MT][2], chunk_l[MT][2];
            if (live) {
#pragma unroll
                for (int t = 0; t < MT; ++t) {
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        if (16 * t + 8 * r >= rows) break;
                        const int at = 16 * t + 8 * r + lane / 4;
                        const float4 of = *reinterpret_cast<const float4*>(largest()[at]);
                        const f32 m = __fmul_rn(::fmaxf(::fmaxf(of.x, of.y), ::fmaxf(of.z, of.w)), scale2);
                        chunk_m[t][r] = m;
                        f32 sum = 0.0f;
#pragma unroll
                        for (int i = 0; i < OWN_N8; ++i) {
                            const f32 e0 = weight(score[t][4 * i + 2 * r], scale2, m);
                            const f32 e1 = weight(score[t][4 * i + 2 * r + 1], scale2, m);
                            sum = __fadd_rn(__fadd_rn(sum, e0), e1);
                            const u32 to = place<P_PIECES>(at, warp * OWN_N8 + i) + lane % 4 * 4;
                            *reinterpret_cast<u32*>(dynamic_shared + P_AT + to) = pack(T{}, e0, e1);
                        }
                        lane_sums()[at][lane % 4][warp] = sum;
                    }
                }
                wait_copies<1>();
                __syncthreads();
                // Groups of 16 keys behind the sequence's end have no values, and weights of 0.
#pragma unroll
                for (int i = 0; i < CHUNK / 16; ++i) {
                    if (i * 16 >= held) break;
                    u32 left[MT][4];
#pragma unroll
                    for (int t = 0; t < MT; ++t) load_matrices<false>(left[t], a_address<P_PIECES>(p_at, 16 * t, i));
#pragma unroll
                    for (int j = 0; j < OWN_N16; ++j) {
                        if (DP / 16 % 4 != 0 && warp + 4 * j >= DP / 16) break;
                        u32 b[4];
                        load_matrices<true>(b, value_address<PIECES>(v_at, i * 16, warp + 4 * j));
#pragma unroll
                        for (int t = 0; t < MT; ++t) {
                            Mma<T>::step(part[t][2 * j], left[t], b[0], b[1]);
                            Mma<T>::step(part[t][2 * j + 1], left[t], b[2], b[3]);
                        }
                    }
                }
#pragma unroll
                for (int t = 0; t < MT; ++t) {
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        if (16 * t + 8 * r >= rows) break;
                        const float4 of = *reinterpret_cast<const float4*>(lane_sums()[16 * t + 8 * r + lane / 4][lane % 4]);
                        chunk_l[t][r] = sum_of_quad(__fadd_rn(__fadd_rn(__fadd_rn(of.x, of.y), of.z), of.w));
                    }
                }
            }
            __syncthreads();
            if (more) bring<true>(n, next_chunk, missing);
            commit_copies();

            if (live) {
                // Has this block all chunks of the head?
                const bool complete = u.end - u.first == u.all, ended = !stay;
#pragma unroll
                for (int t = 0; t < MT; ++t) {
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        if (16 * t + 8 * r >= rows) break;
                        const int at = 16 * t + 8 * r + lane / 4;
                        if (complete) {
                            f32 old_factor, new_factor;
                            fold[t][r].add(chunk_m[t][r], chunk_l[t][r], old_factor, new_factor);
#pragma unroll
                            for (int j = 0; j < 2 * OWN_N16; ++j) {
                                o[t][j][2 * r] = Fold::sum(o[t][j][2 * r], old_factor, part[t][j][2 * r], new_factor);
                                o[t][j][2 * r + 1] =
                                    Fold::sum(o[t][j][2 * r + 1], old_factor, part[t][j][2 * r + 1], new_factor);
                            }
                        } else if (at < rows) {
                            const i64 slot_row = (u.slot + chunk - u.head_first) * a.slot_rows + at;
                            if (warp == 0 && lane % 4 == 0) {
                                *reinterpret_cast<float2*>(stats + slot_row * 2) = make_float2(chunk_m[t][r], chunk_l[t][r]);
                            }
                            f32* const to = partial + slot_row * DP + warp * 16 + lane % 4 * 2;
#pragma unroll
                            for (int j = 0; j < 2 * OWN_N16; ++j) {
                                if (DP / 16 % 4 != 0 && warp + j / 2 * 4 >= DP / 16) break;
                                *reinterpret_cast<float2*>(to + j / 2 * 64 + j % 2 * 8) =
                                    make_float2(part[t][j][2 * r], part[t][j][2 * r + 1]);
                            }
                        }
                        if (complete && ended && at < rows) {
                            T* const to = row_of(u, row[t][r]);
                            const f32 factor = fold[t][r].reciprocal();
#pragma unroll
                            for (int j = 0; j < 2 * OWN_N16; ++j) {
                                const int column = (warp + j / 2 * 4) * 16 + j % 2 * 8 + lane % 4 * 2;
                                if (column >= a.dim) break;
                                *reinterpret_cast<u32*>(to + column) = pack(
                                    T{}, Fold::result(o[t][j][2 * r], factor), Fold::result(o[t][j][2 * r + 1], factor));
                            }
                        }
                    }
                }
                if (ended && !complete && arrive(u)) fold_slots(u, rows);
            }
            if (!more) break;
            if (!stay) {
                current = next;
                next = next + 1 & 3;
                next_place += n.span;
                rows = min(n.s.rows(a) - n.tile * ROWS, ROWS);
#pragma unroll
                for (int t = 0; t < MT; ++t) {
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        row[t][r] = Row::of(a, n.s, n.tile * ROWS + 16 * t + 8 * r + lane / 4, n.kv_head);
                        fold[t][r] = Fold::none();
                    }
#pragma unroll
                    for (int j = 0; j < 2 * OWN_N16; ++j) {
#pragma unroll
                        for (int e = 0; e < 4; ++e) o[t][j][e] = 0.0f;
                    }
                }
            }
            chunk = next_chunk;
            live = true;
        }
        wait_copies<0>();
    }
};

template <class T, class K, int DP, int CHUNK, int MT, bool PAGED, int FORM>
PGK_FN void attention_decode(T* out, f32* partial, f32* stats, i32* counters, const Arrays<T, K>& x, const Attention& a) {
    // Lengths and tables are in the L2 cache when the predecessor has ended.
    if (a.length_step >= 0) prefetch_lines(x.lengths, a.seqs * 4);
    if constexpr (PAGED) {
        prefetch_lines(x.starts, a.seqs * 4 + 4);
        prefetch_lines(x.table, a.seqs * a.table_row * 4);
    }
    await_predecessor();
    Decode<T, K, DP, CHUNK, MT, PAGED, FORM> decode{out, partial, stats, counters, x, a};
    decode.work();
    if constexpr (PAGED) decode.clear_rest();
}

}  // namespace pgk

#define PGK_ATTENTION_DECODE(entry, T, K, DP, CHUNK, MT, PAGED, FORM) \
    extern "C" __global__ void __launch_bounds__(128, MT == 1 && DP <= 128 ? 3 : 2) entry( \
        pgk::T* out, float* partial, float* stats, int* counters, const pgk::T* q, const pgk::K* k, const pgk::K* v, \
        const pgk::i32* lengths, const pgk::i32* starts, const pgk::i32* table, const void* mask, const float* scales, \
        const __grid_constant__ pgk::Attention a) { \
        pgk::attention_decode<pgk::T, pgk::K, DP, CHUNK, MT, PAGED, pgk::FORM>( \
            out, partial, stats, counters, {q, k, v, lengths, starts, table, mask, scales}, a); \
    }
