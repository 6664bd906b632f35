// C = A * B for 64x64 matrices of f16 (rows one after the other), f32 sums: one warp per block of 32x32.
//
// Launch <<<dim3(2, 2), 32>>>. A tile of 32x16 of A and one of 16x32 of B lie in shared memory, in rows with 16 bytes
// of padding. tile.ptx is this text compiled for compute_80.

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
    const int size = 64, lane = threadIdx.x, top = blockIdx.y * 32, left = blockIdx.x * 32;
    __shared__ __align__(16) unsigned short as[32][24], bs[16][40];
    float sums[2][4][4] = {};
    for (int k0 = 0; k0 < size; k0 += 16) {
        for (int i = lane; i < 512; i += 32) {
            as[i / 16][i % 16] = a[(top + i / 16) * size + k0 + i % 16];
            bs[i / 32][i % 32] = b[(k0 + i / 32) * size + left + i % 32];
        }
        __threadfence_block();
        // Lane l names row l % 16 of the half l / 16 of a pair of 8x8 matrices.
        for (int i = 0; i < 2; i++) {
            unsigned fa[4];
            load4(fa, &as[i * 16 + lane % 16][lane / 16 * 8]);
            for (int j = 0; j < 2; j++) {
                unsigned fb[4];
                load4_transposed(fb, &bs[lane % 16][j * 16 + lane / 16 * 8]);
                multiply(sums[i][2 * j], fa, fb);
                multiply(sums[i][2 * j + 1], fa, fb + 2);
            }
        }
        __threadfence_block();
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
