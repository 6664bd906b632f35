// C = A * B for 64x64 matrices of f16 (rows one after the other), f32 sums: a block of four warps, 32x32 of C each.
//
// Launch <<<1, 128>>>. A tile of 64x16 of A and one of 16x64 of B lie in shared memory, in rows with 16 bytes of padding.
// tile.ptx is this text compiled for compute_80.

__device__ unsigned address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

__device__ void load4(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(row))
                 : "memory");
}

__device__ void load4_transposed(unsigned (&r)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address(row))
                 : "memory");
}

__device__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned* b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

extern "C" __global__ void tile(float* c, const unsigned short* a, const unsigned short* b) {
    const int size = 64, lane = threadIdx.x % 32, warp = threadIdx.x / 32, top = warp / 2 * 32, left = warp % 2 * 32;
    __shared__ __align__(16) unsigned short as[64][24], bs[16][72];
    float sums[2][4][4] = {};
    for (int k0 = 0; k0 < size; k0 += 16) {
#pragma unroll 1
        for (int i = threadIdx.x; i < 1024; i += 128) {
            as[i / 16][i % 16] = a[i / 16 * size + k0 + i % 16];
            bs[i / 64][i % 64] = b[(k0 + i / 64) * size + i % 64];
        }
        __syncthreads();
        // Lane l names row l % 16 of the half l / 16 of a pair of 8x8 matrices.
        for (int i = 0; i < 2; i++) {
            unsigned fa[4];
            load4(fa, &as[top + i * 16 + lane % 16][lane / 16 * 8]);
            for (int j = 0; j < 2; j++) {
                unsigned fb[4];
                load4_transposed(fb, &bs[lane % 16][left + j * 16 + lane / 16 * 8]);
                multiply(sums[i][2 * j], fa, fb);
                multiply(sums[i][2 * j + 1], fa, fb + 2);
            }
        }
        __syncthreads();
    }
    for (int i = 0; i < 2; i++) {
        for (int j = 0; j < 4; j++) {
            for (int v = 0; v < 4; v++) {
                int row = top + i * 16 + v / 2 * 8 + lane / 4, column = left + j * 8 + lane % 4 * 2 + v % 2;
                c[row * size + column] = sums[i][j][v];
            }
        }
    }
}
