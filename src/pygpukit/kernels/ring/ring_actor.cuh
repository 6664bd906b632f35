// Ring kernels: what happens to one actor, whichever block serves it: orders, states, figures, messages that are not handled.
#pragma once
#include <pygpukit/ring_send.cuh>

namespace ring {

// Lanes that look at a word which others change may see different values, and must agree. One warp.
__device__ __forceinline__ bool agree(bool seen) { return __any_sync(~0u, seen); }

__device__ __forceinline__ bool is_running(u32 mode) { return mode == ACTIVE || mode == DRAINING; }

// Grows with everything the host counts.
__device__ __forceinline__ u64 events() {
    const u64* f = block.owner.figures;
    return f[PROCESSED] + f[SENT] + f[DISPLACED] + f[EXPIRED_COUNT] + f[DISCARDED] + f[FAILURES];
}

// What is true of the actor now, for the host: two lines. One warp.
__device__ __noinline__ void show(u32 self, u32 lane) {
    Owner& own = block.owner;
    // Whether to show is decided by figures that change now: all lanes have to have read them.
    __syncwarp();
    if (lane == 0) {
        // A message may have been handled before its sender has counted it.
        const long long left = (long long)((peek(&block.plan.boxes[self].word) >> 1) - own.head);
        const u64 depth = left < 0 ? 0 : (u64)left;
        own.figures[DEPTH] = depth;
        if (depth > own.figures[DEEPEST]) own.figures[DEEPEST] = depth;
        own.figures[WAITING] = own.waiting;
        own.shown = events();
    }
    __syncwarp();
    // One is changed by the warp that listens.
    if (lane < FIGURES) poke(own.seen + lane, *(volatile u64*)&own.figures[lane]);
    if (lane < BUCKETS / 2) poke(own.seen + 16 + lane, ((const u64*)own.buckets)[lane]);
    __syncwarp();
}

// The host is told that an order was carried out. One warp.
__device__ __noinline__ void acknowledge(u32 self, u32 mode, u32 lane) {
    Owner& own = block.owner;
    __syncwarp();
    if (lane == 0) {
        own.mode = mode;
        own.figures[MODE] = mode;
        if (mode >= ENDED) *(volatile u32*)&block.plan.boxes[self].gone = 1;
    }
    show(self, lane);
    __threadfence_system();
    __syncwarp();
    if (lane == 0) {
        own.figures[GENERATION] = own.answered;
        store_host(own.seen + GENERATION, own.answered);
    }
    __syncwarp();
}

// The state goes where others see it, or comes from there. One warp.
__device__ __noinline__ void save_state(const char* state, u32 lane) {
    if (state == block.owner.state) return;
    copy_words(block.owner.state, state, block.owner.state_bytes, lane, 32);
    __threadfence_system();
    __syncwarp();
}
__device__ __noinline__ void load_state(char* state, u32 lane) {
    if (state == block.owner.state) return;
    for (u64 i = lane; i < block.owner.state_bytes / 8; i += 32) ((u64*)state)[i] = peek((const u64*)block.owner.state + i);
    __syncwarp();
}

// Do what the host wants of the actor. One warp.
__device__ __noinline__ void obey(u32 self, char* state, u64 control, u32 lane) {
    Owner& own = block.owner;
    control &= ~ROLL;
    if (control >> 1 == own.answered) return;
    const u32 wanted = *(volatile u32*)&block.plan.boxes[self].wanted;
    __syncwarp();
    if (lane == 0) own.answered = control >> 1;
    __syncwarp();
    if (own.mode == FAILED || own.mode == ENDED) return acknowledge(self, own.mode, lane);
    if (wanted == DRAINING) {
        __syncwarp();
        if (lane == 0) own.mode = DRAINING;
        __syncwarp();
        return;
    }
    if (wanted == ACTIVE) load_state(state, lane);
    else save_state(state, lane);
    acknowledge(self, wanted, lane);
}

// A handler has said that it failed. One warp.
__device__ __noinline__ void begin_anew(u32 self, char* state, u32 lane) {
    Owner& own = block.owner;
    copy_words(state, own.initial, own.state_bytes, lane, 32);
    __syncwarp();
    u32 again = 0;
    if (lane == 0) {
        own.failing = 0;
        const u64 t = now();
        if (t - own.window_began > own.restart_window) {
            own.window_began = t;
            own.restarts_left = own.max_restarts;
        }
        again = own.restarts_left > 0;
        if (again) {
            own.restarts_left--;
            own.figures[RESTARTS]++;
        }
    }
    __syncwarp();
    if (!__shfl_sync(~0u, again, 0)) {
        save_state(state, lane);
        acknowledge(self, FAILED, lane);
    }
}

// How long a message took, if it says when it was sent. One thread.
__device__ __forceinline__ void note_latency(u32 stamp) {
    if (stamp == 0) return;
    u32 took = (u32)now() - stamp;
    // The host's idea of this clock may be a bit ahead.
    if (took > 0xfff00000u) took = 0;
    const u32 bucket = 32 - __clz(took);
    block.owner.buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

// The message is not handled: it goes to the dead letters. One warp.
__device__ __noinline__ void discard(Engine* e, const Header* header, u8 reason, u32 figure, u32 lane) {
    // A tick is nobody's message, and missed by none but a handler that failed with it.
    if (!(header->flags & TICK) || reason == FAILURE) {
        copy_words(&block.header, header, sizeof(Header), lane, 32);
        __syncwarp();
        bury(e, header + 1, reason, lane);
    }
    if (lane == 0) {
        block.owner.figures[figure]++;
        block.owner.figures[FROM_HOST] += header->source == HOST;
    }
    __syncwarp();
}

// Why messages to an actor that has ended are not handled.
__device__ __forceinline__ u8 end_of(u32 mode) { return mode == FAILED ? FAILURE : GONE; }

// Messages to an actor that has ended. One warp.
__device__ __noinline__ void discard_all(Engine* e, u32 first, u32 count, u32 lane) {
    const u8 reason = end_of(block.owner.mode);
    for (u32 i = 0; i < count; i++) discard(e, (const Header*)(block.stage + first + i * RING_STRIDE), reason, DISCARDED, lane);
}

// The messages handled leave their ring. Their words are in shared memory: they were read. One thread.
__device__ __forceinline__ void release(u32 self, bool device, u32 count) {
    Owner& own = block.owner;
    if (device) {
        own.head += count;
        poke(&block.plan.boxes[self].head, own.head);
    } else {
        const u64 at = own.in.at + count;
        // The warp that listens may write there from now on.
        __threadfence_block();
        *(volatile u64*)&own.in.at = at;
        poke(own.in.head, at);
    }
}

// Messages of the host that were fetched and lie one behind the other from this position on. One warp.
__device__ __forceinline__ u32 heard_count(u64 position) {
    u32 count = (u32)(*(volatile u64*)&block.heard - position);
    count = __shfl_sync(~0u, count, 0);
    if (count > 0) __threadfence_block();
    const u32 to_end = HEARD - (u32)position % HEARD;
    return count < to_end ? count : to_end;
}

// Is somebody waiting for room? One warp.
__device__ __forceinline__ bool wants_room(const Box& box) {
    return agree(peek(&box.trim) != 0 || peek(&box.trim_host) > block.owner.figures[FROM_HOST]);
}

// Senders wait for room, and the oldest messages have to go. What is not there yet goes the next time. One warp.
__device__ __noinline__ void trim(Engine* e, u32 self, u32 lane) {
    Owner& own = block.owner;
    Box& box = block.plan.boxes[self];
    const Fixed fixed = fixed_of(box);
    u64 few = 0, gone = 0;
    if (lane == 0) {
        few = peek(&box.trim);
        gone = peek(&box.trim_host);
    }
    few = __shfl_sync(~0u, few, 0);
    const u64 room = few < fixed.limit ? few : fixed.limit;
    gone = __shfl_sync(~0u, gone, 0);
    Header* header = (Header*)block.stage;
    Bulk& bulk = own.bulk_in;
    const bool port = own.in.slots.base != 0 && fixed.dedicated, plain = bulk.base != 0 && fixed.dedicated;
    while (port && own.figures[FROM_HOST] < gone) {
        if (heard_count(own.in.at) == 0) break;
        discard(e, (const Header*)(block.stage + heard_at(own.in.at)), OLDEST, DISPLACED, lane);
        if (lane == 0) release(self, false, 1);
        __syncwarp();
    }
    while (plain && own.figures[FROM_HOST] < gone) {
        if (agree(load_host(bulk.tail) == bulk.at)) break;
        copy_words(header, bulk.base + (bulk.at & bulk.mask) * bulk.stride, bulk.stride, lane, 32);
        __syncwarp();
        discard(e, header, OLDEST, DISPLACED, lane);
        if (lane == 0) poke(bulk.head, ++bulk.at);
        __syncwarp();
    }
    const bool shares = !port && !plain;
    // As many as were asked for at most: those who asked fill the room meanwhile.
    u64 dropped = 0;
    while (agree((dropped < room && (peek(&box.word) >> 1) - own.head + room > fixed.limit) || (shares && own.figures[FROM_HOST] < gone))) {
        if (read_one(fixed.slots, own.head, 0, lane) == 0) break;
        discard(e, header, OLDEST, DISPLACED, lane);
        if (lane == 0) release(self, true, 1);
        __syncwarp();
        dropped++;
    }
    if (lane == 0 && few > 0) {
        // Whoever sees that nothing is asked for sees the room too.
        __threadfence();
        atomicAdd(&box.trim, 0ull - few);
    }
    show(self, lane);
}

// Has a draining actor nothing left? One warp.
__device__ __noinline__ void end_when_drained(u32 self, const char* state, u32 lane) {
    Owner& own = block.owner;
    const Box& box = block.plan.boxes[self];
    if (agree(own.mode != DRAINING || own.waiting != 0 || own.figures[FROM_HOST] < *(volatile u64*)&box.drain_at || (peek(&box.word) >> 1) != own.head)) return;
    save_state(state, lane);
    acknowledge(self, ENDED, lane);
}

}  // namespace ring
