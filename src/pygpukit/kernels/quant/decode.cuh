// Quantised weights: how the planes of a weight are read, and what a code stands for.
//
// A weight of N rows and K columns is cut into tiles of 16 rows and chunks of 64 columns. Lane (g, t) = (lane / 4, lane % 4)
// of a warp holds what the fragments of mma.m16n8k16 and wgmma hold: register p = 2 half + h of step s, s = 0..3, has row
// g + 8 h and columns 16 s + 8 half + 2 t + e of the chunk, e = 0, 1.
//
// codes, LOW 4: [tile][chunk][lane][s] words, nibble p + 4 e. LOW 8: [tile][chunk][s / 2][lane][s % 2][half] words, byte 2 e + h.
// high, 1 bit: [tile][chunk][lane] words, bit 4 s + p + 16 e. 2 bits: [tile][chunk][lane][s / 2] words, bits 8 (s % 2) + 2 p
//   + 16 e and the next.
// scales: [tile][record][g][sub][h][field], a record per chunk or per group if that is longer; extra: zero points (bytes)
//   in the same order, or d (and dmin) per 256 columns as [tile][super][g][h][field] of float16.
//
// Numerics: every number is computed in float32 with one rounding (d * sc is exact), and rounded once to T where T is a
// 16-bit type. Where q - z and the scale make an exact product, one packed multiply of T rounds it: the same bits.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

constexpr int CHUNK = 64;
constexpr int STEPS = 4;

enum class Kind { scale, zero, minimum, super_block, super_scale };

struct Planes {
    const u8* codes;
    const u8* high;
    const u8* scales;
    const u8* extra;
    i64 chunks;
    i64 records;
    // Rows with scales of their own: 16, or 1 where a tile shares one.
    i64 owners;
};

PGK_FN u32 fma2(bf16, u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
PGK_FN u32 fma2(f16, u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
PGK_FN u32 both(u32 low16) { return low16 | low16 << 16; }
PGK_FN u32 byte_permute(u32 a, u32 b, u32 selector) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}
// (a & mask) | c in one instruction.
template <u32 MASK> PGK_FN u32 masked_or(u32 a, u32 c) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "n"(MASK), "r"(c));
    return r;
}

// Loads of data that nothing writes while the kernel runs: weights pass the first-level cache by, scales stay in it.
template <int WORDS> PGK_FN void load_stream(u32 (&to)[WORDS], const u8* p) {
    static_assert(WORDS % 4 == 0 || WORDS < 3, "whole vectors");
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                : "=r"(to[i]), "=r"(to[i + 1]), "=r"(to[i + 2]), "=r"(to[i + 3]) : "l"(p + i * 128));
        }
    } else if constexpr (WORDS == 2) {
        asm("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(p));
    } else {
        asm("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(p));
    }
}
template <int BYTES> PGK_FN void load_record(u32* to, const u8* p) {
    if constexpr (BYTES == 2) {
        to[0] = __ldg(reinterpret_cast<const u16*>(p));
    } else if constexpr (BYTES == 4) {
        to[0] = __ldg(reinterpret_cast<const u32*>(p));
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 8; ++i) {
            const uint2 v = __ldg(reinterpret_cast<const uint2*>(p) + i);
            to[2 * i] = v.x, to[2 * i + 1] = v.y;
        }
    }
}

template <class S> PGK_FN f32 scale_at(const u32* words, int i) {
    if constexpr (sizeof(S) == 4) return bit_cast<f32>(words[i]);
    else return widen(S{static_cast<u16>(words[i / 2] >> 16 * (i % 2))});
}
PGK_FN u32 byte_at(const u32* words, int i) { return words[i / 4] >> 8 * (i % 4) & 0xffu; }

