// A matrix product with tensor maps and warp groups. Compiled by NVRTC for sm_90a.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) Map { u64 words[16]; };

extern __shared__ __align__(1024) u8 memory[];

__device__ u32 offset_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ void load(u32 to, const Map* map, u32 bar, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                 :: "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y) : "memory");
}

__device__ void wait(u32 bar, u32 parity) {
    u32 over;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(over) : "r"(bar), "r"(parity) : "memory");
    } while (!over);
}

// 64 rows of 128 bytes, swizzled: atoms of eight rows follow each other.
__device__ u64 descriptor(u32 at) { return (u64)((at & 0x3ffff) >> 4) | (u64)1 << 16 | (u64)(1024 >> 4) << 32 | (u64)1 << 62; }

#define FOUR(i) "+f"(d[4 * (i)]), "+f"(d[4 * (i) + 1]), "+f"(d[4 * (i) + 2]), "+f"(d[4 * (i) + 3])

__device__ void multiply(float (&d)[32], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
                 "%23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
                 : FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7) : "l"(a), "l"(b));
}

// C = A * B^T for f16 A (M, K) and B (N, K), f32 C (M, N): a block of 64 x 64 each, M / 64 of them in a column of blocks.
// `fault` plants one: 1 leaves out the fence before the result is stored, 2 writes to a tile that is being multiplied.
extern "C" __global__ void __launch_bounds__(128) gemm(const __grid_constant__ Map a, const __grid_constant__ Map b,
                                                       const __grid_constant__ Map c, int steps, int fault) {
    __shared__ u64 full[2];
    const u32 stage = 16384, base = offset_of(memory);
    int row = blockIdx.x % 2 * 64, column = blockIdx.x / 2 * 64;
    float d[32];
    for (int i = 0; i < 32; i++) d[i] = 0;
    auto fetch = [&](int step) {
        u32 slot = step % 2, bar = offset_of(&full[slot]), to = base + slot * stage;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(stage) : "memory");
        load(to, &a, bar, step * 64, row);
        load(to + 8192, &b, bar, step * 64, column);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(offset_of(&full[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x == 0) fetch(0);
    for (int step = 0; step < steps; step++) {
        if (threadIdx.x == 0 && step + 1 < steps) fetch(step + 1);
        wait(offset_of(&full[step % 2]), step / 2 % 2);
        u32 at = base + step % 2 * stage;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int k = 0; k < 4; k++) multiply(d, descriptor(at + 32 * k), descriptor(at + 8192 + 32 * k));
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        if (fault == 2) {
            __syncthreads();
            memory[step % 2 * stage + threadIdx.x] = 1;
        }
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        __syncthreads();
    }
    float* tile = (float*)(memory + 2 * stage);
    int first = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, second = threadIdx.x % 4 * 2;
    for (int i = 0; i < 32; i++) tile[(first + 8 * (i / 2 % 2)) * 64 + i / 4 * 8 + second + i % 2] = d[i];
    if (fault != 1) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                     :: "l"(&c), "r"(offset_of(tile)), "r"(column), "r"(row) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    }
}
