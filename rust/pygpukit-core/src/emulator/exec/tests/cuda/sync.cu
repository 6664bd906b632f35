// Kernels that wait: for lanes, for warps, for blocks.

// Each thread adds to a sum under a lock that lanes of its own warp hold.
extern "C" __global__ void lock(unsigned* word, unsigned* sum, unsigned rounds) {
    for (unsigned k = 0; k < rounds; ++k) {
        while (atomicCAS(word, 0u, 1u) != 0u) {
        }
        __threadfence();
        *(volatile unsigned*)sum = *(volatile unsigned*)sum + 1;
        __threadfence();
        atomicExch(word, 0u);
    }
}

// The upper half of a warp waits for a flag that the lower half sets after its own detour.
extern "C" __global__ void spin(volatile unsigned* flag, unsigned* out, unsigned n) {
    unsigned lane = threadIdx.x % 32, turns = 0;
    if (lane < 16) {
        while (*flag == 0) {
            // A branch in the loop: the group parts and joins in every turn.
            if (lane & 1) turns += n;
            else turns += 2 * n;
        }
        out[threadIdx.x] = turns > 0 ? 1 : 2;
    } else {
        for (unsigned k = 0; k < n; ++k) turns += k;
        *flag = 1;
        out[threadIdx.x] = turns;
    }
}

// A sum over the grid: warps, then the block, then the last block.
extern "C" __global__ void total(const float* x, float* partial, float* out, unsigned* done, unsigned n) {
    __shared__ float sums[32];
    __shared__ bool last;
    float sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    for (unsigned k = 16; k; k /= 2) sum += __shfl_down_sync(~0u, sum, k);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x < 32) {
        sum = threadIdx.x < blockDim.x / 32 ? sums[threadIdx.x] : 0.0f;
        for (unsigned k = 16; k; k /= 2) sum += __shfl_xor_sync(~0u, sum, k);
        if (threadIdx.x == 0) {
            partial[blockIdx.x] = sum;
            __threadfence();
            last = atomicAdd(done, 1u) == gridDim.x - 1;
        }
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        sum = 0;
        for (unsigned k = 0; k < gridDim.x; ++k) sum += ((volatile float*)partial)[k];
        *out = sum;
    }
}

// A running sum over blocks: each waits for the one before it, whichever starts first.
extern "C" __global__ void look_back(unsigned* x, volatile unsigned* state, unsigned* ticket) {
    __shared__ unsigned block, before;
    __shared__ unsigned warps[32];
    if (threadIdx.x == 0) block = atomicAdd(ticket, 1u);
    __syncthreads();
    unsigned i = block * blockDim.x + threadIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    unsigned value = x[i];
    for (unsigned k = 1; k < 32; k *= 2) {
        unsigned other = __shfl_up_sync(~0u, value, k);
        if (lane >= k) value += other;
    }
    if (lane == 31) warps[warp] = value;
    __syncthreads();
    for (unsigned k = 0; k < warp; ++k) value += warps[k];
    if (threadIdx.x == blockDim.x - 1) {
        unsigned sum = 0;
        if (block > 0) {
            while (state[2 * (block - 1)] == 0) {
            }
            __threadfence();
            sum = state[2 * (block - 1) + 1];
        }
        state[2 * block + 1] = sum + value;
        __threadfence();
        state[2 * block] = 1;
        before = sum;
    }
    __syncthreads();
    x[i] = value + before;
}

// Counts of values, in shared memory first.
extern "C" __global__ void histogram(const unsigned* x, unsigned* counts, unsigned n) {
    __shared__ unsigned mine[64];
    if (threadIdx.x < 64) mine[threadIdx.x] = 0;
    __syncthreads();
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&mine[x[i] % 64], 1u);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&counts[threadIdx.x], mine[threadIdx.x]);
}

// One lane of those with the same key adds for all of them.
extern "C" __global__ void aggregate(const unsigned* keys, unsigned* counts, unsigned* rank) {
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x, key = keys[i] % 8, lane = threadIdx.x % 32, first = 0;
    unsigned peers = __match_any_sync(__activemask(), key);
    int leader = __ffs(peers) - 1;
    if ((int)lane == leader) first = atomicAdd(&counts[key], __popc(peers));
    rank[i] = __shfl_sync(peers, first, leader) + __popc(peers & ((1u << lane) - 1));
}

// Results of barriers that count, in a loop that ends for all threads at the same time.
extern "C" __global__ void counting(unsigned* out) {
    unsigned value = threadIdx.x, rounds = 0;
    while (__syncthreads_or(value > 3)) {
        value = value / 2;
        rounds += 1;
    }
    out[threadIdx.x] = rounds * 1000 + __syncthreads_count(value == 3) + 500 * __syncthreads_and(value < 4);
}

// A barrier that half of a warp does not reach.
extern "C" __global__ void divergent(unsigned* out) {
    if (threadIdx.x % 32 < 16) {
        out[threadIdx.x] = 1;
        __syncthreads();
        out[threadIdx.x] = 2;
    } else {
        out[threadIdx.x] = 3;
        __syncthreads();
        out[threadIdx.x] = 4;
    }
}

// Waits of half warps, and values that cross them.
extern "C" __global__ void halves(unsigned* out) {
    __shared__ unsigned words[32];
    unsigned lane = threadIdx.x, mask = lane < 16 ? 0x0000ffffu : 0xffff0000u, sum = 0;
    for (unsigned k = 0; k < 4 + lane / 16 * 7; ++k) {
        words[lane] = lane + k;
        __syncwarp(mask);
        sum += words[lane ^ 1];
        __syncwarp(mask);
        sum += __reduce_max_sync(mask, lane);
    }
    out[lane] = sum;
}
