// Ring kernels: the workers, blocks that share actors.
//
// A worker takes an actor from the run queue, and when it has served it the actor stays for a while, unless the queue has more than
// the other workers wait for: what it has is in shared memory then, and a message for it is seen at once, as in a block of its own.
// To senders it is at work. A worker with such a guest has no number in the queue: whoever comes there would wait for the guest's
// handler. Where workers are few, whoever is sent for waits until one lets its guest go, which takes longer than the queue: so one that
// had to has no guests for a while.
#pragma once
#include <pygpukit/ring_handle.cuh>

namespace ring {

const u32 ALONE = 64;  // messages that a worker handles without guests after it had to let one go
const u32 OWNER_STEPS = (sizeof(Owner) / 16 + 31) / 32;
// All but the last warp of a block, which is for those that listen.
__device__ __forceinline__ void sync_workers(u32 threads) {
    if (NARROW || threads == 32) __syncwarp();
    else asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
}

// What one thread knows, to all of them. Nobody reads it any more when this is called again.
__device__ __forceinline__ u32 tell_workers(u32 what, u64& more, u32 lane, u32 threads) {
    if (NARROW || threads == 32) {
        __syncwarp();
        more = __shfl_sync(~0u, more, 0);
        return __shfl_sync(~0u, what, 0);
    }
    if (lane == 0) {
        block.found[0] = what;
        block.found[1] = more;
    }
    sync_workers(threads);
    what = (u32)block.found[0];
    more = block.found[1];
    sync_workers(threads);
    return what;
}

__device__ __forceinline__ void prefetch(const char* p) { asm volatile("prefetch.global.L1 [%0];" ::"l"(p)); }

// An actor's own things come from memory and go back there. They are read together with all else that is needed first, after the
// cell of the run queue: it was filled after a word was changed that the block before changed after this was performed.
__device__ __forceinline__ void take_owner(u32 index, u32 lane, u32 width) {
    const u64* from = (const u64*)&block.plan.owners[index];
    u64 parts[OWNER_STEPS][2];
#pragma unroll
    for (u32 i = 0; i < OWNER_STEPS; i++) {
        const u32 at = 2 * (lane + i * width);
        if (at < sizeof(Owner) / 8) peek_pair(from + at, parts[i]);
    }
#pragma unroll
    for (u32 i = 0; i < OWNER_STEPS; i++) {
        const u32 at = 2 * (lane + i * width);
        if (at < sizeof(Owner) / 8) {
            ((u64*)&block.owner)[at] = parts[i][0];
            ((u64*)&block.owner)[at + 1] = parts[i][1];
        }
    }
}
// The actor's things go to memory, for the block that has it next and for the host. All workers.
__device__ __noinline__ void put_away(u32 index, u32 lane, u32 threads) {
    Owner& own = block.owner;
    sync_workers(threads);
    if (lane < 32) {
        const u64 word = __shfl_sync(~0u, peek(&block.plan.boxes[index].word), 0);
        // Whoever has more to do is shown when it has done it.
        if ((word >> 1) == own.head || (own.waiting != 0 && events() != own.shown)) show(index, lane);
    }
    sync_workers(threads);
    u64* to = (u64*)&block.plan.owners[index];
    for (u32 at = 2 * lane; at < sizeof(Owner) / 8; at += 2 * threads) poke_pair(to + at, (const u64*)&own + at);
    sync_workers(threads);
}

// The actor was put away and is for whoever is sent for: at rest, or in the queue if there is something for it. One thread.
__device__ __noinline__ void let_go(Engine* e, u32 index, bool runs) {
    const Owner& own = block.owner;
    Box& box = block.plan.boxes[index];
    // Behind a barrier, so it is for what all threads wrote. Not before: it empties the cache of the SM.
    __threadfence();
    if (own.waiting != 0) return enqueue(e, index);
    if (runs) {
        // Idle only if nothing was claimed meanwhile, be it written yet or not.
        const u64 idle = (own.head << 1) | 1;
        if (claim_if(&box.word, idle, idle & ~1ull) != idle) return enqueue(e, index);
    } else {
        u64 word = peek(&box.word);
        for (u64 old; (old = swap_if(&box.word, word, word & ~1ull)) != word;) word = old;
    }
    if (load(&box.control) >> 1 != own.answered || peek(&box.trim) != 0 || peek(&box.trim_host) > own.figures[FROM_HOST]) schedule(e, index);
}

// A number that was filled when nobody waited for it, or NONE. One thread.
__device__ __noinline__ u64 take_wanted(Engine* e, u64 wanted) {
    for (u64 head = peek(&e->queue_head); head < wanted;) {
        const u64 old = claim_quietly(&e->queue_head, head, head + 1);
        if (old == head) return head;
        head = old;
    }
    return NONE;
}

// What a worker finds that has a guest: a message or an order for it; that it has to let it go, for somebody whose number in the queue
// it has taken or because the kernel leaves; or nothing.
const u32 MAILED = 0, WANTED = 1, NOTHING = 2;
struct Sight {
    u64 word, control;  // of the message, by lane
    bool at_once;
};
// One warp.
__device__ __forceinline__ u32 look_after(Engine* e, u64& known, Sight& sight, u64& number, bool& has_number, u32 lane) {
    const Watch watch = block.watch;
    const u64 head = block.owner.head;
    const u64* slot = watch.mailbox.at(head);
    const u32 tag = tag_of(head);
    u64 parts[2];
    sight.word = peek(slot + lane);
    sight.control = peek(watch.control_at);
    peek_pair(&e->leaving, parts);
    if (rarely(agree(parts[0] != 0 || parts[1] != known))) {
        const u64 wanted = __shfl_sync(~0u, parts[1], 0);
        if (lane == 0 && parts[0] == 0) number = take_wanted(e, wanted);
        has_number = lane == 0 && parts[0] == 0 && number != NONE;
        if (agree(has_number || (lane == 0 && parts[0] != 0))) return WANTED;
        // All of them were taken.
        known = wanted;
    }
    sight.at_once = __all_sync(~0u, (u32)(sight.word >> 32) == tag);
    if (agree(sight.at_once || sight.control != watch.control)) return MAILED;
    // Only at the message: others look at the rest too, which takes longer therefore.
    for (u32 i = 0; i < GLANCES / 2; i++) {
        sight.word = peek(slot + lane);
        if (__all_sync(~0u, (u32)(sight.word >> 32) == tag)) return MAILED;
    }
    return NOTHING;
}

template <class P> __device__ __forceinline__ void serve_all(Context& ctx) {
    Engine* e = ctx.engine;
    const u32 threads = blockDim.x - 32;
    Owner& own = block.owner;
    u64* desk = &block.plan.desks[blockIdx.x].at;
    Backoff backoff;
    Fixed fixed = {};
    u64 number = 0, known = 0;
    u32 index = NOBODY, turns = 0, alone = 0;
    bool has_number = false, has_guest = false, unsaved = false;
    for (;;) {
        Sight sight = {};
        u64 hint = 0, claimed = 0;
        bool several = false;
        if (has_guest) {
            u32 found = 0;
            if (ctx.lane < 32) found = look_after(e, known, sight, number, has_number, ctx.lane);
            u64 nothing = 0;
            found = tell_workers(found, nothing, ctx.lane, threads);
            if (found != MAILED) {
                backoff.rest(1000, 512);
                // Letting it go takes no longer than one word then.
                if (unsaved && (found == WANTED || backoff.spins > 2)) {
                    unsaved = false;
                    put_away(index, ctx.lane, threads);
                }
                if (found == WANTED) alone = ALONE;
                if (found == WANTED || backoff.spins >= block.plan.stays) {
                    has_guest = false;
                    if (ctx.lane == 0) let_go(e, index, true);
                }
                continue;
            }
            // One that was there at once may be one of several.
            several = sight.at_once && backoff.spins == 0;
            if (ctx.lane == 0) poke(desk, tagged(++turns, index + 1));
        } else {
            if (ctx.lane == 0) {
                if (!has_number) number = atomicAdd(&e->queue_head, 1ull);
                index = dequeue(e, number, hint);
                has_number = index == NOBODY;
            }
            index = tell_workers(index, hint, ctx.lane, threads);
            if (rarely(index >= SKIPPED)) {
                if (index == HOST) break;
                if (index == NOBODY) backoff.rest(1000, 512);
                continue;
            }
            Box& box = block.plan.boxes[index];
            sight.control = peek(&box.control);
            sight.word = hint != 0 && ctx.lane < 32 ? peek((const u64*)hint + ctx.lane) : 0;
            fixed = fixed_of(box);
            take_owner(index, ctx.lane, threads);
            // Whoever put it into the queue changed this word after the block that had the actor before left its state behind.
            claimed = load(&box.word);
            if (ctx.lane == 0) poke(desk, tagged(++turns, index + 1));
            ctx.self = index;
            ctx.width = fixed.width;
            sync_workers(threads);
            ctx.state = own.state;
            ctx.names = block.plan.names + own.names;
            // The handler will want these, and they are not in the cache of this SM.
            if (ctx.lane == 0) prefetch((const char*)ctx.names);
            if (ctx.lane * 128 < own.state_bytes) prefetch(own.state + ctx.lane * 128);
            if (ctx.lane == 0) block.ready[TO_HOST].left = block.ready[TO_ACTOR].left = 0;
        }
        backoff.reset();
        u32 count = 0;
        bool runs = false;
        if (ctx.lane < 32) {
            __syncwarp();
            const u64 control = __shfl_sync(~0u, sight.control, 0);
            if (rarely(control >> 1 != own.answered)) {
                // What was ordered is seen behind the number of the order.
                __threadfence();
                obey(index, ctx.state, control, ctx.lane);
            }
            if (rarely(fixed.full == DROP_OLDEST) && wants_room(block.plan.boxes[index])) trim(e, index, ctx.lane);
            runs = is_running(own.mode) || own.mode >= ENDED;
            // As in `look_about`.
            if (runs && (own.waiting == 0 || flush(e, ctx.lane) || own.mode >= ENDED)) {
                const u64 head = own.head;
                const u64* slot = fixed.slots.at(head);
                if (agree(has_guest ? several : (claimed >> 1) - head > 1)) count = read_many(fixed.slots, head, false, ctx.lane);
                else if (has_guest || hint == (u64)slot) count = take_words(sight.word, slot, fixed.slots.words, head, block.stage, ctx.lane);
                else count = read_one(fixed.slots, head, 0, ctx.lane);
                __syncwarp();
            }
        }
        u64 nothing = 0;
        count = tell_workers(count, nothing, ctx.lane, threads);
        u32 done = 0;
        if (count > 0 && ctx.lane < ctx.width) {
            done = count;
            if (!rarely(own.mode >= ENDED)) done = handle<P>(ctx, own.type, 0, count);
            else if (ctx.lane < 32) discard_all(e, 0, count, ctx.lane);
            if (ctx.lane == 0) release(index, true, done);
        }
        sync_workers(threads);
        if (ctx.lane < 32) {
            if (own.mode == DRAINING) end_when_drained(index, ctx.state, ctx.lane);
            if (events() - own.shown > 500) show(index, ctx.lane);
            if (ctx.lane == 0) {
                if (done > 0) poke(own.seen + FROM_HOST, own.figures[FROM_HOST]);
                // It works on nothing, for the watchdog.
                poke(desk, 0);
                block.watch.control_at = &block.plan.boxes[index].control;
                block.watch.control = own.answered << 1;
                block.watch.mailbox = fixed.slots;
            }
        }
        sync_workers(threads);
        if (alone > 0) alone--;
        has_guest = unsaved = alone == 0 && block.plan.stays != 0 && own.mode == ACTIVE && own.waiting == 0 && fixed.full != DROP_OLDEST;
        if (has_guest) continue;
        put_away(index, ctx.lane, threads);
        if (ctx.lane == 0) let_go(e, index, runs);
    }
}

}  // namespace ring
