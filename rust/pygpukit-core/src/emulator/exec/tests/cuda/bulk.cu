// Bulk copies, with and without tensor maps. Compiled by NVRTC for sm_90a.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

struct alignas(64) Map { u64 words[16]; };

extern __shared__ __align__(1024) u8 memory[];

__device__ u32 offset_of(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ u32 rank() {
    u32 r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}

__device__ u32 size() {
    u32 n;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return n;
}

__device__ u32 map_to(u32 address, u32 to) {
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(to));
    return r;
}

__device__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

__device__ void init(u32 bar, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ void expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}

__device__ void wait(u32 bar, u32 parity) {
    u32 over;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
                     "selp.u32 %0, 1, 0, p; }" : "=r"(over) : "r"(bar), "r"(parity) : "memory");
    } while (!over);
}

__device__ void load(int dims, u32 to, const Map* map, u32 bar, int x, int y, int z) {
    if (dims == 1)
        asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3}], [%2];"
                     :: "r"(to), "l"(map), "r"(bar), "r"(x) : "memory");
    else if (dims == 2)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
                     :: "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                     :: "r"(to), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
}

__device__ void store(int dims, const Map* map, u32 from, int x, int y, int z) {
    if (dims == 1)
        asm volatile("cp.async.bulk.tensor.1d.global.shared::cta.bulk_group [%0, {%2}], [%1];"
                     :: "l"(map), "r"(from), "r"(x) : "memory");
    else if (dims == 2)
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                     :: "l"(map), "r"(from), "r"(x), "r"(y) : "memory");
    else
        asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
                     :: "l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Load a box and write down what shared memory then holds; `early` is a byte of it before the wait.
extern "C" __global__ void load_box(const __grid_constant__ Map map, u8* out, u8* early, int dims, int x, int y, int z, u32 bytes) {
    __shared__ u64 object;
    u32 bar = offset_of(&object);
    for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) memory[i] = 0xee;
    if (threadIdx.x == 0) {
        asm volatile("prefetch.tensormap [%0];" :: "l"(&map) : "memory");
        init(bar, 1);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(bar, bytes);
        load(dims, offset_of(memory), &map, bar, x, y, z);
        if (early) *early = memory[0];
    }
    wait(bar, 0);
    for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) out[i] = memory[i];
}

// Load a box, add one to its 16-bit elements, and store it at other coordinates of another tensor.
extern "C" __global__ void shift_box(const __grid_constant__ Map from, const __grid_constant__ Map to, int dims, int x, int y, int z,
                                     int tx, int ty, int tz, u32 bytes, int fenced) {
    __shared__ u64 object;
    u32 bar = offset_of(&object);
    if (threadIdx.x == 0) init(bar, 1);
    __syncthreads();
    if (threadIdx.x == 0) {
        expect(bar, bytes);
        load(dims, offset_of(memory), &from, bar, x, y, z);
    }
    wait(bar, 0);
    for (u32 i = threadIdx.x; i < bytes / 2; i += blockDim.x) ((u16*)memory)[i] += 1;
    if (fenced) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0) {
        store(dims, &to, offset_of(memory), tx, ty, tz);
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) memory[i] = 0x77;
}

// Bytes through shared memory, in two steps of a ring with two slots.
extern "C" __global__ void through(u8* out, const u8* in, u32 step, u32 steps) {
    __shared__ u64 objects[2];
    if (threadIdx.x == 0) {
        init(offset_of(&objects[0]), 1);
        init(offset_of(&objects[1]), 1);
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 i = 0; i < steps; i++) {
        u32 slot = i % 2, bar = offset_of(&objects[slot]), at = offset_of(memory + slot * step);
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        expect(bar, step);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     :: "r"(at), "l"(in + i * step), "r"(step), "r"(bar) : "memory");
        wait(bar, i / 2 % 2);
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" :: "l"(out + i * step), "r"(at), "r"(step) : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

// The first block of a cluster loads a box for all of the blocks of a mask.
extern "C" __global__ void spread(const __grid_constant__ Map map, u8* out, u32 bytes, u32 mask) {
    __shared__ u64 object;
    u32 bar = offset_of(&object);
    bool mine = mask >> rank() & 1;
    if (threadIdx.x == 0) {
        init(bar, 1);
        if (mine) expect(bar, bytes);
    }
    sync_cluster();
    if (rank() == 0 && threadIdx.x == 0)
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                     " [%0], [%1, {%3, %4}], [%2], %5;"
                     :: "r"(offset_of(memory)), "l"(&map), "r"(bar), "r"(0), "r"((int)blockIdx.x), "h"((u16)mask) : "memory");
    if (mine) {
        wait(bar, 0);
        for (u32 i = threadIdx.x; i < bytes; i += blockDim.x) out[blockIdx.x * bytes + i] = memory[i];
    }
    sync_cluster();
}

// Each block sends its shared memory to the next one of the cluster.
extern "C" __global__ void pass_on(u32* out) {
    __shared__ u64 object;
    u32* here = (u32*)memory;
    u32* there = here + 64;
    u32 bar = offset_of(&object), next = (rank() + 1) % size();
    here[threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (threadIdx.x == 0) {
        init(bar, 1);
        expect(bar, 256);
    }
    sync_cluster();
    if (threadIdx.x == 0)
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                     :: "r"(map_to(offset_of(there), next)), "r"(offset_of(here)), "r"(map_to(bar, next)) : "memory");
    wait(bar, 0);
    out[blockIdx.x * 64 + threadIdx.x] = there[threadIdx.x];
    sync_cluster();
}

// Stores to the next block whose bytes its object counts.
extern "C" __global__ void send(u32* out) {
    __shared__ u64 object;
    __shared__ __align__(16) u32 box[4];
    u32 bar = offset_of(&object), next = (rank() + 1) % size();
    if (threadIdx.x == 0) {
        init(bar, 1);
        expect(bar, 16);
    }
    sync_cluster();
    if (threadIdx.x < 2) {
        u32 to = map_to(offset_of(&box[2 * threadIdx.x]), next), mine = 100 * blockIdx.x + 2 * threadIdx.x;
        asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%0], {%1, %2}, [%3];"
                     :: "r"(to), "r"(mine), "r"(mine + 1), "r"(map_to(bar, next)) : "memory");
    }
    wait(bar, 0);
    if (threadIdx.x < 4) out[4 * blockIdx.x + threadIdx.x] = box[threadIdx.x];
    sync_cluster();
}
