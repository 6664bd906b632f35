// Product of a few rows with a quantised weight at the memory's speed (SM 90a): out[i, j] = the end (epilogue.cuh) of the
// sum over k of x[i, k] * w[j, k], w as decode.cuh reads it, rounded to T, for up to 8 COLUMNS rows of x.
//
// out: [m, n], rows ld_out apart; `pairs`: n, ld_out and the address are multiples of two elements. x: [m, k], rows ld_x
// apart, elements side by side; `aligned`: rows begin at multiples of 16 bytes. planes: codes, high, scales, extra, constant,
// at multiples of 16 bytes.
// Launch: W warps, W = blockDim.x / 32; any grid: warp v of block b takes tiles b + v * grid, and then every W * grid-th.
// Dynamic shared memory: the m rows of x, chunks * 128 + 16 bytes each; then `stages` pieces of SPAN chunks for every warp;
// then 8 bytes for each of those. BESIDE: no rows of x there, but behind every piece m of SPAN * 128 + 16 bytes, and x is
// aligned and k a multiple of 64.
// Every warp keeps `stages` pieces of its tiles on their way by bulk copies of its own, which begin before the predecessor
// has ended, and waits for no other warp. Rows of x that are not there are read as the last one; their sums are not stored.
// Numerics: one float32 accumulator, groups of 16 columns ascending, rounded to T once: the bits of linear.cu.
// Determinism: batch_invariant.
#include "pygpukit/decode.cuh"
#include "pygpukit/fragment.cuh"
#include "pygpukit/mma.cuh"
#include "pygpukit/pieces.cuh"

namespace pgk {

extern __shared__ __align__(1024) u8 dynamic_shared[];

template <class R, class S, class T, int ACTIVATION, int COLUMNS, int SPAN, bool BESIDE> struct Stream {
    using P = Pieces<R, SPAN>;

    const Results<T>& to;
    const T* x;
    const Planes& w;
    i64 k, ld_x;
    bool aligned;
    int stages;

    // Rows of x, zeros beyond column k.
    PGK_FN void load_x(u32 shared, int rows, int chunks) const {
        const int vectors = chunks * (CHUNK / 8);
        for (int row = 0; row < rows; ++row) {
            const T* from = x + row * ld_x;
            const u32 line = shared + row * (chunks * (CHUNK * 2) + 16);
            for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
                const i64 left = k - i * 8;
                const int count = left >= 8 ? 8 : left > 0 ? static_cast<int>(left) : 0;
                if (aligned) {
                    copy_async(line + i * 16, count > 0 ? from + i * 8 : x, count * 2);
                } else {
                    u32 v[4];
#pragma unroll
                    for (int j = 0; j < 4; ++j) {
                        const u32 low = 2 * j < count ? from[i * 8 + 2 * j].bits : 0;
                        const u32 high = 2 * j + 1 < count ? from[i * 8 + 2 * j + 1].bits : 0;
                        v[j] = low | high << 16;
                    }
                    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                                 ::"r"(line + i * 16), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
                }
            }
        }
        commit_copies();
        wait_copies<0>();
    }