// E4M3: codes are float8_e4m3fn. LOW and HIGH are bits of a code, OFFSET is what Kind::scale subtracts, S the scales' type,
// GROUP the columns that share a scale, 0 for a whole row.
template <bool E4M3, int LOW, int HIGH, int OFFSET, Kind KIND, class S, int GROUP> struct Rule {
    static constexpr int LOW_BITS = LOW, HIGH_BITS = HIGH, GROUP_SIZE = GROUP;
    // The rows of a tile may share a scale.
    static constexpr bool SHARES = E4M3;
    static constexpr bool SUPER = KIND == Kind::super_block || KIND == Kind::super_scale;
    static constexpr int SUBS = GROUP > 0 && GROUP < CHUNK ? CHUNK / GROUP : 1;
    static constexpr int FIELDS = KIND == Kind::minimum || KIND == Kind::super_block ? 2 : 1;
    static constexpr int SCALE_BYTES = SUBS * 2 * FIELDS * (SUPER ? 1 : static_cast<int>(sizeof(S)));
    static constexpr int EXTRA_BYTES = SUPER ? 4 * FIELDS : KIND == Kind::zero ? SUBS * 2 : 0;

    // A lane's share of a chunk, as it lies in memory.
    struct Raw {
        u32 code[LOW];
        u32 high[HIGH ? HIGH : 1];
        u32 scale[(SCALE_BYTES + 3) / 4];
        u32 extra[EXTRA_BYTES ? (EXTRA_BYTES + 3) / 4 : 1];
    };

    // What the codes of a group are multiplied with, for rows g and g + 8.
    struct Group {
        f32 a[2], b[2];
        u32 zero[2];
    };

    // Where the chunks of one tile begin for a lane.
    struct Cursor {
        const u8 *codes, *high, *scales, *extra;
        int record, second;
    };

    static PGK_FN Cursor cursor(const Planes& w, i64 tile, int lane) {
        Cursor at;
        const int g = lane / 4;
        at.codes = w.codes + tile * w.chunks * (128 * LOW) + lane * 16;
        at.high = HIGH > 0 ? w.high + tile * w.chunks * (128 * HIGH) + lane * (4 * HIGH) : nullptr;
        // One scale for the tile, or a record of eight pairs of rows.
        const bool single = E4M3 && w.owners == 1;
        at.record = single ? 4 : 8 * SCALE_BYTES;
        at.second = single ? 0 : 4;
        at.scales = w.scales + tile * w.records * at.record + (single ? 0 : g * SCALE_BYTES);
        at.extra = nullptr;
        if constexpr (KIND == Kind::zero) at.extra = w.extra + (tile * w.records * 8 + g) * EXTRA_BYTES;
        else if constexpr (SUPER) at.extra = w.extra + (tile * (w.chunks / 4) * 8 + g) * EXTRA_BYTES;
        return at;
    }

    // Moves the codes on, so that those of the next loads are at constant distances.
    static PGK_FN void advance(Cursor& at, i64 chunks) {
        at.codes += chunks * (128 * LOW);
        if constexpr (HIGH > 0) at.high += chunks * (128 * HIGH);
    }

    // Loads a chunk, which is `ahead` chunks after the cursor.
    static PGK_FN void load(Raw& raw, const Cursor& at, int ahead, u32 chunk) {
        load_stream(raw.code, at.codes + ahead * (128 * LOW));
        if constexpr (HIGH > 0) load_stream(raw.high, at.high + ahead * (128 * HIGH));
        const u64 record = GROUP == 0 ? 0 : GROUP <= CHUNK ? chunk : chunk / (GROUP / CHUNK);
        if constexpr (E4M3) {
            const u8* scale = at.scales + record * at.record;
            load_record<4>(raw.scale, scale);
            load_record<4>(raw.scale + 1, scale + at.second);
        } else {
            load_record<SCALE_BYTES>(raw.scale, at.scales + record * (8 * SCALE_BYTES));
        }
        if constexpr (KIND == Kind::zero) load_record<EXTRA_BYTES>(raw.extra, at.extra + record * (8 * EXTRA_BYTES));
        else if constexpr (SUPER) load_record<EXTRA_BYTES>(raw.extra, at.extra + chunk / 4 * (8ull * EXTRA_BYTES));
    }

    static PGK_FN Group group(const Raw& raw, int sub) {
        Group r;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int i = (sub * 2 + h) * FIELDS;
            r.zero[h] = OFFSET;
            r.b[h] = 0.0f;
            if constexpr (KIND == Kind::super_block) {
                r.a[h] = scale_at<f16>(raw.extra, 2 * h) * static_cast<f32>(byte_at(raw.scale, i));
                r.b[h] = -(scale_at<f16>(raw.extra, 2 * h + 1) * static_cast<f32>(byte_at(raw.scale, i + 1)));
            } else if constexpr (KIND == Kind::super_scale) {
                const f32 factor = static_cast<f32>(static_cast<i8>(byte_at(raw.scale, i)));
                r.a[h] = scale_at<f16>(raw.extra, h) * factor;
            } else {
                r.a[h] = scale_at<S>(raw.scale, i);
                if constexpr (KIND == Kind::minimum) r.b[h] = scale_at<S>(raw.scale, i + 1);
                if constexpr (KIND == Kind::zero) r.zero[h] = byte_at(raw.extra, sub * 2 + h);
            }
        }
        return r;
    }

    // The two codes of register p of step s as numbers 2^7 + q in bfloat16 (2^10 + q in float16); LOW 4 only.
    template <bool HALF> static PGK_FN u32 biased(const Raw& raw, int s, int p) {
        u32 pair = masked_or<0x000f000fu>(raw.code[s] >> 4 * p, HALF ? 0x64006400u : 0x43004300u);
        if constexpr (HIGH == 1) {
            const int at = 4 * s + p;
            pair = masked_or<0x00100010u>(at < 4 ? raw.high[0] << (4 - at) : raw.high[0] >> (at - 4), pair);
        } else if constexpr (HIGH == 2) {
            const int at = 8 * (s % 2) + 2 * p;
            pair = masked_or<0x00300030u>(at < 4 ? raw.high[s / 2] << (4 - at) : raw.high[s / 2] >> (at - 4), pair);
        }
        return pair;
    }

    // Columns 8 half + 2 t and the next of row g + 8 h in step s, as float32.
    static PGK_FN void numbers(f32& low, f32& high, const Raw& raw, const Group& group, int s, int p) {
        const int h = p % 2;
        if constexpr (E4M3) {
            const u32 word = raw.code[2 * s + p / 2];
            const u32 bytes = h ? word : word << 8;
            // As float16 the exponent field is 8 too small.
            const u32 pair = masked_or<0x80008000u>(bytes, bytes >> 1 & 0x3f803f80u);
            const f32 a = group.a[h] * 256.0f;
            low = widen_fast(f16{static_cast<u16>(pair)}) * a;
            high = widen_fast(f16{static_cast<u16>(pair >> 16)}) * a;
            return;
        } else if constexpr (LOW == 8) {
            const u32 word = raw.code[2 * s + p / 2];
            low = bit_cast<f32>(byte_permute(word, 0x4b000000u, 0x7540u + h)) - (8388608.0f + OFFSET);
            high = bit_cast<f32>(byte_permute(word, 0x4b000000u, 0x7542u + h)) - (8388608.0f + OFFSET);
        } else {
            const bool plain = KIND == Kind::minimum || KIND == Kind::super_block;
            const u32 pair = biased<false>(raw, s, p);
            const f32 zero = 128.0f + (plain ? 0.0f : KIND == Kind::zero ? static_cast<f32>(group.zero[h]) : OFFSET);
            low = bit_cast<f32>(pair << 16) - zero;
            high = bit_cast<f32>(pair & 0xffff0000u) - zero;
        }
        if constexpr (FIELDS == 2) {
            low = fmaf(low, group.a[h], group.b[h]);
            high = fmaf(high, group.a[h], group.b[h]);
        } else {
            low *= group.a[h];
            high *= group.a[h];
        }
    }

    static constexpr bool PACKED = LOW == 4 && (KIND == Kind::scale || KIND == Kind::zero);

    // A group as packed 16-bit factors: q * hi + q * lo, the second product exact.
    struct Factors {
        u32 hi[2], lo[2], bias[2];
    };

    template <class T> static PGK_FN Factors factors(const Group& group) {
        Factors r;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            if constexpr (same<T, f16>::value) {
                r.bias[h] = both(0xe400u + group.zero[h]);
                r.hi[h] = both(convert<f16>(group.a[h]).bits);
                r.lo[h] = 0;
            } else {
                r.bias[h] = both(0xc300u + group.zero[h]);
                const u32 bits = bit_cast<u32>(group.a[h]);
                r.hi[h] = both(bits >> 16);
                // A float16 has 11 bits: three are left after the first eight. The sign is kept, so that 0 * s has it.
                const f32 rest = group.a[h] - bit_cast<f32>(bits & 0xffff0000u);
                r.lo[h] = both((bit_cast<u32>(rest) | (bits & 0x80000000u)) >> 16);
            }
        }
        return r;
    }

    template <class T> static PGK_FN u32 pair_of(const Raw& raw, const Factors& f, int s, int p) {
        constexpr bool half = same<T, f16>::value;
        const int h = p % 2;
        const u32 q = fma2(T{}, biased<half>(raw, s, p), half ? 0x3c003c00u : 0x3f803f80u, f.bias[h]);
        const u32 none = 0x80008000u;
        if constexpr (half || same<S, bf16>::value) return fma2(T{}, q, f.hi[h], none);
        else return fma2(T{}, q, f.hi[h], fma2(T{}, q, f.lo[h], none));
    }
};

// The factors of one group of a chunk, in the form that the fragments of T are made with.
template <class R, class T, class S> struct Decoder {
    // float16 out of bfloat16 scales: the scale may be no float16.
    static constexpr bool packed = R::PACKED && !(same<T, f16>::value && same<S, bf16>::value);

    typename R::Group group;
    typename R::Factors factors;

    PGK_FN void begin(const typename R::Raw& raw, int sub) {
        group = R::group(raw, sub);
        if constexpr (packed) factors = R::template factors<T>(group);
    }
    PGK_FN u32 pair(const typename R::Raw& raw, int s, int p) const {
        if constexpr (packed) {
            return R::template pair_of<T>(raw, factors, s, p);
        } else {
            f32 low, high;
            R::numbers(low, high, raw, group, s, p);
            return pack(T{}, low, high);
        }
    }
};

}  // namespace pgk
