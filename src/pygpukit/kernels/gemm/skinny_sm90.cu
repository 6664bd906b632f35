// Matrix product of few rows on tensor cores (SM 90a), at the memory's speed: out[z, m, n] = end(sum over k of
// x[z, m, k] * w[z, k, n]) for m up to TOKENS.
//
// The transposed product runs: weights are the side of 64, rows of x the side of TOKENS (8, 16, 32 or 64), so that no
// multiplication is spent on rows that are not there. w and x are tensor maps of three dimensions with the 128-byte
// swizzle: w {k, n, z} with boxes of 128 bytes and ROWS, or where W_MN (16-bit types, ROWS 64) {n, k, z} with boxes of 128
// bytes and 64; x {k, m, z} with boxes of 128 bytes and TOKENS. Where an operand is the same for all z its map has one
// matrix, and w_step, x_step is 0, else 1. batch has the shape of z and strides of out and residual.
//
// Launch: 192 threads, any grid up to z * ceil(n / ROWS): blocks walk over the tiles. Dynamic shared memory: SHARED bytes.
// A warp loads w, without waiting for the predecessor, which writes no weights; a warp loads x; a warp group multiplies.
// Up to 220 KB per SM are under way, in stages of DEPTH * 128 bytes of k. With ROWS under 64 a product reads the lines
// behind its block as further rows, which nobody looks at: the next block of its stage, or x.
// Numerics: one accumulator from zero over the whole of k, in groups of 32 bytes ascending, rounded once: the canonical
// order, with the bits of wgmma_sm90.cu. Determinism: batch_invariant.
#include "pygpukit/epilogue.cuh"
#include "pygpukit/sm90.cuh"
#include "pygpukit/wgmma.cuh"

namespace pgk {

extern __shared__ __align__(1024) u8 dynamic_shared[];

// Sizes of a launch, as the host packs them.
struct SkinnySizes {
    i32 m, n, k, z, w_step, x_step;
};

template <class T, class To, int ACTIVATION, int ROWS, int TOKENS, int DEPTH, int STAGES, bool W_MN> struct Skinny {
    static constexpr int BK = 128 / sizeof(T);
    static constexpr int W_BLOCK = ROWS * 128, X_BLOCK = TOKENS * 128, STAGE = DEPTH * (W_BLOCK + X_BLOCK);
    static constexpr int SHARED = STAGES * (STAGE + 16);
    static_assert(ROWS % 8 == 0 && ROWS <= 64 && (!W_MN || ROWS == 64), "blocks begin where the swizzle's pattern does");
    static_assert(64 - ROWS <= DEPTH * TOKENS, "what is read behind the last block must be x");
    using Acc = typename Sum<T>::type;

    const CUtensorMap *w, *x;
    To* out;
    const SkinnySizes& size;
    const Nd<2>& batch;
    i64 out_row, out_column;
    Epilogue<To> end;

    // Calls load(slot, barrier, n, z, k) for every stage of the block's tiles, once its slot is free.
    template <class Load> PGK_FN void produce(u32 shared, u32 full, u32 empty, u32 bytes, const Load& load) const {
        const u32 tiles_n = (size.n + ROWS - 1) / ROWS, tiles = tiles_n * size.z;
        u32 stage = 0, parity = 1;
        for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
            const i32 z = index / tiles_n, n = (index - z * tiles_n) * ROWS;
            for (i32 k = 0; k < size.k; k += DEPTH * BK) {
                barrier_wait(empty + stage * 8, parity);
                barrier_expect(full + stage * 8, bytes);
#pragma unroll
                for (int i = 0; i < DEPTH; ++i) load(shared + stage * STAGE, full + stage * 8, i, n, z, k + i * BK);
                if (++stage == STAGES) {
                    stage = 0;
                    parity ^= 1;
                }
            }
        }
    }

    PGK_FN void consume(u32 shared, u32 full, u32 empty) const {
        const u32 tiles_n = (size.n + ROWS - 1) / ROWS, tiles = tiles_n * size.z;
        const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
        u32 stage = 0, parity = 0;
        for (u32 index = blockIdx.x; index < tiles; index += gridDim.x) {
            Acc d[TOKENS / 2] = {};
            u32 before = empty;
#pragma unroll 1
            for (i32 k = 0; k < size.k; k += DEPTH * BK) {
                barrier_wait(full + stage * 8, parity);
                const u32 at = shared + stage * STAGE;
                const u64 left = W_MN ? mn_major(at, 8192) : k_major(at), right = k_major(at + DEPTH * W_BLOCK);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < DEPTH * 4; ++i) {
                    Wgmma<TOKENS>::template issue<T, W_MN, false>(
                        d, left + i / 4 * (W_BLOCK / 16) + i % 4 * next_k(W_MN),
                        right + i / 4 * (X_BLOCK / 16) + i % 4 * next_k(false));
                }
                wgmma_commit();
                // One stage is multiplied while the next is waited for; the one before is free.
                wgmma_wait<1>();
                __syncwarp();
                if (k > 0 && lane == 0) barrier_arrive(before);
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
            store(d, index / tiles_n, (index % tiles_n) * ROWS, row, lane);
        }
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

#define PGK_SKINNY_MATMUL(entry, T, To, activation, rows, tokens, depth, stages, w_mn) \
    extern "C" __global__ void __launch_bounds__(192, 1) entry( \
        const __grid_constant__ CUtensorMap w, const __grid_constant__ CUtensorMap x, pgk::To* out, \
        const __grid_constant__ pgk::SkinnySizes size, const __grid_constant__ pgk::Nd<2> batch, long long out_row, \
        long long out_column, const pgk::To* bias, const pgk::To* residual, long long residual_row, \
        long long residual_column) { \
        pgk::Skinny<pgk::T, pgk::To, pgk::activation, rows, tokens, depth, stages, w_mn>{ \
            &w, &x, out, size, batch, out_row, out_column, {bias, residual, residual_row, residual_column}}.run(); \
    }
