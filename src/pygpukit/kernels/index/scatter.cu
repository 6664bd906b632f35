// Scatters: x[place(p)] = value[p], elements of 1 to 16 bytes; indices out of range write nothing (places.cuh).
//
// Of elements with the same place the last in row-major order of the index arrays is written: pgk_claim finds the
// highest ordinal + 1 among those of one key (the place among the indexed axes) by an integer maximum, whose result does
// not depend on the order, and pgk_scatter writes an element if it is that one.
//
// claims: `slots` words, zero before pgk_claim, of 64 bits if `big`, else 32. With `direct` a key is its slot; else slots
//   are a hash table of ordinals, probed in steps of one: the key of what a slot holds is computed from the index
//   arrays, and does not change once the slot is taken.
// space: how the index arrays are walked, a row for each. axes: lengths of the indexed axes, strides along them of keys
//   and of x.
// nd: rows for x, value, ordinals and the index arrays.
// Launch: 256 threads, 1024 elements per block; pgk_claim over `members` elements of space, pgk_scatter over those of nd.
// Determinism: batch_invariant.
#include "pygpukit/places.cuh"

namespace pgk {

struct Claims {
    void* table;
    i64 slots, members;
    int big, direct;
};

PGK_FN i64 first_slot(i64 key, i64 slots) {
    const u64 mixed = (static_cast<u64>(key) + 1) * 0x9e3779b97f4a7c15ull;
    return static_cast<i64>(__umul64hi(mixed ^ mixed >> 29, static_cast<u64>(slots)));
}

template <int K, class W>
PGK_FN void claim(const Claims& claims, const Indices& indices, const Nd<K>& space, const Axes<2>& axes, int count,
                  int wide) {
    W* table = static_cast<W*>(claims.table);
    const i64 base = static_cast<i64>(blockIdx.x) * PER_BLOCK_ND + threadIdx.x;
#pragma unroll 1
    for (int j = 0; j < PER_BLOCK_ND; j += THREADS) {
        const i64 ordinal = base + j;
        i64 key;
        if (ordinal >= claims.members) break;
        if (!key_of<K>(key, static_cast<u64>(ordinal), indices, space, axes, count, wide)) continue;
        const W mine = static_cast<W>(ordinal + 1);
        if (claims.direct) {
            atomicMax(table + key, mine);
            continue;
        }
        for (i64 slot = first_slot(key, claims.slots);;) {
            const W held = atomicCAS(table + slot, W(0), mine);
            i64 other;
            if (held == 0) break;
            key_of<K>(other, static_cast<u64>(held) - 1, indices, space, axes, count, wide);
            if (other == key) {
                atomicMax(table + slot, mine);
                break;
            }
            slot = slot + 1 < claims.slots ? slot + 1 : 0;
        }
    }
}

// Does the element with this key and ordinal come last?
template <int K, class W>
PGK_FN bool is_last(i64 key, i64 ordinal, const Claims& claims, const Indices& indices, const Nd<K>& space,
                    const Axes<2>& axes, int count, int wide) {
    const W* table = static_cast<const W*>(claims.table);
    const W mine = static_cast<W>(ordinal + 1);
    if (claims.direct) return table[key] == mine;
    for (i64 slot = first_slot(key, claims.slots);;) {
        const W held = table[slot];
        i64 other;
        if (held == mine) return true;
        // A lower ordinal may be of another key only.
        if (held > mine) {
            key_of<K>(other, static_cast<u64>(held) - 1, indices, space, axes, count, wide);
            if (other == key) return false;
        }
        slot = slot + 1 < claims.slots ? slot + 1 : 0;
    }
}

template <int K>
PGK_FN void scatter(void* x, const void* value, const Claims& claims, const Indices& indices, i64 total, const Nd<K + 3>& nd,
                    const Nd<K>& space, const Axes<2>& axes, int count, int code, int wide) {
    constexpr int U = PER_BLOCK_ND / THREADS;
    const i64 base = static_cast<i64>(blockIdx.x) * PER_BLOCK_ND;
    i64 offset[K + 3][U];
    locate<K + 3, U>(offset, base, threadIdx.x, nd);
    bool there[U];
    i64 key[U];
#pragma unroll
    for (int j = 0; j < U; ++j) {
        there[j] = base + threadIdx.x + j * THREADS < total;
        key[j] = 0;
    }
#pragma unroll
    for (int k = 0; k < K; ++k) {
        if (k >= count) break;
        i64 at[U];
#pragma unroll
        for (int j = 0; j < U; ++j) at[j] = there[j] ? index_at(indices.p[k], offset[k + 3][j], wide) : 0;
#pragma unroll
        for (int j = 0; j < U; ++j) {
            there[j] = resolve(at[j], axes.length[k], PYTHON) && there[j];
            offset[0][j] += at[j] * axes.stride[1][k];
            key[j] += at[j] * axes.stride[0][k];
        }
    }
    if (claims.slots) {
#pragma unroll
        for (int j = 0; j < U; ++j) {
            if (!there[j]) continue;
            there[j] = claims.big
                           ? is_last<K, u64>(key[j], offset[2][j], claims, indices, space, axes, count, wide)
                           : is_last<K, u32>(key[j], offset[2][j], claims, indices, space, axes, count, wide);
        }
    }
    of_size(code, [&](auto* one) {
        using T = element_of<decltype(one)>;
        T v[U];
#pragma unroll
        for (int j = 0; j < U; ++j) {
            v[j] = T{};
            if (there[j]) v[j] = static_cast<const T*>(value)[offset[1][j]];
        }
#pragma unroll
        for (int j = 0; j < U; ++j) {
            if (there[j]) static_cast<T*>(x)[offset[0][j]] = v[j];
        }
    });
}

}  // namespace pgk

#define PGK_CLAIM(entry, K) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        void* table, const void* i0, const void* i1, const void* i2, const void* i3, const void* i4, const void* i5, \
        const void* i6, const void* i7, long long slots, long long members, \
        const __grid_constant__ pgk::Nd<K> space, const __grid_constant__ pgk::Axes<2> axes, int count, int wide, \
        int big, int direct) { \
        pgk::await_predecessor(); \
        const pgk::Indices indices{{i0, i1, i2, i3, i4, i5, i6, i7}}; \
        const pgk::Claims claims{table, slots, members, big, direct}; \
        if (big) pgk::claim<K, pgk::u64>(claims, indices, space, axes, count, wide); \
        else pgk::claim<K, pgk::u32>(claims, indices, space, axes, count, wide); \
    }

#define PGK_SCATTER(entry, K) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        void* x, const void* value, const void* table, const void* i0, const void* i1, const void* i2, \
        const void* i3, const void* i4, const void* i5, const void* i6, const void* i7, long long slots, \
        long long total, const __grid_constant__ pgk::Nd<K + 3> nd, const __grid_constant__ pgk::Nd<K> space, \
        const __grid_constant__ pgk::Axes<2> axes, int count, int code, int wide, int big, int direct) { \
        pgk::await_predecessor(); \
        const pgk::Indices indices{{i0, i1, i2, i3, i4, i5, i6, i7}}; \
        const pgk::Claims claims{const_cast<void*>(table), slots, 0, big, direct}; \
        pgk::scatter<K>(x, value, claims, indices, total, nd, space, axes, count, code, wide); \
    }
