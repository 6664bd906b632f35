// Matrix product of at most a few rows on CUDA cores, float32: out[z, i, j] = end(sum over k of a[z, i, k] * b[z, k, j]).
//
// Element strides for every operand (row, then column); `batch` holds the batch shape and the strides of out, a, b and
// residual (0 to broadcast). Rows of a are contiguous; of b columns (ALONG_K) or rows (ACROSS), a template argument;
// addresses and the other strides are multiples of 16 bytes, sizes are any.
// Launch: 64 threads, grid = batches * ceil(m / 16) * ceil(n / 32). Dynamic shared memory: 8 tiles of 16 + 32 lines of 128
// bytes of k, 48 KiB, of which 7 are on their way: with few rows the time is that of reading b.
// A thread has one column and 8 rows of sums.
// Numerics: each result is one chain of fused multiply-adds over k = 0, 1, ..., rounded once, as in simt.cu: the same
// bits. Determinism: batch_invariant.
#include "pygpukit/copied_tile.cuh"
#include "pygpukit/epilogue.cuh"

namespace pgk {

constexpr int ROWS_M = 16, ROWS_N = 32, ROWS_THREADS = 64, ROWS_STAGES = 8, ROWS_EACH = 8;

template <class To, Lines LB, int END>
PGK_FN void matmul_rows(To* out, const f32* a, const f32* b, i64 m, i64 n, i64 depth, i64 out_row, i64 out_column,
                        i64 a_row, i64 a_column, i64 b_row, i64 b_column, const Nd<4>& batch, Epilogue<To> end) {
    using Left = Tile<f32, ROWS_M, ALONG_K, ROWS_THREADS>;
    using Right = Tile<f32, ROWS_N, LB, ROWS_THREADS>;
    constexpr int STAGE = Left::BYTES + Right::BYTES;
    constexpr int K = Left::K;
    extern __shared__ __align__(128) unsigned char memory[];
    const u32 shared = shared_address(memory);

    await_predecessor();
    const TilePlace place = tile_place<ROWS_M, ROWS_N>(m, n);
    i64 z = place.matrix;
    for (int d = batch.ndim - 1; d >= 0; --d) {
        const i64 at = z % batch.shape[d];
        z /= batch.shape[d];
        out += at * batch.stride[0][d];
        a += at * batch.stride[1][d];
        b += at * batch.stride[2][d];
        if (END != PLAIN && end.residual) end.residual += at * batch.stride[3][d];
    }
    Copier<Left, f32, ALONG_K> copy_a(a + place.row * a_row, a_row, m - place.row);
    Copier<Right, f32, LB> copy_b(b + place.column * b_column, LB == ACROSS ? b_row : b_column, n - place.column);
    const int tiles = static_cast<int>((depth + K - 1) / K);
    auto copy = [&](int t) {
        if (t < tiles) {
            const i64 left = depth - static_cast<i64>(t) * K;
            const u32 to = shared + t % ROWS_STAGES * STAGE;
            copy_a.copy(to, left < K ? static_cast<int>(left) : K);
            copy_b.copy(to + Left::BYTES, left < K ? static_cast<int>(left) : K);
        }
        commit_copies();
    };

    const int line = threadIdx.x % ROWS_N, first = threadIdx.x / ROWS_N * ROWS_EACH;
    f32 sum[ROWS_EACH] = {};
    // Four of k, of which `count` exist: products of the zeros beyond could change the sign of a zero.
    auto multiply = [&](const unsigned char* tile, int chunk, int count) {
        f32 y[4];
        if constexpr (LB == ACROSS) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                const u32 at = Right::place(chunk * 4 + j, line / 4) + line % 4 * 4;
                y[j] = *reinterpret_cast<const f32*>(tile + Left::BYTES + at);
            }
        } else {
            const auto run = *reinterpret_cast<const Run<f32, 4>*>(tile + Left::BYTES + Right::place(line, chunk));
#pragma unroll
            for (int j = 0; j < 4; ++j) y[j] = run.v[j];
        }
#pragma unroll
        for (int i = 0; i < ROWS_EACH; ++i) {
            const auto x = *reinterpret_cast<const Run<f32, 4>*>(tile + Left::place(first + i, chunk));
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                if (j < count) sum[i] = fused(x.v[j], y[j], sum[i]);
            }
        }
    };

#pragma unroll
    for (int t = 0; t < ROWS_STAGES - 1; ++t) copy(t);
    for (int t = 0; t < tiles; ++t) {
        wait_copies<ROWS_STAGES - 2>();
        __syncthreads();
        // The tile before this one is free: all threads have passed the barrier after using it.
        copy(t + ROWS_STAGES - 1);
        const unsigned char* tile = memory + t % ROWS_STAGES * STAGE;
        const i64 left = depth - static_cast<i64>(t) * K;
        if (left >= K) {
#pragma unroll
            for (int chunk = 0; chunk < K / 4; ++chunk) multiply(tile, chunk, 4);
        } else {
#pragma unroll 1
            for (int chunk = 0; chunk * 4 < static_cast<int>(left); ++chunk) {
                multiply(tile, chunk, static_cast<int>(left) - chunk * 4);
            }
        }
    }
    const i64 column = place.column + line;
#pragma unroll
    for (int i = 0; i < ROWS_EACH; ++i) {
        const i64 row = place.row + first + i;
        if (row < m && column < n) {
            out[row * out_row + column * out_column] = convert<To>(finish<END>(sum[i], row, column, end));
        }
    }
}

}  // namespace pgk

#define PGK_MATMUL_ROWS(entry, To, LB, end) \
    extern "C" __global__ void __launch_bounds__(64, 4) entry( \
        pgk::To* out, const float* a, const float* b, long long m, long long n, long long k, long long out_row, \
        long long out_column, long long a_row, long long a_column, long long b_row, long long b_column, \
        const __grid_constant__ pgk::Nd<4> batch, const pgk::To* bias, const pgk::To* residual, \
        long long residual_row, long long residual_column) { \
        pgk::matmul_rows<pgk::To, pgk::LB, pgk::end>( \
            out, a, b, m, n, k, out_row, out_column, a_row, a_column, b_row, b_column, batch, \
            pgk::Epilogue<pgk::To>{bias, residual, residual_row, residual_column}); \
    }
