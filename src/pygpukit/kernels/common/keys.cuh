// Elements as unsigned keys whose order is the order of sorting: NaN after all numbers, or all of it reversed.
//
// key = ((bits ^ (bits & top ? negative : positive)) - offset) & mask, which is a bijection: the offset moves the NaNs
// of negative sign, the lowest codes of a float, behind all others. Keys for positions then make equal what compares
// equal: `last` is the first NaN, and `minus_zero` moves up by `zero_step`. `flip` is 0, or the mask for descending
// order.
// Types of 8, 16 and 32 bits have keys of 32 bits, wider ones of 64. The host packs the struct.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

struct KeyMap {
    u64 top, mask, negative, positive, offset, last, minus_zero, zero_step, flip;
};
static_assert(sizeof(KeyMap) == 72, "the host packs nine 64-bit integers");

template <class U> PGK_FN U encode(U bits, const KeyMap& m) {
    const U turned = bits ^ static_cast<U>(bits & static_cast<U>(m.top) ? m.negative : m.positive);
    U key = (turned - static_cast<U>(m.offset)) & static_cast<U>(m.mask);
    key = key < static_cast<U>(m.last) ? key : static_cast<U>(m.last);
    key += key == static_cast<U>(m.minus_zero) ? static_cast<U>(m.zero_step) : U(0);
    return key ^ static_cast<U>(m.flip);
}

// What decode needs, in the type of the keys; a map that changes nothing where it is not active.
template <class U> struct Codes {
    U top, mask, negative, positive, offset, flip;
    PGK_FN Codes(const KeyMap& m, bool active)
        : top(static_cast<U>(m.top)), mask(active ? static_cast<U>(m.mask) : ~U(0)),
          negative(active ? static_cast<U>(m.negative) : U(0)), positive(active ? static_cast<U>(m.positive) : U(0)),
          offset(active ? static_cast<U>(m.offset) : U(0)), flip(active ? static_cast<U>(m.flip) : U(0)) {}
};

template <class U, class M> PGK_FN U decode(U key, const M& m) {
    const U turned = ((key ^ static_cast<U>(m.flip)) + static_cast<U>(m.offset)) & static_cast<U>(m.mask);
    return turned ^ static_cast<U>(turned & static_cast<U>(m.top) ? m.positive : m.negative);
}

// Elements of `size` bytes, one at a time; sizes over that of U do not occur.
template <class U> PGK_FN U load_bits(const void* p, i64 at, int size) {
    if constexpr (sizeof(U) == 8) {
        if (size == 8) return static_cast<const u64*>(p)[at];
    }
    if (size == 4) return static_cast<const u32*>(p)[at];
    if (size == 2) return static_cast<const u16*>(p)[at];
    return static_cast<const u8*>(p)[at];
}

template <class U> PGK_FN void store_bits(void* p, i64 at, int size, U bits) {
    if constexpr (sizeof(U) == 8) {
        if (size == 8) {
            static_cast<u64*>(p)[at] = bits;
            return;
        }
    }
    if (size == 4) static_cast<u32*>(p)[at] = static_cast<u32>(bits);
    else if (size == 2) static_cast<u16*>(p)[at] = static_cast<u16>(bits);
    else static_cast<u8*>(p)[at] = static_cast<u8>(bits);
}

// E elements from, from + step, ... of which those below n exist; the others are `other`. One loop per size keeps all
// loads in flight.
template <class T, class U, int E>
PGK_FN void load_each(U (&v)[E], const T* p, i64 from, i64 step, i64 n, U other) {
#pragma unroll
    for (int e = 0; e < E; ++e) {
        const i64 at = from + e * step;
        v[e] = at < n ? static_cast<U>(p[at]) : other;
    }
}

template <class U, int E>
PGK_FN void load_all(U (&v)[E], const void* p, i64 row, i64 from, i64 step, i64 n, int size, U other) {
    if constexpr (sizeof(U) == 8) {
        load_each(v, static_cast<const u64*>(p) + row, from, step, n, other);
    } else {
        if (size == 4) load_each(v, static_cast<const u32*>(p) + row, from, step, n, other);
        else if (size == 2) load_each(v, static_cast<const u16*>(p) + row, from, step, n, other);
        else load_each(v, static_cast<const u8*>(p) + row, from, step, n, other);
    }
}

// The same with elements of any size in 64 bits.
template <int E> PGK_FN void load_any(u64 (&v)[E], const void* p, i64 from, i64 step, i64 n, int size) {
    if (size == 8) load_each(v, static_cast<const u64*>(p), from, step, n, u64(0));
    else if (size == 4) load_each(v, static_cast<const u32*>(p), from, step, n, u64(0));
    else if (size == 2) load_each(v, static_cast<const u16*>(p), from, step, n, u64(0));
    else load_each(v, static_cast<const u8*>(p), from, step, n, u64(0));
}

// Words that blocks pass on; a word holds flag and value, so no other order is needed.
PGK_FN u32 load_relaxed(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
PGK_FN u64 load_relaxed(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
PGK_FN void store_relaxed(u32* p, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
PGK_FN void store_relaxed(u64* p, u64 v) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// The number of this block in order of start: blocks with a smaller one run or have run, so waiting for them ends. The
// last block leaves the counter zero. Ends with a barrier.
PGK_FN u32 start_order(u32* counter, u32* shared) {
    if (threadIdx.x == 0) {
        const u32 mine = atomicAdd(counter, 1u);
        if (mine == gridDim.x - 1) atomicExch(counter, 0u);
        *shared = mine;
    }
    __syncthreads();
    return *shared;
}

}  // namespace pgk
