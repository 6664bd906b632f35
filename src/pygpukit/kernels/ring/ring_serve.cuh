// Ring kernels: a block with one actor of its own.
#pragma once
#include <pygpukit/ring_handle.cuh>

namespace ring {

// Fetches the host's messages for a block of one actor. A read across the bus takes a microsecond or two, and what a warp reads
// after it comes after it: so this is done by a warp that does nothing else. One warp.
__device__ __forceinline__ void listen(u32 lane) {
    Owner& own = block.owner;
    const Slots slots = own.in.slots;
    const u32 every = block.plan.port_every;
    u64 heard = own.in.at, reads = own.figures[READS];
    bool many = false;
    u32 skipped = 0;
    Backoff backoff;
    while (!agree(*(volatile u32*)&block.closing != 0)) {
        // One that is idle does not read across the bus all the time.
        const bool looks = !backoff.is_idle() || ++skipped >= every;
        const u32 kept = (u32)(heard - __shfl_sync(~0u, *(volatile u64*)&own.in.at, 0));
        __threadfence_block();
        u32 count = 0;
        if (looks && kept + LOOK <= HEARD) {
            skipped = 0;
            reads++;
            count = many ? read_many(slots, heard, true, lane) : read_one(slots, heard, heard_at(heard), lane);
        }
        // Where one follows another there may be more.
        many = count > 0 && (many ? count > 1 : backoff.spins == 0);
        if (count > 0) {
            heard += count;
            __threadfence_block();
            __syncwarp();
            if (lane == 0) *(volatile u64*)&block.heard = heard;
            __syncwarp();
            backoff.reset();
        } else {
            backoff.rest(block.plan.idle_ns, 128);
        }
        if (lane == 0) *(volatile u64*)&own.figures[READS] = reads;
    }
}

// What a look at the sources of a block with one actor found: how many messages and where from, or that the host wants something; and
// what the next look is told of this one.
enum Found : u32 { COUNT = 0xffff, NEWS = 1u << 16, HOSTS = 1u << 17, DEVICES = 1u << 18, MANY = 1u << 19, OVER = 1u << 20, BULK = 1u << 21 };

// The messages that are there. `last`: what was found the last time; MANY if there was work too. One warp.
__device__ __forceinline__ u32 look(u32 last, u32 lane) {
    const Watch watch = block.watch;
    const u64 head = block.owner.head, known = block.owner.in.at;
    const u64* slot = watch.mailbox.at(head);
    const u32 tag = tag_of(head);
    bool mailed = false, other = false;
    u64 word = 0;
    // Once: it is in no hurry, and each of several reads makes the others slower.
    const u64 control = peek(watch.control_at);
    for (u32 i = 0; i < GLANCES && !mailed && !other; i++) {
        word = peek(slot + lane);
        const u64 heard = *(volatile u64*)&block.heard;
        mailed = __all_sync(~0u, (u32)(word >> 32) == tag);
        other = agree((control ^ watch.control | heard ^ known) != 0);
    }
    if (rarely(other)) {
        if (agree(control != watch.control)) return NEWS;
        // Both have their turn.
        if (last & DEVICES || !mailed) return heard_count(known) | HOSTS;
    }
    if (!mailed) return 0;
    u32 count = 1;
    // Where one follows another there may be more.
    if (last & MANY && last & DEVICES) count = read_many(watch.mailbox, head, false, lane);
    else keep_words(word, slot, watch.mailbox.words, tag, block.stage, lane);
    __syncwarp();
    return count | DEVICES;
}

// The same for an actor that does not simply take messages: it is at rest or has ended, waits for room, makes room, or takes many. One
// warp.
__device__ __noinline__ u32 look_about(Engine* e, u32 self, u32 mode, bool bulk, bool trims, u32 last, u32 lane) {
    const bool is_over = mode >= ENDED;
    // What it has sent goes first, but whoever has ended sends no more: its mailbox is emptied anyway.
    const bool ready = (is_running(mode) || is_over) && (block.owner.waiting == 0 || flush(e, lane) || is_over);
    u32 found = 0;
    if (ready && !bulk) found = look(last, lane);
    else if (agree(peek(block.watch.control_at) != block.watch.control)) found = NEWS;
    else if (ready) found = 1 | BULK;
    if (trims && wants_room(block.plan.boxes[self])) {
        trim(e, self, lane);
        found &= NEWS;
    }
    return is_over ? found | OVER : found;
}

// Do what the host wants; NEWS when the block is to leave. One warp.
__device__ __noinline__ u32 attend(u32 self, char* state, u32 lane) {
    const u64 control = __shfl_sync(~0u, load(block.watch.control_at), 0);
    obey(self, state, control, lane);
    __syncwarp();
    if (lane == 0) {
        block.watch.control = control & ~1ull;
        poke(&block.plan.desks[blockIdx.x].at, control | HERE);
    }
    __syncwarp();
    return control & 1 ? NEWS : 0;
}
// An actor with a block of its own. The whole group.
template <class P> __device__ __forceinline__ void serve_one(Context& ctx) {
    Owner& own = block.owner;
    const u32 type = own.type;
    const bool bulk = P::takes_batches(type);
    bool trims = false;
    if (NARROW || ctx.lane < 32) {
        Box& box = block.plan.boxes[ctx.self];
        const Fixed fixed = fixed_of(box);
        trims = fixed.full == DROP_OLDEST;
        if (ctx.lane == 0) {
            block.watch.control_at = &box.control;
            block.watch.control = own.answered << 1;
            block.watch.mailbox = fixed.slots;
        }
    }
    u32 mode = own.mode, last = 0, unshown = 0;
    bool plain = false, unsaved = false;
    Backoff backoff;
    // The first warp changes what all have read.
    ctx.sync_block();
    for (;;) {
        u32 found = 0;
        if (NARROW || ctx.lane < 32) {
            found = plain ? look(last, ctx.lane) : look_about(ctx.engine, ctx.self, mode, bulk, trims, last, ctx.lane);
            if (rarely(found & NEWS)) {
                found = attend(ctx.self, ctx.state, ctx.lane);
                backoff.reset();
            }
        }
        if (!NARROW && ctx.threads() > 32) {
            if (ctx.lane == 0) block.found[0] = found;
            ctx.sync_block();
            found = (u32)block.found[0];
            ctx.sync_block();
        }
        u32 done = found & COUNT;
        if (done != 0) {
            if (rarely(found & BULK)) {
                done = handle_run<P>(ctx);
            } else {
                // Read only by those who need it: the first warp changes it when it has discarded the messages.
                const auto first = [&] { return found & HOSTS ? heard_at(own.in.at) : 0; };
                if (!rarely(found & OVER)) done = handle<P>(ctx, type, first(), done);
                else if (ctx.lane < 32) discard_all(ctx.engine, first(), done, ctx.lane);
                if (ctx.lane == 0) release(ctx.self, !(found & HOSTS), done);
            }
        } else if (rarely(found & NEWS)) {
            break;
        }
        if (NARROW || ctx.lane < 32) {
            __syncwarp();
            if (done > 0) {
                // One that follows another at once, or several at once, let expect more.
                last = found & DEVICES | (last & DEVICES || done > 1 ? MANY : 0);
                backoff.reset();
                unsaved = true;
                unshown += done;
                if (unshown > 500) {
                    unshown = 0;
                    show(ctx.self, ctx.lane);
                }
            } else {
                last = 0;
                if (own.mode == DRAINING) end_when_drained(ctx.self, ctx.state, ctx.lane);
                if (backoff.spins >= 16 && unsaved) {
                    unsaved = false;
                    unshown = 0;
                    save_state(ctx.state, ctx.lane);
                    show(ctx.self, ctx.lane);
                }
                backoff.rest(bulk ? block.plan.idle_common_ns : block.plan.idle_ns, bulk ? 128 : 64);
            }
            mode = own.mode;
            plain = !bulk && !trims && own.waiting == 0 && is_running(mode);
        }
    }
}

}  // namespace ring
