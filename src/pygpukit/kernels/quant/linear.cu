// Product with a quantised weight: out[i, j] = the end (epilogue.cuh) of the sum over k of x[i, k] * w[j, k], w as decode.cuh
// reads it, rounded to T.
//
// out: [m, n], rows ld_out apart; `pairs`: n, ld_out and the address are multiples of two elements. x: [m, k], rows ld_x
// apart, elements side by side; `aligned`: rows begin at multiples of 16 bytes. planes: codes, high, scales, extra; nothing
// in flight writes them, so they are read before the predecessor has ended.
// Launch: W warps, W = blockDim.x / 32; warp v of block (i, j) makes rows (W i + v) ROWS * 16 .. of w for the rows
// 8 COLUMNS j .. of x: grid (ceil(tiles / (W ROWS)), ceil(m / (8 COLUMNS))). Dynamic shared memory: STAGES pieces of x of
// 8 COLUMNS rows, SPAN chunks and 16 bytes wide.
// A warp streams its tiles of w through registers, SPAN chunks ahead, and multiplies them by mma.m16n8k16 with w as the
// first operand, so one decoded fragment serves all rows of x.
// Numerics: every result has one float32 accumulator, to which groups of 16 columns are added in ascending order,
// rounded to T once: the order of the 16-bit matrix product, whatever m and the launch. Determinism: batch_invariant.
#include "pygpukit/decode.cuh"
#include "pygpukit/fragment.cuh"
#include "pygpukit/mma.cuh"

namespace pgk {

constexpr int STAGES = 3;

// A piece of x in shared memory: rows of WIDTH columns, PITCH bytes apart, so that ldmatrix meets every bank once.
template <class T, int TOKENS, int WIDTH> struct Piece {
    static constexpr int PITCH = WIDTH * 2 + 16;
    static constexpr int BYTES = TOKENS * PITCH;

    // Rows that x does not have are zeros from the start.
    static PGK_FN void clear(u32 to, int rows) {
        for (int i = threadIdx.x; i < STAGES * BYTES / 16; i += blockDim.x) {
            if (i * 16 % BYTES / PITCH >= rows) {
                asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(to + i * 16), "r"(0) : "memory");
            }
        }
    }

    // Begins to copy columns first .. of rows 0 .. rows - 1 of x; zeros beyond column k.
    static PGK_FN void fill(u32 to, const T* x, i64 ld, int rows, i64 first, i64 k, bool aligned) {
        constexpr int EIGHTS = WIDTH / 8, LANES = EIGHTS < 32 ? EIGHTS : 32, EACH = EIGHTS / LANES;
        const int lane = threadIdx.x % LANES, step = blockDim.x / LANES;
        int row = threadIdx.x / LANES;
        const T* from = x + row * ld + first + lane * 8;
        u32 at = to + row * PITCH + lane * 16;
        const i64 left = k - first - lane * 8;
        for (; row < rows; row += step, from += step * ld, at += step * PITCH) {
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                const i64 here = left - e * (LANES * 8);
                const int count = here >= 8 ? 8 : here > 0 ? static_cast<int>(here) : 0;
                const T* source = count > 0 ? from + e * (LANES * 8) : x;
                const u32 target = at + e * (LANES * 16);
                if (aligned) {
                    copy_async(target, source, count * 2);
                } else {
                    u32 v[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const u32 low = 2 * i < count ? source[2 * i].bits : 0;
                        const u32 high = 2 * i + 1 < count ? source[2 * i + 1].bits : 0;
                        v[i] = low | high << 16;
                    }
                    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                                 ::"r"(target), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
                }
            }
        }
    }
};

