// Gathers: out[p] = x[place(p)], elements of 1 to 16 bytes; zeros where an index is out of range (modes: places.cuh).
//
// pgk_gather_flat: out[i] = x[index[i] * step] for vectors, index and out contiguous. 256 threads, 2048 elements per
//   block, eight loads of a thread in flight.
// pgk_gather_nd_kK: results of up to 8 dimensions through up to K index arrays, of which `count` are used; nd has rows
//   for out, x and each index array, axes the lengths of the indexed axes and the strides of x along them. 256 threads,
//   1024 elements per block.
// `code` is the size of an element (pgk::of_size); `wide` says that indices are int64, else int32.
// Determinism: batch_invariant: nothing is computed.
#include "pygpukit/places.cuh"

namespace pgk {

constexpr int FLAT = 8;

template <class I> PGK_FN void load_indices(i64 (&at)[FLAT], const void* index, i64 first, i64 total) {
#pragma unroll
    for (int j = 0; j < FLAT; ++j) {
        const i64 i = first + j * THREADS;
        at[j] = i < total ? static_cast<i64>(static_cast<const I*>(index)[i]) : 0;
    }
}

PGK_FN void gather_flat(void* out, const void* x, const void* index, i64 total, i64 n, i64 step, int code, int wide,
                        int mode) {
    const i64 first = blockIdx.x * static_cast<i64>(THREADS * FLAT) + threadIdx.x;
    i64 at[FLAT];
    bool there[FLAT];
    if (wide) load_indices<i64>(at, index, first, total);
    else load_indices<i32>(at, index, first, total);
#pragma unroll
    for (int j = 0; j < FLAT; ++j) there[j] = first + j * THREADS < total && resolve(at[j], n, mode);
    of_size(code, [&](auto* one) {
        using T = element_of<decltype(one)>;
        T v[FLAT];
#pragma unroll
        for (int j = 0; j < FLAT; ++j) {
            v[j] = T{};
            if (there[j]) v[j] = static_cast<const T*>(x)[at[j] * step];
        }
#pragma unroll
        for (int j = 0; j < FLAT; ++j) {
            if (first + j * THREADS < total) static_cast<T*>(out)[first + j * THREADS] = v[j];
        }
    });
}

template <int K>
PGK_FN void gather_nd(void* out, const void* x, const Indices& indices, i64 total, const Nd<K + 2>& nd,
                      const Axes<1>& axes, int count, int code, int wide, int mode) {
    constexpr int U = PER_BLOCK_ND / THREADS;
    const i64 base = static_cast<i64>(blockIdx.x) * PER_BLOCK_ND;
    i64 offset[K + 2][U];
    locate<K + 2, U>(offset, base, threadIdx.x, nd);
    bool there[U];
#pragma unroll
    for (int j = 0; j < U; ++j) there[j] = base + threadIdx.x + j * THREADS < total;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (k >= count) break;
        i64 at[U];
#pragma unroll
        for (int j = 0; j < U; ++j) at[j] = there[j] ? index_at(indices.p[k], offset[k + 2][j], wide) : 0;
#pragma unroll
        for (int j = 0; j < U; ++j) {
            there[j] = resolve(at[j], axes.length[k], mode) && there[j];
            offset[1][j] += at[j] * axes.stride[0][k];
        }
    }
    of_size(code, [&](auto* one) {
        using T = element_of<decltype(one)>;
        T v[U];
#pragma unroll
        for (int j = 0; j < U; ++j) {
            v[j] = T{};
            if (there[j]) v[j] = static_cast<const T*>(x)[offset[1][j]];
        }
#pragma unroll
        for (int j = 0; j < U; ++j) {
            if (base + threadIdx.x + j * THREADS < total) static_cast<T*>(out)[offset[0][j]] = v[j];
        }
    });
}

}  // namespace pgk

#define PGK_GATHER_FLAT(entry) \
    extern "C" __global__ void __launch_bounds__(256) entry(void* out, const void* x, const void* index, \
                                                            long long total, long long n, long long step, int code, \
                                                            int wide, int mode) { \
        pgk::await_predecessor(); \
        pgk::gather_flat(out, x, index, total, n, step, code, wide, mode); \
    }

#define PGK_GATHER_ND(entry, K) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        void* out, const void* x, const void* i0, const void* i1, const void* i2, const void* i3, const void* i4, \
        const void* i5, const void* i6, const void* i7, long long total, const __grid_constant__ pgk::Nd<K + 2> nd, \
        const __grid_constant__ pgk::Axes<1> axes, int count, int code, int wide, int mode) { \
        pgk::await_predecessor(); \
        const pgk::Indices indices{{i0, i1, i2, i3, i4, i5, i6, i7}}; \
        pgk::gather_nd<K>(out, x, indices, total, nd, axes, count, code, wide, mode); \
    }
