// Matrix product on tensor cores by wgmma (SM 90a): out[z, m, n] = end(sum over k of a[z, m, k] * b[z, k, n]).
//
// a and b are tensor maps of three dimensions with the 128-byte swizzle, the contiguous one first, then the other one of
// the matrix, then z: {k, m, z} and {k, n, z}, or where A_MN, B_MN (16-bit types) {m, k, z} and {n, k, z}. Boxes are 128
// bytes of the first dimension; of the second 64, or for K-major operands BM of a and BN / CLUSTER of b. to: the map of out
// {n, m, z}, boxes of 128 bytes and 64 rows; looked at where by_box is set, else out is written by its strides.
// Where an operand is the same for all z its map has one matrix, and a_step, b_step is 0, else 1. batch has the shape of z and strides of out and residual. raster: tiles along m
// that are walked before the next one along n, in units of CLUSTER. b is read before the predecessor has ended.
//
// Launch: 128 * (1 + GROUPS) threads, GROUPS = 2 for BM >= 128, else 1; clusters of CLUSTER blocks; any grid up to the
// number of tiles, a multiple of CLUSTER: blocks walk over the tiles. Dynamic shared memory: SHARED bytes.
// A warp group of which one thread copies, and GROUPS that multiply: STAGES tiles of k are under way. A cluster takes
// CLUSTER tiles along m, and each of its blocks loads a part of their b for all of them.
// Numerics: one accumulator from zero, k in groups of 32 bytes ascending, rounded once: the canonical order, whatever the
// tile, cluster, stages and layout. Of e4m3 each 128 of k have an accumulator from zero, and these are added in float32,
// ascending. i8 is summed exactly in 32 bits. f32 is rounded to
// tf32 on its way, or ROUNDED before. Parts of tiles outside of the arrays are zeros, which change no sum.
// Determinism: batch_invariant.
#include "pygpukit/epilogue.cuh"
#include "pygpukit/sm90.cuh"
#include "pygpukit/tf32.cuh"
#include "pygpukit/wgmma.cuh"

namespace pgk {

extern __shared__ __align__(1024) u8 dynamic_shared[];

// What the sizes of a launch are, as the host packs them.
struct GemmSizes {
    i32 m, n, k, z, raster, a_step, b_step, by_box;
};

template <class T, class To, int ACTIVATION, int BM, int BN, int STAGES, int CLUSTER, bool A_MN, bool B_MN,
          bool ROUNDED>
struct Gemm {
    static constexpr int BK = 128 / sizeof(T);
    static constexpr int GROUPS = BM >= 128 ? 2 : 1;
    static constexpr int PARTS = BM / GROUPS / 64;
    static constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128, STAGE = A_BYTES + B_BYTES;
    static_assert(!B_MN || BN % (64 * CLUSTER) == 0, "blocks of a cluster load whole boxes of b");
    // The result goes through shared memory in pieces of 64 rows and 128 bytes, two per group.
    static constexpr int PIECE = 64 * 128, PIECE_COLUMNS = 128 / sizeof(To), PIECES = BN / PIECE_COLUMNS;
    static constexpr int OUT_AT = STAGES * STAGE, BARRIERS_AT = OUT_AT + GROUPS * 2 * PIECE;
    static constexpr int SHARED = BARRIERS_AT + STAGES * 24;
    // Sums of e4m3 products keep 13 bits: they are added up in float32 every 128 of k.
    static constexpr bool PROMOTE = same<T, e4m3>::value;
    // Tensor cores cut float32 to tf32: idle warps of the copying group round it in shared memory first.
    static constexpr bool ROUND = same<T, f32>::value && !ROUNDED;
    static constexpr int ROUNDERS = 96;
    using Acc = typename Sum<T>::type;

    const CUtensorMap *a, *b, *to;
    To* out;
    const GemmSizes& size;
    const Nd<2>& batch;
    i64 out_row, out_column;
    Epilogue<To> end;

