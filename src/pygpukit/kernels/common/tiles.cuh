// Tiles of a matrix product: which one a block computes, and how its operands lie.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

// What is contiguous in the lines of an operand, rows of a and columns of b: each line, elements of neighbouring lines,
// or neither.
enum Lines { ALONG_K, ACROSS, ANY };

// Neighbours that one instruction moves to or from shared memory.
template <class A, int N> struct alignas(N * sizeof(A)) Run {
    static constexpr int COUNT = N;
    A v[N];
};

// First row and column of this block's tile, and its matrix.
struct TilePlace { i64 row, column, matrix; };

// Tiles of BM x BN are walked in groups of 8 tiles of rows: those at work together share their operands in the L2.
template <int BM, int BN> PGK_FN TilePlace tile_place(i64 m, i64 n) {
    constexpr i64 GROUP = 8;
    const i64 tiles_m = (m + BM - 1) / BM, tiles_n = (n + BN - 1) / BN;
    const i64 tile = static_cast<i64>(blockIdx.x) % (tiles_n * tiles_m);
    const i64 first = tile / (GROUP * tiles_n) * GROUP;
    const i64 rows = tiles_m - first < GROUP ? tiles_m - first : GROUP;
    const i64 inside = tile % (GROUP * tiles_n);
    return {(first + inside % rows) * BM, inside / rows * BN, static_cast<i64>(blockIdx.x) / (tiles_n * tiles_m)};
}

}  // namespace pgk
