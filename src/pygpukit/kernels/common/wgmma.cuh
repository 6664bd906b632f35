// Products of warp groups (wgmma, SM 90a): D (64 x N, in registers) += A (64 x k) B (k x N), both in shared memory.
//
// Tiles lie in shared memory in lines of 128 bytes with the 128-byte swizzle, as bulk copies with that swizzle write them,
// at multiples of 1024 bytes. One instruction takes 32 bytes of k.
//   K-major: a line is 128 bytes of k of one row of A (column of B); the next 32 bytes of k are 32 bytes further.
//   MN-major (16-bit types): a line is 64 rows of A (columns of B) of one k; the next 64 are `apart` bytes further, the next
//   16 of k 2048 bytes.
// Thread t of the group (w = t / 32, l = t % 32) has d[4 j + i] = D[16 w + l / 4 + 8 (i / 2), 8 j + 2 (l % 4) + i % 2].
// Numerics: with one accumulator and k ascending this is the canonical order of matrix products: for every N, with A and B
// in either role, and for mma.sync, the bits are the same.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

PGK_FN u64 k_major(u32 address) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | 1ull << 16 | 1024ull / 16 << 32 | 1ull << 62;
}
PGK_FN u64 mn_major(u32 address, u32 apart) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(apart / 16) << 16 | 1024ull / 16 << 32 |
           1ull << 62;
}
// The same in lines of 64 bytes with the 64-byte swizzle: 32 rows of one k; the next 16 of k are 1024 bytes further.
PGK_FN u64 mn_major_32(u32 address, u32 apart) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | static_cast<u64>(apart / 16) << 16 | 512ull / 16 << 32 |
           2ull << 62;
}
// What a descriptor's low word grows by for the next 32 bytes of k.
constexpr u32 next_k(bool mn) { return mn ? 2048 / 16 : 32 / 16; }

// Before the first product, and whenever other instructions have written the accumulators.
PGK_FN void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PGK_FN void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last LEFT groups have ended.
template <int LEFT> PGK_FN void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LEFT) : "memory"); }
// Keeps the compiler from moving uses of accumulators over a wait.
template <class D, int COUNT> PGK_FN void wgmma_ready(D (&d)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        if constexpr (same<D, f32>::value) asm volatile("" : "+f"(d[i]) :: "memory");
        else asm volatile("" : "+r"(d[i]) :: "memory");
    }
}

// What products of a type are summed in.
template <class T> struct Sum { using type = f32; };
template <> struct Sum<i8> { using type = i32; };

#define PGK_TEN(p) "%" #p "0,%" #p "1,%" #p "2,%" #p "3,%" #p "4,%" #p "5,%" #p "6,%" #p "7,%" #p "8,%" #p "9,"
#define PGK_LIST_4 "%0,%1,%2,%3"
#define PGK_LIST_8 PGK_LIST_4 ",%4,%5,%6,%7"
#define PGK_LIST_16 PGK_TEN() "%10,%11,%12,%13,%14,%15"
#define PGK_LIST_32 PGK_TEN() PGK_TEN(1) PGK_TEN(2) "%30,%31"
#define PGK_LIST_64 PGK_TEN() PGK_TEN(1) PGK_TEN(2) PGK_TEN(3) PGK_TEN(4) PGK_TEN(5) "%60,%61,%62,%63"
#define PGK_LIST_96 \
    PGK_TEN() PGK_TEN(1) PGK_TEN(2) PGK_TEN(3) PGK_TEN(4) PGK_TEN(5) PGK_TEN(6) PGK_TEN(7) PGK_TEN(8) \
    "%90,%91,%92,%93,%94,%95"
#define PGK_LIST_128 \
    PGK_TEN() PGK_TEN(1) PGK_TEN(2) PGK_TEN(3) PGK_TEN(4) PGK_TEN(5) PGK_TEN(6) PGK_TEN(7) PGK_TEN(8) PGK_TEN(9) \
    PGK_TEN(10) PGK_TEN(11) "%120,%121,%122,%123,%124,%125,%126,%127"

#define PGK_D4(c, i) c(d[i]), c(d[i + 1]), c(d[i + 2]), c(d[i + 3])
#define PGK_D8(c, i) PGK_D4(c, i), PGK_D4(c, i + 4)
#define PGK_D16(c, i) PGK_D8(c, i), PGK_D8(c, i + 8)
#define PGK_D32(c, i) PGK_D16(c, i), PGK_D16(c, i + 16)
#define PGK_D64(c, i) PGK_D32(c, i), PGK_D32(c, i + 32)
#define PGK_D96(c, i) PGK_D64(c, i), PGK_D32(c, i + 64)
#define PGK_D128(c, i) PGK_D64(c, i), PGK_D64(c, i + 64)

// One instruction: its operands after the COUNT accumulators are the descriptors and two immediates.
#define PGK_ISSUE(kind, n, count, a_at, b_at, add, tail, constraint, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #n kind " {" PGK_LIST_##count "}, %" #a_at ", %" #b_at ", " add tail \
                 ";" : PGK_D##count(constraint, 0) : "l"(a), "l"(b) __VA_ARGS__)