    PGK_FN void run() const {
        int lane = threadIdx.x % 32;
        // Kept in a register.
        asm volatile("" : "+r"(lane));
        const int warp = uniform(threadIdx.x / 32), warps = blockDim.x / 32;
        const int chunks = static_cast<int>(w.chunks), pieces = (chunks + SPAN - 1) / SPAN;
        const int pitch = (BESIDE ? SPAN : chunks) * (CHUNK * 2) + 16, rows = static_cast<int>(to.m);
        const i64 tiles = (to.n + 15) / 16, step = static_cast<i64>(gridDim.x) * warps;
        const u32 rows_at = shared_address(dynamic_shared);
        const u32 place = P::BYTES + (BESIDE ? rows * pitch : 0), rings = rows_at + (BESIDE ? 0 : rows * pitch);
        const u32 ring = rings + warp * stages * place, full = rings + warps * stages * place + warp * stages * 8;

        // What comes next: the tile and its piece are the same in all lanes.
        i64 tile = blockIdx.x + static_cast<i64>(gridDim.x) * warp, next_tile = tile;
        int next_piece = 0;
        typename P::Source source = P::source(w, tile, pieces, lane);
        const auto bytes_of_x = [&](int piece) { return min(SPAN, chunks - piece * SPAN) * (CHUNK * 2); };
        const auto copy = [&](int slot) {
            const u32 more = BESIDE ? rows * bytes_of_x(next_piece) : 0;
            P::copy(ring + slot * place, full + slot * 8, source, next_piece, pieces, lane, more);
            if (++next_piece == pieces) {
                next_piece = 0;
                next_tile += step;
                P::begin(source, next_tile);
                // A branch, which few pieces take.
                asm volatile("" ::: "memory");
            }
        };
        // Lanes from the fourth on bring a row of x each.
        const auto copy_x = [&](int slot, int piece) {
            if (lane < 4 || lane >= 4 + rows) return;
            const T* from = x + (lane - 4) * ld_x + piece * (SPAN * CHUNK);
            load_bytes(ring + slot * place + P::BYTES + (lane - 4) * pitch, from, bytes_of_x(piece), full + slot * 8);
        };
        if (lane == 0) {
#pragma unroll 1
            for (int i = 0; i < stages; ++i) barrier_init(full + i * 8, 1);
            fence_barrier_init();
        }
        __syncwarp();
        int begun = 0;
        for (; begun < stages && next_tile < tiles; ++begun) copy(begun);
        await_predecessor();
        if constexpr (BESIDE) {
            for (int i = 0; i < begun; ++i) copy_x(i, i % pieces);
            __syncwarp();
        } else {
            load_x(rows_at, rows, chunks);
            __syncthreads();
        }

        // Lane l of ldmatrix gives the address of row l % 8 and columns 8 (l / 8) of two steps.
        u32 b_at[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) b_at[j] = (BESIDE ? 0 : rows_at) + min(8 * j + lane % 8, rows - 1) * pitch + lane / 8 * 16;
#pragma unroll
        for (int j = 0; j < COLUMNS; ++j) asm volatile("" : "+r"(b_at[j]));
        int slot = 0;
        u32 parity = 0, zero = 0;
        asm volatile("" : "+r"(zero));
        for (; tile < tiles; tile += step) {
            f32 sum[COLUMNS][4] = {};
            Decoder<R, T, S> decoder;
            for (int piece = 0; piece < pieces; ++piece) {
                const u32 from = ring + slot * place, x_at = BESIDE ? from + P::BYTES : piece * (SPAN * CHUNK * 2);
                const int count = min(SPAN, chunks - piece * SPAN);
                typename R::Raw raw[SPAN];
                u32 read = 0;
                barrier_wait(full + slot * 8, parity);
                if (P::PER_SCALE == 0 && piece == 0) {
                    P::load_scale(raw[0], from, w, tile, 0, 0, lane);
                    decoder.begin(raw[0], 0);
                }
#pragma unroll
                for (int c = 0; c < SPAN; ++c) {
                    if (c >= count) break;
                    if (P::begins(c)) P::load_scale(raw[c], from, w, tile, piece, c, lane);
                    P::load_codes(raw[c], from, c, lane);
                    if (!BESIDE && (c == SPAN - 1 || c == count - 1)) read = P::arrived(raw[c], zero);
                }
                if constexpr (!BESIDE) {
                    // All lanes have read the piece: its place is free.
                    __syncwarp();
                    if (next_tile < tiles) copy(slot + read);
                }
#pragma unroll
                for (int c = 0; c < SPAN; ++c) {
                    if (c >= count) break;
#pragma unroll
                    for (int s = 0; s < STEPS; s += 2) {
                        u32 b[COLUMNS][4];
#pragma unroll
                        for (int j = 0; j < COLUMNS; ++j) load_matrices<false>(b[j], b_at[j] + x_at + (c * CHUNK + s * 16) * 2);
#pragma unroll
                        for (int u = s; u < s + 2; ++u) {
                            if (P::begins(c) && u % (STEPS / R::SUBS) == 0) decoder.begin(raw[c], u / (STEPS / R::SUBS));
                            u32 a[4];
#pragma unroll
                            for (int p = 0; p < 4; ++p) a[p] = decoder.pair(raw[c], u, p);
#pragma unroll
                            for (int j = 0; j < COLUMNS; ++j) Mma<T>::step(sum[j], a, b[j][2 * (u - s)], b[j][2 * (u - s) + 1]);
                        }
                    }
                }
                if constexpr (BESIDE) {
                    __syncwarp();
                    if (next_tile < tiles) {
                        const int coming = next_piece;
                        copy(slot);
                        copy_x(slot, coming);
                    }
                }
                if (++slot == stages) {
                    slot = 0;
                    parity ^= 1;
                }
            }
            const Column<ACTIVATION, T> column(to, tile * 16, lane);
#pragma unroll
            for (int j = 0; j < COLUMNS; ++j) {
                const f32(&d)[4] = sum[j];
                column.put(to, d[0], d[1], d[2], d[3], j * 8, lane);
            }
        }
    }
};

}  // namespace pgk

#define PGK_QUANT_STREAM(entry, rule, S, T, activation, columns, span, beside, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) entry( \
        pgk::T* out, const pgk::T* x, const pgk::u8* codes, const pgk::u8* high, const pgk::u8* scales, \
        const pgk::u8* extra, long long m, long long n, long long k, long long ld_out, int pairs, long long ld_x, \
        int aligned, long long chunks, long long records, long long owners, const pgk::T* bias, \
        const pgk::T* residual, long long residual_row, long long residual_column, int stages) { \
        const pgk::Results<pgk::T> to{ \
            out, ld_out, m, n, pairs != 0, {bias, residual, residual_row, residual_column}}; \
        const pgk::Planes w{codes, high, scales, extra, chunks, records, owners}; \
        pgk::Stream<rule, pgk::S, pgk::T, pgk::activation, columns, span, beside>{ \
            to, x, w, k, ld_x, aligned != 0, stages}.run(); \
    }
