// Product of many rows with a quantised weight by wgmma (SM 90a): out[i, j] = end(sum over k of x[i, k] * w[j, k]), w as
// decode.cuh reads it.
//
// The transposed product runs: decoded fragments of w are the first operand, out of registers, and x lies in shared memory.
// x: tensor map of three dimensions {k, m, 1} with boxes of 64 and TOKENS and the 128-byte swizzle. planes: codes, high,
// scales, extra, constant, at multiples of 16 bytes. out: [m, n], rows ld_out apart; pairs: n, ld_out and the address are
// multiples of two elements.
// Launch: 128 * (1 + GROUPS) threads, any grid up to ceil(tiles / (4 GROUPS)) * ceil(m / TOKENS): blocks walk over these
// blocks of the result, those of the same rows of w one after the other. Dynamic shared memory: STAGES
// pieces of TOKENS * 128 bytes of x; `ring` pieces of w, SPAN chunks of a tile each, for every warp that multiplies; 16
// bytes for each of the former and 8 for each of the latter.
// One thread of the first warp group copies x. The other GROUPS have 64 rows of w each: every warp brings its 16 by bulk
// copies of its own, `ring` pieces ahead and before the predecessor has ended, and decodes a chunk while the one before is
// multiplied; TURN chunks are a turn.
// Numerics: one float32 accumulator, groups of 16 columns ascending, rounded to T once: the bits of linear.cu.
// Determinism: batch_invariant.
#include "pygpukit/fragment.cuh"
#include "pygpukit/pieces.cuh"
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