// d = A B, and with ADD d += A B. TA and TB: A, or B, is MN-major.
template <int N> struct Wgmma;
#define PGK_KINDS(n, count, a_at, b_at, ta_at, tb_at, add) \
    if constexpr (same<T, bf16>::value) { \
        PGK_ISSUE("k16.f32.bf16.bf16", n, count, a_at, b_at, add, ", 1, 1, %" #ta_at ", %" #tb_at, "+f", \
                  , "n"(int(TA)), "n"(int(TB))); \
    } else if constexpr (same<T, f16>::value) { \
        PGK_ISSUE("k16.f32.f16.f16", n, count, a_at, b_at, add, ", 1, 1, %" #ta_at ", %" #tb_at, "+f", \
                  , "n"(int(TA)), "n"(int(TB))); \
    } else if constexpr (same<T, f32>::value) { \
        PGK_ISSUE("k8.f32.tf32.tf32", n, count, a_at, b_at, add, ", 1, 1", "+f"); \
    } else if constexpr (same<T, e4m3>::value) { \
        PGK_ISSUE("k32.f32.e4m3.e4m3", n, count, a_at, b_at, add, ", 1, 1", "+f"); \
    } else { \
        static_assert(same<T, i8>::value, "wgmma multiplies bf16, f16, f32 as tf32, e4m3 and i8"); \
        PGK_ISSUE("k32.s32.s8.s8", n, count, a_at, b_at, add, "", "+r"); \
    }
#define PGK_WGMMA(n, count, a_at, b_at, ta_at, tb_at) \
    template <> struct Wgmma<n> { \
        template <class T, bool TA, bool TB, bool ADD = true, class D> \
        PGK_FN static void issue(D (&d)[count], u64 a, u64 b) { \
            static_assert(sizeof(T) == 2 || (!TA && !TB), "only 16-bit types may be MN-major"); \
            if constexpr (ADD) { PGK_KINDS(n, count, a_at, b_at, ta_at, tb_at, "1") } \
            else { PGK_KINDS(n, count, a_at, b_at, ta_at, tb_at, "0") } \
        } \
    };
PGK_WGMMA(8, 4, 4, 5, 6, 7)
PGK_WGMMA(16, 8, 8, 9, 10, 11)
PGK_WGMMA(32, 16, 16, 17, 18, 19)
PGK_WGMMA(64, 32, 32, 33, 34, 35)
PGK_WGMMA(128, 64, 64, 65, 66, 67)
PGK_WGMMA(192, 96, 96, 97, 98, 99)
PGK_WGMMA(256, 128, 128, 129, 130, 131)
#undef PGK_WGMMA
#undef PGK_KINDS
#undef PGK_ISSUE

// The same for 16-bit types with A K-major or in registers, four of mma.sync's fragments of 16 x 16; B is MN-major where A is
// in registers. FIRST: D begins at zero, whatever is in its registers.
template <int N> struct WgmmaFrom;
#define PGK_ISSUE_FROM(type, n, count, operands, tail, ...) \
    if constexpr (FIRST) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" PGK_LIST_##count "}, " operands \
                     ", 0, 1, 1, " tail ";" : PGK_D##count("+f", 0) : __VA_ARGS__); \
    } else { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" PGK_LIST_##count "}, " operands \
                     ", 1, 1, 1, " tail ";" : PGK_D##count("+f", 0) : __VA_ARGS__); \
    }
#define PGK_WGMMA_FROM(n, count, at0, at1, at2, at3, at4) \
    template <> struct WgmmaFrom<n> { \
        template <class T, bool FIRST> PGK_FN static void shared(f32 (&d)[count], u64 a, u64 b) { \
            if constexpr (same<T, bf16>::value) { \
                PGK_ISSUE_FROM("bf16", n, count, "%" #at0 ", %" #at1, "0, 0", "l"(a), "l"(b)) \
            } else { \
                static_assert(same<T, f16>::value, "bf16 or f16"); \
                PGK_ISSUE_FROM("f16", n, count, "%" #at0 ", %" #at1, "0, 0", "l"(a), "l"(b)) \
            } \
        } \
        template <class T, bool FIRST> PGK_FN static void registers(f32 (&d)[count], const u32 (&a)[4], u64 b) { \
            if constexpr (same<T, bf16>::value) { \
                PGK_ISSUE_FROM("bf16", n, count, "{%" #at0 ", %" #at1 ", %" #at2 ", %" #at3 "}, %" #at4, "1", \
                               "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)) \
            } else { \
                static_assert(same<T, f16>::value, "bf16 or f16"); \
                PGK_ISSUE_FROM("f16", n, count, "{%" #at0 ", %" #at1 ", %" #at2 ", %" #at3 "}, %" #at4, "1", \
                               "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)) \
            } \
        } \
    };
PGK_WGMMA_FROM(64, 32, 32, 33, 34, 35, 36)
PGK_WGMMA_FROM(128, 64, 64, 65, 66, 67, 68)
#undef PGK_WGMMA_FROM
#undef PGK_ISSUE_FROM

}  // namespace pgk
