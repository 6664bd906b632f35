// Ring kernels: the loops of the persistent kernel, over handlers that are compiled with it.
//
// A program gives `dispatch(type, context)`, `dispatch_batch(type, context, run)`, `takes_batches(type)`, `reply_type(type)` and
// `reply_bytes(type)`.
#pragma once
#include <pygpukit/ring_actor.cuh>
#include <pygpukit/ring_talk.cuh>
#include <pygpukit/ring_warden.cuh>

namespace ring {

// Plain messages in a row, and places for the results of them; in shared memory.
const u32 RUN_BYTES = RING_RUN;
struct Run {
    char *in, *out;
    u64 in_stride, out_stride;
    u32 size;
    __device__ Header* asked(u32 i) const { return (Header*)(in + i * in_stride); }
    __device__ Header* reply(u32 i) const { return (Header*)(out + i * out_stride); }
};
template <class In, class Out> struct Batch {
    Run run;
    u32 size;
    __device__ const In& in(u32 i) const { return *(const In*)(run.asked(i) + 1); }
    __device__ Out& out(u32 i) const { return *(Out*)(run.reply(i) + 1); }
    __device__ const Header& header(u32 i) const { return *run.asked(i); }
};

// Is the message's deadline over? Clocks of threads differ, so one decides. The whole group.
__device__ __forceinline__ bool is_late(const Context& ctx) {
    if (ctx.lane == 0) block.found[1] = now() > ctx.header().deadline;
    ctx.sync();
    const bool late = block.found[1] != 0;
    ctx.sync();
    return late;
}

// Handle messages of the stage until one has to wait. Returns how many are done with. The whole group.
template <class P> __device__ __forceinline__ u32 handle(Context& ctx, u32 type, u32 first, u32 count) {
    Owner& own = block.owner;
    const u64 began = clock64();
    u32 done = 0;
    bool waits;
    do {
        ctx.at = first + done * RING_STRIDE;
        if (done > 0 && ctx.lane == 0) poke(&block.plan.desks[blockIdx.x].turn, began + done);
        if (rarely(ctx.header().deadline != 0) && is_late(ctx)) {
            if (ctx.lane < 32) discard(ctx.engine, &ctx.header(), EXPIRED, EXPIRED_COUNT, ctx.lane);
        } else {
            P::dispatch(type, ctx);
            ctx.sync();
            if (!rarely(own.failing != 0)) {
                if (ctx.lane == 0) {
                    own.figures[PROCESSED]++;
                    own.figures[FROM_HOST] += ctx.header().source == HOST;
                    note_latency(ctx.header().stamp);
                }
            } else {
                ctx.sync();
                if (ctx.lane < 32) {
                    discard(ctx.engine, &ctx.header(), FAILURE, FAILURES, ctx.lane);
                    begin_anew(ctx.self, ctx.state, ctx.lane);
                }
                ctx.sync();
                const bool failed = own.mode == FAILED;
                ctx.sync();
                if (failed) return done + 1;
            }
        }
        done++;
        // Read before the first warp goes on and delivers what waits.
        waits = own.waiting != 0;
        ctx.sync();
    } while (done < count && !waits);
    if (ctx.lane == 0) own.figures[BUSY] += clock64() - began;
    return done;
}

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
const u32 GLANCES = 8;  // at the mailbox, before the block looks up

// The messages that are there. `last`: what was found the last time; MANY if there was work too. One warp.
__device__ __forceinline__ u32 look(u32 last, u32 lane) {
    const Watch watch = block.watch;
    const u64 head = block.owner.head, known = block.owner.in.at;
    const u64* slot = watch.mailbox.at(head);
    const u32 tag = tag_of(head);
    bool mailed = false, other = false;
    u64 word = 0, control = 0;
    for (u32 i = 0; i < GLANCES && !mailed && !other; i++) {
        word = peek(slot + lane);
        control = peek(watch.control_at);
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
    const bool takes = is_running(mode) || mode >= ENDED;
    const bool ready = takes && (block.owner.waiting == 0 || flush(e, lane));
    u32 found = 0;
    if (ready && !bulk) found = look(last, lane);
    else if (agree(peek(block.watch.control_at) != block.watch.control)) found = NEWS;
    else if (ready) found = 1 | BULK;
    if (trims && wants_room(block.plan.boxes[self])) {
        trim(e, self, lane);
        found &= NEWS;
    }
    return mode >= ENDED ? found | OVER : found;
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

// Of messages that are read together those whose deadline is over go to the dead letters, and the others move up. Returns how many
// are left. One warp.
__device__ __noinline__ u32 drop_late(Engine* e, const Run& run, u32 lane) {
    u32 kept = 0;
    // Clocks of threads differ, so one decides.
    const u64 t = __shfl_sync(~0u, now(), 0);
    for (u32 i = 0; i < run.size; i++) {
        const Header* header = run.asked(i);
        const u64 deadline = header->deadline;
        if (deadline != 0 && t > deadline) {
            discard(e, header, EXPIRED, EXPIRED_COUNT, lane);
            continue;
        }
        if (kept != i) copy_words(run.asked(kept), header, run.in_stride, lane, 32);
        kept++;
        __syncwarp();
    }
    return kept;
}

// As `copy_words`, with all reads of a thread on their way at once: each takes microseconds.
__device__ __forceinline__ void copy_from_host(void* to, const void* from, u64 bytes, u32 lane, u32 width) {
    const u32 count = (u32)bytes / 16;
    for (u32 first = lane; first < count; first += 4 * width) {
        uint4 parts[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            if (first + k * width < count) parts[k] = ((const uint4*)from)[first + k * width];
#pragma unroll
        for (u32 k = 0; k < 4; k++)
            if (first + k * width < count) ((uint4*)to)[first + k * width] = parts[k];
    }
}

// Plain messages, as many as there are and fit: a result of each. The whole group; returns how many.
template <class P> __device__ __noinline__ u32 handle_run(Context ctx) {
    __shared__ __align__(16) char asked[RUN_BYTES];
    __shared__ __align__(16) char replies[RUN_BYTES];
    Owner& own = block.owner;
    Bulk &in = own.bulk_in, &out = own.bulk_out;
    const Slots mailbox = block.watch.mailbox;
    Run run;
    run.in = asked;
    run.out = replies;
    run.in_stride = in.stride;
    run.out_stride = out.stride;
    if (ctx.lane < 32) {
        u64 count = 0, room = 0;
        u32 from_device = 0;
        if (ctx.lane == 0) {
            if (out.mask + 1 - (out.at - out.seen) < RUN_BYTES / 64) out.seen = load_host(out.head);
            room = out.mask + 1 - (out.at - out.seen);
            const u64 to_end = out.mask + 1 - (out.at & out.mask);
            if (to_end < room) room = to_end;
        }
        room = __shfl_sync(~0u, room, 0);
        if (room >= LOOK) from_device = read_many(mailbox, own.head, false, ctx.lane);
        else if (room > 0) from_device = read_one(mailbox, own.head, 0, ctx.lane);
        if (ctx.lane == 0) {
            if (from_device == 0) {
                if (in.at == in.seen) {
                    in.seen = load_host(in.tail);
                    own.figures[READS]++;
                }
                count = in.seen - in.at;
                const u64 to_end = in.mask + 1 - (in.at & in.mask);
                if (count > to_end) count = to_end;
                const u64 wider = in.stride > out.stride ? in.stride : out.stride;
                if (count > RUN_BYTES / wider) count = RUN_BYTES / wider;
                if (count > room) count = room;
            }
            block.found[0] = count + from_device;
            block.found[1] = from_device;
        }
    }
    ctx.sync();
    run.size = (u32)block.found[0];
    const bool from_device = block.found[1] != 0;
    ctx.sync();
    if (run.size == 0) return 0;
    if (from_device) {
        run.in = (char*)block.stage;
        run.in_stride = 4 * RING_STRIDE;
    } else {
        copy_from_host(asked, in.base + (in.at & in.mask) * in.stride, run.size * in.stride, ctx.lane, ctx.width);
    }
    if (ctx.lane == 0) block.found[1] = 0;
    ctx.sync();
    const u32 taken = run.size;
    for (u32 i = ctx.lane; i < taken; i += ctx.width)
        if (run.asked(i)->deadline != 0) atomicExch(&block.found[1], 1ull);
    ctx.sync();
    if (block.found[1] != 0 && own.mode < ENDED) {
        ctx.sync();
        if (ctx.lane < 32) {
            const u32 kept = drop_late(ctx.engine, run, ctx.lane);
            if (ctx.lane == 0) block.found[0] = kept;
        }
        ctx.sync();
        run.size = (u32)block.found[0];
    }
    const u64 began = clock64();
    if (own.mode < ENDED && run.size > 0) P::dispatch_batch(own.type, ctx, run);
    ctx.sync();
    const bool failed = own.failing != 0, gone = own.mode >= ENDED;
    ctx.sync();
    if (failed || gone) {
        if (ctx.lane < 32) {
            const u8 reason = gone ? end_of(own.mode) : (u8)FAILURE;
            for (u32 i = 0; i < run.size; i++) discard(ctx.engine, run.asked(i), reason, gone ? DISCARDED : FAILURES, ctx.lane);
            if (failed) begin_anew(ctx.self, ctx.state, ctx.lane);
        }
        ctx.sync();
    } else {
        const u64 first = ((u64)(ctx.self + 1) << 40) | own.next_id;
        for (u32 i = ctx.lane; i < run.size; i += ctx.width) {
            Header h;
            h.type = P::reply_type(own.type);
            h.flags = run.asked(i)->flags & CALL ? ANSWER : 0;
            h.priority = run.asked(i)->priority;
            h.reason = 0;
            h.id = first + i;
            h.correlation = run.asked(i)->id;
            h.deadline = 0;
            h.source = ctx.self;
            h.destination = HOST;
            h.bytes = P::reply_bytes(own.type);
            h.stamp = 0;
            *run.reply(i) = h;
        }
        ctx.sync();
        copy_words(out.base + (out.at & out.mask) * out.stride, replies, run.size * out.stride, ctx.lane, ctx.width);
        __threadfence_system();
        ctx.sync();
    }
    if (ctx.lane == 0) {
        if (!failed && !gone) {
            out.at += run.size;
            poke(out.tail, out.at);
            own.next_id += run.size;
            own.figures[PROCESSED] += run.size;
            own.figures[SENT] += run.size;
            if (!from_device) own.figures[FROM_HOST] += run.size;
            if (run.size > 0) note_latency(run.asked(0)->stamp);
        }
        if (from_device) {
            release(ctx.self, true, taken);
        } else {
            in.at += taken;
            poke(in.head, in.at);
        }
        own.figures[BUSY] += clock64() - began;
    }
    ctx.sync();
    return taken;
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
    ctx.sync();
    for (;;) {
        u32 found = 0;
        if (NARROW || ctx.lane < 32) {
            found = plain ? look(last, ctx.lane) : look_about(ctx.engine, ctx.self, mode, bulk, trims, last, ctx.lane);
            if (rarely(found & NEWS)) {
                found = attend(ctx.self, ctx.state, ctx.lane);
                backoff.reset();
            }
        }
        if (!NARROW && ctx.width > 32) {
            if (ctx.lane == 0) block.found[0] = found;
            ctx.sync();
            found = (u32)block.found[0];
            ctx.sync();
        }
        u32 done = found & COUNT;
        if (done != 0) {
            if (rarely(found & BULK)) {
                done = handle_run<P>(ctx);
            } else {
                const u32 first = found & HOSTS ? heard_at(own.in.at) : 0;
                if (!rarely(found & OVER)) done = handle<P>(ctx, type, first, done);
                else if (ctx.lane < 32) discard_all(ctx.engine, first, done, ctx.lane);
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
__device__ __forceinline__ void leave_owner(u32 index, u32 lane, u32 width) {
    u64* to = (u64*)&block.plan.owners[index];
    for (u32 at = 2 * lane; at < sizeof(Owner) / 8; at += 2 * width) poke_pair(to + at, (const u64*)&block.owner + at);
}

// A block that serves whoever has something to do.
template <class P> __device__ __forceinline__ void serve_all(Context& ctx) {
    Engine* e = ctx.engine;
    const u32 threads = blockDim.x - 32;
    Owner& own = block.owner;
    Backoff backoff;
    u64 number = 0;
    bool has_number = false;
    for (;;) {
        u32 index = 0;
        u64 hint = 0;
        const bool fresh = !has_number;
        if (ctx.lane == 0) {
            if (fresh) number = atomicAdd(&e->queue_head, 1ull);
            index = dequeue(e, number, hint);
            has_number = index == NOBODY;
        }
        index = tell_workers(index, hint, ctx.lane, threads);
        if (rarely(index >= SKIPPED)) {
            // It works on nothing, for the watchdog.
            if (ctx.lane == 0 && (fresh || index != NOBODY)) poke(&block.plan.desks[blockIdx.x].at, 0);
            if (index == HOST) break;
            if (index == NOBODY) backoff.rest(1000, 512);
            continue;
        }
        backoff.reset();
        Box& box = block.plan.boxes[index];
        const u64 seen = peek(&box.control);
        const u64* place = (const u64*)hint;
        const u64 hinted = hint != 0 && ctx.lane < 32 ? peek(place + ctx.lane) : 0;
        const Fixed fixed = fixed_of(box);
        take_owner(index, ctx.lane, threads);
        // Whoever put it into the queue changed this word after the block that had the actor before left its state behind.
        const u64 claimed = load(&box.word);
        if (ctx.lane == 0) poke(&block.plan.desks[blockIdx.x].at, tagged((u32)number, index + 1));
        const u64 control = __shfl_sync(~0u, seen, 0);
        ctx.self = index;
        ctx.width = fixed.width;
        sync_workers(threads);
        ctx.state = own.state;
        ctx.names = block.plan.names + own.names;
        // The handler will want these, and they are not in the cache of this SM.
        if (ctx.lane == 0) prefetch((const char*)ctx.names);
        if (ctx.lane * 128 < own.state_bytes) prefetch(own.state + ctx.lane * 128);
        u32 count = 0;
        bool runs = false;
        if (ctx.lane < 32) {
            if (ctx.lane == 0) block.ready[TO_HOST].left = block.ready[TO_ACTOR].left = 0;
            if (rarely(control >> 1 != own.answered)) {
                // What was ordered is seen behind the number of the order.
                __threadfence();
                obey(index, ctx.state, control, ctx.lane);
            }
            if (rarely(fixed.full == DROP_OLDEST) && wants_room(box)) trim(e, index, ctx.lane);
            runs = is_running(own.mode) || own.mode >= ENDED;
            if (runs && (own.waiting == 0 || flush(e, ctx.lane))) {
                const u64 head = own.head;
                const u64* slot = fixed.slots.at(head);
                const bool many = agree((claimed >> 1) - head > 1);
                if (many) count = read_many(fixed.slots, head, false, ctx.lane);
                else count = take_words(place == slot ? hinted : peek(slot + ctx.lane), slot, fixed.slots.words, head, block.stage, ctx.lane);
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
        u64 word = 0;
        if (ctx.lane < 32) {
            if (own.mode == DRAINING) end_when_drained(index, ctx.state, ctx.lane);
            word = __shfl_sync(~0u, peek(&box.word), 0);
            // Whoever has more to do is shown when it has done it.
            if ((word >> 1) == own.head || events() - own.shown > 1000 || (own.waiting != 0 && events() != own.shown)) show(index, ctx.lane);
            else if (ctx.lane == 0 && done > 0) poke(own.seen + FROM_HOST, own.figures[FROM_HOST]);
        }
        sync_workers(threads);
        leave_owner(index, ctx.lane, threads);
        sync_workers(threads);
        if (ctx.lane == 0) {
            // After the barrier, so that it is for what all threads wrote.
            __threadfence();
            bool again = own.waiting != 0;
            if (!again && runs) {
                // Idle only if nothing was claimed meanwhile, be it written yet or not.
                const u64 idle = (own.head << 1) | 1;
                again = claim_if(&box.word, idle, idle & ~1ull) != idle;
            } else if (!again) {
                for (u64 old; (old = swap_if(&box.word, word, word & ~1ull)) != word;) word = old;
            }
            if (again) enqueue(e, index);
            else if (load(&box.control) >> 1 != own.answered || peek(&box.trim) != 0 || peek(&box.trim_host) > own.figures[FROM_HOST]) schedule(e, index);
        }
    }
}

template <class P> __device__ __forceinline__ void run(Engine* engine, u64 launch) {
    copy_words(&block.plan, &engine->plan, sizeof(Plan), threadIdx.x, blockDim.x);
    // All of it, for it is read as a whole.
    for (u32 i = threadIdx.x; i < sizeof(block.ready) / 4; i += blockDim.x) ((u32*)block.ready)[i] = 0;
    __syncthreads();
    Owner& own = block.owner;
    Context ctx;
    ctx.lane = threadIdx.x;
    ctx.width = blockDim.x;
    ctx.self = ctx.at = 0;
    ctx.engine = engine;
    ctx.state = 0;
    ctx.names = 0;
    if (blockIdx.x == 0) {
        if (ctx.lane < 32) warden(engine, ctx.lane);
    } else if (blockIdx.x <= block.plan.dedicated) {
        ctx.self = block.plan.places[blockIdx.x - 1];
        ctx.width = fixed_of(block.plan.boxes[ctx.self]).width;
        copy_words(&own, &block.plan.owners[ctx.self], sizeof(Owner), ctx.lane, blockDim.x);
        __syncthreads();
        ctx.state = own.state_bytes <= STATE_BYTES ? block.state : own.state;
        ctx.names = block.plan.names + own.names;
        if (ctx.lane < 32) load_state(ctx.state, ctx.lane);
        u64* desk = &block.plan.desks[blockIdx.x].at;
        if (ctx.lane == 0) {
            poke(desk, own.answered << 1 | HERE);
            block.heard = own.in.at;
            block.closing = 0;
        }
        __syncthreads();
        if (ctx.lane < ctx.width) {
            serve_one<P>(ctx);
            if (ctx.lane == 0) *(volatile u32*)&block.closing = 1;
        } else if (ctx.lane >= blockDim.x - 32 && own.in.slots.base != 0) {
            listen(ctx.lane % 32);
        }
        __syncthreads();
        if (ctx.lane == 0) poke(desk, 0);
        if (ctx.lane < 32) {
            // Of an actor at rest the arrays are what counts: they may have been written.
            if (is_running(own.mode)) save_state(ctx.state, ctx.lane);
            show(ctx.self, ctx.lane);
        }
        __syncthreads();
        copy_words(&block.plan.owners[ctx.self], &own, sizeof(Owner), ctx.lane, blockDim.x);
    } else if (ctx.lane < blockDim.x - 32) {
        serve_all<P>(ctx);
    }
    __syncthreads();
    u32 why = 0;
    if (threadIdx.x == 0) {
        why = peek(&engine->leaving);
        // After the barrier, so that it is for what all threads did.
        __threadfence();
        block.found[1] = atomicAdd(&engine->left, 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (block.found[1] == 0) return;
    refill(engine);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) store_host(engine->exited, (launch << 8) | why);
}

}  // namespace ring
