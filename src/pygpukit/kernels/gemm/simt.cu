// Matrix product: out[z, i, j] = end(sum over k of a[z, i, k] * b[z, k, j]), with the epilogue of epilogue.cuh.
//
// Element strides for every operand (row, then column); `batch` holds the batch shape and the strides of out, a, b and
// residual (0 to broadcast). Launch: 256 threads, grid = batches * ceil(m / 64) * ceil(n / 64). Static shared memory: two tiles
// of 16 x 65 accumulators.
// Numerics: inputs are converted to A (float for 16- and 8-bit floats and float; integers wrap in 32 or 64 bits), each
// result is one chain of fused multiply-adds over k = 0, 1, ..., rounded to the output type once at the end; an integer
// sum first wraps to its own type R. The order depends on nothing else. Determinism: batch_invariant.
#include "pygpukit/epilogue.cuh"
#include "pygpukit/multiply.cuh"

namespace pgk {

constexpr int MATMUL_THREADS = 256;
constexpr int TILE = 64;
constexpr int DEPTH = 16;
constexpr int SIDE = 16;
constexpr int EACH = TILE / SIDE;

// Fills tile[k][line] from p[line * along + k * step]; zero outside. The faster-varying index follows the unit stride.
template <class A, class T>
PGK_FN void fill(A (&tile)[DEPTH][TILE + 1], const T* p, i64 along, i64 step, i64 line0, i64 lines, i64 k0, i64 depth) {
    const int t = threadIdx.x;
    const bool by_depth = step == 1;
#pragma unroll
    for (int r = 0; r < TILE * DEPTH / MATMUL_THREADS; ++r) {
        const int index = r * MATMUL_THREADS + t;
        const int line = by_depth ? index / DEPTH : index % TILE;
        const int k = by_depth ? index % DEPTH : index / TILE;
        const bool inside = line0 + line < lines && k0 + k < depth;
        tile[k][line] = inside ? convert<A>(p[(line0 + line) * along + (k0 + k) * step]) : A{};
    }
}

template <class Ta, class Tb, class A, class R, class To, bool LOGICAL, int END>
PGK_FN void matmul(To* out, const Ta* a, const Tb* b, i64 m, i64 n, i64 depth, i64 out_row, i64 out_column, i64 a_row,
                   i64 a_column, i64 b_row, i64 b_column, const Nd<4>& batch, Epilogue<To> end) {
    await_predecessor();
    __shared__ A left[DEPTH][TILE + 1];
    __shared__ A right[DEPTH][TILE + 1];
    const i64 tiles_n = (n + TILE - 1) / TILE;
    const i64 tiles_m = (m + TILE - 1) / TILE;
    const i64 block = static_cast<i64>(blockIdx.x);
    const i64 column0 = block % tiles_n * TILE;
    const i64 row0 = block / tiles_n % tiles_m * TILE;
    i64 z = block / tiles_n / tiles_m;
    for (int d = batch.ndim - 1; d >= 0; --d) {
        const i64 at = z % batch.shape[d];
        z /= batch.shape[d];
        out += at * batch.stride[0][d];
        a += at * batch.stride[1][d];
        b += at * batch.stride[2][d];
        if (END != PLAIN && end.residual) end.residual += at * batch.stride[3][d];
    }

    const int tx = threadIdx.x % SIDE;
    const int ty = threadIdx.x / SIDE;
    A sum[EACH][EACH] = {};
    for (i64 k0 = 0; k0 < depth; k0 += DEPTH) {
        fill(left, a, a_row, a_column, row0, m, k0, depth);
        fill(right, b, b_column, b_row, column0, n, k0, depth);
        __syncthreads();
        const int steps = depth - k0 < DEPTH ? static_cast<int>(depth - k0) : DEPTH;
#pragma unroll 4
        for (int k = 0; k < steps; ++k) {
            A x[EACH], y[EACH];
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
                x[i] = left[k][ty + i * SIDE];
                y[i] = right[k][tx + i * SIDE];
            }
#pragma unroll
            for (int i = 0; i < EACH; ++i) {
#pragma unroll
                for (int j = 0; j < EACH; ++j) sum[i][j] = multiply_add<LOGICAL>(x[i], y[j], sum[i][j]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const i64 row = row0 + ty + i * SIDE;
#pragma unroll
        for (int j = 0; j < EACH; ++j) {
            const i64 column = column0 + tx + j * SIDE;
            if (row < m && column < n) {
                const A whole = finish<END>(sum[i][j], row, column, end);
                out[row * out_row + column * out_column] = convert<To>(convert<R>(whole));
            }
        }
    }
}

}  // namespace pgk

#define PGK_MATMUL(entry, Ta, Tb, A, R, To, logical, end) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::To* out, const pgk::Ta* a, const pgk::Tb* b, long long m, long long n, long long k, long long out_row, \
        long long out_column, long long a_row, long long a_column, long long b_row, long long b_column, \
        const __grid_constant__ pgk::Nd<4> batch, const pgk::To* bias, const pgk::To* residual, \
        long long residual_row, long long residual_column) { \
        pgk::matmul<pgk::Ta, pgk::Tb, pgk::A, pgk::R, pgk::To, logical, pgk::end>( \
            out, a, b, m, n, k, out_row, out_column, a_row, a_column, b_row, b_column, batch, \
            pgk::Epilogue<pgk::To>{bias, residual, residual_row, residual_column}); \
    }
