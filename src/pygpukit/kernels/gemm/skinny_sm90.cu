// Matrix product of few rows on tensor cores (SM 90a), at the memory's speed: out[z, m, n] = end(sum over k of
// x[z, m, k] * w[z, k, n]) for m up to TOKENS.
//
// The transposed product runs: weights are the side of 64, rows of x the side of TOKENS (8, 16, 32 or 64), so that no
// multiplication is spent on rows that are not there. w and x are tensor maps of three dimensions with the 128-byte
// swizzle: w {k, n, z} with boxes of 128 bytes and ROWS, or where W_MN (16-bit types, ROWS 64 or 32) {n, k, z} with boxes of
// ROWS and 64, for 32 with the 64-byte swizzle; x {k, m, z} with boxes of 128 bytes and TOKENS. Where an operand is the same for all z its map has one
// matrix, and w_step, x_step is 0, else 1. batch has the shape of z and strides of out and residual.
//
// Launch: 192 threads, any grid up to z * ceil(n / ROWS): blocks walk over the tiles. Dynamic shared memory: SHARED bytes.
// A warp loads w, without waiting for the predecessor, which writes no weights; a warp loads x; a warp group multiplies.
// Up to 220 KB per SM are under way, in stages of DEPTH * 128 bytes of k. With ROWS under 64 a product reads the lines
// behind its block as further rows, which nobody looks at: the next block of its stage, or x.
// Numerics: one accumulator from zero over the whole of k, in groups of 32 bytes ascending, rounded once: the canonical
// order, with the bits of wgmma_sm90.cu. Determinism: batch_invariant.
// SPLIT: a block takes `part` of k at a time, a multiple of DEPTH * 128 bytes. Sums of parts go to `partial`, [tile, part,
// TOKENS / 2, 128]; the block that comes last to a tile adds them in order of k, as `counters` (zeros, one per tile, zeros
// again at the end) tell. The order depends on part: run_to_run.
#include "pygpukit/epilogue.cuh"
#include "pygpukit/sm90.cuh"
#include "pygpukit/wgmma.cuh"

namespace pgk {

extern __shared__ __align__(1024) u8 dynamic_shared[];

// Sizes of a launch, as the host packs them.
struct SkinnySizes {
    i32 m, n, k, z, w_step, x_step;
    // Where k is not split: k and 1.
    i32 part, parts;
};

template <class T, class To, int ACTIVATION, int ROWS, int TOKENS, int DEPTH, int STAGES, bool W_MN, bool SPLIT>
struct Skinny {
    static constexpr int BK = 128 / sizeof(T);
    static constexpr int W_BLOCK = ROWS * 128, X_BLOCK = TOKENS * 128, STAGE = DEPTH * (W_BLOCK + X_BLOCK);
    static constexpr int FLAG_AT = STAGES * (STAGE + 16), SHARED = FLAG_AT + (SPLIT ? 16 : 0);
    static_assert(ROWS % 8 == 0 && ROWS <= 64 && (!W_MN || ROWS % 32 == 0), "blocks begin where the swizzle's pattern does");
    static_assert(64 - ROWS <= DEPTH * TOKENS, "what is read behind the last block must be x");
    using Acc = typename Sum<T>::type;

    // Where rows are few, those after them are what lies behind the block.
    PGK_FN static u64 weights(u32 at) {
        if constexpr (!W_MN) return k_major(at);
        else if constexpr (ROWS == 32) return mn_major_32(at, W_BLOCK);
        else return mn_major(at, W_BLOCK);
    }
    static constexpr u32 NEXT_K = next_k(W_MN) / (W_MN ? 64 / ROWS : 1);

    const CUtensorMap *w, *x;
    To* out;
    const SkinnySizes& size;
    const Nd<2>& batch;
    i64 out_row, out_column;
    Epilogue<To> end;
    Acc* partial;
    u32* counters;