    struct Tile { i32 m, n, z; };

    // Tiles of the cluster in order: `raster` of them along m, then the next along n; z last.
    PGK_FN Tile tile(u32 index, u32 tiles_m, u32 tiles_n) const {
        const u32 z = index / (tiles_m * tiles_n);
        index -= z * tiles_m * tiles_n;
        const u32 band = index / (size.raster * tiles_n), first = band * size.raster;
        const u32 height = min(tiles_m - first, static_cast<u32>(size.raster));
        index -= first * tiles_n;
        return {static_cast<i32>(first + index % height), static_cast<i32>(index / height), static_cast<i32>(z)};
    }

    PGK_FN void load_a(u32 slot, u32 barrier, const Tile& at, u32 rank, i32 k) const {
        const i32 m = (at.m * CLUSTER + static_cast<i32>(rank)) * BM, z = at.z * size.a_step;
        if constexpr (A_MN) {
#pragma unroll
            for (int i = 0; i < BM / 64; ++i) load_box(slot + i * 8192, a, barrier, m + i * 64, k, z);
        } else {
            load_box(slot, a, barrier, k, m, z);
        }
    }
    PGK_FN void load_b(u32 slot, u32 barrier, const Tile& at, u32 rank, i32 k) const {
        constexpr unsigned short all = (1 << CLUSTER) - 1;
        const i32 z = at.z * size.b_step;
        slot += A_BYTES + rank * (B_BYTES / CLUSTER);
        const i32 n = at.n * BN + static_cast<i32>(rank) * (BN / CLUSTER);
#pragma unroll
        for (int i = 0; i < (B_MN ? BN / CLUSTER / 64 : 1); ++i) {
            const i32 x = B_MN ? n + i * 64 : k, y = B_MN ? k : n;
            if constexpr (CLUSTER > 1) load_box_to(slot + i * 8192, b, barrier, x, y, z, all);
            else load_box(slot + i * 8192, b, barrier, x, y, z);
        }
    }

