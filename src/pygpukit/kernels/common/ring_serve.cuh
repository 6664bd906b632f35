// Ring kernels: the loops of the persistent kernel, over handlers that are compiled with it.
//
// A program gives `dispatch(type, context, out)`, `dispatch_batch(type, context, run)`, `takes_batches(type)`, `reply_type(type)`
// and `reply_bytes(type)`.
#pragma once
#include <pygpukit/ring.cuh>

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

// A state up to this size is in shared memory while its actor has a block of its own.
const u32 STATE_BYTES = 2048;

// Lanes that look at a word which others change may see different values, and must agree. One warp.
__device__ __forceinline__ bool agree(bool seen) { return __any_sync(~0u, seen); }

__device__ __forceinline__ bool is_running(u32 mode) { return mode == ACTIVE || mode == DRAINING; }

// Grows with everything the host counts.
__device__ __forceinline__ u64 events(const Owner& own) {
    const u64* f = own.figures;
    return f[PROCESSED] + f[SENT] + f[DISPLACED] + f[EXPIRED_COUNT] + f[DISCARDED] + f[FAILURES];
}

// What is true of the actor now, for the host: two lines. One warp.
__device__ __noinline__ void show(const Box& box, Owner& own, u32 lane) {
    if (lane == 0) {
        const u64 depth = (peek(&box.word) >> 1) - own.head;
        own.figures[DEPTH] = depth;
        if (depth > own.figures[DEEPEST]) own.figures[DEEPEST] = depth;
        own.figures[WAITING] = own.waiting;
        own.shown = events(own);
    }
    __syncwarp();
    if (lane < FIGURES) poke(own.seen + lane, own.figures[lane]);
    if (lane < BUCKETS / 2) poke(own.seen + 16 + lane, ((const u64*)own.buckets)[lane]);
    __syncwarp();
}

// The host is told that an order was carried out. One warp.
__device__ __noinline__ void acknowledge(const Box& box, Owner& own, u32 mode, u32 lane) {
    __syncwarp();
    if (lane == 0) {
        own.mode = mode;
        own.figures[MODE] = mode;
    }
    show(box, own, lane);
    __threadfence_system();
    __syncwarp();
    if (lane == 0) {
        own.figures[GENERATION] = own.answered;
        store_host(own.seen + GENERATION, own.answered);
    }
    __syncwarp();
}

// The state goes where others see it, or comes from there. One warp.
__device__ __forceinline__ void save_state(const Context& ctx, u32 lane) {
    if (ctx.state == ctx.owner->state) return;
    copy_words(ctx.owner->state, ctx.state, ctx.owner->state_bytes, lane, 32);
    __threadfence_system();
    __syncwarp();
}
__device__ __forceinline__ void load_state(const Context& ctx, u32 lane) {
    if (ctx.state == ctx.owner->state) return;
    for (u64 i = lane; i < ctx.owner->state_bytes / 8; i += 32) ((u64*)ctx.state)[i] = peek((const u64*)ctx.owner->state + i);
    __syncwarp();
}

// Do what the host wants of the actor. One warp.
__device__ __noinline__ void obey(Context& ctx, u64 control, u32 lane) {
    Owner& own = *ctx.owner;
    Box& box = ctx.plan->boxes[ctx.self];
    if (control >> 1 == own.answered) return;
    const u32 wanted = *(volatile u32*)&box.wanted;
    __syncwarp();
    if (lane == 0) own.answered = control >> 1;
    __syncwarp();
    if (own.mode == FAILED || own.mode == ENDED) return acknowledge(box, own, own.mode, lane);
    if (wanted == DRAINING) {
        if (lane == 0) own.mode = DRAINING;
        __syncwarp();
        return;
    }
    if (wanted == ACTIVE) load_state(ctx, lane);
    else save_state(ctx, lane);
    acknowledge(box, own, wanted, lane);
}

// A handler has said that it failed. One warp.
__device__ __noinline__ void begin_anew(Context& ctx, u32 lane) {
    Owner& own = *ctx.owner;
    copy_words(ctx.state, own.initial, own.state_bytes, lane, 32);
    __syncwarp();
    bool again = false;
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
    if (!__shfl_sync(~0u, (u32)again, 0)) acknowledge(ctx.plan->boxes[ctx.self], own, FAILED, lane);
}

