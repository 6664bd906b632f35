// Product with a quantised weight: out[i, j] = sum over k of x[i, k] * w[j, k], w as decode.cuh reads it, rounded to T.
//
// out: [m, n], rows ld_out apart. x: [m, k], rows ld_x apart, elements side by side. `aligned` says that rows of x begin at
// multiples of 8 bytes. planes: codes, high, scales, extra; nothing in flight writes them, so they are read before the
// predecessor has ended.
// Launch: W warps, W = blockDim.x / 32; warp v of block (i, j) makes rows (W i + v) ROWS * 16 .. of w for the rows
// 8 COLUMNS j .. of x: grid (ceil(tiles / (W ROWS)), ceil(m / (8 COLUMNS))). Dynamic shared memory: STAGES pieces of x of
// 8 COLUMNS rows, SPAN chunks wide and 64 bytes apart from each other.
// A warp streams its tiles of w through registers, SPAN chunks ahead, and multiplies them by mma.m16n8k16 with w as the
// first operand, so one decoded fragment serves all rows of x.
// Numerics: every result has one float32 accumulator, to which groups of 16 columns are added in ascending order,
// rounded to T once: the order of the 16-bit matrix product, whatever m and the launch. Determinism: batch_invariant.
#include "pygpukit/decode.cuh"

namespace pgk {

constexpr int STAGES = 3;

template <class T> PGK_FN void multiply(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    if constexpr (same<T, bf16>::value) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// A piece of x in shared memory: rows of WIDTH columns, PITCH bytes apart, so that eight lanes reading 16 bytes of two rows
// meet every bank once. Columns 4 t .. of two steps lie side by side: one load feeds two products.
template <class T, int TOKENS, int WIDTH> struct Piece {
    static constexpr int PITCH = WIDTH * 2 + 64;
    static constexpr int BYTES = TOKENS * PITCH;

    static PGK_FN int place(int column) {
        return (column / 32 * 32 + column / 4 % 4 * 8 + column / 16 % 2 * 4 + column % 4) * 2;
    }

    // Begins to copy columns first .. of rows row0 .. into shared memory; zeros where x has none.
    static PGK_FN void fill(u32 to, const T* x, i64 ld, i64 row0, i64 m, i64 first, i64 k, bool aligned) {
        for (int i = threadIdx.x; i < TOKENS * WIDTH / 4; i += blockDim.x) {
            const int row = i / (WIDTH / 4), column = i % (WIDTH / 4) * 4;
            const i64 left = row0 + row < m ? k - first - column : 0;
            const int count = left >= 4 ? 4 : left > 0 ? static_cast<int>(left) : 0;
            const T* from = count > 0 ? x + (row0 + row) * ld + first + column : x;
            const u32 at = to + row * PITCH + place(column);
            if (aligned) {
                asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(at), "l"(from), "r"(count * 2) : "memory");
            } else {
                u32 words[2] = {0, 0};
                for (int e = 0; e < count; ++e) words[e / 2] |= static_cast<u32>(from[e].bits) << 16 * (e % 2);
                asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(words[0]), "r"(words[1]) : "memory");
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

template <class R, class S, class T, int ROWS, int COLUMNS, int SPAN>
PGK_FN void linear(T* out, const T* x, const Planes& w, i64 m, i64 n, i64 k, i64 ld_out, i64 ld_x, int aligned) {
    using X = Piece<T, 8 * COLUMNS, SPAN * CHUNK>;
    extern __shared__ __align__(128) u8 shared[];
    const u32 pieces = static_cast<u32>(__cvta_generic_to_shared(shared));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t = lane % 4;
    const i64 tiles = (n + 15) / 16;
    const i64 tile0 = (static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + warp) * ROWS;
    const i64 row0 = static_cast<i64>(blockIdx.y) * (8 * COLUMNS);
    const i64 pieces_total = (w.chunks + SPAN - 1) / SPAN;

    typename R::Raw ring[SPAN][ROWS];
#pragma unroll
    for (int c = 0; c < SPAN; ++c) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            // Warps beyond the last tile read it too and store nothing: they help to copy x.
            const i64 tile = tile0 + r < tiles ? tile0 + r : tiles - 1;
            if (c < w.chunks) R::load(ring[c][r], w, tile, c, lane);
        }
    }
    await_predecessor();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        X::fill(pieces + i * X::BYTES, x, ld_x, row0, m, static_cast<i64>(i) * SPAN * CHUNK, k, aligned);
    }

    f32 sum[ROWS][COLUMNS][4] = {};
    int stage = 0;
    for (i64 piece = 0; piece < pieces_total; ++piece) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const int next = stage == 0 ? STAGES - 1 : stage - 1;
        X::fill(pieces + next * X::BYTES, x, ld_x, row0, m, (piece + STAGES - 1) * SPAN * CHUNK, k, aligned);
        const u32 here = pieces + stage * X::BYTES + g * X::PITCH + t * 16;
#pragma unroll
        for (int c = 0; c < SPAN; ++c) {
            const i64 chunk = piece * SPAN + c;
            if (chunk >= w.chunks) break;
            typename R::Raw raw[ROWS];
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                raw[r] = ring[c][r];
                const i64 tile = tile0 + r < tiles ? tile0 + r : tiles - 1;
                if (chunk + SPAN < w.chunks) R::load(ring[c][r], w, tile, chunk + SPAN, lane);
            }
            Decoder<R, T, S> decoder[ROWS];
#pragma unroll
            for (int s = 0; s < STEPS; s += 2) {
                u32 b[COLUMNS][4];
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const u32 at = here + j * (8 * X::PITCH) + (c * CHUNK + s * 16) * 2;
                    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j][2]), "=r"(b[j][3]) : "r"(at) : "memory");
                }
#pragma unroll
                for (int u = 0; u < 2; ++u) {
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        if ((s + u) % (STEPS / R::SUBS) == 0) decoder[r].begin(raw[r], (s + u) / (STEPS / R::SUBS));
                        u32 a[4];
#pragma unroll
                        for (int p = 0; p < 4; ++p) a[p] = decoder[r].pair(raw[r], s + u, p);
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) multiply<T>(sum[r][j], a, b[j][2 * u], b[j][2 * u + 1]);
                    }
                }
            }
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const i64 feature = (tile0 + r) * 16 + g + i / 2 * 8, row = row0 + j * 8 + t * 2 + i % 2;
                if (feature < n && row < m) out[row * ld_out + feature] = convert<T>(sum[r][j][i]);
            }
        }
    }
}

}  // namespace pgk

#define PGK_QUANT_LINEAR(entry, rule, S, T, rows, columns, span, threads) \
    extern "C" __global__ void __launch_bounds__(threads) entry( \
        pgk::T* out, const pgk::T* x, const pgk::u8* codes, const pgk::u8* high, const pgk::u8* scales, \
        const pgk::u8* extra, long long m, long long n, long long k, long long ld_out, long long ld_x, int aligned, \
        long long chunks, long long records, long long owners) { \
        pgk::linear<rule, pgk::S, pgk::T, rows, columns, span>( \
            out, x, pgk::Planes{codes, high, scales, extra, chunks, records, owners}, m, n, k, ld_out, ld_x, aligned); \
    }
