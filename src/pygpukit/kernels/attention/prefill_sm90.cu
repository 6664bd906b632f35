// Attention of many queries by wgmma (SM 90a): the same as prefill.cu, in the same bits, for heads of up to 128 elements.
//
// Arguments: tensor maps of k and v, out, counters (2 zeros, left zero), then as prefill.cu. Maps have the 128-byte swizzle
// and boxes of 64 elements of a head. Dense: {dim, keys, kv_heads, seqs}, boxes of 128 keys. Paged: {dim, kv_heads,
// page_tokens, 2, pages}, boxes of a page; both maps are of the whole cache, and PAGE_TOKENS, a divisor of 128 and a multiple
// of 8, is the size of a page.
// Launch: 384 threads, any grid: blocks take the next tile of 128 rows as they come free, the longest first. Dynamic shared
// memory: SHARED bytes.
// A warp group of which one thread copies keys and values, two stages ahead, and two that each take 64 rows: scores by
// wgmma from shared memory, weights in registers, which are the left operand of the product with the values.
// Numerics: attention.cuh; wgmma and mma.sync give the same bits. Determinism: batch_invariant.
#include "pygpukit/attention.cuh"
#include "pygpukit/sm90.cuh"
#include "pygpukit/wgmma.cuh"

namespace pgk {

extern __shared__ __align__(1024) u8 dynamic_shared[];

template <class T, int DP, int PAGE_TOKENS, int FORM> struct PrefillSm90 {
    static constexpr bool PAGED = PAGE_TOKENS > 0;
    static constexpr int CHUNK = 128, ROWS = 128, GROUPS = 2, STAGES = 2, THREADS = 128 * (GROUPS + 1);
    // Lines of 128 bytes hold 64 elements: a head is one or two pieces.
    static constexpr int PIECES = DP / 64, Q_PIECE = 64 * 128, PIECE = CHUNK * 128, BYTES = PIECES * PIECE;
    static constexpr int K_AT = GROUPS * PIECES * Q_PIECE, V_AT = K_AT + STAGES * BYTES, BARRIERS_AT = V_AT + STAGES * BYTES;
    // Then the barriers and numbers of two tiles, of which one is worked on, and what count_items keeps.
    static constexpr int TILES_AT = BARRIERS_AT + STAGES * 32, SUMS_AT = TILES_AT + 48;
    static constexpr int SHARED = SUMS_AT + (PAGED ? THREADS * 8 : 0);

    T* out;
    i32* counters;
    const CUtensorMap *k_map, *v_map;
    const Arrays<T>& x;
    const Attention& a;
    const i64* sums;

    struct Tile {
        Sequence s;
        Chunks chunks;
        int kv_head, row0;
    };

    PGK_FN i64 tiles_of(int index) const {
        const i64 rows = (x.starts[index + 1] - x.starts[index]) * a.group;
        return rows <= a.few ? 0 : (rows + ROWS - 1) / ROWS;
    }
    PGK_FN Tile tile(i64 item) const {
        Tile t;
        int index, number;
        if constexpr (PAGED) {
            t.kv_head = static_cast<int>(item % a.kv_heads);
            i64 rest = item / a.kv_heads;
            index = find_item<THREADS>(sums, static_cast<int>(a.seqs), [&](int i) { return tiles_of(i); }, rest);
            number = static_cast<int>(rest);
        } else {
            dense_item<ROWS>(a, item, index, t.kv_head, number);
        }
        t.s = Sequence::of<PAGED>(a, x, index);
        if constexpr (PAGED) number = (t.s.rows(a) + ROWS - 1) / ROWS - 1 - number;
        t.row0 = number * ROWS;
        const int rows = t.s.rows(a), last = t.row0 + ROWS < rows ? t.row0 + ROWS - 1 : rows - 1;
        t.chunks = Chunks::of<CHUNK>(a, t.s, t.row0, last);
        return t;
    }

    PGK_FN void load(u32 to, u32 barrier, const CUtensorMap* map, const Tile& t, int chunk, int part) const {
        barrier_expect(barrier, BYTES);
        if constexpr (PAGED) {
            constexpr int COUNT = CHUNK / PAGE_TOKENS;
            const int first = chunk * COUNT, used = (t.s.length + PAGE_TOKENS - 1) / PAGE_TOKENS;
            const i32* pages = x.table + t.s.index * a.table_row + first;
#pragma unroll 1
            for (int i = 0; i < COUNT; ++i) {
                // There is no such page: zeros.
                const i32 page = first + i < used ? pages[i] : static_cast<i32>(a.pages);
#pragma unroll
                for (int p = 0; p < PIECES; ++p) {
                    load_box_5d(to + p * PIECE + i * PAGE_TOKENS * 128, map, barrier, p * 64, t.kv_head, 0, part, page);
                }
            }
        } else {
#pragma unroll
            for (int p = 0; p < PIECES; ++p) {
                load_box_4d(to + p * PIECE, map, barrier, p * 64, chunk * CHUNK, t.kv_head, t.s.index);
            }
        }
    }

    // Takes tiles and brings their keys and values.
    PGK_FN void produce(u32 shared, i64 items) const {
        const u32 full = shared + BARRIERS_AT, empty = full + STAGES * 16, told = shared + TILES_AT;
        prefetch_map(k_map);
        prefetch_map(v_map);
        u32 stage = 0, parity = 1, slot = 0, slot_parity = 1;
        while (true) {
            const i64 item = atomicAdd(counters, 1);
            barrier_wait(told + 16 + slot * 8, slot_parity);
            const i32 known = item < items ? static_cast<i32>(item) : -1;
            asm volatile("st.shared.s32 [%0], %1;" :: "r"(told + 32 + slot * 4), "r"(known) : "memory");
            barrier_arrive(told + slot * 8);
            slot_parity ^= slot;
            slot ^= 1;
            if (item >= items) break;
            const Tile t = tile(item);
            for (int chunk = t.chunks.first; chunk < t.chunks.end; ++chunk) {
                barrier_wait(empty + stage * 16, parity);
                load(shared + K_AT + stage * BYTES, full + stage * 16, k_map, t, chunk, 0);
                barrier_wait(empty + stage * 16 + 8, parity);
                load(shared + V_AT + stage * BYTES, full + stage * 16 + 8, v_map, t, chunk, 1);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
        // The last block that takes no more tiles leaves the counters as they were.
        __threadfence();
        if (atomicAdd(counters + 1, 1) == static_cast<i32>(gridDim.x) - 1) {
            __threadfence();
            counters[0] = counters[1] = 0;
        }
    }

    // The rows of this warp group, in lines of 128 bytes with the 128-byte swizzle.
    PGK_FN void load_queries(u32 to, const Tile& t, int row0) const {
        const T* base = x.q + (PAGED ? t.s.first_row * a.q_token : t.s.index * a.q_seq);
        constexpr int IN_ROW = PIECES * 8;
#pragma unroll 1
        for (int at = threadIdx.x % 128; at < 64 * IN_ROW; at += 128) {
            const int row = at / IN_ROW, piece = at % IN_ROW;
            const Row r = Row::of(a, t.s, row0 + row, t.kv_head);
            const bool there = row0 + row < t.s.rows(a) && piece * 8 < a.dim;
            const T* from = there ? base + r.token * a.q_token + r.head * a.q_head + piece * 8 : x.q;
            copy_async(to + piece / 8 * Q_PIECE + row * 128 + ((piece & 7) ^ (row & 7)) * 16, from, there ? 16 : 0);
        }
        commit_copies();
    }

    // Values behind the end of a sequence: what lies there may be NaN, which a weight of 0 does not remove.
    PGK_FN void clear_values(u32 values, int first) const {
        for (int at = threadIdx.x - 128; at < (CHUNK - first) * 8 * PIECES; at += 128 * GROUPS) {
            const int row = first + at / (8 * PIECES), piece = at % (8 * PIECES);
            const u32 to = values + piece / 8 * PIECE + row * 128 + (piece & 7) * 16;
            asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" :: "r"(to), "r"(0) : "memory");
        }
        fence_async();
        sync_some(3, 128 * GROUPS);
    }

    PGK_FN static void release(u32 barrier, int lane) {
        __syncwarp();
        if (lane == 0) barrier_arrive(barrier);
    }

    PGK_FN void consume(u32 shared) const {
        const u32 full = shared + BARRIERS_AT, empty = full + STAGES * 16;
        const int group = static_cast<int>(uniform(threadIdx.x / 128)) - 1, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        const u32 q_at = shared + group * PIECES * Q_PIECE;
        u32 stage = 0, parity = 0;
        // The first turn to multiply is that of the first group.
        if (group == 1) arrive_some(4, 128 * GROUPS);
        u32 slot = 0, slot_parity = 0;
        // The next tile, whose rows of q are then under way; -1 if there is none.
        const auto next_tile = [&]() -> i32 {
            const u32 told = shared + TILES_AT;
            barrier_wait(told + slot * 8, slot_parity);
            i32 item;
            asm volatile("ld.shared.s32 %0, [%1];" : "=r"(item) : "r"(told + 32 + slot * 4) : "memory");
            release(told + 16 + slot * 8, lane);
            slot_parity ^= slot;
            slot ^= 1;
            if (item >= 0) {
                const Tile t = tile(item);
                load_queries(q_at, t, t.row0 + group * 64);
            }
            return item;
        };
        i32 next = next_tile();
#pragma unroll 1
        while (next >= 0) {
            const Tile t = tile(next);
            const Chunks chunks = t.chunks;
            const Sequence s = t.s;
            const int mine = t.row0 + group * 64 + 16 * warp + lane / 4;
            f32 o[DP / 2] = {};
            Fold fold[2] = {Fold::none(), Fold::none()};
            wait_copies<0>();
            fence_async();
            sync_some(1 + group, 128);
            if (chunks.first == chunks.end) next = next_tile();
            f32 score[CHUNK / 2];
            u32 p[CHUNK / 8][2];
            f32 m[2], l[2];
            const auto multiply_keys = [&](u32 at) {
                const u32 keys = shared + K_AT + at * BYTES;
#pragma unroll
                for (int k = 0; k < DP / 16; ++k) {
                    const u64 left = k_major(q_at + k / 4 * Q_PIECE) + k % 4 * next_k(false);
                    const u64 right = k_major(keys + k / 4 * PIECE) + k % 4 * next_k(false);
                    if (k == 0) WgmmaFrom<CHUNK>::template shared<T, true>(score, left, right);
                    else WgmmaFrom<CHUNK>::template shared<T, false>(score, left, right);
                }
                wgmma_commit();
            };
            // The scores of a chunk are there: its keys are free, and after the last one so are the queries.
            const auto weigh_scores = [&](int chunk, u32 at) {
                release(empty + at * 16, lane);
                if (chunk + 1 == chunks.end) {
                    sync_some(1 + group, 128);
                    next = next_tile();
                }
                weigh<FORM>(score, p, m, l, a, x, s, mine, t.kv_head, chunk * CHUNK + lane % 4 * 2, chunks.whole(chunk));
            };
            f32 part[DP / 2];
            const auto multiply_values = [&](u32 at) {
                const u32 values = shared + V_AT + at * BYTES;
#pragma unroll
                for (int k = 0; k < CHUNK / 16; ++k) {
                    const u32 left[4] = {p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1]};
                    const u64 right = mn_major(values, PIECE) + k * next_k(true);
                    if (k == 0) WgmmaFrom<DP>::template registers<T, true>(part, left, right);
                    else WgmmaFrom<DP>::template registers<T, false>(part, left, right);
                }
                wgmma_commit();
            };
            const auto wait_values = [&](int chunk) {
                barrier_wait(full + stage * 16 + 8, parity);
                if (a.length_step >= 0 && (chunk + 1) * CHUNK > s.length) {
                    clear_values(shared + V_AT + stage * BYTES, s.length - chunk * CHUNK);
                }
            };
            if (chunks.first < chunks.end) {
                barrier_wait(full + stage * 16, parity);
                wgmma_fence();
                multiply_keys(stage);
                wgmma_wait<0>();
                wgmma_ready(score);
                weigh_scores(chunks.first, stage);
#pragma unroll 1
                for (int chunk = chunks.first; chunk + 1 < chunks.end; ++chunk) {
                    wait_values(chunk);
                    const u32 before = stage;
                    if (++stage == STAGES) {
                        stage = 0;
                        parity ^= 1;
                    }
                    barrier_wait(full + stage * 16, parity);
                    // One warp group multiplies while the other weighs its scores.
                    sync_some(4 + group, 128 * GROUPS);
                    wgmma_fence();
                    multiply_values(before);
                    wgmma_wait<0>();
                    wgmma_ready(part);
                    wgmma_fence();
                    multiply_keys(stage);
                    arrive_some(5 - group, 128 * GROUPS);
                    release(empty + before * 16 + 8, lane);
                    fold_chunk(fold, o, part, m, l);
                    wgmma_wait<0>();
                    wgmma_ready(score);
                    weigh_scores(chunk + 1, stage);
                }
                wait_values(chunks.end - 1);
                sync_some(4 + group, 128 * GROUPS);
                wgmma_fence();
                multiply_values(stage);
                if (group == 0 || next >= 0) arrive_some(5 - group, 128 * GROUPS);
                wgmma_wait<0>();
                wgmma_ready(part);
                release(empty + stage * 16 + 8, lane);
                fold_chunk(fold, o, part, m, l);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            write_rows(out + (PAGED ? s.first_row * a.o_token : s.index * a.o_seq), a, s, fold, o, mine, t.kv_head,
                       lane % 4 * 2);
        }
    }
};

template <class T, int DP, int PAGE_TOKENS, int FORM>
PGK_FN void attention_prefill_sm90(const CUtensorMap* k_map, const CUtensorMap* v_map, T* out, i32* counters,
                                   const Arrays<T>& x, const Attention& a) {
    using Kernel = PrefillSm90<T, DP, PAGE_TOKENS, FORM>;
    await_predecessor();
    const u32 shared = shared_address(dynamic_shared);
    i64* const sums = reinterpret_cast<i64*>(dynamic_shared + Kernel::SUMS_AT);
    constexpr int STAGES = Kernel::STAGES, ARRIVALS = 4 * Kernel::GROUPS;
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * STAGES; ++i) {
            barrier_init(shared + Kernel::BARRIERS_AT + i * 8, 1);
            barrier_init(shared + Kernel::BARRIERS_AT + (2 * STAGES + i) * 8, ARRIVALS);
        }
        for (int i = 0; i < 2; ++i) {
            barrier_init(shared + Kernel::TILES_AT + i * 8, 1);
            barrier_init(shared + Kernel::TILES_AT + 16 + i * 8, ARRIVALS);
        }
        fence_barrier_init();
    }
    const Kernel kernel{out, counters, k_map, v_map, x, a, sums};
    i64 items;
    if constexpr (PAGE_TOKENS > 0) {
        items = count_items<Kernel::THREADS>(sums, static_cast<int>(a.seqs), [&](int i) { return kernel.tiles_of(i); });
        items *= a.kv_heads;
    } else {
        items = (a.queries * a.group + Kernel::ROWS - 1) / Kernel::ROWS * a.seqs * a.kv_heads;
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<40>();
        if (threadIdx.x == 0) kernel.produce(shared, items);
    } else {
        take_registers<232>();
        kernel.consume(shared);
    }
}

}  // namespace pgk

#define PGK_ATTENTION_PREFILL_SM90(entry, T, DP, PAGE_TOKENS, FORM) \
    extern "C" __global__ void __launch_bounds__(384, 1) entry( \
        const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map, pgk::T* out, int* counters, \
        const pgk::T* q, const pgk::T* k, const pgk::T* v, const pgk::i32* lengths, const pgk::i32* starts, \
        const pgk::i32* table, const void* mask, const __grid_constant__ pgk::Attention a) { \
        pgk::attention_prefill_sm90<pgk::T, DP, PAGE_TOKENS, pgk::FORM>( \
            &k_map, &v_map, out, counters, {q, k, v, lengths, starts, table, mask}, a); \
    }
