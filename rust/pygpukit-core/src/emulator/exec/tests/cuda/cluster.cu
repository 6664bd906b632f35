// Blocks of a cluster: shared memory of others, their barrier, and objects in it. Compiled by NVRTC for sm_90a.

typedef unsigned int u32;
typedef unsigned long long u64;

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

__device__ u32 map(u32 address, u32 to) {
    u32 r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(to));
    return r;
}

__device__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// out[block * threads + thread] = what the same thread of the next block holds, read twice, plus that block's rank.
extern "C" __global__ void __cluster_dims__(4, 1, 1) neighbour(u32* out) {
    __shared__ u32 values[64];
    values[threadIdx.x] = 1000 * blockIdx.x + threadIdx.x;
    sync_cluster();
    u32 next = (rank() + 1) % size();
    u32 at = map(offset_of(&values[threadIdx.x]), next);
    u32 first;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(first) : "r"(at) : "memory");
    u32* generic;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(generic) : "l"(&values[threadIdx.x]), "r"(next));
    u32 of, of_generic;
    asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(of) : "r"(at));
    asm volatile("getctarank.u64 %0, %1;" : "=r"(of_generic) : "l"(generic));
    out[blockIdx.x * blockDim.x + threadIdx.x] = first + *generic + 1000000 * of + 10000000 * of_generic;
    sync_cluster();
}

// A histogram spread over the blocks of a cluster: bin b is in block b % size.
extern "C" __global__ void histogram(u32* out, const u32* in, int n) {
    __shared__ u32 bins[32];
    if (threadIdx.x < 32) bins[threadIdx.x] = 0;
    sync_cluster();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        u32 bin = in[i] % (32 * size());
        u32 at = map(offset_of(&bins[bin / size()]), bin % size());
        asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" :: "r"(at) : "memory");
    }
    sync_cluster();
    if (threadIdx.x < 32) out[(blockIdx.x / size() * 32 + threadIdx.x) * size() + rank()] = bins[threadIdx.x];
}

// Every block sends a message to the first one of its cluster, which waits for all at an object of its own.
extern "C" __global__ void gather(u32* out) {
    __shared__ u64 object;
    __shared__ u32 box[16];
    u32 bar = offset_of(&object);
    if (threadIdx.x == 0 && rank() == 0) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(size()) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_cluster();
    if (threadIdx.x == 0) {
        asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(map(offset_of(&box[rank()]), 0)), "r"(7 + blockIdx.x) : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(map(bar, 0)) : "memory");
    }
    if (rank() == 0) {
        u32 over;
        do {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n\t"
                         "selp.u32 %0, 1, 0, p; }" : "=r"(over) : "r"(bar) : "memory");
        } while (!over);
        if (threadIdx.x < size()) out[blockIdx.x + threadIdx.x] = box[threadIdx.x];
    }
    sync_cluster();
}

// A block that leaves while another one reads its memory.
extern "C" __global__ void leave(u32* out) {
    __shared__ u32 value;
    value = blockIdx.x;
    sync_cluster();
    if (rank() == 1) return;
    __nanosleep(1000);
    u32 got;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(got) : "r"(map(offset_of(&value), 1)) : "memory");
    out[blockIdx.x] = got;
}
