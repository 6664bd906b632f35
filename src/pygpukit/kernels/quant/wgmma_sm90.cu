// Product of many rows with a quantised weight by wgmma (SM 90a): out[i, j] = end(sum over k of x[i, k] * w[j, k]), w as
// decode.cuh reads it.
//
// The transposed product runs: decoded fragments of w are the first operand, out of registers, and x lies in shared memory.
// x: tensor map of three dimensions {k, m, 1} with boxes of 64 and TOKENS and the 128-byte swizzle. planes: codes, high,
// scales, extra, constant. out: [m, n], rows ld_out apart; pairs: n, ld_out and the address are multiples of two elements.
// Launch: 128 * (1 + GROUPS) threads, grid (ceil(tiles / (4 GROUPS)), ceil(m / TOKENS)). Dynamic shared memory: STAGES
// pieces of TOKENS * 128 bytes of x, and 16 bytes for each.
// One thread of the first warp group copies x. The other GROUPS stream their 64 rows of w through registers, AHEAD chunks
// ahead, and decode a chunk while the one before is multiplied; AHEAD chunks are a turn.
// Numerics: one float32 accumulator, groups of 16 columns ascending, rounded to T once: the bits of linear.cu.
// Determinism: batch_invariant.
#include "pygpukit/decode.cuh"
#include "pygpukit/fragment.cuh"
#include "pygpukit/sm90.cuh"
#include "pygpukit/wgmma.cuh"

namespace pgk {

extern __shared__ __align__(1024) u8 dynamic_shared[];

// d += A B with A, 64 rows of 16 columns, in registers; B as in wgmma.cuh, K-major.
template <int N> struct FromRegisters;
#define PGK_FROM_REGISTERS(n, count, a0, a1, a2, a3, b_at) \
    template <> struct FromRegisters<n> { \
        template <class T> PGK_FN static void issue(f32 (&d)[count], const u32 (&a)[4], u64 b) { \
            if constexpr (same<T, bf16>::value) { \
                asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" PGK_LIST_##count "}, " \
                             "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, 0;" \
                             : PGK_D##count("+f", 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
            } else { \
                asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.f16.f16 {" PGK_LIST_##count "}, " \
                             "{%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_at ", 1, 1, 1, 0;" \
                             : PGK_D##count("+f", 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
            } \
        } \
    };
PGK_FROM_REGISTERS(64, 32, 32, 33, 34, 35, 36)
PGK_FROM_REGISTERS(128, 64, 64, 65, 66, 67, 68)
PGK_FROM_REGISTERS(256, 128, 128, 129, 130, 131, 132)
#undef PGK_FROM_REGISTERS

template <class R, class S, class T, int ACTIVATION, int GROUPS, int TOKENS, int STAGES, int AHEAD> struct Streamed {
    static constexpr int STAGE = TOKENS * 128;
    static_assert(AHEAD <= STAGES, "a turn's pieces are given back at its end");

    const CUtensorMap* x;
    const Planes& w;
    const Results<T>& to;

    // Decodes a chunk.
    PGK_FN static void make(u32 (&a)[STEPS][4], const typename R::Raw& raw) {
        Decoder<R, T, S> decoder;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            if (s % (STEPS / R::SUBS) == 0) decoder.begin(raw, s / (STEPS / R::SUBS));
#pragma unroll
            for (int p = 0; p < 4; ++p) a[s][p] = decoder.pair(raw, s, p);
        }
    }

