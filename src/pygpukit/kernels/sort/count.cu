// How often values occur, and sums over runs.
//
// pgk_sort_count: counts[b] += number of x[i] in bin b. Without edges (bins of integers) b = x[i], which is in range.
//   With edges, sorted and of the type of x, bin b is [edges[b], edges[b + 1]), the last one with its end; elements of
//   no bin and NaN are not counted. 256 threads, grid = ceil(n / chunk). With `shared` the edges and the counts of a
//   block are in dynamic shared memory, 8 * (bins + 1) + 4 * bins bytes; else they are in global memory.
// pgk_segment_sums: parts[b, s] = sum of weight[order[j]] over the s-th of `splits` equal stretches of starts[b] ..
//   starts[b + 1]; not ordered, parts[b] = sum of weight[j] over b * splits .. (b + 1) * splits. 256 threads, a block
//   per part. Thread t adds elements t, t + 256, ... in order, and the threads' sums are added by a fixed tree, so the
//   bits depend on the positions and the number of splits alone.
// Determinism: batch_invariant.
#include "pygpukit/keys.cuh"

extern __shared__ unsigned long long pgk_count_memory[];

extern "C" __global__ void __launch_bounds__(256) pgk_sort_count(
    unsigned long long* counts, const void* x, const void* edges, long long n, long long bins, long long chunk,
    int size, int with_edges, int shared, long long zero, const __grid_constant__ pgk::KeyMap map) {
    using namespace pgk;
    await_predecessor();
    u64* limits = pgk_count_memory;
    u32* seen = reinterpret_cast<u32*>(pgk_count_memory + (with_edges ? bins + 1 : 0));
    if (shared) {
        for (i64 b = threadIdx.x; b < bins; b += 256) seen[b] = 0;
        if (with_edges) {
            for (i64 b = threadIdx.x; b <= bins; b += 256) limits[b] = encode(load_bits<u64>(edges, b, size), map);
        }
        __syncthreads();
    }
    const i64 first = blockIdx.x * chunk;
    const i64 stop = first + chunk < n ? first + chunk : n;
    const u64 top = with_edges ? encode(load_bits<u64>(edges, bins, size), map) : 0;
    constexpr int unroll = 4;
    for (i64 i = first + threadIdx.x; i < stop; i += 256 * unroll) {
        u64 bits[unroll];
        load_any(bits, x, i, 256, stop, size);
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const u64 key = encode(bits[u], map);
            i64 bin = static_cast<i64>(key) - zero;
            if (with_edges) {
                // How many edges are not above the element.
                i64 low = 0, high = bins + 1;
                while (low < high) {
                    const i64 middle = (low + high) / 2;
                    const u64 edge = shared ? limits[middle] : encode(load_bits<u64>(edges, middle, size), map);
                    if (edge <= key) low = middle + 1;
                    else high = middle;
                }
                const bool number = map.last == map.mask || key < map.last;
                bin = !number ? -1 : low == bins + 1 && key == top ? bins - 1 : low - 1;
            }
            if (bin < 0 || bin >= bins || i + u * 256 >= stop) continue;
            if (shared) atomicAdd(seen + bin, 1u);
            else atomicAdd(counts + bin, 1ull);
        }
    }
    if (!shared) return;
    __syncthreads();
    for (i64 b = threadIdx.x; b < bins; b += 256) {
        if (seen[b]) atomicAdd(counts + b, static_cast<u64>(seen[b]));
    }
}

extern "C" __global__ void __launch_bounds__(256) pgk_segment_sums(
    double* parts, const double* weight, const long long* order, const long long* starts, long long splits,
    int ordered) {
    using namespace pgk;
    await_predecessor();
    __shared__ double sums[256];
    const i64 segment = ordered ? blockIdx.x / splits : blockIdx.x, split = ordered ? blockIdx.x % splits : 0;
    const i64 from = ordered ? starts[segment] : segment * splits;
    const i64 to = ordered ? starts[segment + 1] : from + splits;
    const i64 length = ordered ? (to - from + splits - 1) / splits : splits;
    const i64 first = from + split * length;
    const i64 stop = first + length < to ? first + length : to;
    double sum = 0.0;
    for (i64 j = first + threadIdx.x; j < stop; j += 256) sum += weight[ordered ? order[j] : j];
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int d = 128; d > 0; d /= 2) {
        if (threadIdx.x < d) sums[threadIdx.x] += sums[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0) parts[blockIdx.x] = sums[0];
}
