// bfloat16: exact widening to float; round-to-nearest-even from float. Wider sources pass through float and every NaN
// becomes the quiet one of its sign, both as ml_dtypes does.
#pragma once
#include "pygpukit/types.cuh"

namespace pgk {

PGK_FN f32 widen(bf16 x) { return bit_cast<f32>(static_cast<u32>(x.bits) << 16); }

// Two values rounded by one instruction, which has four times the rate of the single conversion; NaN becomes 0x7fff.
PGK_FN u32 pack(bf16, f32 low, f32 high) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

template <> struct Narrow<bf16> {
    static PGK_FN bf16 from(f32 v) {
        const u32 bits = bit_cast<u32>(v);
        const u32 nan = (bits >> 16 & 0x8000u) | 0x7fc0u;
        const u32 rounded = pack(bf16{}, v, 0.0f);
        return bf16{static_cast<u16>(v != v ? nan : rounded)};
    }
    template <class V> static PGK_FN bf16 from(V v) { return from(static_cast<f32>(v)); }
    template <class V> static PGK_FN bf16 from(cx<V> v) { return from(static_cast<f32>(v.re)); }
};

}  // namespace pgk
