// Products on tensor cores of sm_80 and newer: copies to shared memory, fragments, and mma.sync by element type.
//
// A step multiplies 32 bytes of k: 16 elements of bfloat16 or float16, 8 of tf32, 32 of int8. A fragment of one step is
// four 32-bit registers for 16 rows of A and two for 8 columns of B; both come from ldmatrix, whatever the type, because
// it moves 16-byte rows. Lane l of a warp holds of a 16 x 8 result: (l / 4, 2 (l % 4)), the next column, and the same
// two 8 rows below.
#pragma once
#include "pygpukit/elementwise.cuh"
#include "pygpukit/shared_memory.cuh"

namespace pgk {

// float32 whose fragments are rounded to tf32.
struct tf32 {};

template <class T> struct Mma;  // storage type, type of sums

#define PGK_MMA_16(T, name) \
    template <> struct Mma<T> { \
        using element = T; \
        using sum = f32; \
        static PGK_FN u32 fragment(u32 x) { return x; } \
        static PGK_FN void step(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { \
            asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." name "." name ".f32 " \
                         "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1)); \
        } \
    };
PGK_MMA_16(bf16, "bf16")
PGK_MMA_16(f16, "f16")
#undef PGK_MMA_16

template <> struct Mma<tf32> {
    using element = f32;
    using sum = f32;
    // To nearest, ties away from zero: tensor cores would cut the lower bits off.
    static PGK_FN u32 fragment(u32 x) {
        u32 r;
        asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(__uint_as_float(x)));
        return r;
    }
    static PGK_FN void step(f32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

template <> struct Mma<i8> {
    using element = i8;
    using sum = i32;
    static PGK_FN u32 fragment(u32 x) { return x; }
    static PGK_FN void step(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
};

// Copies `bytes` of 16 bytes to shared memory and zeros for the others, without registers.
PGK_FN void copy_async(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
PGK_FN void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> PGK_FN void wait_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory"); }

// Four 8 x 8 matrices of 16-bit elements; lane l gives the address of row l % 8 of matrix l / 8.
template <bool TURNED> PGK_FN void load_matrices(u32 (&r)[4], u32 address) {
    if constexpr (TURNED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
    }
}

}  // namespace pgk
