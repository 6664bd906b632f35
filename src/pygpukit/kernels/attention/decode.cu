// Attention of few queries: the rows (queries times the heads that share a head of keys) of a sequence, 16 * MT at a time,
// with its keys split over blocks. sm_80 and newer, bf16 and f16.
//
// An item is one chunk of one head of keys. Its block writes the chunk's sums to a slot; the last block to arrive of a
// head folds them in ascending order and writes the result. Where a call has more items than slots, an item is a whole
// sequence instead, which its block folds as it goes, and there are no partial results. Which of the two changes no bit,
// and neither does it whether the prefill kernel takes the sequence.
//
// Arguments: out, partial [slots, slot_rows, DP] and stats [slots, slot_rows, 2] (workspace), counters (zero, left zero; one
// per sequence, tile of rows and head of keys), q, k, v (of type K: T, or codes of a paged cache), lengths, starts, table,
// mask, scales of codes, Attention.
// Launch: 128 threads; any grid, blocks take items in turn. Dynamic shared memory: k and v of a chunk, rows of q, weights.
// Each warp computes the scores of a quarter of the chunk, and then the sums of every fourth group of 16 columns.
// Numerics: attention.cuh. Determinism: batch_invariant.
#include "pygpukit/attention.cuh"

namespace pgk {

constexpr int DECODE_THREADS = 128;

// Folds the chunks of one head in ascending order: 4 columns of a row per thread. `shared` has room for BYTES of sums, which
// come from slots as many at a time as fit, since the fold itself is a chain; behind them are their m and l.
template <class T, int DP, int BYTES>
PGK_FN void fold_slots(T* out, const f32* partial, const f32* stats, u8* shared, const Attention& a, const Sequence& s,
                       i64 slot, int chunks, int row0, int rows, int kv_head, i64 out_base) {
    constexpr int IN_ROW = DP / 4, PASS = DECODE_THREADS / IN_ROW > 0 ? DECODE_THREADS / IN_ROW : 1;
    constexpr int ROOM = BYTES / (PASS * DP * 4);
    const int own = threadIdx.x / IN_ROW, column = threadIdx.x % IN_ROW * 4;
    float2* const pairs = reinterpret_cast<float2*>(shared + BYTES);
    for (int first = 0; first < rows; first += PASS) {
        const int count = rows - first < PASS ? rows - first : PASS;
        Fold fold = Fold::none();
        f32 o[4] = {};
#pragma unroll 1
        for (int c = 0; c < chunks; c += ROOM) {
            const int held = chunks - c < ROOM ? chunks - c : ROOM;
            for (int at = threadIdx.x; at < held * count * IN_ROW; at += DECODE_THREADS) {
                const int line = at / IN_ROW, chunk = line / count, row = line - chunk * count;
                const i64 from = ((slot + c + chunk) * a.slot_rows + first + row) * DP + at % IN_ROW * 4;
                copy_async(shared_address(shared) + at * 16, partial + from, 16);
            }
            commit_copies();
            for (int at = threadIdx.x; at < held * count; at += DECODE_THREADS) {
                const i64 from = ((slot + c + at / count) * a.slot_rows + first + at % count) * 2;
                pairs[at] = __ldcg(reinterpret_cast<const float2*>(stats + from));
            }
            wait_copies<0>();
            __syncthreads();
            if (own < count) {
#pragma unroll 4
                for (int i = 0; i < held; ++i) {
                    const float4 part = reinterpret_cast<const float4*>(shared)[(i * count + own) * IN_ROW + column / 4];
                    const float2 ml = pairs[i * count + own];
                    f32 old_factor, new_factor;
                    fold.add(ml.x, ml.y, old_factor, new_factor);
                    o[0] = Fold::sum(o[0], old_factor, part.x, new_factor);
                    o[1] = Fold::sum(o[1], old_factor, part.y, new_factor);
                    o[2] = Fold::sum(o[2], old_factor, part.z, new_factor);
                    o[3] = Fold::sum(o[3], old_factor, part.w, new_factor);
                }
            }
            __syncthreads();
        }
        if (own < count && column < a.dim) {
            const f32 factor = fold.reciprocal();
            const Row r = Row::of(a, s, row0 + first + own, kv_head);
            u32* to = reinterpret_cast<u32*>(out + out_base + r.token * a.o_token + r.head * a.o_head + column);
            to[0] = pack(T{}, Fold::result(o[0], factor), Fold::result(o[1], factor));
            to[1] = pack(T{}, Fold::result(o[2], factor), Fold::result(o[3], factor));
        }
    }
}

template <class T, class K, int DP, int CHUNK, int MT, bool PAGED, int FORM>
PGK_FN void attention_decode(T* out, f32* partial, f32* stats, i32* counters, const Arrays<T, K>& x, const Attention& a) {
    await_predecessor();
    constexpr int THREADS = DECODE_THREADS, ROWS = 16 * MT, PIECES = DP / 8, K16 = DP / 16, N8 = CHUNK / 8;
    constexpr int OWN_N8 = N8 / 4, OWN_N16 = (DP / 16 + 3) / 4, P_PIECES = CHUNK / 8;
    extern __shared__ __align__(128) u8 shared[];
    __shared__ i64 sums[THREADS];
    __shared__ f32 largest[4][ROWS], lane_sums[4][ROWS][4];
    __shared__ int is_last;
    const u32 k_at = shared_address(shared), v_at = k_at + CHUNK * DP * 2, q_at = v_at + CHUNK * DP * 2;
    const u32 p_at = q_at + ROWS * DP * 2;
    u8 *const weights = shared + (p_at - k_at), *const values = shared + (v_at - k_at);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, seqs = static_cast<int>(a.seqs);
    const int kv_heads = static_cast<int>(a.kv_heads);

    // Sequences of other kernels and those without queries have no items, nor have those with more than the caller said:
    // slots have no room for them.
    const auto tiles_of = [&](const Sequence& s) {
        const int rows = s.rows(a);
        return rows > a.few || s.queries > a.queries ? 0 : (rows + ROWS - 1) / ROWS;
    };
    const auto chunks_of = [&](const Sequence& s) {
        const Chunks c = Chunks::of<CHUNK>(a, s, 0, s.rows(a) - 1);
        // A sequence that sees nothing has one empty chunk: zeros are to be written.
        return c.end > c.first ? c.end - c.first : 1;
    };
    const auto split_items = [&](int i) -> i64 {
        const Sequence s = Sequence::of<PAGED>(a, x, i);
        const int tiles = tiles_of(s);
        return tiles ? static_cast<i64>(tiles) * kv_heads * chunks_of(s) : 0;
    };
    const auto whole_items = [&](int i) -> i64 { return tiles_of(Sequence::of<PAGED>(a, x, i)) * static_cast<i64>(kv_heads); };
    i64 items = count_items<THREADS>(sums, seqs, split_items);
    const bool split = items <= a.slots;
    if (!split) {
        __syncthreads();
        items = count_items<THREADS>(sums, seqs, whole_items);
    }

    if constexpr (PAGED) {
        // Rows behind the last sequence.
        const i64 first = x.starts[a.seqs], width = kv_heads * a.group * (a.dim / 8);
        for (i64 at = blockIdx.x * static_cast<i64>(THREADS) + threadIdx.x; at < (a.tokens - first) * width;
             at += static_cast<i64>(gridDim.x) * THREADS) {
            const i64 row = at / width, head = at % width / (a.dim / 8), piece = at % (a.dim / 8);
            Vec<T, 8> zero = {};
            store(out + (first + row) * a.o_token + head * a.o_head + piece * 8, zero);
        }
    }

#pragma unroll 1
    for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
        i64 rest = item;
        const int index = split ? find_item<THREADS>(sums, seqs, split_items, rest)
                                : find_item<THREADS>(sums, seqs, whole_items, rest);
        const Sequence s = Sequence::of<PAGED>(a, x, index);
        const int all = chunks_of(s), runs = split ? all : 1;
        const int unit = static_cast<int>(rest) / runs, at = static_cast<int>(rest) % runs;
        const int tile = unit / kv_heads, kv_head = unit % kv_heads, row0 = tile * ROWS;
        const int rows = s.rows(a) - row0 < ROWS ? s.rows(a) - row0 : ROWS;
        const Chunks seen = Chunks::of<CHUNK>(a, s, 0, s.rows(a) - 1);
        const int first = seen.first + at, end = split ? first + 1 : seen.first + all;
        const i64 out_base = PAGED ? s.first_row * a.o_token : s.index * a.o_seq;
        const K* k = x.k + kv_head * a.k_head;
        const K* v = x.v + a.v_offset + kv_head * a.v_head;

        copy_queries<PAGED, ROWS, PIECES, THREADS>(q_at, x.q, a, s, row0, kv_head);
        bring_keys<PAGED, CHUNK, PIECES, THREADS>(shared, k_at, x, k, scales_of(x, a, kv_head, 0), a, s, a.k_seq,
                                                  a.k_token, first * CHUNK, 0);
        commit_copies();
        bring_keys<PAGED, CHUNK, PIECES, THREADS>(values, v_at, x, v, scales_of(x, a, kv_head, 1), a, s, a.v_seq,
                                                  a.v_token, first * CHUNK, 0);
        commit_copies();

        f32 o[MT][2 * OWN_N16][4] = {};
        Fold fold[MT][2];
#pragma unroll
        for (int t = 0; t < MT; ++t) fold[t][0] = fold[t][1] = Fold::none();

#pragma unroll 1
        for (int chunk = first; chunk < end; ++chunk) {
            wait_copies<1>();
            __syncthreads();
            f32 score[MT][4 * OWN_N8] = {};
#pragma unroll
            for (int i = 0; i < K16; ++i) {
                u32 b[OWN_N8 / 2][4];
#pragma unroll
                for (int n = 0; n < OWN_N8 / 2; ++n) {
                    load_matrices<false>(b[n], key_address<PIECES>(k_at, warp * (CHUNK / 4) + n * 16, i));
                }
#pragma unroll
                for (int t = 0; t < MT; ++t) {
                    u32 left[4];
                    load_matrices<false>(left, a_address<PIECES>(q_at, 16 * t, i));
#pragma unroll
                    for (int n = 0; n < OWN_N8 / 2; ++n) {
                        Mma<T>::step(four(score[t], 2 * n), left, b[n][0], b[n][1]);
                        Mma<T>::step(four(score[t], 2 * n + 1), left, b[n][2], b[n][3]);
                    }
                }
            }
            const bool whole = seen.whole(chunk);
            const int key = chunk * CHUNK + warp * (CHUNK / 4) + lane % 4 * 2;
#pragma unroll
            for (int t = 0; t < MT; ++t) {
                shape_scores<FORM>(score[t], a, x, s, row0 + 16 * t + lane / 4, kv_head, key, whole);
                f32 m[2] = {PGK_NO_KEY, PGK_NO_KEY};
#pragma unroll
                for (int n = 0; n < OWN_N8; ++n) {
                    m[0] = ::fmaxf(m[0], ::fmaxf(score[t][4 * n], score[t][4 * n + 1]));
                    m[1] = ::fmaxf(m[1], ::fmaxf(score[t][4 * n + 2], score[t][4 * n + 3]));
                }
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    m[r] = largest_of_quad(m[r]);
                    if (lane % 4 == 0) largest[warp][16 * t + 8 * r + lane / 4] = m[r];
                }
            }
            __syncthreads();
            // All warps have read the keys: those of the next chunk may come.
            if (chunk + 1 < end) {
                bring_keys<PAGED, CHUNK, PIECES, THREADS>(shared, k_at, x, k, scales_of(x, a, kv_head, 0), a, s, a.k_seq,
                                                          a.k_token, (chunk + 1) * CHUNK, 0);
            }
            commit_copies();

            const f32 scale2 = FORM == PLAIN ? a.scale2 : 1.0f;
            f32 chunk_m[MT][2], chunk_l[MT][2];
#pragma unroll
            for (int t = 0; t < MT; ++t) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int row = 16 * t + 8 * r + lane / 4;
                    f32 m = ::fmaxf(::fmaxf(largest[0][row], largest[1][row]), ::fmaxf(largest[2][row], largest[3][row]));
                    chunk_m[t][r] = m = __fmul_rn(m, scale2);
                    f32 sum = 0.0f;
#pragma unroll
                    for (int n = 0; n < OWN_N8; ++n) {
                        const f32 e0 = weight(score[t][4 * n + 2 * r], scale2, m);
                        const f32 e1 = weight(score[t][4 * n + 2 * r + 1], scale2, m);
                        sum = __fadd_rn(__fadd_rn(sum, e0), e1);
                        const u32 to = place<P_PIECES>(row, warp * OWN_N8 + n) + lane % 4 * 4;
                        *reinterpret_cast<u32*>(weights + to) = pack(T{}, e0, e1);
                    }
                    lane_sums[warp][row][lane % 4] = sum;
                }
            }
            wait_copies<1>();
            __syncthreads();
            f32 part[MT][2 * OWN_N16][4] = {};