    // What is multiplied at a time: a tile, and the part of k from `first` on.
    struct Work { i32 z, n, first, last; };
    PGK_FN u32 tiles_n() const { return (size.n + ROWS - 1) / ROWS; }
    PGK_FN u32 works() const { return tiles_n() * size.z * (SPLIT ? size.parts : 1); }
    PGK_FN Work work(u32 index) const {
        const u32 tile = SPLIT ? index / size.parts : index, z = tile / tiles_n();
        const i32 n = (tile - z * tiles_n()) * ROWS;
        if constexpr (!SPLIT) return {static_cast<i32>(z), n, 0, size.k};
        const i32 first = (index - tile * size.parts) * size.part;
        return {static_cast<i32>(z), n, first, min(size.k, first + size.part)};
    }

    // Calls load(slot, barrier, n, z, k) for every stage of the block's tiles, once its slot is free.
    template <class Load> PGK_FN void produce(u32 shared, u32 full, u32 empty, u32 bytes, const Load& load) const {
        u32 stage = 0, parity = 1;
        for (u32 index = blockIdx.x; index < works(); index += gridDim.x) {
            const Work at = work(index);
            for (i32 k = at.first; k < at.last; k += DEPTH * BK) {
                barrier_wait(empty + stage * 8, parity);
                barrier_expect(full + stage * 8, bytes);
#pragma unroll
                for (int i = 0; i < DEPTH; ++i) load(shared + stage * STAGE, full + stage * 8, i, at.n, at.z, k + i * BK);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
    }

    PGK_FN void consume(u32 shared, u32 full, u32 empty) const {
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
        u32 stage = 0, parity = 0;
        for (u32 index = blockIdx.x; index < works(); index += gridDim.x) {
            const Work at = work(index);
            Acc d[TOKENS / 2] = {};
            u32 before = empty;
#pragma unroll 1
            for (i32 k = at.first; k < at.last; k += DEPTH * BK) {
                barrier_wait(full + stage * 8, parity);
                const u32 from = shared + stage * STAGE;
                const u64 left = weights(from), right = k_major(from + DEPTH * W_BLOCK);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < DEPTH * 4; ++i) {
                    Wgmma<TOKENS>::template issue<T, W_MN, false>(
                        d, left + i / 4 * (W_BLOCK / 16) + i % 4 * NEXT_K,
                        right + i / 4 * (X_BLOCK / 16) + i % 4 * next_k(false));
                }
                wgmma_commit();
                // One stage is multiplied while the next is waited for; the one before is free.
                wgmma_wait<1>();
                __syncwarp();
                if (k > at.first && lane == 0) barrier_arrive(before);
                before = empty + stage * 8;
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            wgmma_wait<0>();
            wgmma_ready(d);
            __syncwarp();
            if (lane == 0) barrier_arrive(before);
            if (SPLIT && !add_parts(d, index / size.parts, index, shared + FLAG_AT)) continue;
            store(d, at.z, at.n, row, lane);
        }
    }

    // Leaves the sum of a part, and returns whether this was the tile's last: then d is the sum of all parts.
    PGK_FN bool add_parts(Acc (&d)[TOKENS / 2], u32 tile, u32 index, u32 flag) const {
        const i64 size_of_part = TOKENS / 2 * 128;
        Acc* mine = partial + index * size_of_part + threadIdx.x;
#pragma unroll
        for (int i = 0; i < TOKENS / 2; ++i) mine[i * 128] = d[i];
        sync_some(1, 128);
        if (threadIdx.x == 0) {
            __threadfence();
            const u32 came = atomicAdd(counters + tile, 1u);
            __threadfence();
            asm volatile("st.shared.u32 [%0], %1;" :: "r"(flag), "r"(came) : "memory");
        }
        sync_some(1, 128);
        u32 came;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(came) : "r"(flag) : "memory");
        if (came + 1 != size.parts) return false;
        const Acc* from = partial + tile * size.parts * size_of_part + threadIdx.x;
#pragma unroll
        for (int i = 0; i < TOKENS / 2; ++i) d[i] = from[i * 128];
        for (i32 part = 1; part < size.parts; ++part) {
            from += size_of_part;
#pragma unroll
            for (int i = 0; i < TOKENS / 2; ++i) d[i] = add_rn(d[i], from[i * 128]);
        }
        if (threadIdx.x == 0) counters[tile] = 0;
        return true;
    }

    PGK_FN void store(const Acc (&d)[TOKENS / 2], i32 z, i32 n0, int row, int lane) const {
        Epilogue<To> mine = end;
        To* to = out;
        i64 rest = z;
        for (int i = batch.ndim - 1; i >= 0; --i) {
            const i64 above = rest / batch.shape[i], place = rest - above * batch.shape[i];
            rest = above;
            to += place * batch.stride[0][i];
            if (mine.residual) mine.residual += place * batch.stride[1][i];
        }
#pragma unroll
        for (int i = 0; i < TOKENS / 2; ++i) {
            const int r = row + i / 2 % 2 * 8;
            const i32 m = i / 4 * 8 + 2 * (lane % 4) + i % 2, n = n0 + r;
            if (r < ROWS && n < size.n && m < size.m) {
                to[m * out_row + n * out_column] = output<To>(finish<ACTIVATION>(d[i], m, n, mine));
            }
        }
    }

    PGK_FN void run() const {
        const u32 shared = shared_address(dynamic_shared), full = shared + STAGES * STAGE, empty = full + STAGES * 8;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                barrier_init(full + i * 8, 2);
                barrier_init(empty + i * 8, 4);
            }
            fence_barrier_init();
        }
        __syncthreads();
        launch_successor();
        const u32 warp = uniform(threadIdx.x / 32);
        if (warp == 4) {
            if (threadIdx.x % 32 == 0) {
                prefetch_map(w);
                produce(shared, full, empty, DEPTH * W_BLOCK, [&](u32 slot, u32 barrier, int i, i32 n, i32 z, i32 k) {
                    load_box(slot + i * W_BLOCK, w, barrier, W_MN ? n : k, W_MN ? k : n, z * size.w_step, EVICT_FIRST);
                });
            }
            await_predecessor();
        } else if (warp == 5) {
            await_predecessor();
            if (threadIdx.x % 32 == 0) {
                prefetch_map(x);
                produce(shared, full, empty, DEPTH * X_BLOCK, [&](u32 slot, u32 barrier, int i, i32, i32 z, i32 k) {
                    load_box(slot + DEPTH * W_BLOCK + i * X_BLOCK, x, barrier, k, 0, z * size.x_step, EVICT_LAST);
                });
            }
        } else {
            await_predecessor();
            consume(shared, full, empty);
        }
    }
};

}  // namespace pgk

