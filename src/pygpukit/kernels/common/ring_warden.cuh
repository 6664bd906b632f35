// Ring kernels: the warden's block, and how the kernel leaves everything for its return.
#pragma once
#include <pygpukit/ring.cuh>

namespace ring {

// One of the host's orders. One thread.
__device__ __noinline__ u32 carry_out(Engine* e, const u64* order) {
    const u64 verb = order[0];
    if (verb == LEAVE) return PARKED;
    if (verb == CLOCK) {
        poke(e->clock, now());
        __threadfence_system();
        return 0;
    }
    if (verb == TRAP) asm volatile("trap;");
    Box& box = block.plan.boxes[order[1]];
    if (verb == TRIM) {
        atomicMax(&box.trim_host, order[2]);
    } else {
        // The actor may be reading what was ordered before.
        *(volatile u32*)&box.wanted = (u32)order[2];
        poke(&box.drain_at, order[4]);
        store(&box.control, order[3] << 1);
    }
    schedule(e, (u32)order[1]);
    return 0;
}

// The warden leaves last: it is asked to trap when a handler does not return. One thread.
__device__ __noinline__ void await_others(Engine* e) {
    for (u32 turn = 0; *(volatile u32*)&e->left != gridDim.x - 1; turn++) {
        if (turn < 1000) continue;
        __nanosleep(2000);
        const u64 orders = load_host(e->orders_tail);
        for (u64 i = e->orders_taken; i != orders; i++)
            if (e->orders[8 * (i & e->orders_mask)] == TRAP) asm volatile("trap;");
    }
}

// The host's orders, its messages for actors that share blocks, the heartbeat and the lease. One warp.
__device__ __noinline__ void warden(Engine* engine, u32 lane) {
    Engine& e = *engine;
    Route& route = block.owner.route;
    Backoff backoff;
    const u64 started = now();
    u64 beaten = 0, host_beat = 0, heard = started, at = e.common_in.at;
    if (lane == 0) route.to = NOBODY;
    __syncwarp();
    for (;;) {
        u32 why = 0;
        bool news = false;
        if (lane == 0) {
            const u64 orders = load_host(e.orders_tail);
            news = orders != e.orders_taken;
            while (e.orders_taken != orders && why == 0) {
                why = carry_out(engine, e.orders + 8 * (e.orders_taken & e.orders_mask));
                e.orders_taken++;
            }
            if (news) poke(e.orders_head, e.orders_taken);
            const u64 t = now();
            if (t - beaten > 1000000) {
                beaten = t;
                poke(e.beat, t);
                const u64 beat = peek(e.host_beat);
                if (beat != host_beat) {
                    host_beat = beat;
                    heard = t;
                } else if (e.lease_ns != 0 && t - heard > e.lease_ns) {
                    why = LEASE_ENDED;
                }
                if (e.slice_ns != 0 && t - started > e.slice_ns) why = SLICE_ENDED;
            }
        }
        why = __shfl_sync(~0u, why, 0);
        if (why != 0) {
            for (u32 i = lane; i < block.plan.dedicated; i += 32) {
                u64* control = &block.plan.boxes[block.plan.places[i]].control;
                store(control, peek(control) | 1);
            }
            if (lane == 0) {
                e.common_in.at = at;
                atomicExch(&e.leaving, why);
                await_others(engine);
            }
            break;
        }
        const u32 count = read_words<LOOK>(e.common_in.slots, at, lane);
        for (u32 i = 0; i < count; i++) {
            const Header* header = (const Header*)(block.stage + i * RING_STRIDE);
            const u32 to = header->destination;
            bool idle = false;
            if (lane == 0) {
                if (route.to != to) find_route(to);
                // The host counts the room it has, so there is some.
                while (!claim(route.slots.mask + 1, block.found[0], idle)) schedule(engine, to);
            }
            __syncwarp();
            const u64 position = block.found[0];
            write_words(route.slots.at(position), tag_of(position), header, header + 1, lane);
            if (idle) enqueue(engine, to);
            __syncwarp();
        }
        at += count;
        if (count > 0 && lane == 0) poke(e.common_in.head, at);
        news = __shfl_sync(~0u, (u32)news, 0) != 0 || count > 0;
        if (news) backoff.reset();
        else backoff.rest(block.plan.idle_common_ns, 128);
    }
}

// All actors that share blocks are in the queue when the kernel comes back. The last block that leaves.
__device__ __noinline__ void refill(Engine* e) {
    const Plan& plan = block.plan;
    u32* shared = (u32*)block.found;
    if (threadIdx.x == 0) *shared = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < plan.actors; i += blockDim.x) {
        Box& box = plan.boxes[i];
        box.control &= ~1ull;
        plan.owners[i].route.to = NOBODY;
        if (fixed_of(box).dedicated) continue;
        box.word |= 1;
        const u32 place = atomicAdd(shared, 1u);
        plan.queue[place] = tagged(place + 1, i);
    }
    __syncthreads();
    for (u64 i = *shared + threadIdx.x; i <= plan.queue_mask; i += blockDim.x) plan.queue[i] = tagged((u32)i, NOBODY);
    if (threadIdx.x == 0) {
        e->queue_tail = *shared;
        e->queue_head = 0;
        e->left = 0;
        e->leaving = 0;
    }
}

}  // namespace ring
