// Matrices of float32 rounded to tf32: out[z, line, 0..k) = round(x[z * step + line * ld + 0..k)); lines of out are as long
// as the next multiple of 4, and what is behind k is not defined.
//
// x and its lines lie at multiples of 16 bytes. Launch: 256 threads, 1024 pieces of four elements per block.
// Determinism: batch_invariant.
#include "pygpukit/elementwise.cuh"
#include "pygpukit/tf32.cuh"

extern "C" __global__ void __launch_bounds__(256) pgk_matmul_round_tf32(
    unsigned* out, const unsigned* x, long long count, long long lines, long long k, long long ld, long long step) {
    pgk::await_predecessor();
    const long long width = (k + 3) / 4, pieces = count * lines * width;
    const long long first = blockIdx.x * 1024ll + threadIdx.x;
    uint4 found[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const long long at = first + j * 256;
        if (at >= pieces) continue;
        const long long line = at / width, column = (at - line * width) * 4, z = line / lines;
        const unsigned* from = x + z * step + (line - z * lines) * ld + column;
        if (column + 4 <= k) {
            found[j] = *reinterpret_cast<const uint4*>(from);
        } else {
            const int left = static_cast<int>(k - column);
            found[j] = {from[0], left > 1 ? from[1] : 0u, left > 2 ? from[2] : 0u, 0u};
        }
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const long long at = first + j * 256;
        if (at < pieces) reinterpret_cast<uint4*>(out)[at] = pgk::to_tf32(found[j]);
    }
}
