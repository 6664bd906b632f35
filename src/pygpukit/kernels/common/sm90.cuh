// Building blocks of SM 90 kernels: transaction barriers, bulk copies by tensor maps, clusters, shares of registers.
//
// Barriers and tiles are named by their addresses in shared memory (shared_address). A barrier that a bulk copy completes
// counts its bytes: one thread announces them (barrier_expect), and the phase ends once all arrivals and all bytes have come.
// barrier_wait(barrier, parity) returns when the phase of that parity is over; a fresh barrier is in phase 0, so waiting for
// parity 1 returns at once. Bulk copies run in the async proxy: writes of threads that such a copy or wgmma reads need
// fence_async() before the barrier that orders them.
#pragma once
#include "pygpukit/elementwise.cuh"
#include "pygpukit/shared_memory.cuh"
#include "pygpukit/tensor_map.cuh"

namespace pgk {

// Hints to the L2 cache, as the words that createpolicy would make.
constexpr u64 KEEP_NORMAL = 0x1000000000000000ull;
constexpr u64 EVICT_FIRST = 0x12F0000000000000ull;
constexpr u64 EVICT_LAST = 0x14F0000000000000ull;

// Lets the next kernel of a graph be launched before this thread has waited for the predecessor (await_predecessor). Until
// then it may touch constant arguments only.
PGK_FN void launch_successor() { asm volatile("griddepcontrol.launch_dependents;"); }

// --- Barriers ---

PGK_FN void barrier_init(u32 barrier, u32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(barrier), "r"(arrivals) : "memory");
}
// After the inits, and before a barrier of the block or cluster that lets others use them.
PGK_FN void fence_barrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

PGK_FN void barrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(barrier) : "memory");
}
// Arrives at the same barrier of another block of the cluster. Orders what bulk copies and wgmma did before; writes of
// threads it does not: a release at the cluster's scope would cost a fence of the whole GPU's memory.
PGK_FN void barrier_arrive_at(u32 barrier, u32 rank) {
    asm volatile(
        "{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1;"
        "  mbarrier.arrive.shared::cluster.b64 _, [remote]; }" :: "r"(barrier), "r"(rank) : "memory");
}
// Arrives, and adds to the bytes that the phase waits for.
PGK_FN void barrier_expect(u32 barrier, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
PGK_FN void barrier_wait(u32 barrier, u32 parity) {
    u32 over;
    do {
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(over) : "r"(barrier), "r"(parity) : "memory");
    } while (!over);
}

// A barrier of `threads` threads of the block, number 1 to 15; __syncthreads is number 0.
PGK_FN void sync_some(int number, int threads) {
    asm volatile("bar.sync %0, %1;" :: "r"(number), "r"(threads) : "memory");
}
// Arrives there without waiting: the barrier opens to those that wait once all `threads` have come.
PGK_FN void arrive_some(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" :: "r"(number), "r"(threads) : "memory");
}
PGK_FN void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- Copies ---

PGK_FN void prefetch_map(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory"); }

// A box of a map of three dimensions, the contiguous one first, to shared memory.
PGK_FN void load_box(u32 to, const CUtensorMap* map, u32 barrier, int x, int y, int z, u64 hint = KEEP_NORMAL) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6;"
        :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "l"(hint) : "memory");
}
// The same of maps of four and five dimensions.
PGK_FN void load_box_4d(u32 to, const CUtensorMap* map, u32 barrier, int x, int y, int z, int w, u64 hint = KEEP_NORMAL) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
        :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "l"(hint) : "memory");
}
PGK_FN void load_box_5d(u32 to, const CUtensorMap* map, u32 barrier, int x, int y, int z, int w, int v,
                        u64 hint = KEEP_NORMAL) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;"
        :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w), "r"(v), "l"(hint) : "memory");
}
// A box of three dimensions to the same place of every block whose bit is set, each of which hears of it at its own barrier.
PGK_FN void load_box_to(u32 to, const CUtensorMap* map, u32 barrier, int x, int y, int z, unsigned short blocks,
                        u64 hint = KEEP_NORMAL) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
        "[%0], [%1, {%3, %4, %5}], [%2], %6, %7;"
        :: "r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(blocks), "l"(hint) : "memory");
}
// Stores of one thread form groups, ended by commit_stores; what lies outside of the array is not written.
PGK_FN void store_box(const CUtensorMap* map, u32 from, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];"
        :: "l"(map), "r"(from), "r"(x), "r"(y), "r"(z) : "memory");
}
PGK_FN void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All but the last `LEFT` groups have read their shared memory.
template <int LEFT> PGK_FN void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(LEFT) : "memory");
}
PGK_FN void wait_stores() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// --- Clusters and registers ---

PGK_FN u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// After fence_barrier_init, which does all the ordering that is needed there; the other one orders memory too.
PGK_FN void cluster_sync_init() {
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
PGK_FN void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// Gives registers up, or takes some: all warps of a warp group, once each, in a kernel with __launch_bounds__(threads, 1).
template <int COUNT> PGK_FN void give_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> PGK_FN void take_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}

// A value that is the same in all lanes, where the compiler can see it.
PGK_FN u32 uniform(u32 x) { return __shfl_sync(0xffffffffu, x, 0); }

}  // namespace pgk
