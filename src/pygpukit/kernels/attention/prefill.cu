// Attention of many queries: a block takes up to 16 * WARPS rows (queries times the heads that share a head of keys) of one
// sequence and one head of keys, and folds the chunks they see in ascending order. sm_80 and newer, bf16 and f16.
//
//   out[row] = (fold over chunks of 2^(s - m) v) / (fold over chunks of 2^(s - m)),  s = scale q . k, as in attention.cuh
//
// Arguments: out, q, k, v (of type K: T, or codes of a paged cache), lengths, starts, table, mask, scales of codes (any of the
// last five may stand for nothing), Attention.
// Elements of a head lie side by side, rows at multiples of 16 bytes; DP is the size of a head rounded up to an instance.
// Launch: 32 * WARPS threads. Dense: grid = tiles * seqs * kv_heads * SLICES, the longest tiles first, `section` heads at a
//   time. Paged: grid = bound on the tiles of all sequences * kv_heads * SLICES; blocks beyond them end at once, and
//   sequences with at most `few` rows belong to the decode kernel.
// A block writes DP / SLICES columns of v. Shared memory: rows of q, and a ring of four half chunks (2 of k, 2 of v).
// Each warp keeps the scores of 16 rows and a chunk, the sums of the chunk, and the folded sums in registers.
// Numerics: attention.cuh. Determinism: batch_invariant.
#include "pygpukit/attention.cuh"

