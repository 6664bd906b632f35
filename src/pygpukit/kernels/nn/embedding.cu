// Rows of a table: out[i, :] = table[ids[i], :], times `scale` rounded to the table's type where SCALED. An id outside of
// the table gives zeros.
//
// out: contiguous [rows, n]. table: n dense elements per row, rows at table_step. ids: int32 or int64 (wide).
// Launch: 256 threads, a thread per vector of 16 bytes (VEC) or element, grid = ceil(rows * vectors / 256). No shared
// memory. Numerics: a product is in float (double for double) and rounded once. Determinism: batch_invariant.
#include "pygpukit/rows.cuh"

namespace pgk {

template <class T, class A, bool VEC, bool SCALED>
PGK_FN void embedding(T* out, const void* ids, const T* table, i64 rows_total, i64 n, i64 table_rows, i64 table_step,
                      i64 wide, A scale) {
    constexpr int E = VEC ? 16 / static_cast<int>(sizeof(T)) : 1;
    await_predecessor();
    const i64 at = blockIdx.x * 256ll + threadIdx.x, each = n / E;
    if (at >= rows_total * each) return;
    const i64 row = quotient(at, each), place = (at - row * each) * E;
    const i64 id = wide ? static_cast<const i64*>(ids)[row] : static_cast<const i32*>(ids)[row];
    Vec<T, E> v{};
    load(v, table + id * table_step + place, id >= 0 && id < table_rows);
    if constexpr (SCALED) {
        A r[E];
#pragma unroll
        for (int e = 0; e < E; ++e) r[e] = mul_rn(input<A>(v.e[e]), rounded<T>(scale));
        v = outputs<T>(r);
    }
    store(out + row * n + place, v);
}

}  // namespace pgk

#define PGK_EMBEDDING(entry, T, A, VEC, SCALED) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const void* ids, const pgk::T* table, long long rows, long long n, long long table_rows, \
        long long table_step, long long wide, pgk::A scale) { \
        pgk::embedding<pgk::T, pgk::A, VEC, SCALED>(out, ids, table, rows, n, table_rows, table_step, wide, scale); \
    }
