// Ring kernels: the loops of the persistent kernel, over handlers that are compiled with it.
//
// A program gives `dispatch(type, context)`, `dispatch_batch(type, context, run)`, `takes_batches(type)`, `reply_type(type)` and
// `reply_bytes(type)`.
#pragma once
#include <pygpukit/ring_actor.cuh>
#include <pygpukit/ring_warden.cuh>

namespace ring {

// Plain messages in a row, and places for the results of them; in shared memory.
const u32 RUN_BYTES = 16384;
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
__device__ __noinline__ bool is_late(const Context& ctx) {
    if (ctx.lane == 0) block.found[1] = now() > ctx.header().deadline;
    ctx.sync();
    const bool late = block.found[1] != 0;
    ctx.sync();
    return late;
}

// Handle the messages in the stage until one has to wait. Returns how many are done with. The whole group.
template <class P> __device__ __forceinline__ u32 handle(Context& ctx, u32 type, u32 count) {
    Owner& own = block.owner;
    const u64 began = clock64();
    u32 done = 0;
    bool waits;
    do {
        ctx.at = done * RING_STRIDE;
        if (ctx.header().deadline != 0 && is_late(ctx)) {
            if (ctx.lane < 32) discard(ctx.engine, &ctx.header(), EXPIRED, EXPIRED_COUNT, ctx.lane);
        } else {
            P::dispatch(type, ctx);
            ctx.sync();
            if (own.failing == 0) {
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

// How a dedicated block watches its two sources: the one that was busy last is looked at more often, and many at a time.
struct Eye {
    u64 control;
    u32 mode, skipped;
    bool port, idle, trims, device, many, busy;
};
const u32 NEWS = 1u << 16, FROM_DEVICE = 1u << 17;

// Take the messages that are there into the stage: how many, and where from; or NEWS when the host wants something. One warp.
__device__ __forceinline__ u32 look(const Box& box, const Slots mailbox, Eye& eye, u32 lane) {
    Owner& own = block.owner;
    if (eye.many) {
        const u32 n = eye.device ? read_words<LOOK>(mailbox, own.head, lane) : read_words<LOOK>(own.in.slots, own.in.at, lane);
        eye.many = n > 1;
        if (!agree(n == 0 || peek(&box.control) != eye.control)) return n | (eye.device ? FROM_DEVICE : 0);
    }
    const u64* there = own.in.slots.at(own.in.at);
    const u64 head = own.head;
    const u64* slot = mailbox.at(head);
    // What the host wrote takes long to come: meanwhile the mailbox is looked at. And it is a read across the bus, which one
    // that is idle does not do all the time.
    eye.skipped = eye.idle ? eye.skipped + 1 : block.plan.port_every;
    const bool asks = eye.port && eye.skipped >= block.plan.port_every;
    if (asks) eye.skipped = 0;
    const u64 from_host = asks ? peek(there + lane) : 0;
    const u32 tries = eye.device ? 4 : 1;
    for (u32 i = 0; i < tries; i++) {
        const u64 control = peek(&box.control), word = peek(slot + lane);
        if (agree(control != eye.control)) return NEWS;
        if (take_words(word, slot, mailbox.words, head, block.stage, lane)) {
            __syncwarp();
            // Where one follows another there may be more.
            eye.many = eye.busy && eye.device;
            eye.device = true;
            return 1 | FROM_DEVICE;
        }
    }
    if (asks && take_words(from_host, there, own.in.slots.words, own.in.at, block.stage, lane)) {
        __syncwarp();
        eye.many = eye.busy && !eye.device;
        eye.device = false;
        return 1;
    }
    return 0;
}

// Plain messages, as many as there are and fit: a result of each. The whole group; returns how many.
template <class P> __device__ __forceinline__ u32 handle_run(Context& ctx, const Slots mailbox) {
    __shared__ __align__(16) char asked[RUN_BYTES];
    __shared__ __align__(16) char replies[RUN_BYTES];
    Owner& own = block.owner;
    Bulk &in = own.bulk_in, &out = own.bulk_out;
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
        if (room >= LOOK) from_device = read_words<LOOK>(mailbox, own.head, ctx.lane);
        else if (room > 0) from_device = read_words<1>(mailbox, own.head, ctx.lane);
        if (ctx.lane == 0) {
            if (from_device == 0) {
                if (in.at == in.seen) in.seen = load_host(in.tail);
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
        copy_words(asked, in.base + (in.at & in.mask) * in.stride, run.size * in.stride, ctx.lane, ctx.width);
    }
    ctx.sync();
    const u64 began = clock64();
    if (own.mode < ENDED) P::dispatch_batch(own.type, ctx, run);
    ctx.sync();
    const bool failed = own.failing != 0, gone = own.mode >= ENDED;
    ctx.sync();
    if (failed || gone) {
        if (ctx.lane < 32) {
            for (u32 i = 0; i < run.size; i++) discard(ctx.engine, run.asked(i), gone ? GONE : FAILURE, gone ? DISCARDED : FAILURES, ctx.lane);
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
            note_latency(run.asked(0)->stamp);
        }
        if (from_device) {
            release(ctx.self, true, run.size);
        } else {
            in.at += run.size;
            poke(in.head, in.at);
        }
        own.figures[BUSY] += clock64() - began;
    }
    ctx.sync();
    return run.size;
}

// An actor with a block of its own. The whole group.
template <class P> __device__ __forceinline__ void serve_one(Context& ctx) {
    Owner& own = block.owner;
    Box& box = block.plan.boxes[ctx.self];
    const Fixed fixed = fixed_of(box);
    const u32 type = own.type;
    const bool bulk = P::takes_batches(type);
    bool unsaved = false;
    Backoff backoff;
    Eye eye;
    eye.control = own.answered << 1;
    eye.mode = own.mode;
    eye.skipped = 0;
    eye.port = own.in.slots.base != 0;
    eye.trims = fixed.full == DROP_OLDEST;
    eye.device = eye.many = eye.idle = eye.busy = false;
    // The first warp changes what all have read.
    ctx.sync();
    for (;;) {
        u32 found = 0;
        if (ctx.lane < 32) {
            const bool takes = is_running(eye.mode) || eye.mode >= ENDED;
            const bool ready = takes && (own.waiting == 0 || flush(ctx.engine, ctx.lane));
            eye.idle = backoff.is_idle();
            if (ready && !bulk) found = look(box, fixed.slots, eye, ctx.lane);
            else if (agree(peek(&box.control) != eye.control)) found = NEWS;
            else if (ready) found = 1;
            if (eye.trims && wants_room(box)) {
                trim(ctx.engine, ctx.self, ctx.lane);
                found &= NEWS;
            }
            if (found & NEWS) {
                const u64 control = __shfl_sync(~0u, load(&box.control), 0);
                obey(ctx.self, ctx.state, control, ctx.lane);
                found = control & 1 ? NEWS : 0;
                eye.control = control & ~1ull;
                eye.mode = own.mode;
                backoff.reset();
            }
        }
        if (ctx.width > 32) {
            if (ctx.lane == 0) block.found[0] = found;
            ctx.sync();
            found = (u32)block.found[0];
            ctx.sync();
        }
        if (found & NEWS) break;
        u32 done = 0;
        if (bulk && found != 0) {
            done = handle_run<P>(ctx, fixed.slots);
        } else if (found != 0) {
            done = found & 0xffff;
            // Its mode is the first warp's to know.
            if (own.mode < ENDED) done = handle<P>(ctx, type, done);
            else if (ctx.lane < 32) discard_all(ctx.engine, done, ctx.lane);
            if (ctx.lane == 0) release(ctx.self, found & FROM_DEVICE, done);
        }
        if (ctx.lane < 32) {
            __syncwarp();
            eye.mode = own.mode;
            eye.busy = done > 0;
            if (done > 0) {
                backoff.reset();
                unsaved = true;
                if (events() - own.shown > 1000) show(ctx.self, ctx.lane);
            } else {
                if (eye.mode == DRAINING) {
                    end_when_drained(ctx.self, ctx.state, ctx.lane);
                    eye.mode = own.mode;
                }
                if (backoff.spins >= 32 && unsaved) {
                    unsaved = false;
                    save_state(ctx.state, ctx.lane);
                    show(ctx.self, ctx.lane);
                }
                backoff.rest(bulk ? block.plan.idle_common_ns : block.plan.idle_ns, 128);
            }
        }
    }
}

// A block that serves whoever has something to do.
template <class P> __device__ __forceinline__ void serve_all(Context& ctx) {
    Engine* e = ctx.engine;
    Owner& own = block.owner;
    Backoff backoff;
    u64 number = 0;
    bool has_number = false;
    for (;;) {
        if (ctx.lane == 0) {
            if (!has_number) number = atomicAdd(&e->queue_head, 1ull);
            const u32 found = dequeue(e, number);
            has_number = found == NOBODY;
            block.found[0] = found;
        }
        __syncthreads();
        const u32 index = (u32)block.found[0];
        __syncthreads();
        if (index == HOST) break;
        if (index == NOBODY) {
            backoff.rest(1000, 4096);
            continue;
        }
        backoff.reset();
        Box& box = block.plan.boxes[index];
        const u64 control = __shfl_sync(~0u, peek(&box.control), 0);
        // Whoever put it into the queue changed this word after the block that had the actor before left it behind.
        load(&box.word);
        const Fixed fixed = fixed_of(box);
        copy_words(&own, &block.plan.owners[index], sizeof(Owner), ctx.lane, blockDim.x);
        ctx.self = index;
        ctx.width = fixed.width;
        __syncthreads();
        ctx.state = own.state;
        u32 count = 0;
        bool runs = false;
        if (ctx.lane < 32) {
            if (ctx.lane == 0) block.ready[TO_HOST].left = block.ready[TO_ACTOR].left = 0;
            if (control >> 1 != own.answered) {
                // What was ordered is seen behind the number of the order.
                __threadfence();
                obey(index, ctx.state, control, ctx.lane);
            }
            if (fixed.full == DROP_OLDEST && wants_room(box)) trim(e, index, ctx.lane);
            runs = is_running(own.mode) || own.mode >= ENDED;
            if (runs && (own.waiting == 0 || flush(e, ctx.lane))) count = read_words<LOOK>(fixed.slots, own.head, ctx.lane);
            if (ctx.lane == 0) block.found[0] = count;
        }
        __syncthreads();
        count = (u32)block.found[0];
        u32 done = 0;
        if (count > 0 && ctx.lane < ctx.width) {
            done = count;
            if (own.mode < ENDED) done = handle<P>(ctx, own.type, count);
            else if (ctx.lane < 32) discard_all(e, count, ctx.lane);
            if (ctx.lane == 0) release(index, true, done);
        }
        __syncthreads();
        u64 word = 0;
        if (ctx.lane < 32) {
            if (own.mode == DRAINING) end_when_drained(index, ctx.state, ctx.lane);
            word = __shfl_sync(~0u, peek(&box.word), 0);
            // Whoever has more to do is shown when it has done it.
            if ((word >> 1) == own.head || events() - own.shown > 1000 || (own.waiting != 0 && events() != own.shown)) show(index, ctx.lane);
            else if (ctx.lane == 0 && done > 0) poke(own.seen + FROM_HOST, own.figures[FROM_HOST]);
        }
        __syncthreads();
        copy_words(&block.plan.owners[index], &own, sizeof(Owner), ctx.lane, blockDim.x);
        __syncthreads();
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
    if (blockIdx.x == 0) {
        if (ctx.lane < 32) warden(engine, ctx.lane);
    } else if (blockIdx.x <= block.plan.dedicated) {
        ctx.self = block.plan.places[blockIdx.x - 1];
        ctx.width = fixed_of(block.plan.boxes[ctx.self]).width;
        copy_words(&own, &block.plan.owners[ctx.self], sizeof(Owner), ctx.lane, blockDim.x);
        __syncthreads();
        ctx.state = own.state_bytes <= STATE_BYTES ? block.state : own.state;
        if (ctx.lane < 32) load_state(ctx.state, ctx.lane);
        __syncthreads();
        if (ctx.lane < ctx.width) serve_one<P>(ctx);
        __syncthreads();
        if (ctx.lane < 32) {
            // Of an actor at rest the arrays are what counts: they may have been written.
            if (is_running(own.mode)) save_state(ctx.state, ctx.lane);
            show(ctx.self, ctx.lane);
        }
        __syncthreads();
        copy_words(&block.plan.owners[ctx.self], &own, sizeof(Owner), ctx.lane, blockDim.x);
    } else {
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