    // Begins to multiply a chunk, once its piece of x is there.
    PGK_FN static void multiply(f32 (&sum)[TOKENS / 2], const u32 (&a)[STEPS][4], u32 shared, u32 full, u32& stage,
                                u32& parity) {
        barrier_wait(full + stage * 8, parity);
        const u64 b = k_major(shared + stage * STAGE);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < STEPS; ++s) FromRegisters<TOKENS>::template issue<T>(sum, a[s], b + s * next_k(false));
        wgmma_commit();
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }

    PGK_FN void produce(u32 shared, u32 full, u32 empty, i32 row0, int chunks) const {
        prefetch_map(x);
        u32 stage = 0, parity = 1;
        for (int chunk = 0; chunk < chunks; ++chunk) {
            barrier_wait(empty + stage * 8, parity);
            barrier_expect(full + stage * 8, STAGE);
            load_box(shared + stage * STAGE, x, full + stage * 8, chunk * CHUNK, row0, 0);
            if (++stage == STAGES) {
                stage = 0;
                parity ^= 1;
            }
        }
    }

    PGK_FN void consume(u32 shared, u32 full, u32 empty, i64 row0, int chunks) const {
        const int lane = threadIdx.x % 32;
        const i64 tiles = (to.n + 15) / 16;
        const i64 tile = static_cast<i64>(blockIdx.x) * (4 * GROUPS) + (threadIdx.x / 32 - 4);
        // Warps beyond the last tile multiply it too and store nothing: wgmma takes all four of a group.
        typename R::Cursor cursor = R::cursor(w, tile < tiles ? tile : tiles - 1, lane);
        typename R::Raw ring[AHEAD];
#pragma unroll
        for (int c = 0; c < AHEAD; ++c) {
            if (c < chunks) R::load(ring[c], cursor, c, c);
        }
        await_predecessor();
        f32 sum[TOKENS / 2] = {};
        u32 a[2][STEPS][4], stage = 0, parity = 0;
        int first = 0;
#pragma unroll 1
        for (; first + AHEAD <= chunks; first += AHEAD) {
            u32 begun = stage;
            make(a[0], ring[0]);
#pragma unroll
            for (int c = 0; c < AHEAD; ++c) {
                multiply(sum, a[c % 2], shared, full, stage, parity);
                if (first + AHEAD + c < chunks) R::load(ring[c], cursor, AHEAD + c, first + AHEAD + c);
                // The chunk before has been multiplied: its fragments are free.
                if (c > 0) wgmma_wait<1>();
                if (c + 1 < AHEAD) make(a[(c + 1) % 2], ring[c + 1]);
            }
            // ptxas runs products one by one where fragments are made while one of an earlier turn is under way.
            wgmma_wait<0>();
            __syncwarp();
            if (lane < AHEAD) {
                begun += lane;
                barrier_arrive(empty + (begun < STAGES ? begun : begun - STAGES) * 8);
            }
            R::advance(cursor, AHEAD);
        }
#pragma unroll
        for (int c = 0; c < AHEAD - 1; ++c) {
            if (first + c >= chunks) break;
            make(a[0], ring[c]);
            multiply(sum, a[0], shared, full, stage, parity);
            wgmma_wait<0>();
        }
        wgmma_ready(sum);
        if (tile >= tiles) return;
        const Column<ACTIVATION, T> column(to, tile * 16, lane);
#pragma unroll
        for (int j = 0; j < TOKENS / 8; ++j) {
            const f32* d = sum + 4 * j;
            if (row0 + j * 8 < to.m) column.put(to, d[0], d[1], d[2], d[3], static_cast<i32>(row0) + j * 8, lane);
        }
    }

    PGK_FN void run() const {
        const u32 shared = shared_address(dynamic_shared), full = shared + STAGES * STAGE, empty = full + STAGES * 8;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                barrier_init(full + i * 8, 1);
                barrier_init(empty + i * 8, GROUPS * 4);
            }
            fence_barrier_init();
        }
        __syncthreads();
        const i64 row0 = static_cast<i64>(blockIdx.y) * TOKENS;
        const int chunks = static_cast<int>(w.chunks);
        if (threadIdx.x < 128) {
            if constexpr (GROUPS == 2) give_registers<40>();
            await_predecessor();
            if (threadIdx.x == 0) produce(shared, full, empty, static_cast<i32>(row0), chunks);
        } else {
            if constexpr (GROUPS == 2) take_registers<232>();
            consume(shared, full, empty, row0, chunks);
        }
    }
};

}  // namespace pgk

#define PGK_QUANT_WGMMA(entry, rule, S, T, activation, groups, tokens, stages, ahead) \
    extern "C" __global__ void __launch_bounds__(128 * (1 + groups), 1) entry( \
        const __grid_constant__ CUtensorMap x, pgk::T* out, const pgk::u8* codes, const pgk::u8* high, \
        const pgk::u8* scales, const pgk::u8* extra, long long m, long long n, long long ld_out, int pairs, \
        long long chunks, long long records, long long owners, const pgk::T* bias, const pgk::T* residual, \
        long long residual_row, long long residual_column) { \
        const pgk::Planes w{codes, high, scales, extra, chunks, records, owners}; \
        const pgk::Results<pgk::T> to{ \
            out, ld_out, m, n, pairs != 0, {bias, residual, residual_row, residual_column}}; \
        pgk::Streamed<rule, pgk::S, pgk::T, pgk::activation, groups, tokens, stages, ahead>{&x, w, to}.run(); \
    }