    PGK_FN void produce(u32 shared, u32 full, u32 empty, u32 rank, u32 first, u32 step, u32 tiles_m, u32 tiles_n) const {
        const u32 tiles = tiles_m * tiles_n * size.z;
        const i32 steps = (size.k + BK - 1) / BK;
        prefetch_map(a);
        prefetch_map(b);
        i32 ready = 0;
        u32 stage = 0, parity = 1;
        if (first < tiles) {
            // b is constant: its first tiles come while the predecessor still runs.
            const Tile at = tile(first, tiles_m, tiles_n);
            for (; ready < min(steps, STAGES); ++ready) {
                barrier_expect(full + ready * 8, STAGE);
                load_b(shared + ready * STAGE, full + ready * 8, at, rank, ready * BK);
            }
            await_predecessor();
            for (i32 s = 0; s < ready; ++s) load_a(shared + s * STAGE, full + s * 8, at, rank, s * BK);
            stage = ready % STAGES;
            if (stage == 0) parity ^= 1;
        } else {
            await_predecessor();
        }
        for (u32 index = first; index < tiles; index += step) {
            const Tile at = tile(index, tiles_m, tiles_n);
            for (i32 s = ready; s < steps; ++s) {
                barrier_wait(empty + stage * 8, parity);
                barrier_expect(full + stage * 8, STAGE);
                load_a(shared + stage * STAGE, full + stage * 8, at, rank, s * BK);
                load_b(shared + stage * STAGE, full + stage * 8, at, rank, s * BK);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            ready = 0;
        }
    }

    // Rounds all stages of the block's tiles to nearest, ties away from zero: `full` has come, `ready` says it is done.
    PGK_FN void round(u32 full, u32 ready, u32 first, u32 step, u32 tiles) const {
        const u32 thread = threadIdx.x - 32, steps = (size.k + BK - 1) / BK;
        u32 stage = 0, parity = 0;
        for (u32 index = first; index < tiles; index += step) {
            for (u32 s = 0; s < steps; ++s) {
                barrier_wait(full + stage * 8, parity);
                uint4* at = reinterpret_cast<uint4*>(dynamic_shared + stage * STAGE);
#pragma unroll 4
                for (u32 i = thread; i < STAGE / 16; i += ROUNDERS) {
                    const uint4 x = at[i];
                    at[i] = uint4{to_tf32(x.x), to_tf32(x.y), to_tf32(x.z), to_tf32(x.w)};
                }
                fence_async();
                __syncwarp();
                if (thread % 32 == 0) barrier_arrive(ready + stage * 8);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
    }
    // Every warp tells every block of the cluster, as each may write there.
    PGK_FN static void release(u32 barrier, u32 lane) {
        __syncwarp();
        if constexpr (CLUSTER > 1) {
            if (lane < CLUSTER) barrier_arrive_at(barrier, lane);
        } else {
            if (lane == 0) barrier_arrive(barrier);
        }
    }

    // Two neighbours of a row, by one access where they lie together at a multiple of their size.
    PGK_FN static void pair(Acc (&to)[2], const To* from, i64 step, bool together) {
        if (together) {
            const Vec<To, 2> both = *reinterpret_cast<const Vec<To, 2>*>(from);
            to[0] = convert<Acc>(both.e[0]);
            to[1] = convert<Acc>(both.e[1]);
        } else {
            to[0] = convert<Acc>(from[0]);
            to[1] = convert<Acc>(from[step]);
        }
    }

    // 64 rows of sums from row m0 on, piece by piece through shared memory.
    PGK_FN void finish_part(const Acc (&d)[BN / 2], const Tile& at, i32 m0, u32 buffers, int group, u32& piece,
                            const Epilogue<To>& mine, To* out_z) const {
        const int thread = threadIdx.x % 128, lane = thread % 32;
        const int row = thread / 32 * 16 + lane / 4;
        // Then a pair of an even column is inside of the row, too.
        const bool together = mine.column == 1 && mine.row % 2 == 0 && size.n % 2 == 0 &&
                              reinterpret_cast<u64>(mine.residual) % sizeof(Vec<To, 2>) == 0;
#pragma unroll
        for (int p = 0; p < PIECES; ++p) {
            const i32 n0 = at.n * BN + p * PIECE_COLUMNS;
            if (n0 >= size.n || m0 >= size.m) continue;
            const u32 buffer = buffers + piece * PIECE;
            piece ^= 1;
            if (thread == 0) wait_stores_read<1>();
            sync_some(1 + group, 128);
#pragma unroll
            for (int j = 0; j < PIECE_COLUMNS / 8; ++j) {
                const int column = 8 * j + 2 * (lane % 4);
                // What lies outside of the result is computed with what is inside, and not stored.
                const i64 n = min(n0 + column, together ? size.n - 2 : size.n - 1);
                const i64 step = n + 1 < size.n ? 1 : 0;
                Acc bias[2] = {-Acc(0), -Acc(0)};
                if (ACTIVATION != PLAIN && mine.bias) pair(bias, mine.bias + n, step, false);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int r = row + half * 8, first = 4 * (p * (PIECE_COLUMNS / 8) + j) + 2 * half;
                    Acc both[2] = {d[first], d[first + 1]};
                    if constexpr (ACTIVATION != PLAIN) {
                        const i64 m = min(m0 + r, size.m - 1);
                        if constexpr (same<T, e4m3>::value) {
                            both[0] = scaled(both[0], m, n, mine);
                            both[1] = scaled(both[1], m, n + step, mine);
                        }
                        Acc added[2] = {-Acc(0), -Acc(0)};
                        if (mine.residual) {
                            pair(added, mine.residual + m * mine.row + n * mine.column, step * mine.column, together);
                        }
#pragma unroll
                        for (int i = 0; i < 2; ++i) both[i] = finish_with<ACTIVATION>(both[i], bias[i], added[i]);
                    }
                    const Vec<To, 2> made = outputs<To>(both);
                    const u32 byte = column * sizeof(To);
                    const u32 place = buffer + r * 128 + ((byte / 16) ^ (r & 7)) * 16 + byte % 16;
                    if constexpr (sizeof(To) == 2) {
                        asm volatile("st.shared.u32 [%0], %1;" :: "r"(place), "r"(made.w[0]) : "memory");
                    } else {
                        asm volatile("st.shared.v2.u32 [%0], {%1, %2};"
                                     :: "r"(place), "r"(made.w[0]), "r"(made.w[1]) : "memory");
                    }
                }
            }
            if (size.by_box) fence_async();
            sync_some(1 + group, 128);
            if (size.by_box) {
                if (thread == 0) {
                    store_box(to, buffer, n0, m0, at.z);
                    commit_stores();
                }
            } else {
                const int columns = min(PIECE_COLUMNS, size.n - n0), column = thread % PIECE_COLUMNS;
#pragma unroll 1
                for (int r = thread / PIECE_COLUMNS; r < min(64, size.m - m0); r += 128 / PIECE_COLUMNS) {
                    const u32 byte = column * sizeof(To);
                    const u8* from = dynamic_shared + (buffer - shared_address(dynamic_shared)) + r * 128 +
                                     ((byte / 16) ^ (r & 7)) * 16 + byte % 16;
                    const To value = *reinterpret_cast<const To*>(from);
                    if (column < columns) out_z[(m0 + r) * out_row + (n0 + column) * out_column] = value;
                }
            }
        }
    }

    PGK_FN void consume(u32 shared, u32 full, u32 empty, u32 ready, u32 rank, u32 first, u32 step, u32 tiles_m,
                        u32 tiles_n) const {
        const u32 tiles = tiles_m * tiles_n * size.z;
        const i32 steps = (size.k + BK - 1) / BK;
        const int group = static_cast<int>(uniform(threadIdx.x / 128)) - 1, lane = threadIdx.x % 32;
        const u32 buffers = shared + OUT_AT + group * 2 * PIECE;
        u32 stage = 0, parity = 0, piece = 0;
        for (u32 index = first; index < tiles; index += step) {
            const Tile at = tile(index, tiles_m, tiles_n);
            Acc d[PARTS][BN / 2] = {}, promoted[PARTS][PROMOTE ? BN / 2 : 1] = {};
            u32 before = 0;
#pragma unroll 1
            for (i32 s = 0; s < steps; ++s) {
                barrier_wait((ROUND ? ready : full) + stage * 8, parity);
                const u32 left = shared + stage * STAGE, right = left + A_BYTES;
                const u64 b_at = B_MN ? mn_major(right, 8192) : k_major(right);
                wgmma_fence();
#pragma unroll
                for (int part = 0; part < PARTS; ++part) {
                    const u32 rows = left + (group * PARTS + part) * 8192;
                    const u64 a_at = A_MN ? mn_major(rows, 8192) : k_major(rows);
#pragma unroll
                    for (int k = 0; k < 4; ++k) {
                        const u64 a_k = a_at + k * next_k(A_MN), b_k = b_at + k * next_k(B_MN);
                        if (PROMOTE && k == 0) Wgmma<BN>::template issue<T, A_MN, B_MN, false>(d[part], a_k, b_k);
                        else Wgmma<BN>::template issue<T, A_MN, B_MN>(d[part], a_k, b_k);
                    }
                }
                wgmma_commit();
                if constexpr (PROMOTE) {
                    wgmma_wait<0>();
                    release(empty + stage * 8, lane);
#pragma unroll
                    for (int part = 0; part < PARTS; ++part) {
                        wgmma_ready(d[part]);
#pragma unroll
                        for (int i = 0; i < BN / 2; ++i) promoted[part][i] = add_rn(promoted[part][i], d[part][i]);
                    }
                } else {
                    // One stage is multiplied while the next is waited for; the one before is free.
                    wgmma_wait<1>();
                    if (s > 0) release(empty + before * 8, lane);
                    before = stage;
                }
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            if constexpr (!PROMOTE) {
                wgmma_wait<0>();
#pragma unroll
                for (int part = 0; part < PARTS; ++part) wgmma_ready(d[part]);
                release(empty + before * 8, lane);
            }

            Epilogue<To> mine = end;
            To* out_z = out;
            i64 z = at.z;
            for (int i = batch.ndim - 1; i >= 0; --i) {
                const i64 rest = z / batch.shape[i], place = z - rest * batch.shape[i];
                z = rest;
                out_z += place * batch.stride[0][i];
                if (mine.residual) mine.residual += place * batch.stride[1][i];
            }
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                const i32 m0 = (at.m * CLUSTER + static_cast<i32>(rank)) * BM + (group * PARTS + part) * 64;
                if constexpr (PROMOTE) finish_part(promoted[part], at, m0, buffers, group, piece, mine, out_z);
                else finish_part(d[part], at, m0, buffers, group, piece, mine, out_z);
            }
        }
        if (threadIdx.x % 128 == 0) wait_stores();
    }

    PGK_FN void run() const {
        const u32 shared = shared_address(dynamic_shared), full = shared + BARRIERS_AT, empty = full + STAGES * 8;
        const u32 ready = empty + STAGES * 8;
        const u32 rank = CLUSTER > 1 ? cluster_rank() : 0;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                barrier_init(full + i * 8, 1);
                barrier_init(empty + i * 8, GROUPS * 4 * CLUSTER);
                barrier_init(ready + i * 8, ROUNDERS / 32);
            }
            fence_barrier_init();
        }
        __syncthreads();
        if constexpr (CLUSTER > 1) cluster_sync_init();
        const u32 tiles_m = (size.m + BM * CLUSTER - 1) / (BM * CLUSTER), tiles_n = (size.n + BN - 1) / BN;
        const u32 first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;
        if (threadIdx.x < 128) {
            if constexpr (GROUPS == 2) give_registers<40>();
            if (threadIdx.x == 0) {
                produce(shared, full, empty, rank, first, step, tiles_m, tiles_n);
            } else {
                await_predecessor();
                if (ROUND && threadIdx.x >= 32) round(full, ready, first, step, tiles_m * tiles_n * size.z);
            }
        } else {
            if constexpr (GROUPS == 2) take_registers<232>();
            await_predecessor();
            consume(shared, full, empty, ready, rank, first, step, tiles_m, tiles_n);
        }
        // A block of a cluster stays until the others have told it all, and have loaded for it.
        if constexpr (CLUSTER > 1) cluster_sync();
    }
};

}  // namespace pgk

#define PGK_WGMMA_MATMUL(entry, T, To, activation, bm, bn, stages, cluster, a_mn, b_mn, rounded) \
    extern "C" __global__ void __launch_bounds__(128 * (bm >= 128 ? 3 : 2), 1) entry( \
        const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b, \
        const __grid_constant__ CUtensorMap to, pgk::To* out, const __grid_constant__ pgk::GemmSizes size, \
        const __grid_constant__ pgk::Nd<2> batch, long long out_row, long long out_column, const pgk::To* bias, \
        const pgk::To* residual, long long residual_row, long long residual_column, const float* scale_a, \
        const float* scale_b, long long step_a, long long step_b) { \
        pgk::Gemm<pgk::T, pgk::To, pgk::activation, bm, bn, stages, cluster, a_mn, b_mn, rounded>{ \
            &a, &b, &to, out, size, batch, out_row, out_column, \
            {bias, residual, residual_row, residual_column, scale_a, scale_b, step_a, step_b}}.run(); \
    }