template <class R, class S, class T, int ACTIVATION, int GROUPS, int TOKENS, int STAGES, int SPAN> struct Streamed {
    static constexpr int STAGE = TOKENS * 128, TURN = 4;
    static_assert(TURN % SPAN == 0, "a turn has whole pieces");
    using P = Pieces<R, SPAN>;

    const CUtensorMap* x;
    const Planes& w;
    const Results<T>& to;
    int ring;

    // Blocks of the result: along x, and all.
    PGK_FN u32 along_x() const { return (static_cast<u32>(to.m) + TOKENS - 1) / TOKENS; }
    PGK_FN u32 blocks() const { return (static_cast<u32>((to.n + 15) / 16) + 4 * GROUPS - 1) / (4 * GROUPS) * along_x(); }

    // A warp's pieces of w: where they lie and their barriers, which is copied next, and which is read next.
    struct Ring {
        u32 at, full;
        typename P::Source source;
        i64 tiles, tile;
        u32 copied_block;
        int chunks, pieces, copied, taken, slot;
        u32 parity;
        Decoder<R, T, S> decoder;
    };

    // Warps beyond the last tile multiply it too and store nothing: wgmma takes all four of a group.
    PGK_FN i64 tile_of(u32 block, int warp) const { return static_cast<i64>(block / along_x()) * (4 * GROUPS) + warp; }

    PGK_FN void copy(Ring& from, int slot, int warp, int lane) const {
        if (from.copied_block >= blocks()) return;
        P::copy(from.at + slot * P::BYTES, from.full + slot * 8, from.source, from.copied, from.pieces, lane);
        if (++from.copied == from.pieces) {
            from.copied = 0;
            from.copied_block += gridDim.x;
            P::begin(from.source, min(tile_of(from.copied_block, warp), from.tiles - 1));
        }
    }

    // Takes the next piece into registers, and brings another in its place.
    PGK_FN void take(typename R::Raw (&raw)[SPAN], Ring& from, int count, int warp, int lane) const {
        const u32 at = from.at + from.slot * P::BYTES;
        barrier_wait(from.full + from.slot * 8, from.parity);
        if (P::PER_SCALE == 0 && from.taken == 0) {
            P::load_scale(raw[0], at, w, from.tile, 0, 0, lane);
            from.decoder.begin(raw[0], 0);
        }
#pragma unroll
        for (int c = 0; c < SPAN; ++c) {
            if (c >= count) break;
            P::load_codes(raw[c], at, c, lane);
            if (P::begins(c)) P::load_scale(raw[c], at, w, from.tile, from.taken, c, lane);
        }
        __syncwarp();
        copy(from, from.slot, warp, lane);
        ++from.taken;
        if (++from.slot == ring) {
            from.slot = 0;
            from.parity ^= 1;
        }
    }

    // Decodes a chunk.
    PGK_FN static void make(u32 (&a)[STEPS][4], const typename R::Raw& raw, Decoder<R, T, S>& decoder, bool begins) {
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            if (begins && s % (STEPS / R::SUBS) == 0) decoder.begin(raw, s / (STEPS / R::SUBS));
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

    PGK_FN void produce(u32 shared, u32 full, u32 empty, int chunks) const {
        prefetch_map(x);
        u32 stage = 0, parity = 1;
        for (u32 block = blockIdx.x; block < blocks(); block += gridDim.x) {
            const i32 row0 = static_cast<i32>(block % along_x()) * TOKENS;
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
    }

    PGK_FN void consume(u32 shared, u32 full, u32 empty, Ring& from, int warp, int lane) const {
        u32 stage = 0, parity = 0;
#pragma unroll 1
        for (u32 block = blockIdx.x; block < blocks(); block += gridDim.x) {
            const i64 tile = tile_of(block, warp);
            from.tile = min(tile, from.tiles - 1);
            from.taken = 0;
            f32 sum[TOKENS / 2] = {};
            u32 a[2][STEPS][4];
            typename R::Raw raw[SPAN];
            int first = 0;
#pragma unroll 1
            for (; first + TURN <= from.chunks; first += TURN) {
                take(raw, from, SPAN, warp, lane);
                make(a[0], raw[0], from.decoder, P::begins(0));
#pragma unroll
                for (int c = 0; c < TURN; ++c) {
                    const u32 before = stage == 0 ? STAGES - 1 : stage - 1;
                    multiply(sum, a[c % 2], shared, full, stage, parity);
                    if (c + 1 < TURN && (c + 1) % SPAN == 0) take(raw, from, SPAN, warp, lane);
                    if (c > 0) {
                        // The chunk before has been multiplied: its fragments and its piece of x are free.
                        wgmma_wait<1>();
                        release(empty, before, lane);
                    }
                    if (c + 1 < TURN) make(a[(c + 1) % 2], raw[(c + 1) % SPAN], from.decoder, P::begins((c + 1) % SPAN));
                }
                // ptxas runs products one by one where fragments are made while one of an earlier turn is under way.
                wgmma_wait<0>();
                release(empty, stage == 0 ? STAGES - 1 : stage - 1, lane);
            }
#pragma unroll
            for (int c = 0; c < TURN - 1; ++c) {
                if (first + c >= from.chunks) break;
                if (c % SPAN == 0) take(raw, from, min(SPAN, from.chunks - first - c), warp, lane);
                make(a[0], raw[c % SPAN], from.decoder, P::begins(c % SPAN));
                multiply(sum, a[0], shared, full, stage, parity);
                wgmma_wait<0>();
                release(empty, stage == 0 ? STAGES - 1 : stage - 1, lane);
            }
            wgmma_ready(sum);
            if (tile >= from.tiles) continue;
            const i32 row0 = static_cast<i32>(block % along_x()) * TOKENS;
            const Column<ACTIVATION, T> column(to, tile * 16, lane);
#pragma unroll
            for (int j = 0; j < TOKENS / 8; ++j) {
                const f32* d = sum + 4 * j;
                if (row0 + j * 8 < to.m) column.put(to, d[0], d[1], d[2], d[3], row0 + j * 8, lane);
            }
        }
    }

    PGK_FN static void release(u32 empty, u32 stage, int lane) {
        __syncwarp();
        if (lane == 0) barrier_arrive(empty + stage * 8);
    }

    PGK_FN void run() const {
        const u32 shared = shared_address(dynamic_shared), rings = shared + STAGES * STAGE;
        const u32 full = rings + ring * (4 * GROUPS) * P::BYTES, empty = full + STAGES * 8;
        const int lane = threadIdx.x % 32, warp = static_cast<int>(uniform(threadIdx.x / 32)) - 4;
        const int chunks = static_cast<int>(w.chunks);
        Ring from;
        from.at = rings + warp * ring * P::BYTES;
        from.full = empty + STAGES * 8 + warp * ring * 8;
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; ++i) {
                barrier_init(full + i * 8, 1);
                barrier_init(empty + i * 8, GROUPS * 4);
            }
            fence_barrier_init();
        }
        if (warp >= 0 && lane == 0) {
#pragma unroll 1
            for (int i = 0; i < ring; ++i) barrier_init(from.full + i * 8, 1);
            fence_barrier_init();
        }
        __syncthreads();
        if (threadIdx.x < 128) {
            if constexpr (GROUPS == 3) give_registers<32>();
            if constexpr (GROUPS == 2) give_registers<40>();
            await_predecessor();
            if (threadIdx.x == 0) produce(shared, full, empty, chunks);
        } else {
            if constexpr (GROUPS == 3) take_registers<160>();
            if constexpr (GROUPS == 2) take_registers<232>();
            from.tiles = (to.n + 15) / 16;
            from.chunks = chunks;
            from.pieces = (chunks + SPAN - 1) / SPAN;
            from.copied = from.slot = 0;
            from.copied_block = blockIdx.x;
            from.parity = 0;
            from.source = P::source(w, min(tile_of(blockIdx.x, warp), from.tiles - 1), from.pieces, lane);
#pragma unroll 1
            for (int i = 0; i < ring; ++i) copy(from, i, warp, lane);
            await_predecessor();
            consume(shared, full, empty, from, warp, lane);
        }
    }
};

}  // namespace pgk

#define PGK_QUANT_WGMMA(entry, rule, S, T, activation, groups, tokens, stages, span) \
    extern "C" __global__ void __launch_bounds__(128 * (1 + groups), 1) entry( \
        const __grid_constant__ CUtensorMap x, pgk::T* out, const pgk::u8* codes, const pgk::u8* high, \
        const pgk::u8* scales, const pgk::u8* extra, long long m, long long n, long long ld_out, int pairs, \
        long long chunks, long long records, long long owners, const pgk::T* bias, const pgk::T* residual, \
        long long residual_row, long long residual_column, int ring) { \
        const pgk::Planes w{codes, high, scales, extra, chunks, records, owners}; \
        const pgk::Results<pgk::T> to{ \
            out, ld_out, m, n, pairs != 0, {bias, residual, residual_row, residual_column}}; \
        pgk::Streamed<rule, pgk::S, pgk::T, pgk::activation, groups, tokens, stages, span>{&x, w, to, ring}.run(); \
    }