#define PGK_SKINNY_PARAMETERS(To) \
    const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x, pgk::To* out, \
        const __grid_constant__ pgk::SkinnySizes size, const __grid_constant__ pgk::Nd<2> batch, long long out_row, \
        long long out_column, const pgk::To* bias, const pgk::To* residual, long long residual_row, \
        long long residual_column
#define PGK_SKINNY_RUN(T, To, activation, rows, tokens, depth, stages, w_mn, split, partial, counters) \
    pgk::Skinny<pgk::T, pgk::To, pgk::activation, rows, tokens, depth, stages, w_mn, split>{ \
        &w, &x, out, size, batch, out_row, out_column, {bias, residual, residual_row, residual_column}, partial, \
        counters}.run();

#define PGK_SKINNY_MATMUL(entry, T, To, activation, rows, tokens, depth, stages, w_mn) \
    extern "C" __global__ void __launch_bounds__(192, 1) entry(PGK_SKINNY_PARAMETERS(To)) { \
        PGK_SKINNY_RUN(T, To, activation, rows, tokens, depth, stages, w_mn, false, nullptr, nullptr) \
    }
#define PGK_SPLIT_MATMUL(entry, T, To, activation, rows, tokens, depth, stages, w_mn) \
    extern "C" __global__ void __launch_bounds__(192, 1) entry(PGK_SKINNY_PARAMETERS(To), float* partial, \
                                                               unsigned* counters) { \
        PGK_SKINNY_RUN(T, To, activation, rows, tokens, depth, stages, w_mn, true, partial, counters) \
    }
