// Sum over the middle axis: out[o, c, i] = sum of x[o, k, i] for k in chunk c.
//
// x: element strides stride_outer, stride_n, stride_inner. out: contiguous [outer, chunks, inner]. A chunk is 4096
// elements; with more than one, out holds partial sums which the same kernel sums again.
// Numerics: the accumulator A is float for 8- and 16-bit floats and float, 64-bit for integers. Element k of a chunk
// goes to slot k % 128; a slot adds its (at most 32) elements in order; slots are added by a fixed binary tree. The tree
// depends on n only: not on the grid, the layout, the kernel or the other rows. Determinism: batch_invariant.
//
// sum_rows: 256 threads, a warp per result, grid = ceil(outer * chunks * inner / 8).
// sum_cols: 256 threads, 32 neighbouring results per block; grid = outer * chunks * ceil(inner / 32).
// Static shared memory: 256 accumulators.
#include "pygpukit/elementwise.cuh"

namespace pgk {

constexpr int CHUNK = 4096;
constexpr int SUM_THREADS = 256;
constexpr int WARP = 32;
constexpr int WIDE = 4;
constexpr int SLOTS = WARP * WIDE;

template <class A> PGK_FN A tree(A a, A b, A c, A d) { return add(add(a, b), add(c, d)); }
template <class A> PGK_FN A sum_slots(const A (&slot)[WIDE]) { return tree(slot[0], slot[1], slot[2], slot[3]); }

// The elements of x that become one result.
template <class T> struct Line {
    const T* p;
    i64 step;
    int length;
};

template <class T>
PGK_FN Line<T> line_of(const T* x, i64 o, i64 c, i64 i, i64 n, i64 stride_outer, i64 stride_n, i64 stride_inner) {
    const i64 first = c * CHUNK;
    const i64 left = n - first;
    return {x + o * stride_outer + first * stride_n + i * stride_inner, stride_n,
            static_cast<int>(left < CHUNK ? left : CHUNK)};
}

template <class T, class A, class To>
PGK_FN void sum_rows(To* out, const T* x, i64 outer, i64 n, i64 inner, i64 chunks, i64 stride_outer, i64 stride_n,
                     i64 stride_inner) {
    await_predecessor();
    constexpr int rows = SUM_THREADS / WARP;
    constexpr int unroll = sizeof(T) <= 4 ? 8 : 2;
    constexpr int loads = WIDE * sizeof(T) <= 16 ? 1 : WIDE * sizeof(T) / 16;
    __shared__ A partial[SUM_THREADS];
    const int lane = threadIdx.x % WARP;
    const i64 row = static_cast<i64>(blockIdx.x) * rows + threadIdx.x / WARP;
    const bool active = row < outer * chunks * inner;

    A slot[WIDE] = {};
    if (active) {
        const i64 rest = row / inner;
        const Line<T> line =
            line_of(x, rest / chunks, rest % chunks, row % inner, n, stride_outer, stride_n, stride_inner);
        const bool aligned = line.step == 1 && reinterpret_cast<u64>(line.p) % (WIDE * sizeof(T) / loads) == 0;
        for (int first = lane * WIDE; first < line.length; first += unroll * SLOTS) {
            Vec<T, WIDE / loads> v[unroll][loads];
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
                const int k = first + u * SLOTS;
                const bool whole = aligned && k + WIDE <= line.length;
#pragma unroll
                for (int l = 0; l < loads; ++l) {
                    constexpr int per = WIDE / loads;
#pragma unroll
                    for (int e = 0; e < per; ++e) v[u][l].e[e] = T{};
                    load(v[u][l], line.p + k + l * per, whole);
#pragma unroll
                    for (int e = 0; e < per; ++e) {
                        const int at = k + l * per + e;
                        if (!whole && at < line.length) v[u][l].e[e] = line.p[at * line.step];
                    }
                }
            }
#pragma unroll
            for (int u = 0; u < unroll; ++u) {
#pragma unroll
                for (int e = 0; e < WIDE; ++e) {
                    slot[e] = add(slot[e], convert<A>(v[u][e / (WIDE / loads)].e[e % (WIDE / loads)]));
                }
            }
        }
    }
    partial[threadIdx.x] = sum_slots(slot);
    __syncthreads();
    for (int d = WARP / 2; d > 0; d /= 2) {
        if (lane < d) partial[threadIdx.x] = add(partial[threadIdx.x], partial[threadIdx.x + d]);
        __syncthreads();
    }
    if (active && lane == 0) out[row] = convert<To>(partial[threadIdx.x]);
}

template <class T, class A, class To>
PGK_FN void sum_cols(To* out, const T* x, i64 outer, i64 n, i64 inner, i64 chunks, i64 stride_outer, i64 stride_n,
                     i64 stride_inner) {
    await_predecessor();
    constexpr int parts = SUM_THREADS / WARP;
    constexpr int groups = WARP / parts;
    __shared__ A partial[SUM_THREADS];
    const int part = threadIdx.x / WARP;
    const i64 tiles = (inner + WARP - 1) / WARP;
    const i64 tile = static_cast<i64>(blockIdx.x) / tiles;
    const i64 i = static_cast<i64>(blockIdx.x) % tiles * WARP + threadIdx.x % WARP;

    // This thread's groups of slots are part, part + 8, ...: the order in which the tree pairs them.
    A slot[groups][WIDE] = {};
    if (i < inner) {
        const Line<T> line =
            line_of(x, tile / chunks, tile % chunks, i, n, stride_outer, stride_n, stride_inner);
        for (int first = part * WIDE; first < line.length; first += SLOTS) {
            T v[groups][WIDE];
#pragma unroll
            for (int g = 0; g < groups; ++g) {
#pragma unroll
                for (int e = 0; e < WIDE; ++e) {
                    const int at = first + g * parts * WIDE + e;
                    v[g][e] = at < line.length ? line.p[at * line.step] : T{};
                }
            }
#pragma unroll
            for (int g = 0; g < groups; ++g) {
#pragma unroll
                for (int e = 0; e < WIDE; ++e) slot[g][e] = add(slot[g][e], convert<A>(v[g][e]));
            }
        }
    }
    static_assert(groups == 4, "the tree below adds groups 16 and 8 lanes apart");
    partial[threadIdx.x] = tree(sum_slots(slot[0]), sum_slots(slot[2]), sum_slots(slot[1]), sum_slots(slot[3]));
    __syncthreads();
    for (int d = parts / 2; d > 0; d /= 2) {
        if (part < d) partial[threadIdx.x] = add(partial[threadIdx.x], partial[threadIdx.x + d * WARP]);
        __syncthreads();
    }
    if (part == 0 && i < inner) out[tile * inner + i] = convert<To>(partial[threadIdx.x]);
}

}  // namespace pgk

#define PGK_SUM(entry, kernel, T, A, To) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::To* out, const pgk::T* x, long long outer, long long n, long long inner, long long chunks, \
        long long stride_outer, long long stride_n, long long stride_inner) { \
        pgk::kernel<pgk::T, pgk::A, pgk::To>(out, x, outer, n, inner, chunks, stride_outer, stride_n, stride_inner); \
    }