template <class R, class S, class T, int ROWS, int COLUMNS, int SPAN, int ACTIVATION>
PGK_FN void linear(const Results<T>& to, const T* x, const Planes& w, i64 k, i64 ld_x, int aligned) {
    using X = Piece<T, 8 * COLUMNS, SPAN * CHUNK>;
    extern __shared__ __align__(128) u8 shared[];
    const u32 pieces = shared_address(shared);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const i64 tiles = (to.n + 15) / 16;
    const i64 tile0 = (static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + warp) * ROWS;
    const i64 row0 = static_cast<i64>(blockIdx.y) * (8 * COLUMNS);
    const int chunks = static_cast<int>(w.chunks), pieces_total = (chunks + SPAN - 1) / SPAN;
    const int rows = to.m - row0 < 8 * COLUMNS ? static_cast<int>(to.m - row0) : 8 * COLUMNS;
    x += row0 * ld_x;

    typename R::Cursor cursor[ROWS];
    typename R::Raw ring[SPAN][ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        // Warps beyond the last tile read it too and store nothing: they help to copy x.
        cursor[r] = R::cursor(w, tile0 + r < tiles ? tile0 + r : tiles - 1, lane);
#pragma unroll
        for (int c = 0; c < SPAN; ++c) {
            if (c < chunks) R::load(ring[c][r], cursor[r], c, c);
        }
    }
    if (rows < 8 * COLUMNS) X::clear(pieces, rows);
    await_predecessor();
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i) {
        if (i < pieces_total) X::fill(pieces + i * X::BYTES, x, ld_x, rows, i * (SPAN * CHUNK), k, aligned);
        commit_copies();
    }

    f32 sum[ROWS][COLUMNS][4] = {};
    int stage = 0;
    for (int piece = 0; piece < pieces_total; ++piece) {
        wait_copies<STAGES - 2>();
        __syncthreads();
        const int next = stage == 0 ? STAGES - 1 : stage - 1;
        const int ahead = piece + STAGES - 1;
        if (ahead < pieces_total) {
            X::fill(pieces + next * X::BYTES, x, ld_x, rows, static_cast<i64>(ahead) * (SPAN * CHUNK), k, aligned);
        }
        commit_copies();
        // Lane l of ldmatrix gives the address of row l % 8 and columns 8 (l / 8) of two steps.
        const u32 here = pieces + stage * X::BYTES + lane % 8 * X::PITCH + lane / 8 * 16;
#pragma unroll
        for (int c = 0; c < SPAN; ++c) {
            const int chunk = piece * SPAN + c;
            if (chunk >= chunks) break;
            Decoder<R, T, S> decoder[ROWS];
#pragma unroll
            for (int s = 0; s < STEPS; s += 2) {
                u32 b[COLUMNS][4];
#pragma unroll
                for (int j = 0; j < COLUMNS; ++j) {
                    const u32 at = here + j * (8 * X::PITCH) + (c * CHUNK + s * 16) * 2;
                    load_matrices<false>(b[j], at);
                }
#pragma unroll
                for (int u = 0; u < 2; ++u) {
#pragma unroll
                    for (int r = 0; r < ROWS; ++r) {
                        if ((s + u) % (STEPS / R::SUBS) == 0) decoder[r].begin(ring[c][r], (s + u) / (STEPS / R::SUBS));
                        u32 a[4];
#pragma unroll
                        for (int p = 0; p < 4; ++p) a[p] = decoder[r].pair(ring[c][r], s + u, p);
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) Mma<T>::step(sum[r][j], a, b[j][2 * u], b[j][2 * u + 1]);
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                if (chunk + SPAN < chunks) R::load(ring[c][r], cursor[r], SPAN + c, chunk + SPAN);
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) R::advance(cursor[r], SPAN);
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }

#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (tile0 + r >= tiles) break;
        const Column<ACTIVATION, T> column(to, (tile0 + r) * 16, lane);
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
            const f32(&d)[4] = sum[r][j];
            column.put(to, d[0], d[1], d[2], d[3], static_cast<i32>(row0) + j * 8, lane);
        }
    }
}

}  // namespace pgk

#define PGK_QUANT_LINEAR(entry, rule, S, T, rows, columns, span, threads, activation) \
    extern "C" __global__ void __launch_bounds__(threads) entry( \
        pgk::T* out, const pgk::T* x, const pgk::u8* codes, const pgk::u8* high, const pgk::u8* scales, \
        const pgk::u8* extra, long long m, long long n, long long k, long long ld_out, int pairs, long long ld_x, \
        int aligned, long long chunks, long long records, long long owners, const pgk::T* bias, \
        const pgk::T* residual, long long residual_row, long long residual_column) { \
        const pgk::Results<pgk::T> to{ \
            out, ld_out, m, n, pairs != 0, {bias, residual, residual_row, residual_column}}; \
        pgk::linear<rule, pgk::S, pgk::T, rows, columns, span, pgk::activation>( \
            to, x, pgk::Planes{codes, high, scales, extra, chunks, records, owners}, k, ld_x, aligned); \
    }
