// Matrix product on tensor cores by mma.sync: out[z, i, j] = end(sum over k of a[z, i, k] * b[z, k, j]).
//
// Element strides for every operand (row, then column); `batch` holds the batch shape and the strides of out, a, b and
// residual (0 to broadcast). What is contiguous is a template argument, for a and b each: ALONG_K (rows of a, columns of
// b), ACROSS (the other way round, 16-bit types only), or ANY (element by element). But for ANY, addresses and the other
// strides are multiples of 16 bytes; sizes are any.
// Launch: (BM / WM) * (BN / WN) warps, grid = batches * ceil(m / BM) * ceil(n / BN), walked in groups of 8 tiles of rows
// so that tiles at work together share their operands in the L2. Dynamic shared memory: STAGES tiles of BM + BN lines of
// 128 bytes of k, which the result's sums take at the end (BM * (BN + 8) * 4 bytes). Copies to shared memory run STAGES - 1
// tiles ahead; 16-byte chunks are exchanged by XOR so that ldmatrix meets no bank twice.
// Numerics: one accumulator per element, from zero, float (int for int8), to which mma.sync adds 32 bytes of k at a time
// in ascending order; tf32 rounds its operands to nearest first. The result is rounded once. Tiles, alignment and layouts
// change no bit. int8 is exact modulo 2^32. Determinism: batch_invariant.
#include "pygpukit/copied_tile.cuh"
#include "pygpukit/epilogue.cuh"

