// Large matrix products on CUDA cores: out[z, i, j] = end(sum over k of a[z, i, k] * b[z, k, j]), float or double.
//
// Element strides for every operand (row, then column); `batch` holds the batch shape and the strides of out, a, b and
// residual (0 to broadcast). What is contiguous is a template argument, for a and b each: ALONG_K (rows of a, columns of
// b) or ACROSS (the other way round); addresses and the other strides are multiples of 16 bytes, sizes are any.
// Launch: 256 threads, grid = batches * ceil(m / SIDE) * ceil(n / SIDE), walked in groups of 8 tiles of rows; SIDE is 128
// for float and 64 for double. Static shared memory: two tiles of 16 x (SIDE + 4) elements of each operand.
// A thread computes 2 x 2 blocks of EACH x EACH elements, SIDE / 2 apart, so that a warp reads shared memory in vectors
// that meet no bank twice; the next tile is loaded to registers meanwhile.
// Numerics: each result is one chain of fused multiply-adds over k = 0, 1, ..., rounded once, as in simt.cu: the same
// bits. Determinism: batch_invariant.
#include "pygpukit/epilogue.cuh"
#include "pygpukit/tiles.cuh"

namespace pgk {

constexpr int TILES_THREADS = 256;
constexpr int TILES_DEPTH = 16;

// A thread's part of the lines of an operand (rows of a, columns of b), tile by tile.
template <class T, int SIDE, Lines LINES> struct Loader {
    static constexpr int E = 16 / static_cast<int>(sizeof(T));
    static constexpr int ROW = LINES == ACROSS ? SIDE / E : TILES_DEPTH / E;
    static constexpr int COUNT = SIDE * TILES_DEPTH / E / TILES_THREADS;
    static constexpr int STRIDE = TILES_THREADS / ROW;
    const T* p;
    i64 skip, next;
    int row, first, lines;
    Vec<T, E> held[COUNT];

    PGK_FN Loader(const T* from, i64 stride, i64 exist) {
        const int t = static_cast<int>(threadIdx.x);
        row = t / ROW;
        first = t % ROW * E;
        p = from + row * stride + first;
        skip = STRIDE * stride;
        next = LINES == ACROSS ? TILES_DEPTH * stride : TILES_DEPTH;
        lines = exist < SIDE ? static_cast<int>(exist) : SIDE;
    }
    // Reads the next tile, of which `left` of k exist; the others are zeros.
    PGK_FN void load(int left) {
        const int rows = LINES == ACROSS ? left : lines;
        const int along = (LINES == ACROSS ? lines : left) - first;
        const T* from = p;
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const bool inside = row + i * STRIDE < rows;
            held[i] = Vec<T, E>{};
            if (along >= E) {
                pgk::load(held[i], from, inside);
            } else {
#pragma unroll
                for (int e = 0; e < E; ++e) held[i].e[e] = element(from + e, inside && e < along, T(0));
            }
            from += skip;
        }
        p += next;
    }
    PGK_FN void store(T (&tile)[TILES_DEPTH][SIDE + 4]) const {
#pragma unroll
        for (int i = 0; i < COUNT; ++i) {
            const int at = row + i * STRIDE;
            if constexpr (LINES == ACROSS) {
                *reinterpret_cast<Run<T, E>*>(&tile[at][first]) = bit_cast<Run<T, E>>(held[i]);
            } else {
#pragma unroll
                for (int e = 0; e < E; ++e) tile[first + e][at] = held[i].e[e];
            }
        }
    }
};

