// IEEE half precision: exact widening to float, one round-to-nearest-even from float or double.
// NaN keeps its sign and leading payload bits, as NumPy does.
#pragma once
#include "pygpukit/types.cuh"

namespace pgk {

PGK_FN f32 widen(f16 x) {
    const u32 sign = static_cast<u32>(x.bits & 0x8000u) << 16;
    const u32 magnitude = x.bits & 0x7fffu;
    f32 value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(x.bits));
    return magnitude > 0x7c00u ? bit_cast<f32>(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13) : value;
}

PGK_FN f16 half_nan(u32 sign, u32 payload) {
    return f16{static_cast<u16>(sign | 0x7c00u | (payload ? payload : 1u))};
}

// Two values rounded by one instruction, which has four times the rate of the single conversion; NaN becomes 0x7fff.
PGK_FN u32 pack(f16, f32 low, f32 high) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
PGK_FN f32 widen_fast(f16 x) { f32 r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits)); return r; }

template <> struct Narrow<f16> {
    static PGK_FN f16 from(f32 v) {
        const u32 bits = bit_cast<u32>(v);
        const u32 sign = bits >> 16 & 0x8000u;
        const u32 magnitude = bits & 0x7fffffffu;
        const f16 nan = half_nan(sign, magnitude >> 13 & 0x3ffu);
        return v != v ? nan : f16{static_cast<u16>(pack(f16{}, v, 0.0f))};
    }
    static PGK_FN f16 from(f64 v) {
        const u64 bits = bit_cast<u64>(v);
        const u32 sign = static_cast<u32>(bits >> 48) & 0x8000u;
        const u64 magnitude = bits & 0x7fffffffffffffffull;
        if (magnitude > 0x7ff0000000000000ull) return half_nan(sign, static_cast<u32>(magnitude >> 42) & 0x3ffu);
        f16 r;
        asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r.bits) : "d"(v));
        return r;
    }
    // NumPy casts integers through float.
    template <class V> static PGK_FN f16 from(V v) { return from(static_cast<f32>(v)); }
    template <class V> static PGK_FN f16 from(cx<V> v) { return from(v.re); }
};

}  // namespace pgk
