// Ring kernels: the warden's block, and how the kernel leaves everything for its return.
#pragma once
#include <pygpukit/ring_timers.cuh>
#include <pygpukit/ring_watchdog.cuh>

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
    u64 looked = 0, host_beat = 0;
    for (u32 turn = 0; *(volatile u32*)&e->left != gridDim.x - 1; turn++) {
        if (turn < 1000) continue;
        __nanosleep(2000);
        if (e->look_ns != 0 && now() - looked > e->look_ns) {
            looked = now();
            const u64 beat = peek(e->host_beat);
            if (beat != host_beat) {
                look_around(e, 0, 1);
                raise_alarm(e);
            }
            host_beat = beat;
        }
        const u64 orders = load_host(e->orders_tail);
        for (u64 i = e->orders_taken; i != orders; i++)
            if (e->orders[8 * (i & e->orders_mask)] == TRAP) asm volatile("trap;");
    }
    if (peek(&e->accused) != 0) {
        look_around(e, 0, 1);
        raise_alarm(e);
    }
}

// The host's orders, its messages for actors that share blocks, timers, the heartbeat and the lease. One warp.
__device__ __noinline__ void warden(Engine* engine, u32 lane) {
    Engine& e = *engine;
    Route& route = block.owner.route;
    Backoff backoff;
    const u64 started = now();
    u64 beaten = 0, host_beat = 0, heard = started, due = 0, at = e.common_in.at;
    u64 looked = started, looked_beat = 0, reads = peek(e.beat + 1);
    if (lane == 0) route.to = NOBODY;
    __syncwarp();
    for (;;) {
        u32 why = 0;
        bool news = false, ticks = false, looks = false;
        if (lane == 0) {
            // This, and the host's messages.
            reads += 2;
            const u64 orders = load_host(e.orders_tail);
            news = orders != e.orders_taken;
            while (e.orders_taken != orders && why == 0) {
                why = carry_out(engine, e.orders + 8 * (e.orders_taken & e.orders_mask));
                e.orders_taken++;
            }
            if (news) poke(e.orders_head, e.orders_taken);
            const u64 t = now();
            // An order may have started a timer.
            ticks = e.timer_count != 0 && (news || t >= due);
            if (t - beaten > 1000000) {
                beaten = t;
                poke(e.beat, t);
                poke(e.beat + 1, reads);
                const u64 beat = peek(e.host_beat);
                if (beat != host_beat) {
                    host_beat = beat;
                    heard = t;
                } else if (e.lease_ns != 0 && t - heard > e.lease_ns) {
                    why = LEASE_ENDED;
                }
                if (e.slice_ns != 0 && t - started > e.slice_ns) why = SLICE_ENDED;
                if (e.look_ns != 0 && t - looked > e.look_ns) {
                    looked = t;
                    looks = looked_beat != host_beat;
                    looked_beat = host_beat;
                }
            }
        }
        why = __shfl_sync(~0u, why | (u32)looks << 8, 0);
        if (why >> 8) {
            look_around(engine, lane, 32);
            __syncwarp();
            if (lane == 0) raise_alarm(engine);
        }
        why &= 255;
        if (why != 0) {
            for (u32 i = lane; i < block.plan.dedicated; i += 32) {
                u64* control = &block.plan.boxes[block.plan.places[i]].control;
                store(control, peek(control) | 1);
            }
            if (lane == 0) {
                e.common_in.at = at;
                atomicExch(&e.leaving, (u64)why);
                await_others(engine);
            }
            break;
        }
        if (__shfl_sync(~0u, (u32)ticks, 0) != 0) due = tick_all(engine, lane);
        const u32 count = read_many(e.common_in.slots, at, false, lane);
        for (u32 i = 0; i < count; i++) {
            const Header* header = (const Header*)(block.stage + i * RING_STRIDE);
            const u32 to = header->destination;
            u64 number = NONE;
            if (lane == 0) {
                if (route.to != to) find_route(to);
                // The host counts the room it has, so there is some.
                while (!claim(engine, route.slots.mask + 1, block.found[0], number)) schedule(engine, to);
            }
            __syncwarp();
            const u64 position = block.found[0];
            write_words(route.slots.at(position), tag_of(position), header, header + 1, lane);
            if (number != NONE) fill(engine, number, to, route.slots.at(position));
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
    // The numbers of the queue begin anew.
    for (u32 i = threadIdx.x; i < gridDim.x; i += blockDim.x) plan.desks[i].seen_at = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < plan.actors; i += blockDim.x) {
        Box& box = plan.boxes[i];
        box.control &= ~(ROLL | 1);
        plan.owners[i].route.to = NOBODY;
        Group* group = plan.owners[i].group;
        if (group) group->turn = group->arrived = 0;
        if (fixed_of(box).dedicated) continue;
        box.word |= 1;
        const u32 place = atomicAdd(shared, 1u);
        plan.queue[place].word = tagged(place + 1, i);
        plan.queue[place].hint = 0;
    }
    __syncthreads();
    for (u64 i = *shared + threadIdx.x; i <= plan.queue_mask; i += blockDim.x) plan.queue[i].word = tagged((u32)i, NOBODY);
    if (threadIdx.x == 0) {
        e->queue_tail = *shared;
        e->queue_head = 0;
        e->left = 0;
        e->leaving = 0;
        // Nobody waits for them yet, and workers may find other work first.
        e->wanted = *shared;
    }
}

}  // namespace ring
