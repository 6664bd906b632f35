// float8_e4m3fn (no infinity, overflow gives NaN) and float8_e5m2 (overflow gives infinity), bit-exact with ml_dtypes.
// Integer code on every architecture: the hardware conversion needs sm_89 and saturates instead.
#pragma once
#include "pygpukit/f16.cuh"

namespace pgk {

PGK_FN f32 widen(e4m3 x) {
    const u32 sign = static_cast<u32>(x.bits & 0x80u) << 24;
    const u32 magnitude = x.bits & 0x7fu;
    // The exponent field is 120 too small; the product is exact and normalises subnormals.
    const u32 value = bit_cast<u32>(bit_cast<f32>(magnitude << 20) * 0x1p120f);
    return bit_cast<f32>(sign | (magnitude == 0x7fu ? 0x7fc00000u : value));
}

PGK_FN f32 widen(e5m2 x) {
    const u32 sign = static_cast<u32>(x.bits & 0x80u) << 24;
    const u32 magnitude = x.bits & 0x7fu;
    const u32 value = bit_cast<u32>(bit_cast<f32>(magnitude << 21) * 0x1p112f);
    return bit_cast<f32>(sign | (magnitude > 0x7cu ? 0x7fc00000u : magnitude == 0x7cu ? 0x7f800000u : value));
}

// Shared rounding. MANTISSA bits are kept, BIAS is the exponent bias; `limit` is the largest finite code, `over` what
// larger values become, `nan` the NaN code.
template <int MANTISSA, int BIAS> PGK_FN u8 round_to_fp8(f32 v, u32 limit, u32 over, u32 nan) {
    constexpr int shift = 23 - MANTISSA;
    constexpr u32 smallest_normal = static_cast<u32>(128 - BIAS) << 23;
    // Adding this power of two leaves a subnormal rounded in the low bits: its ulp is the subnormal unit.
    constexpr u32 magic = static_cast<u32>(127 + 23 + 1 - BIAS - MANTISSA) << 23;
    const u32 bits = bit_cast<u32>(v);
    const u32 sign = bits >> 24 & 0x80u;
    const u32 magnitude = bits & 0x7fffffffu;
    u32 code;
    if (magnitude < smallest_normal) {
        code = bit_cast<u32>(bit_cast<f32>(magnitude) + bit_cast<f32>(magic)) - magic;
    } else {
        code = ((magnitude + (1u << (shift - 1)) - 1u + (magnitude >> shift & 1u)) >> shift)
             - (static_cast<u32>(127 - BIAS) << MANTISSA);
        code = code > limit ? over : code;
    }
    return static_cast<u8>(sign | (magnitude > 0x7f800000u ? nan : code));
}

template <> struct Narrow<e4m3> {
    static PGK_FN e4m3 from(f32 v) { return e4m3{round_to_fp8<3, 7>(v, 0x7eu, 0x7fu, 0x7fu)}; }
    template <class V> static PGK_FN e4m3 from(V v) { return from(static_cast<f32>(v)); }
    template <class V> static PGK_FN e4m3 from(cx<V> v) { return from(static_cast<f32>(v.re)); }
};

template <> struct Narrow<e5m2> {
    static PGK_FN e5m2 from(f32 v) { return e5m2{round_to_fp8<2, 15>(v, 0x7bu, 0x7cu, 0x7eu)}; }
    template <class V> static PGK_FN e5m2 from(V v) { return from(static_cast<f32>(v)); }
    template <class V> static PGK_FN e5m2 from(cx<V> v) { return from(static_cast<f32>(v.re)); }
};

}  // namespace pgk
