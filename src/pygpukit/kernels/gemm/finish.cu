// The end of a product whose sums a library has computed: out[z, i, j] = end(sums[z, i, j]), with the epilogue of
// epilogue.cuh.
//
// sums: float, dense [batches, m, n rounded up to 8]. out: element strides out_row, out_column; `batch` holds the batch
// shape and the strides of out and residual. Launch: 256 threads, 8 columns each, grid = ceil(batches * m *
// ceil(n / 8) / 256). No shared memory.
// Numerics: the sums are those that our own kernels keep in registers, and what follows is the same function: the same
// bits. Determinism: batch_invariant.
#include "pygpukit/epilogue.cuh"

namespace pgk {

template <class To, int END>
PGK_FN void matmul_finish(To* out, const f32* sums, i64 m, i64 n, i64 batches, i64 out_row, i64 out_column,
                          const Nd<2>& batch, Epilogue<To> end) {
    await_predecessor();
    constexpr int E = 8;
    const i64 chunks = (n + E - 1) / E;
    const i64 index = static_cast<i64>(blockIdx.x) * 256 + threadIdx.x;
    i64 z = index / chunks / m;
    if (z >= batches) return;
    const i64 row = index / chunks % m, column = index % chunks * E;
    for (int d = batch.ndim - 1; d >= 0; --d) {
        const i64 at = z % batch.shape[d];
        z /= batch.shape[d];
        out += at * batch.stride[0][d];
        if (end.residual) end.residual += at * batch.stride[1][d];
    }
    Vec<f32, 4> x[2];
    load(x[0], sums + index * E, true);
    load(x[1], sums + index * E + 4, true);
    To* to = out + row * out_row + column * out_column;
    Vec<To, E> v;
#pragma unroll
    for (int e = 0; e < E; ++e) {
        if (column + e < n) {
            v.e[e] = convert<To>(finish<END>(scaled(x[e / 4].e[e % 4], row, column + e, end), row, column + e, end));
        }
    }
    const bool whole = out_column == 1 && column + E <= n && sizeof(v) == 16 && (reinterpret_cast<u64>(to) & 15) == 0;
    if (whole) {
        store(to, v);
        return;
    }
#pragma unroll
    for (int e = 0; e < E; ++e) {
        if (column + e < n) to[e * out_column] = v.e[e];
    }
}

}  // namespace pgk

#define PGK_MATMUL_FINISH(entry, To, end) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::To* out, const float* sums, long long m, long long n, long long batches, long long out_row, \
        long long out_column, const __grid_constant__ pgk::Nd<2> batch, const pgk::To* bias, const pgk::To* residual, \
        long long residual_row, long long residual_column, const float* scale_a, const float* scale_b, \
        long long step_a, long long step_b) { \
        pgk::matmul_finish<pgk::To, pgk::end>( \
            out, sums, m, n, batches, out_row, out_column, batch, \
            pgk::Epilogue<pgk::To>{bias, residual, residual_row, residual_column, scale_a, scale_b, step_a, step_b}); \
    }