namespace pgk {

constexpr int STEPS = DEPTH / 32;
// Sums per row of the staged result beside BN: a warp's stores then meet all banks.
constexpr int PAD = 8;

template <class M, class To, int BM, int BN, int WM, int WN, int STAGES, Lines LA, Lines LB, int END>
PGK_FN void matmul_mma(To* out, const typename M::element* a, const typename M::element* b, i64 m, i64 n, i64 depth,
                       i64 out_row, i64 out_column, i64 a_row, i64 a_column, i64 b_row, i64 b_column,
                       const Nd<4>& batch, Epilogue<To> end) {
    using T = typename M::element;
    using A = typename M::sum;
    constexpr int THREADS = BM / WM * (BN / WN) * 32;
    constexpr bool COPIED = LA != ANY && LB != ANY;
    using Left = Tile<T, BM, LA, THREADS>;
    using Right = Tile<T, BN, LB, THREADS>;
    constexpr int STAGE = Left::BYTES + Right::BYTES;
    constexpr int K = Left::K;
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 shared = shared_address(memory);

    await_predecessor();
    const TilePlace place = tile_place<BM, BN>(m, n);
    const i64 row0 = place.row, column0 = place.column;
    i64 z = place.matrix;
    for (int d = batch.ndim - 1; d >= 0; --d) {
        const i64 at = z % batch.shape[d];
        z /= batch.shape[d];
        out += at * batch.stride[0][d];
        a += at * batch.stride[1][d];
        b += at * batch.stride[2][d];
        if (END != PLAIN && end.residual) end.residual += at * batch.stride[3][d];
    }
    a += row0 * a_row;
    b += column0 * b_column;
    const i64 lines_a = m - row0, lines_b = n - column0;
    const int tiles = static_cast<int>((depth + K - 1) / K);

    const int warp = threadIdx.x / 32;
    const int warp_row = warp / (BN / WN) * WM, warp_column = warp % (BN / WN) * WN;
    const u32 base_a = shared + Left::template base<false>(warp_row);
    const u32 base_b = shared + Left::BYTES + Right::template base<true>(warp_column);
    A sum[WM / 16][WN / 8][4] = {};
    u32 x[2][WM / 16][4], y[2][WN / 16][4];
    auto load = [&](u32 stage, int step) {
#pragma unroll
        for (int i = 0; i < WM / 16; ++i) {
            load_matrices<LA == ACROSS>(x[step % 2][i], Left::at(base_a + stage, i, step));
        }
#pragma unroll
        for (int j = 0; j < WN / 16; ++j) {
            load_matrices<LB == ACROSS>(y[step % 2][j], Right::at(base_b + stage, j, step));
        }
#pragma unroll
        for (int l = 0; l < 4; ++l) {
#pragma unroll
            for (int i = 0; i < WM / 16; ++i) x[step % 2][i][l] = M::fragment(x[step % 2][i][l]);
#pragma unroll
            for (int j = 0; j < WN / 16; ++j) y[step % 2][j][l] = M::fragment(y[step % 2][j][l]);
        }
    };

    Copier<Left, T, LA> copy_a(a, LA == ACROSS ? a_column : a_row, lines_a);
    Copier<Right, T, LB> copy_b(b, LB == ACROSS ? b_row : b_column, lines_b);
    u32 filling = 0, stage = 0;
    auto copy = [&](int t) {
        if (t < tiles) {
            const i64 left = depth - static_cast<i64>(t) * K;
            const int here = left < K ? static_cast<int>(left) : K;
            copy_a.copy(shared + filling, here);
            copy_b.copy(shared + filling + Left::BYTES, here);
            filling = filling == (STAGES - 1) * STAGE ? 0 : filling + STAGE;
        }
        commit_copies();
    };

    if constexpr (COPIED) {
#pragma unroll
        for (int t = 0; t < STAGES - 1; ++t) copy(t);
    }
    for (int t = 0; t < tiles; ++t) {
        if constexpr (COPIED) {
            wait_copies<STAGES - 2>();
            __syncthreads();
            // The tile before this one is free: all threads have passed the barrier after using it.
            copy(t + STAGES - 1);
        } else {
            __syncthreads();
            T* to = reinterpret_cast<T*>(memory);
            Left::fill(to, a, a_row, a_column, lines_a, static_cast<i64>(t) * K, depth);
            Right::fill(to + BM * K, b, b_column, b_row, lines_b, static_cast<i64>(t) * K, depth);
            __syncthreads();
        }
        load(stage, 0);
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            if (step + 1 < STEPS) load(stage, step + 1);
            const auto& p = x[step % 2];
            const auto& q = y[step % 2];
#pragma unroll
            for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
                for (int l = 0; l < WN / 8; ++l) {
                    // Back and forth: the next product then shares a fragment with this one.
                    const int j = i % 2 ? WN / 8 - 1 - l : l;
                    M::step(sum[i][j], p[i], q[j / 2][j % 2 * 2], q[j / 2][j % 2 * 2 + 1]);
                }
            }
        }
        if constexpr (COPIED) stage = stage == (STAGES - 1) * STAGE ? 0 : stage + STAGE;
    }
    if constexpr (COPIED) wait_copies<0>();
    __syncthreads();

    // Through shared memory, so that a thread writes 16 bytes of a row and reads bias and residual in order.
    constexpr int STRIDE = BN + PAD;
    A* staged = reinterpret_cast<A*>(memory);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < WM / 16; ++i) {
#pragma unroll
        for (int j = 0; j < WN / 8; ++j) {
            A* at = staged + (warp_row + i * 16 + lane / 4) * STRIDE + warp_column + j * 8 + lane % 4 * 2;
            *reinterpret_cast<Run<A, 2>*>(at) = Run<A, 2>{{sum[i][j][0], sum[i][j][1]}};
            *reinterpret_cast<Run<A, 2>*>(at + 8 * STRIDE) = Run<A, 2>{{sum[i][j][2], sum[i][j][3]}};
        }
    }
    __syncthreads();
    constexpr int E = CHUNK / static_cast<int>(sizeof(To));
    const u64 address = reinterpret_cast<u64>(out);
    const bool whole = out_column == 1 && ((address | static_cast<u64>(out_row) * sizeof(To)) & (CHUNK - 1)) == 0;
    for (int c = threadIdx.x; c < BM * (BN / E); c += THREADS) {
        const i64 row = row0 + c / (BN / E), column = column0 + c % (BN / E) * E;
        if (row >= m || column >= n) continue;
        using Sums = Run<A, (E < 4 ? E : 4)>;
        const Sums* from = reinterpret_cast<const Sums*>(staged + c / (BN / E) * STRIDE + c % (BN / E) * E);
        Vec<To, E> v;
        const int count = n - column < E ? static_cast<int>(n - column) : E;
#pragma unroll
        for (int e = 0; e < E; e += Sums::COUNT) {
            const Sums sums = from[e / Sums::COUNT];
#pragma unroll
            for (int i = 0; i < Sums::COUNT; ++i) {
                if (e + i < count) v.e[e + i] = convert<To>(finish<END>(sums.v[i], row, column + e + i, end));
            }
        }
        To* to = out + row * out_row + column * out_column;
        if (whole && count == E) {
            store(to, v);
        } else {
#pragma unroll
            for (int e = 0; e < E; ++e) {
                if (e < count) to[e * out_column] = v.e[e];
            }
        }
    }
}

}  // namespace pgk

#define PGK_MATMUL_MMA(entry, M, To, BM, BN, WM, WN, STAGES, LA, LB, end, BLOCKS) \
    extern "C" __global__ void __launch_bounds__(BM / WM * (BN / WN) * 32, BLOCKS) entry( \
        pgk::To* out, const pgk::Mma<pgk::M>::element* a, const pgk::Mma<pgk::M>::element* b, long long m, \
        long long n, long long k, long long out_row, long long out_column, long long a_row, long long a_column, \
        long long b_row, long long b_column, const __grid_constant__ pgk::Nd<4> batch, const pgk::To* bias, \
        const pgk::To* residual, long long residual_row, long long residual_column) { \
        pgk::matmul_mma<pgk::Mma<pgk::M>, pgk::To, BM, BN, WM, WN, STAGES, pgk::LA, pgk::LB, pgk::end>( \
            out, a, b, m, n, k, out_row, out_column, a_row, a_column, b_row, b_column, batch, \
            pgk::Epilogue<pgk::To>{bias, residual, residual_row, residual_column}); \
    }
