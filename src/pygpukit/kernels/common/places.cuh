// Elements at places that index arrays name: what gathers and scatters share.
//
// A result is walked in row-major order through Nd (pygpukit/elementwise.cuh), whose rows are element strides: of the
// arrays that move, then of the index arrays. Index arrays are of int32 or int64, all of one type. An element's place
// is the sum of its strides and of index * stride for each indexed axis.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

// What an index means: PYTHON counts negative ones from the end, WRAP is index mod n, CLIP the nearest that exists.
enum : int { PYTHON = 0, WRAP = 1, CLIP = 2 };

// Lengths of the indexed axes, and rows of strides along them; the host packs it.
template <int R> struct Axes {
    long long length[8];
    long long stride[R][8];
};
static_assert(sizeof(Axes<1>) == 128 && sizeof(Axes<2>) == 192, "the host packs Axes");

struct Indices {
    const void* p[8];
};

// 16 bytes as one load, and as two where the address is a multiple of 8 only.
struct alignas(16) b128 { u64 low, high; };
using b64x2 = cx<u64>;

// Is there an element of this index? It becomes one from 0 to n - 1.
PGK_FN bool resolve(i64& index, i64 n, int mode) {
    if (mode == WRAP) {
        index = n > 0 ? index % n : 0;
        index += index < 0 ? n : 0;
    } else if (mode == CLIP) {
        index = index < n ? index : n - 1;
        index = index < 0 ? 0 : index;
    } else {
        index += index < 0 ? n : 0;
    }
    return static_cast<u64>(index) < static_cast<u64>(n);
}

PGK_FN i64 index_at(const void* p, i64 at, int wide) {
    return wide ? static_cast<const i64*>(p)[at] : static_cast<i64>(static_cast<const i32*>(p)[at]);
}

template <class P> struct pointed;
template <class T> struct pointed<T*> { using type = T; };
template <class P> using element_of = typename pointed<P>::type;

// Calls f with a null pointer of the type that holds elements of this code: their size, 17 for 16 bytes at multiples
// of 8.
template <class F> PGK_FN void of_size(int code, F&& f) {
    if (code == 4) f(static_cast<u32*>(nullptr));
    else if (code == 8) f(static_cast<u64*>(nullptr));
    else if (code == 2) f(static_cast<u16*>(nullptr));
    else if (code == 1) f(static_cast<u8*>(nullptr));
    else if (code == 16) f(static_cast<b128*>(nullptr));
    else f(static_cast<b64x2*>(nullptr));
}

// The place of an element of the index arrays among the indexed axes, counted with row 0 of the strides in `axes`; false
// where an index is out of range. space: how the index arrays are walked, a row for each.
template <int K, int R>
PGK_FN bool key_of(i64& key, u64 ordinal, const Indices& indices, const Nd<K>& space, const Axes<R>& axes, int count,
                   int wide) {
    i64 offset[K];
#pragma unroll
    for (int k = 0; k < K; ++k) offset[k] = 0;
#pragma unroll 1
    for (int d = space.ndim - 1; d >= 0; --d) {
        const u64 extent = static_cast<u64>(space.shape[d]);
        const u64 rest = d ? ordinal / extent : 0;
        const i64 at = static_cast<i64>(ordinal - rest * extent);
        ordinal = rest;
#pragma unroll
        for (int k = 0; k < K; ++k) offset[k] += at * space.stride[k][d];
    }
    key = 0;
    bool there = true;
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (k >= count) break;
        i64 at = index_at(indices.p[k], offset[k], wide);
        there = resolve(at, axes.length[k], PYTHON) && there;
        key += at * axes.stride[0][k];
    }
    return there;
}

}  // namespace pgk