// How long a message took, if it says when it was sent. One thread.
__device__ __forceinline__ void note_latency(Owner& own, u32 stamp) {
    if (stamp == 0) return;
    const u32 bucket = 32 - __clz((u32)now() - stamp);
    own.buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

// The message is not handled: it goes to the dead letters. One warp.
__device__ __noinline__ void discard(Context& ctx, Header* header, u8 reason, u32 figure, u32 lane) {
    bury(ctx.engine, ctx.plan, ctx.owner, header, header + 1, reason, lane);
    if (lane == 0) {
        ctx.owner->figures[figure]++;
        ctx.owner->figures[FROM_HOST] += header->source == HOST;
    }
    __syncwarp();
}

// Handle staged messages until one has to wait. Returns how many are done with. The whole group.
template <class P> __device__ __forceinline__ u32 handle(Context& ctx, const Stage& stage, u32 count, char* out) {
    Owner& own = *ctx.owner;
    u32 done = 0;
    const u64 began = clock64();
    while (done < count) {
        ctx.message = (const Header*)(stage.messages + done * stage.stride);
        const u64 deadline = ctx.message->deadline;
        if (own.mode >= ENDED || (deadline != 0 && now() > deadline)) {
            const bool gone = own.mode >= ENDED;
            if (ctx.lane < 32) discard(ctx, (Header*)ctx.message, gone ? GONE : EXPIRED, gone ? DISCARDED : EXPIRED_COUNT, ctx.lane);
        } else {
            P::dispatch(own.type, ctx, out);
            ctx.sync();
            const bool failed = own.failing != 0;
            if (ctx.lane == 0 && !failed) {
                own.figures[PROCESSED]++;
                own.figures[FROM_HOST] += ctx.message->source == HOST;
                note_latency(own, ctx.message->stamp);
            }
            if (failed) {
                ctx.sync();
                if (ctx.lane < 32) {
                    discard(ctx, (Header*)ctx.message, FAILURE, FAILURES, ctx.lane);
                    begin_anew(ctx, ctx.lane);
                }
            }
        }
        done++;
        ctx.sync();
        if (own.waiting != 0) break;
    }
    if (ctx.lane == 0) own.figures[BUSY] += clock64() - began;
    return done;
}

// The messages handled leave their ring. Their words are in shared memory: they were read. One thread.
__device__ __forceinline__ void release(Context& ctx, bool device, u32 count) {
    Owner& own = *ctx.owner;
    if (device) {
        own.head += count;
        poke(&ctx.plan->boxes[ctx.self].head, own.head);
    } else {
        own.in.at += count;
        poke(own.in.head, own.in.at);
    }
}

// Messages that have to go from a ring of tagged words, whose reader is at `at`, for `wanted` new ones. One thread.
__device__ __forceinline__ u64 excess(const Slots& slots, u64 at, u64 wanted) {
    const u64 size = (u64)slots.mask + 1;
    if (wanted > size) wanted = size;
    u64 free = 0;
    for (u64 last = at + slots.mask; free < wanted && (u32)(peek(slots.at(last - free)) >> 32) != tag_of(last - free);) free++;
    return wanted - free;
}

// Senders wait for room, and the oldest messages have to go. One warp.
__device__ __noinline__ void trim(Context& ctx, Stage& stage, u32 lane) {
    Owner& own = *ctx.owner;
    Box& box = ctx.plan->boxes[ctx.self];
    u64 few = 0, few_of_host = 0;
    if (lane == 0) {
        few = atomicExch(&box.trim, 0ull);
        few_of_host = atomicExch(&box.trim_host, 0ull);
    }
    few = __shfl_sync(~0u, few, 0);
    few_of_host = __shfl_sync(~0u, few_of_host, 0);
    Header* header = (Header*)stage.messages;
    u64 gone = lane == 0 && few_of_host > 0 && own.in.slots.base ? excess(own.in.slots, own.in.at, few_of_host) : 0;
    for (gone = __shfl_sync(~0u, gone, 0); gone > 0; gone--) {
        if (read_words<1>(own.in.slots, own.in.at, stage, lane) == 0) break;
        discard(ctx, header, OLDEST, DISPLACED, lane);
        if (lane == 0) release(ctx, false, 1);
        __syncwarp();
    }
    Bulk& bulk = own.bulk_in;
    gone = 0;
    if (lane == 0 && few_of_host > 0 && bulk.base) {
        const u64 size = bulk.mask + 1, wanted = few_of_host < size ? few_of_host : size, there = load_host(bulk.tail) - bulk.at;
        gone = there + wanted > size ? there + wanted - size : 0;
    }
    for (gone = __shfl_sync(~0u, gone, 0); gone > 0; gone--) {
        copy_words(header, bulk.base + (bulk.at & bulk.mask) * bulk.stride, bulk.stride, lane, 32);
        __syncwarp();
        discard(ctx, header, OLDEST, DISPLACED, lane);
        if (lane == 0) poke(bulk.head, ++bulk.at);
        __syncwarp();
    }
    const u32 limit = fixed_of(box).limit;
    const bool has_rings = own.in.slots.base || bulk.base;
    while (agree((few > 0 && (peek(&box.word) >> 1) - own.head >= limit) || (few_of_host > 0 && !has_rings))) {
        if (read_words<1>(ctx.mailbox, own.head, stage, lane) == 0) break;
        const bool of_host = header->source == HOST;
        discard(ctx, header, OLDEST, DISPLACED, lane);
        if (lane == 0) release(ctx, true, 1);
        __syncwarp();
        if (few > 0) few--;
        if (of_host && few_of_host > 0) few_of_host--;
    }
    show(box, own, lane);
}

// Has a draining actor nothing left? One warp.
__device__ __noinline__ void end_when_drained(const Context& ctx, u32 lane) {
    Owner& own = *ctx.owner;
    const Box& box = ctx.plan->boxes[ctx.self];
    if (agree(own.mode != DRAINING || own.waiting != 0 || own.figures[FROM_HOST] < *(volatile u64*)&box.drain_at || (peek(&box.word) >> 1) != own.head)) return;
    save_state(ctx, lane);
    acknowledge(box, own, ENDED, lane);
}

// How a dedicated block watches its two sources: the one that was busy last is looked at more often, and many at a time.
struct Eye {
    u64 control;
    u32 mode, skipped;
    bool port, idle, trims, device, many;
};
const u32 NEWS = 1u << 16, FROM_DEVICE = 1u << 17;

// Take the messages that are there into the stage: how many, and where from; or NEWS when the host wants something. One warp.
__device__ __forceinline__ u32 look(Context& ctx, Eye& eye, const Stage& stage) {
    Owner& own = *ctx.owner;
    const Box& box = ctx.plan->boxes[ctx.self];
    const u32 lane = ctx.lane;
    if (eye.many) {
        const u32 n = eye.device ? read_words<LOOK>(ctx.mailbox, own.head, stage, lane) : read_words<LOOK>(own.in.slots, own.in.at, stage, lane);
        eye.many = n > 1;
        if (!agree(n == 0 || peek(&box.control) != eye.control)) return n | (eye.device ? FROM_DEVICE : 0);
    }
    // What the host wrote takes long to come: meanwhile the mailbox is looked at. And it is a read across the bus, which one
    // that is idle does not do all the time.
    eye.skipped = eye.idle ? eye.skipped + 1 : ctx.plan->port_every;
    const bool asks = eye.port && eye.skipped >= ctx.plan->port_every;
    if (asks) eye.skipped = 0;
    const u64 from_host = asks ? peek(own.in.slots.at(own.in.at) + lane) : 0;
    const u64* slot = ctx.mailbox.at(own.head);
    const u32 tries = eye.device ? 4 : 1;
    for (u32 i = 0; i < tries; i++) {
        const u64 control = peek(&box.control), word = peek(slot + lane);
        if (agree(control != eye.control)) return NEWS;
        if (take_words(word, slot, ctx.mailbox.words, own.head, stage.messages, lane)) {
            __syncwarp();
            eye.device = eye.many = true;
            return 1 | FROM_DEVICE;
        }
    }
    if (asks && take_words(from_host, own.in.slots.at(own.in.at), own.in.slots.words, own.in.at, stage.messages, lane)) {
        __syncwarp();
        eye.device = false;
        eye.many = true;
        return 1;
    }
    return 0;
}

// Plain messages, as many as there are and fit: a result of each. The whole group; returns how many.
template <class P> __device__ __forceinline__ u32 handle_run(Context& ctx, const Stage& stage) {
    __shared__ __align__(16) char asked[RUN_BYTES];
    __shared__ __align__(16) char replies[RUN_BYTES];
    Owner& own = *ctx.owner;
    Bulk &in = own.bulk_in, &out = own.bulk_out;
    u64* shared = ctx.shared;
    Run run;
    run.in = asked;
    run.out = replies;
    run.in_stride = in.stride;
    run.out_stride = out.stride;
    if (ctx.lane < 32) {
        u64 count = 0, from_device = 0, room = 0;
        if (ctx.lane == 0) {
            if (out.mask + 1 - (out.at - out.seen) < RUN_BYTES / 64) out.seen = load_host(out.head);
            room = out.mask + 1 - (out.at - out.seen);
            const u64 to_end = out.mask + 1 - (out.at & out.mask);
            if (to_end < room) room = to_end;
        }
        room = __shfl_sync(~0u, room, 0);
        if (room >= LOOK) from_device = read_words<LOOK>(ctx.mailbox, own.head, stage, ctx.lane);
        else if (room > 0) from_device = read_words<1>(ctx.mailbox, own.head, stage, ctx.lane);
        if (ctx.lane == 0 && from_device == 0) {
            if (in.at == in.seen) in.seen = load_host(in.tail);
            count = in.seen - in.at;
            const u64 to_end = in.mask + 1 - (in.at & in.mask);
            if (count > to_end) count = to_end;
            const u64 wider = in.stride > out.stride ? in.stride : out.stride;
            if (count > RUN_BYTES / wider) count = RUN_BYTES / wider;
            if (count > room) count = room;
        }
        if (ctx.lane == 0) {
            shared[0] = count + from_device;
            shared[1] = from_device;
        }
    }
    ctx.sync();
    run.size = (u32)shared[0];
    const bool from_device = shared[1] != 0;
    ctx.sync();
    if (run.size == 0) return 0;
    if (from_device) {
        run.in = (char*)stage.messages;
        run.in_stride = 4 * stage.stride;
    } else {
        copy_words(asked, in.base + (in.at & in.mask) * in.stride, run.size * in.stride, ctx.lane, ctx.width);
    }
    ctx.sync();
    const u64 began = clock64();
    if (own.mode < ENDED) P::dispatch_batch(own.type, ctx, run);
    ctx.sync();
    const bool failed = own.failing != 0, gone = own.mode >= ENDED;
    if (failed || gone) {
        if (ctx.lane < 32) {
            for (u32 i = 0; i < run.size; i++) discard(ctx, run.asked(i), gone ? GONE : FAILURE, gone ? DISCARDED : FAILURES, ctx.lane);
            if (failed) begin_anew(ctx, ctx.lane);
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
            note_latency(own, run.asked(0)->stamp);
        }
        if (from_device) {
            release(ctx, true, run.size);
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
template <class P> __device__ __forceinline__ void serve_one(Context& ctx, Stage& stage, char* out) {
    Engine& e = *ctx.engine;
    Owner& own = *ctx.owner;
    Box& box = ctx.plan->boxes[ctx.self];
    Backoff backoff;
    Eye eye;
    eye.control = own.answered << 1;
    eye.mode = own.mode;
    eye.port = own.in.slots.base != 0;
    eye.trims = fixed_of(box).full == DROP_OLDEST;
    eye.device = eye.many = eye.idle = false;
    eye.skipped = 0;
    const bool bulk = P::takes_batches(own.type);
    u64* shared = ctx.shared;
    for (;;) {
        u32 found = 0;
        if (ctx.lane < 32) {
            const bool takes = is_running(eye.mode) || eye.mode >= ENDED;
            const bool ready = takes && (own.waiting == 0 || flush(&e, ctx.plan, &own, (Header*)(shared + 2), ctx.lane));
            eye.idle = backoff.ns >= 128;
            if (ready && !bulk) found = look(ctx, eye, stage);
            else if (agree(peek(&box.control) != eye.control)) found = NEWS;
            else if (ready) found = 1;
            if (eye.trims && agree(peek(&box.trim) + peek(&box.trim_host) != 0)) trim(ctx, stage, ctx.lane), found = 0;
            if (found & NEWS) {
                eye.control = __shfl_sync(~0u, load(&box.control), 0);
                obey(ctx, eye.control, ctx.lane);
                found = eye.control & 1 ? NEWS : 0;
                backoff.reset();
                eye.control &= ~1ull;
            }
        }
        if (ctx.width > 32) {
            if (ctx.lane == 0) shared[8] = found;
            ctx.sync();
            found = (u32)shared[8];
            ctx.sync();
        }
        if (found & NEWS) break;
        u32 done = 0;
        if (bulk && found != 0) {
            done = handle_run<P>(ctx, stage);
        } else if (found != 0) {
            done = handle<P>(ctx, stage, found & 0xffff, out);
            if (ctx.lane == 0) release(ctx, found & FROM_DEVICE, done);
        }
        if (ctx.lane < 32) {
            __syncwarp();
            eye.mode = own.mode;
            if (done > 0) {
                backoff.reset();
                if (events(own) - own.shown > 1000) show(box, own, ctx.lane);
            } else {
                if (eye.mode == DRAINING) {
                    end_when_drained(ctx, ctx.lane);
                    eye.mode = own.mode;
                }
                if (backoff.ns >= 32 && events(own) != own.shown) {
                    save_state(ctx, ctx.lane);
                    show(box, own, ctx.lane);
                }
                backoff.rest(bulk ? ctx.plan->idle_common_ns : ctx.plan->idle_ns);
            }
        }
    }
}

// A block that serves whoever has something to do.
template <class P> __device__ __forceinline__ void serve_all(Context& ctx, Stage& stage, char* out) {
    Engine& e = *ctx.engine;
    Owner& own = *ctx.owner;
    Backoff backoff;
    u64* shared = ctx.shared;
    u64 number = 0;
    bool has_number = false;
    for (;;) {
        if (ctx.lane == 0) {
            if (!has_number) number = atomicAdd(&e.queue_head, 1ull);
            has_number = true;
            // Who waits for room is in the queue all the time, so that is no reason to stay; all are in it when we come back.
            u32 found = is_leaving(e) ? HOST : dequeue(*ctx.plan, number);
            if (found != NOBODY) has_number = false;
            shared[8] = found;
        }
        __syncthreads();
        const u32 index = (u32)shared[8];
        __syncthreads();
        if (index == HOST) break;
        if (index == NOBODY) {
            backoff.rest(500);
            continue;
        }
        backoff.reset();
        Box& box = ctx.plan->boxes[index];
        const Fixed fixed = fixed_of(box);
        const u64 control = __shfl_sync(~0u, load(&box.control), 0);
        copy_words(&own, &ctx.plan->owners[index], sizeof(Owner), ctx.lane, blockDim.x);
        ctx.self = index;
        ctx.width = fixed.width;
        ctx.mailbox = fixed.slots;
        __syncthreads();
        ctx.state = own.state;
        u32 count = 0;
        bool runs = false;
        if (ctx.lane < 32) {
            obey(ctx, control, ctx.lane);
            if (fixed.full == DROP_OLDEST && agree(peek(&box.trim) + peek(&box.trim_host) != 0)) trim(ctx, stage, ctx.lane);
            runs = is_running(own.mode) || own.mode >= ENDED;
            if (runs && (own.waiting == 0 || flush(&e, ctx.plan, &own, (Header*)(shared + 2), ctx.lane))) count = read_words<LOOK>(ctx.mailbox, own.head, stage, ctx.lane);
            if (ctx.lane == 0) shared[8] = count;
        }
        __syncthreads();
        count = (u32)shared[8];
        u32 done = 0;
        if (count > 0 && ctx.lane < ctx.width) {
            done = handle<P>(ctx, stage, count, out);
            if (ctx.lane == 0) release(ctx, true, done);
        }
        __syncthreads();
        u64 word = 0;
        if (ctx.lane < 32) {
            end_when_drained(ctx, ctx.lane);
            word = __shfl_sync(~0u, peek(&box.word), 0);
            // Whoever has more to do is shown when it has done it.
            if ((word >> 1) == own.head || events(own) - own.shown > 1000 || (own.waiting != 0 && events(own) != own.shown)) show(box, own, ctx.lane);
            else if (ctx.lane == 0 && done > 0) poke(own.seen + FROM_HOST, own.figures[FROM_HOST]);
        }
        __syncthreads();
        copy_words(&ctx.plan->owners[index], &own, sizeof(Owner), ctx.lane, blockDim.x);
        __threadfence();
        __syncthreads();
        if (ctx.lane == 0) {
            bool again = own.waiting != 0;
            if (!again && runs) {
                // Idle only if nothing was claimed meanwhile, be it written yet or not.
                const u64 idle = (own.head << 1) | 1;
                again = claim_if(&box.word, idle, idle & ~1ull) != idle;
            } else if (!again) {
                for (u64 old; (old = swap_if(&box.word, word, word & ~1ull)) != word;) word = old;
            }
            if (again) enqueue(e, *ctx.plan, index);
            else if (load(&box.control) >> 1 != own.answered || peek(&box.trim) + peek(&box.trim_host) != 0) schedule(e, *ctx.plan, index);
        }
    }
}

// One of the host's orders. One thread.
__device__ inline u32 carry_out(Engine& e, const Plan& plan, const u64* order) {
    const u64 verb = order[0];
    if (verb == LEAVE) return PARKED;
    if (verb == CLOCK) {
        poke(e.clock, now());
        __threadfence_system();
        return 0;
    }
    if (verb == TRAP) asm volatile("trap;");
    Box& box = plan.boxes[order[1]];
    if (verb == TRIM) {
        atomicAdd(&box.trim_host, order[2]);
    } else {
        box.wanted = (u32)order[2];
        box.drain_at = order[4];
        store(&box.control, order[3] << 1);
    }
    schedule(e, plan, (u32)order[1]);
    return 0;
}

// The host's orders, its messages for actors that share blocks, the heartbeat and the lease. One warp.
__device__ __noinline__ void warden(Context& ctx, const Stage& stage) {
    Engine& e = *ctx.engine;
    Backoff backoff;
    u64* shared = ctx.shared;
    Route& route = ctx.owner->route;
    const u64 started = now();
    u64 beaten = 0, host_beat = 0, heard = started, at = e.common_in.at;
    if (ctx.lane == 0) route.to = NOBODY;
    for (;;) {
        u32 why = 0;
        bool news = false;
        if (ctx.lane == 0) {
            const u64 orders = load_host(e.orders_tail);
            news = orders != e.orders_taken;
            while (e.orders_taken != orders && why == 0) {
                why = carry_out(e, *ctx.plan, e.orders + 8 * (e.orders_taken & e.orders_mask));
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
            for (u32 i = ctx.lane; i < ctx.plan->dedicated; i += 32) {
                u64* control = &ctx.plan->boxes[ctx.plan->places[i]].control;
                store(control, peek(control) | 1);
            }
            if (ctx.lane == 0) {
                e.common_in.at = at;
                atomicExch(&e.leaving, why);
            }
            break;
        }
        const u32 count = read_words<LOOK>(e.common_in.slots, at, stage, ctx.lane);
        for (u32 i = 0; i < count; i++) {
            const Header* header = (const Header*)(stage.messages + i * stage.stride);
            const u32 to = header->destination;
            bool idle = false;
            if (ctx.lane == 0) {
                if (route.to != to) find_route(*ctx.plan, route, to);
                // The host counts the room it has, so there is some.
                while (!claim(*ctx.plan, route, route.slots.mask + 1, shared[8], idle)) schedule(e, *ctx.plan, to);
            }
            __syncwarp();
            const u64 position = shared[8];
            write_words(route.slots.at(position), tag_of(position), header, header + 1, ctx.lane);
            if (idle) enqueue(e, *ctx.plan, to);
            __syncwarp();
        }
        at += count;
        if (count > 0 && ctx.lane == 0) poke(e.common_in.head, at);
        news = __shfl_sync(~0u, (u32)news, 0) != 0 || count > 0;
        if (news) backoff.reset();
        else backoff.rest(ctx.plan->idle_common_ns);
    }
}

// All actors that share blocks are in the queue when the kernel comes back. The last block that leaves.
__device__ __noinline__ void refill(Engine& e, const Plan& plan) {
    __shared__ u32 shared;
    if (threadIdx.x == 0) shared = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < plan.actors; i += blockDim.x) {
        Box& box = plan.boxes[i];
        box.control &= ~1ull;
        plan.owners[i].route.to = NOBODY;
        if (fixed_of(box).dedicated) continue;
        box.word |= 1;
        const u32 place = atomicAdd(&shared, 1u);
        plan.queue[place] = tagged(place + 1, i);
    }
    __syncthreads();
    for (u64 i = shared + threadIdx.x; i <= plan.queue_mask; i += blockDim.x) plan.queue[i] = tagged((u32)i, NOBODY);
    if (threadIdx.x == 0) {
        e.queue_tail = shared;
        e.queue_head = 0;
        e.left = 0;
        e.leaving = 0;
    }
}

template <class P> __device__ __forceinline__ void run(Engine* engine, u64 launch, u32* messages, u32 stride, char* out) {
    __shared__ __align__(16) u64 shared[16];
    __shared__ __align__(16) char state[STATE_BYTES];
    __shared__ Owner owner;
    __shared__ Plan plan;
    __shared__ u32 last;
    Engine& e = *engine;
    Stage stage;
    stage.messages = messages;
    stage.stride = stride;
    copy_words(&plan, &e.plan, sizeof(Plan), threadIdx.x, blockDim.x);
    __syncthreads();
    Context ctx;
    ctx.lane = threadIdx.x;
    ctx.width = blockDim.x;
    ctx.engine = engine;
    ctx.owner = &owner;
    ctx.plan = &plan;
    ctx.shared = shared;
    ctx.message = 0;
    ctx.state = 0;
    ctx.self = 0;
    if (blockIdx.x == 0) {
        if (ctx.lane < 32) warden(ctx, stage);
    } else if (blockIdx.x <= plan.dedicated) {
        ctx.self = plan.places[blockIdx.x - 1];
        const Fixed fixed = fixed_of(plan.boxes[ctx.self]);
        ctx.mailbox = fixed.slots;
        ctx.width = fixed.width;
        copy_words(&owner, &plan.owners[ctx.self], sizeof(Owner), ctx.lane, blockDim.x);
        __syncthreads();
        ctx.state = owner.state_bytes <= STATE_BYTES ? state : owner.state;
        if (ctx.lane < 32) load_state(ctx, ctx.lane);
        __syncthreads();
        if (ctx.lane < ctx.width) serve_one<P>(ctx, stage, out);
        __syncthreads();
        if (ctx.lane < 32) {
            save_state(ctx, ctx.lane);
            show(plan.boxes[ctx.self], owner, ctx.lane);
        }
        __syncthreads();
        copy_words(&plan.owners[ctx.self], &owner, sizeof(Owner), ctx.lane, blockDim.x);
    } else {
        serve_all<P>(ctx, stage, out);
    }
    __threadfence();
    __syncthreads();
    u32 why = 0;
    if (threadIdx.x == 0) {
        why = peek(&e.leaving);
        last = atomicAdd(&e.left, 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    if (!last) return;
    refill(e, plan);
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) store_host(e.exited, (launch << 8) | why);
}

}  // namespace ring