#pragma unroll
            for (int i = 0; i < CHUNK / 16; ++i) {
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
                    const auto& mine = lane_sums;
                    const int row = 16 * t + 8 * r + lane / 4;
                    f32 total = __fadd_rn(mine[0][row][lane % 4], mine[1][row][lane % 4]);
                    total = __fadd_rn(__fadd_rn(total, mine[2][row][lane % 4]), mine[3][row][lane % 4]);
                    chunk_l[t][r] = sum_of_quad(total);
                }
            }
            __syncthreads();
            if (chunk + 1 < end) {
                bring_keys<PAGED, CHUNK, PIECES, THREADS>(values, v_at, x, v, scales_of(x, a, kv_head, 1), a, s, a.v_seq,
                                                          a.v_token, (chunk + 1) * CHUNK, 0);
            }
            commit_copies();

            const bool stored = split && all > 1;
#pragma unroll
            for (int t = 0; t < MT; ++t) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int row = 16 * t + 8 * r + lane / 4;
                    f32 old_factor, new_factor;
                    if (stored) {
                        if (row >= rows) continue;
                        const i64 slot_row = item * a.slot_rows + row;
                        if (warp == 0 && lane % 4 == 0) {
                            *reinterpret_cast<float2*>(stats + slot_row * 2) = make_float2(chunk_m[t][r], chunk_l[t][r]);
                        }
#pragma unroll
                        for (int j = 0; j < 2 * OWN_N16; ++j) {
                            const int column = (warp + j / 2 * 4) * 16 + j % 2 * 8 + lane % 4 * 2;
                            if (DP / 16 % 4 != 0 && column >= DP) break;
                            *reinterpret_cast<float2*>(partial + slot_row * DP + column) =
                                make_float2(part[t][j][2 * r], part[t][j][2 * r + 1]);
                        }
                    } else {
                        fold[t][r].add(chunk_m[t][r], chunk_l[t][r], old_factor, new_factor);
#pragma unroll
                        for (int j = 0; j < 2 * OWN_N16; ++j) {
                            o[t][j][2 * r] = Fold::sum(o[t][j][2 * r], old_factor, part[t][j][2 * r], new_factor);
                            o[t][j][2 * r + 1] =
                                Fold::sum(o[t][j][2 * r + 1], old_factor, part[t][j][2 * r + 1], new_factor);
                        }
                    }
                }
            }
        }
        wait_copies<0>();

        if (!split || all == 1) {
#pragma unroll
            for (int t = 0; t < MT; ++t) {
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    const int row = 16 * t + 8 * r + lane / 4;
                    if (row >= rows) continue;
                    const Row to = Row::of(a, s, row0 + row, kv_head);
                    T* base = out + out_base + to.token * a.o_token + to.head * a.o_head;
                    const f32 factor = fold[t][r].reciprocal();
#pragma unroll
                    for (int j = 0; j < 2 * OWN_N16; ++j) {
                        const int column = (warp + j / 2 * 4) * 16 + j % 2 * 8 + lane % 4 * 2;
                        if (column >= a.dim) break;
                        *reinterpret_cast<u32*>(base + column) = pack(T{}, Fold::result(o[t][j][2 * r], factor),
                                                                      Fold::result(o[t][j][2 * r + 1], factor));
                    }
                }
            }
        } else {
            __syncthreads();
            if (threadIdx.x == 0) {
                __threadfence();
                const i64 tiles = (a.few + ROWS - 1) / ROWS;
                i32* counter = counters + (s.index * tiles + tile) * kv_heads + kv_head;
                is_last = atomicAdd(counter, 1) == all - 1;
                if (is_last) *counter = 0;
                __threadfence();
            }
            __syncthreads();
            if (is_last) {
                fold_slots<T, DP, 2 * CHUNK * DP * 2>(out, partial, stats, shared, a, s, item - at, all, row0, rows, kv_head,
                                                      out_base);
            }
        }
        // Shared memory is free for the next item.
        __syncthreads();
    }
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
