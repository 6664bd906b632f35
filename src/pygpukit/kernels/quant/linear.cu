// Product with a quantised weight: out[i, j] = the end (epilogue.cuh) of the sum over k of x[i, k] * w[j, k], w as decode.cuh
// reads it, rounded to T.
//
// out: [m, n], rows ld_out apart. x: [m, k], rows ld_x apart, elements side by side. `aligned` says that rows of x begin at
// multiples of 16 bytes. `end`: bias of n elements, residual with its strides. planes: codes, high, scales, extra; nothing in flight writes them, so they are read before the
// predecessor has ended.
// Launch: W warps, W = blockDim.x / 32; warp v of block (i, j) makes rows (W i + v) ROWS * 16 .. of w for the rows
// 8 COLUMNS j .. of x: grid (ceil(tiles / (W ROWS)), ceil(m / (8 COLUMNS))). Dynamic shared memory: STAGES pieces of x of
// 8 COLUMNS rows, SPAN chunks and 16 bytes wide.
// A warp streams its tiles of w through registers, SPAN chunks ahead, and multiplies them by mma.m16n8k16 with w as the
// first operand, so one decoded fragment serves all rows of x.
// Numerics: every result has one float32 accumulator, to which groups of 16 columns are added in ascending order,
// rounded to T once: the order of the 16-bit matrix product, whatever m and the launch. Determinism: batch_invariant.
#include "pygpukit/decode.cuh"
#include "pygpukit/epilogue.cuh"

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
                    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                                 ::"r"(target), "l"(source), "r"(count * 2) : "memory");
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
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

template <class R, class S, class T, int ROWS, int COLUMNS, int SPAN, int ACTIVATION>
PGK_FN void linear(T* out, const T* x, const Planes& w, i64 m, i64 n, i64 k, i64 ld_out, i64 ld_x, int aligned,
                   const Epilogue<T>& end) {
    using X = Piece<T, 8 * COLUMNS, SPAN * CHUNK>;
    extern __shared__ __align__(128) u8 shared[];
    const u32 pieces = static_cast<u32>(__cvta_generic_to_shared(shared));
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t = lane % 4;
    const i64 tiles = (n + 15) / 16;
    const i64 tile0 = (static_cast<i64>(blockIdx.x) * (blockDim.x / 32) + warp) * ROWS;
    const i64 row0 = static_cast<i64>(blockIdx.y) * (8 * COLUMNS);
    const int chunks = static_cast<int>(w.chunks), pieces_total = (chunks + SPAN - 1) / SPAN;
    const int rows = m - row0 < 8 * COLUMNS ? static_cast<int>(m - row0) : 8 * COLUMNS;
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
        X::fill(pieces + i * X::BYTES, x, ld_x, rows, static_cast<i64>(i) * SPAN * CHUNK, k, aligned);
    }

    f32 sum[ROWS][COLUMNS][4] = {};
    int stage = 0;
    for (int piece = 0; piece < pieces_total; ++piece) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const int next = stage == 0 ? STAGES - 1 : stage - 1;
        const i64 ahead = static_cast<i64>(piece + STAGES - 1) * (SPAN * CHUNK);
        X::fill(pieces + next * X::BYTES, x, ld_x, rows, ahead, k, aligned);
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
                    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                                 : "=r"(b[j][0]), "=r"(b[j][1]), "=r"(b[j][2]), "=r"(b[j][3]) : "r"(at) : "memory");
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
                        for (int j = 0; j < COLUMNS; ++j) multiply<T>(sum[r][j], a, b[j][2 * u], b[j][2 * u + 1]);
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
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const i64 feature = (tile0 + r) * 16 + g + i / 2 * 8, row = row0 + j * 8 + t * 2 + i % 2;
                if (feature < n && row < m) {
                    out[row * ld_out + feature] = convert<T>(finish<ACTIVATION>(sum[r][j][i], row, feature, end));
                }
            }
        }
    }
}

}  // namespace pgk

#define PGK_QUANT_LINEAR(entry, rule, S, T, rows, columns, span, threads, activation) \
    extern "C" __global__ void __launch_bounds__(threads) entry( \
        pgk::T* out, const pgk::T* x, const pgk::u8* codes, const pgk::u8* high, const pgk::u8* scales, \
        const pgk::u8* extra, long long m, long long n, long long k, long long ld_out, long long ld_x, int aligned, \
        long long chunks, long long records, long long owners, const pgk::T* bias, const pgk::T* residual, \
        long long residual_row, long long residual_column) { \
        pgk::linear<rule, pgk::S, pgk::T, rows, columns, span, pgk::activation>( \
            out, x, pgk::Planes{codes, high, scales, extra, chunks, records, owners}, m, n, k, ld_out, ld_x, aligned, \
            pgk::Epilogue<pgk::T>{bias, residual, residual_row, residual_column}); \
    }
