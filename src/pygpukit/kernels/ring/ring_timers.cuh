// Ring kernels: actors that are called from time to time without anybody's message.
#pragma once
#include <pygpukit/ring_send.cuh>

namespace ring {

// An actor's timer. What is put into its mailbox is a message of zeros, when the one before has been taken.
struct Timer {
    u64 period, next;   // in nanoseconds; 0 while the actor is not active
    u64 taken;          // messages the actor has taken from its mailbox when the last tick is among them
    u64 given, missed;
    u64* seen;          // both of these, in mapped memory
    u32 actor, bytes;
    u64 spare;
};

// Has the timer run out? Then it is set anew; times that have passed meanwhile are missed. One thread.
__device__ __forceinline__ bool runs_out(Timer& timer, u64 t) {
    const Box& box = block.plan.boxes[timer.actor];
    if (*(volatile const u32*)&box.wanted != ACTIVE || peek(&box.gone) != 0) {
        timer.next = 0;
        return false;
    }
    if (timer.next == 0) timer.next = t + timer.period;
    if (t < timer.next) return false;
    const u64 late = (t - timer.next) / timer.period;
    timer.missed += late;
    timer.next += (late + 1) * timer.period;
    return true;
}

// Call an actor, unless it has not taken the last tick or there is no room. One warp.
__device__ __noinline__ void tick(Engine* e, Timer& timer, u32 lane) {
    Route& route = block.owner.route;
    const u32 to = timer.actor, bytes = timer.bytes;
    u32 room = 0;
    u64 number = NONE;
    if (lane == 0) {
        if (route.to != to) find_route(to);
        // As other actors' messages: the rest of the mailbox is the host's.
        room = load(&block.plan.boxes[to].head) >= timer.taken && claim(e, route.limit, block.found[0], number);
        if (room) {
            timer.taken = block.found[0] + 1;
            timer.given++;
        } else {
            timer.missed++;
        }
        poke(timer.seen, timer.given);
        poke(timer.seen + 1, timer.missed);
    }
    if (__shfl_sync(~0u, room, 0) == 0) return;
    for (u32 i = lane; i < HEADER_WORDS + bytes / 4; i += 32) block.stage[i] = 0;
    __syncwarp();
    Header* header = (Header*)block.stage;
    if (lane == 0) {
        header->type = route.type;
        header->flags = TICK;
        header->source = NOBODY;
        header->destination = to;
        header->bytes = bytes;
    }
    __syncwarp();
    const u64 position = block.found[0];
    u64* slot = route.slots.at(position);
    write_words(slot, tag_of(position), header, header + 1, lane);
    if (number != NONE) fill(e, number, to, slot);
    __syncwarp();
}

// Call all whose time has come; when it is the next one's. One warp.
__device__ __noinline__ u64 tick_all(Engine* e, u32 lane) {
    u64 t = 0, soonest = ~0ull;
    if (lane == 0 && peek(e->silent) == 0) t = now();
    t = __shfl_sync(~0u, t, 0);
    if (t == 0) return soonest;
    for (u64 first = 0; first < e->timer_count; first += 32) {
        Timer* timer = e->timers + first + lane;
        const bool is_there = first + lane < e->timer_count;
        u32 left = __ballot_sync(~0u, is_there && runs_out(*timer, t));
        __syncwarp();
        for (; left != 0; left &= left - 1) tick(e, e->timers[first + __ffs(left) - 1], lane);
        if (is_there && timer->next != 0 && timer->next < soonest) soonest = timer->next;
    }
    for (u32 other = 16; other != 0; other /= 2) {
        const u64 theirs = __shfl_xor_sync(~0u, soonest, other);
        if (theirs < soonest) soonest = theirs;
    }
    return soonest;
}

}  // namespace ring