namespace pgk {

template <class T, class K, int DP, int CHUNK, int WARPS, int SLICES, bool PAGED, int FORM>
PGK_FN void attention_prefill(T* out, const Arrays<T, K>& x, const Attention& a) {
    await_predecessor();
    constexpr int THREADS = 32 * WARPS, ROWS = 16 * WARPS, HALF = CHUNK / 2, STAGES = 4;
    constexpr int DV = DP / SLICES, PIECES = DP / 8, V_PIECES = DV / 8, K16 = DP / 16, N8 = CHUNK / 8;
    constexpr bool KEEP_Q = DP <= 96;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ i64 sums[PAGED ? THREADS : 1];

    // Which tile of which sequence and head.
    const int slice = SLICES > 1 ? static_cast<int>(blockIdx.x % SLICES) : 0;
    i64 item = blockIdx.x / SLICES;
    int index, tile, kv_head;
    if constexpr (PAGED) {
        const auto count = [&](int i) -> i64 {
            const i64 rows = (x.starts[i + 1] - x.starts[i]) * a.group;
            return rows <= a.few ? 0 : (rows + ROWS - 1) / ROWS;
        };
        const i64 tiles = count_items<THREADS>(sums, static_cast<int>(a.seqs), count);
        kv_head = static_cast<int>(item % a.kv_heads);
        item /= a.kv_heads;
        if (item >= tiles) return;
        index = find_item<THREADS>(sums, static_cast<int>(a.seqs), count, item);
        tile = static_cast<int>(item);
    } else {
        dense_item<ROWS>(a, item, index, kv_head, tile);
    }
    const Sequence s = Sequence::of<PAGED>(a, x, index);
    if constexpr (PAGED) tile = (s.rows(a) + ROWS - 1) / ROWS - 1 - tile;
    const int row0 = tile * ROWS, rows = s.rows(a), last = rows - 1 < row0 + ROWS - 1 ? rows - 1 : row0 + ROWS - 1;
    const Chunks chunks = Chunks::of<CHUNK>(a, s, row0, last);

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, mine = row0 + 16 * warp + lane / 4;
    const K* k = x.k + kv_head * a.k_head;
    const K* v = x.v + a.v_offset + kv_head * a.v_head;
    const f32 *k_scales = scales_of(x, a, kv_head, 0), *v_scales = scales_of(x, a, kv_head, 1);
    const u32 q_at = shared_address(shared), ring = q_at + ROWS * DP * 2;
    constexpr u32 STAGE = HALF * DP * 2;

    // Step n of the walk brings a quarter of a chunk: keys, keys, values, values.
    const int steps = (chunks.end - chunks.first) * STAGES;
    const auto bring = [&](int n) {
        if (n < steps) {
            const int first = (chunks.first + n / STAGES) * CHUNK + n % 2 * HALF;
            const u32 to = ring + n % STAGES * STAGE;
            u8* const place = shared + (to - q_at);
            if (n % STAGES < 2) {
                bring_keys<PAGED, HALF, PIECES, THREADS>(place, to, x, k, k_scales, a, s, a.k_seq, a.k_token, first, 0);
            } else {
                bring_keys<PAGED, HALF, V_PIECES, THREADS>(place, to, x, v, v_scales, a, s, a.v_seq, a.v_token, first,
                                                           slice * DV);
            }
        }
        commit_copies();
    };
    copy_queries<PAGED, ROWS, PIECES, THREADS>(q_at, x.q, a, s, row0, kv_head);
    bring(0);
    bring(1);
    bring(2);

    u32 q[KEEP_Q ? K16 : 1][4];
    f32 o[DV / 2] = {};
    Fold fold[2] = {Fold::none(), Fold::none()};
    if constexpr (KEEP_Q) {
        wait_copies<2>();
        __syncthreads();
#pragma unroll
        for (int i = 0; i < K16; ++i) load_matrices<false>(q[i], a_address<PIECES>(q_at, 16 * warp, i));
    }

#pragma unroll 1
    for (int c = 0; c < chunks.end - chunks.first; ++c) {
        const int chunk = chunks.first + c;
        f32 score[4 * N8] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            wait_copies<STAGES - 2>();
            __syncthreads();
            bring(c * STAGES + half + STAGES - 1);
            const u32 keys = ring + half * STAGE;
#pragma unroll
            for (int i = 0; i < K16; ++i) {
                u32 reloaded[4];
                if constexpr (!KEEP_Q) load_matrices<false>(reloaded, a_address<PIECES>(q_at, 16 * warp, i));
                const u32(&left)[4] = KEEP_Q ? q[KEEP_Q ? i : 0] : reloaded;
#pragma unroll
                for (int n = 0; n < HALF / 16; ++n) {
                    u32 b[4];
                    load_matrices<false>(b, key_address<PIECES>(keys, n * 16, i));
                    Mma<T>::step(four(score, half * N8 / 2 + 2 * n), left, b[0], b[1]);
                    Mma<T>::step(four(score, half * N8 / 2 + 2 * n + 1), left, b[2], b[3]);
                }
            }
        }

        u32 p[N8][2];
        f32 m[2], l[2];
        weigh<FORM>(score, p, m, l, a, x, s, mine, kv_head, chunk * CHUNK + lane % 4 * 2, chunks.whole(chunk));

        f32 part[DV / 2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            wait_copies<STAGES - 2>();
            __syncthreads();
            bring(c * STAGES + 2 + half + STAGES - 1);
            const u32 values = ring + (2 + half) * STAGE;
#pragma unroll
            for (int i = 0; i < HALF / 16; ++i) {
                const int n = half * N8 / 2 + 2 * i;
                const u32 left[4] = {p[n][0], p[n][1], p[n + 1][0], p[n + 1][1]};
#pragma unroll
                for (int j = 0; j < DV / 16; ++j) {
                    u32 b[4];
                    load_matrices<true>(b, value_address<V_PIECES>(values, i * 16, j));
                    Mma<T>::step(four(part, 2 * j), left, b[0], b[1]);
                    Mma<T>::step(four(part, 2 * j + 1), left, b[2], b[3]);
                }
            }
        }
        fold_chunk(fold, o, part, m, l);
    }
    wait_copies<0>();

    write_rows(out + (PAGED ? s.first_row * a.o_token : s.index * a.o_seq), a, s, fold, o, mine, kv_head,
               slice * DV + lane % 4 * 2);
}

}  // namespace pgk

#define PGK_ATTENTION_PREFILL(entry, T, K, DP, CHUNK, WARPS, SLICES, PAGED, FORM) \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) entry( \
        pgk::T* out, const pgk::T* q, const pgk::K* k, const pgk::K* v, const pgk::i32* lengths, const pgk::i32* starts, \
        const pgk::i32* table, const void* mask, const float* scales, const __grid_constant__ pgk::Attention a) { \
        pgk::attention_prefill<pgk::T, pgk::K, DP, CHUNK, WARPS, SLICES, PAGED, pgk::FORM>( \
            out, {q, k, v, lengths, starts, table, mask, scales}, a); \
    }