template <class T, class To, int SIDE, Lines LA, Lines LB, int END>
PGK_FN void matmul_tiles(To* out, const T* a, const T* b, i64 m, i64 n, i64 depth, i64 out_row, i64 out_column, i64 a_row,
                         i64 a_column, i64 b_row, i64 b_column, const Nd<4>& batch, Epilogue<To> end) {
    constexpr int HALF = SIDE / 2;
    constexpr int EACH = HALF / 16;
    __shared__ __align__(16) T left[2][TILES_DEPTH][SIDE + 4];
    __shared__ __align__(16) T right[2][TILES_DEPTH][SIDE + 4];

    await_predecessor();
    const TilePlace place = tile_place<SIDE, SIDE>(m, n);
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

    Loader<T, SIDE, LA> load_a(a + row0 * a_row, LA == ACROSS ? a_column : a_row, m - row0);
    Loader<T, SIDE, LB> load_b(b + column0 * b_column, LB == ACROSS ? b_row : b_column, n - column0);
    const int tx = threadIdx.x % 16 * EACH, ty = threadIdx.x / 16 * EACH;
    T sum[2 * EACH][2 * EACH] = {};
    auto multiply = [&](int buffer, int k) {
        Run<T, EACH> x[2], y[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            x[h] = *reinterpret_cast<const Run<T, EACH>*>(&left[buffer][k][ty + h * HALF]);
            y[h] = *reinterpret_cast<const Run<T, EACH>*>(&right[buffer][k][tx + h * HALF]);
        }
#pragma unroll
        for (int i = 0; i < 2 * EACH; ++i) {
#pragma unroll
            for (int j = 0; j < 2 * EACH; ++j) {
                sum[i][j] = fused(x[i / EACH].v[i % EACH], y[j / EACH].v[j % EACH], sum[i][j]);
            }
        }
    };
    auto left_of = [&](i64 k0) { return depth - k0 < TILES_DEPTH ? static_cast<int>(depth - k0) : TILES_DEPTH; };

    if (depth > 0) {
        load_a.load(left_of(0));
        load_b.load(left_of(0));
        load_a.store(left[0]);
        load_b.store(right[0]);
    }
    int buffer = 0;
    for (i64 k0 = 0; k0 < depth; k0 += TILES_DEPTH) {
        __syncthreads();
        const bool more = k0 + TILES_DEPTH < depth;
        if (more) {
            load_a.load(left_of(k0 + TILES_DEPTH));
            load_b.load(left_of(k0 + TILES_DEPTH));
        }
        if (depth - k0 >= TILES_DEPTH) {
#pragma unroll
            for (int k = 0; k < TILES_DEPTH; ++k) multiply(buffer, k);
        } else {
            // Adding products of the zeros beyond the end could change the sign of a zero.
#pragma unroll 1
            for (int k = 0; k < static_cast<int>(depth - k0); ++k) multiply(buffer, k);
        }
        if (more) {
            load_a.store(left[buffer ^ 1]);
            load_b.store(right[buffer ^ 1]);
        }
        buffer ^= 1;
    }

    const u64 address = reinterpret_cast<u64>(out);
    constexpr u64 BYTES = EACH * sizeof(To);
    const bool whole = out_column == 1 && ((address | static_cast<u64>(out_row) * sizeof(To)) & (BYTES - 1)) == 0;
#pragma unroll
    for (int i = 0; i < 2 * EACH; ++i) {
        const i64 row = row0 + ty + i / EACH * HALF + i % EACH;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const i64 column = column0 + tx + h * HALF;
            Vec<To, EACH> v;
#pragma unroll
            for (int e = 0; e < EACH; ++e) {
                if (row < m && column + e < n) {
                    v.e[e] = convert<To>(finish<END>(sum[i][h * EACH + e], row, column + e, end));
                    if (!whole || column + EACH > n) out[row * out_row + (column + e) * out_column] = v.e[e];
                }
            }
            if (whole && row < m && column + EACH <= n) store(out + row * out_row + column, v);
        }
    }
}

}  // namespace pgk

#define PGK_MATMUL_TILES(entry, T, To, SIDE, LA, LB, end) \
    extern "C" __global__ void __launch_bounds__(256, 2) entry( \
        pgk::To* out, const pgk::T* a, const pgk::T* b, long long m, long long n, long long k, long long out_row, \
        long long out_column, long long a_row, long long a_column, long long b_row, long long b_column, \
        const __grid_constant__ pgk::Nd<4> batch, const pgk::To* bias, const pgk::To* residual, \
        long long residual_row, long long residual_column) { \
        pgk::matmul_tiles<pgk::T, pgk::To, SIDE, pgk::LA, pgk::LB, pgk::end>( \
            out, a, b, m, n, k, out_row, out_column, a_row, a_column, b_row, b_column, batch, \
            pgk::Epilogue<pgk::To>{bias, residual, residual_row, residual_column}); \
    }
