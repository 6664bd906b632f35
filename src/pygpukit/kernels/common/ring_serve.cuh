// Ring kernels: the loops of the persistent kernel, over handlers that are compiled with it.
//
// A program gives `dispatch(type, context, out)`, `dispatch_batch(type, context, run)`, `takes_batches(type)`, `reply_type(type)`
// and `reply_bytes(type)`.
#pragma once
#include <pygpukit/ring.cuh>

namespace ring {

// Plain messages in a row, and places for the replies to them; in shared memory.
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

// What is true of the actor now, for the host. One thread.
__device__ __noinline__ void show(const Box& box, Owner& own) {
    Seen* s = own.seen;
    const u64 depth = (peek(&box.word) >> 1) - own.head;
    if (depth > own.deepest) own.deepest = depth;
    poke(&s->processed, own.processed);
    poke(&s->sent, own.sent);
    poke(&s->dropped, own.dropped);
    poke(&s->dead, own.dead);
    poke(&s->failed, own.failed);
    poke(&s->restarts, own.restarts);
    poke(&s->busy, own.busy);
    poke(&s->depth, depth);
    poke(&s->deepest, own.deepest);
    // The host has this much room again.
    poke(&s->from_host, own.from_host);
    own.shown = own.processed;
}

__device__ __noinline__ void acknowledge(Owner& own, u32 mode) {
    own.mode = mode;
    poke(&own.seen->mode, mode);
    store_host(&own.seen->generation, own.answered);
}

// Do what the host wants of the actor. One thread.
__device__ __noinline__ void obey(Box& box, Owner& own) {
    const u64 generation = load(&box.generation);
    if (generation == own.answered || own.mode == FAILED) return;
    own.answered = generation;
    const u32 wanted = box.wanted;
    if (wanted == DRAINING) own.mode = DRAINING;
    else acknowledge(own, wanted);
}

// A handler has said that it failed. The whole group.
__device__ inline void begin_anew(Context& ctx) {
    Owner& own = *ctx.owner;
    if (ctx.lane < 32) bury(ctx.engine, ctx.plan, &own, (Header*)ctx.message, ctx.message + 1, FAILURE, ctx.lane);
    copy_words(own.state, own.initial, own.state_bytes, ctx.lane, ctx.width);
    ctx.sync();
    if (ctx.lane == 0) {
        own.failing = 0;
        own.failed++;
        if (own.restarts_left > 0) {
            own.restarts_left--;
            own.restarts++;
        } else {
            acknowledge(own, FAILED);
        }
    }
    ctx.sync();
}

// How a dedicated block watches its two sources: the one that was busy last is looked at more often.
struct Eye {
    u32 device = 0, misses = 0, look = 1;
};

// Take the messages that are there into the stage. The first warp; the result is the same in all lanes.
__device__ __forceinline__ u32 collect(Context& ctx, Eye& eye, Stage& stage) {
    Owner& own = *ctx.owner;
    const bool port = own.in.slots.base != 0;
    for (u32 attempt = 0; attempt < 2; attempt++) {
        const bool device = !port || (eye.device != 0) != (attempt == 1);
        const Slots slots = device ? ctx.mailbox : own.in.slots;
        const u32 n = read_words(slots, device ? own.head : own.in.at, eye.look, stage, ctx.lane);
        if (n > 0) {
            eye.device = device;
            eye.misses = 0;
            eye.look = n == eye.look && eye.look < LOOK ? LOOK : n < eye.look ? 1 : eye.look;
            return n;
        }
        eye.look = 1;
        if (!port || ++eye.misses % 4 != 0) break;
    }
    return 0;
}

// Handle staged messages, from `source` (1: other actors), until one has to wait. Returns how many are done with.
template <class P> __device__ u32 handle(Context& ctx, Stage& stage, u32 count, char* out) {
    Owner& own = *ctx.owner;
    u32 done = 0;
    while (done < count) {
        ctx.message = (const Header*)(stage.messages + done * stage.stride);
        const u64 deadline = ctx.message->deadline;
        if (deadline != 0 && now() > deadline) {
            if (ctx.lane < 32) bury(ctx.engine, ctx.plan, &own, (Header*)ctx.message, ctx.message + 1, EXPIRED, ctx.lane);
        } else {
            P::dispatch(own.type, ctx, out);
            ctx.sync();
            if (own.failing) begin_anew(ctx);
            if (ctx.lane == 0) own.processed++;
        }
        done++;
        ctx.sync();
        if (own.waiting != 0 || own.mode == FAILED) break;
    }
    return done;
}

// The messages handled leave their ring. One thread.
__device__ inline void release(Context& ctx, bool device, u32 count, const Stage& stage) {
    Owner& own = *ctx.owner;
    if (device) {
        for (u32 i = 0; i < count; i++) own.from_host += ((const Header*)(stage.messages + i * stage.stride))->source == HOST;
        own.head += count;
        store(&ctx.plan->boxes[ctx.self].head, own.head);
    } else {
        own.in.at += count;
        own.from_host += count;
        // Their words are in shared memory: they were read.
        poke(own.in.head, own.in.at);
    }
}

// Has a draining actor nothing left? One thread.
__device__ __noinline__ void end_when_drained(const Box& box, Owner& own) {
    if (own.mode != DRAINING || own.waiting != 0 || own.from_host < box.drain_at || (peek(&box.word) >> 1) != own.head) return;
    show(box, own);
    acknowledge(own, ENDED);
}

// Plain messages, as many as there are and fit: a reply to each. The whole group; returns how many.
template <class P> __device__ __forceinline__ u32 handle_run(Context& ctx) {
    __shared__ __align__(16) char asked[RUN_BYTES];
    __shared__ __align__(16) char replies[RUN_BYTES];
    Owner& own = *ctx.owner;
    Bulk &in = own.bulk_in, &out = own.bulk_out;
    u64* shared = ctx.shared;
    if (ctx.lane == 0) {
        if (in.at == in.seen) in.seen = load_host(in.tail);
        u64 count = in.seen - in.at, room = in.mask + 1 - (in.at & in.mask);
        if (count > room) count = room;
        const u64 wider = in.stride > out.stride ? in.stride : out.stride;
        if (count > RUN_BYTES / wider) count = RUN_BYTES / wider;
        if (count > out.mask + 1 - (out.at - out.seen)) out.seen = load_host(out.head);
        room = out.mask + 1 - (out.at - out.seen);
        if (count > room) count = room;
        room = out.mask + 1 - (out.at & out.mask);
        shared[0] = count < room ? count : room;
    }
    ctx.sync();
    Run run;
    run.in = asked;
    run.out = replies;
    run.in_stride = in.stride;
    run.out_stride = out.stride;
    run.size = (u32)shared[0];
    ctx.sync();
    if (run.size == 0) return 0;
    copy_words(asked, in.base + (in.at & in.mask) * in.stride, run.size * in.stride, ctx.lane, ctx.width);
    ctx.sync();
    P::dispatch_batch(own.type, ctx, run);
    const u64 first = ((u64)(ctx.self + 1) << 40) | own.next_id;
    for (u32 i = ctx.lane; i < run.size; i += ctx.width) {
        Header h;
        h.type = P::reply_type(own.type);
        h.flags = REPLY;
        h.priority = 0;
        h.reason = 0;
        h.id = first + i;
        h.correlation = run.asked(i)->id;
        h.deadline = 0;
        h.source = ctx.self;
        h.destination = HOST;
        h.bytes = P::reply_bytes(own.type);
        h.spare = 0;
        *run.reply(i) = h;
    }
    ctx.sync();
    copy_words(out.base + (out.at & out.mask) * out.stride, replies, run.size * out.stride, ctx.lane, ctx.width);
    __threadfence_system();
    ctx.sync();
    if (ctx.lane == 0) {
        out.at += run.size;
        poke(out.tail, out.at);
        in.at += run.size;
        poke(in.head, in.at);
        own.next_id += run.size;
        own.processed += run.size;
        own.from_host += run.size;
        own.sent += run.size;
    }
    ctx.sync();
    return run.size;
}

// An actor with a block of its own.
template <class P> __device__ void serve_one(Context& ctx, Stage& stage, char* out) {
    Engine& e = *ctx.engine;
    Owner& own = *ctx.owner;
    Box& box = ctx.plan->boxes[ctx.self];
    Backoff backoff;
    Eye eye;
    u64* shared = ctx.shared;
    for (u32 tick = 0;; tick++) {
        if (ctx.lane < 32) {
            if (ctx.lane == 0) {
                shared[0] = 0;
                if (tick % 8 == 0 || backoff.ns >= 128) {
                    obey(box, own);
                    shared[0] = is_leaving(e);
                }
            }
            __syncwarp();
            const bool runs = own.mode == ACTIVE || own.mode == DRAINING;
            u32 count = 0;
            if (shared[0] == 0 && runs && (own.waiting == 0 || flush(&e, ctx.plan, &own, (Header*)(shared + 2), ctx.lane)) && !P::takes_batches(own.type))
                count = collect(ctx, eye, stage);
            __syncwarp();
            if (ctx.lane == 0) shared[1] = ((u64)runs << 32) | count;
        }
        ctx.sync();
        const bool leaving = shared[0] != 0, runs = shared[1] >> 32 != 0;
        const u32 count = (u32)shared[1];
        ctx.sync();
        if (leaving) break;
        u32 done = 0;
        if (count > 0) {
            const bool device = eye.device;
            done = handle<P>(ctx, stage, count, out);
            if (ctx.lane == 0) release(ctx, device, done, stage);
        } else if (runs && P::takes_batches(own.type)) {
            done = handle_run<P>(ctx);
        }
        if (ctx.lane == 0) {
            const bool news = own.processed != own.shown;
            if (own.mode == DRAINING && done == 0) end_when_drained(box, own);
            if (news && (backoff.ns == 32 || own.processed - own.shown > 1000)) show(box, own);
        }
        if (done > 0) backoff.reset();
        else if (ctx.lane < 32) backoff.rest(ctx.plan->idle_ns);
    }
}

// A block that serves whoever has something to do.
template <class P> __device__ void serve_all(Context& ctx, Stage& stage, char* out) {
    Engine& e = *ctx.engine;
    Owner& own = *ctx.owner;
    Backoff backoff;
    u64* shared = ctx.shared;
    u64 number = 0;
    if (ctx.lane == 0) number = atomicAdd(&e.queue_head, 1ull);
    for (;;) {
        if (ctx.lane == 0) {
            u32 found = dequeue(*ctx.plan, number);
            if (found != NOBODY) number = atomicAdd(&e.queue_head, 1ull);
            else if (is_leaving(e)) found = HOST;
            shared[0] = found;
        }
        ctx.sync();
        const u32 index = (u32)shared[0];
        ctx.sync();
        if (index == HOST) break;
        if (index == NOBODY) {
            backoff.rest(500);
            continue;
        }
        backoff.reset();
        ctx.self = index;
        Box& box = ctx.plan->boxes[index];
        ctx.mailbox = fixed_of(box).slots;
        copy_words(&own, &ctx.plan->owners[index], sizeof(Owner), ctx.lane, ctx.width);
        ctx.sync();
        if (ctx.lane < 32) {
            if (ctx.lane == 0) obey(box, own);
            __syncwarp();
            const bool runs = own.mode == ACTIVE || own.mode == DRAINING;
            u32 count = 0;
            if (runs && (own.waiting == 0 || flush(&e, ctx.plan, &own, (Header*)(shared + 2), ctx.lane))) count = read_words(ctx.mailbox, own.head, LOOK, stage, ctx.lane);
            if (ctx.lane == 0) shared[1] = ((u64)runs << 32) | count;
        }
        ctx.sync();
        const bool runs = shared[1] >> 32 != 0;
        const u32 count = (u32)shared[1];
        ctx.sync();
        u32 done = 0;
        if (count > 0) {
            done = handle<P>(ctx, stage, count, out);
            if (ctx.lane == 0) release(ctx, true, done, stage);
        }
        ctx.sync();
        if (ctx.lane == 0) {
            if (own.processed != own.shown || done > 0) show(box, own);
            end_when_drained(box, own);
        }
        ctx.sync();
        copy_words(&ctx.plan->owners[index], &own, sizeof(Owner), ctx.lane, ctx.width);
        ctx.sync();
        if (ctx.lane == 0) {
            const bool still = own.mode == ACTIVE || own.mode == DRAINING;
            const u64 answered = own.answered;
            bool again = false;
            if (own.waiting != 0) {
                again = true;
            } else if (still && runs) {
                // Idle only if nothing was claimed meanwhile, be it written yet or not.
                again = swap_if(&box.word, (own.head << 1) | 1, own.head << 1) != ((own.head << 1) | 1);
            } else {
                u64 word = peek(&box.word);
                for (u64 old; (old = swap_if(&box.word, word, word & ~1ull)) != word;) word = old;
            }
            if (again) enqueue(e, *ctx.plan, index);
            else if (load(&box.generation) != answered) schedule(e, *ctx.plan, index);
        }
        ctx.sync();
    }
}

__device__ inline u32 carry_out(Engine& e, const Plan& plan, const u64* order) {
    if (order[0] == LEAVE) return PARKED;
    Box& box = plan.boxes[order[1]];
    box.wanted = (u32)order[2];
    box.drain_at = order[4];
    store(&box.generation, order[3]);
    schedule(e, plan, (u32)order[1]);
    return 0;
}

// The host's orders, its messages for actors that share blocks, the heartbeat and the lease. One warp.
__device__ inline void warden(Context& ctx, Stage& stage) {
    Engine& e = *ctx.engine;
    Backoff backoff;
    u64* shared = ctx.shared;
    const u64 started = now();
    u64 beaten = 0, host_beat = 0, heard = started, at = e.common_in.at;
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
            if (ctx.lane == 0) {
                e.common_in.at = at;
                atomicExch(&e.leaving, why);
            }
            break;
        }
        const u32 count = read_words(e.common_in.slots, at, LOOK, stage, ctx.lane);
        for (u32 i = 0; i < count; i++) {
            const Header* header = (const Header*)(stage.messages + i * stage.stride);
            const u32 to = header->destination;
            // The host counts the room it has, so there is some.
            const Fixed fixed = fixed_of(ctx.plan->boxes[to]);
            if (ctx.lane == 0)
                while (!claim(e, *ctx.plan, fixed, to, shared[0])) schedule(e, *ctx.plan, to);
            __syncwarp();
            const u64 position = shared[0];
            write_words(fixed.slots.at(position), tag_of(position), header, header + 1, ctx.lane);
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
__device__ inline void refill(Engine& e, const Plan& plan) {
    const u64 size = plan.queue_mask + 1, shared = plan.actors - plan.dedicated;
    for (u64 i = threadIdx.x; i < size; i += blockDim.x)
        plan.queue[i] = i < shared ? tagged((u32)i + 1, plan.dedicated + (u32)i) : tagged((u32)i, NOBODY);
    for (u64 i = threadIdx.x; i < shared; i += blockDim.x) plan.boxes[plan.dedicated + i].word |= 1;
    if (threadIdx.x == 0) {
        e.queue_tail = shared;
        e.queue_head = 0;
        e.left = 0;
        e.leaving = 0;
    }
}

template <class P> __device__ void run(Engine* engine, u64 launch, u32* messages, u32 stride, char* out) {
    __shared__ Stage stage;
    __shared__ __align__(16) u64 shared[16];
    __shared__ Owner owner;
    __shared__ Plan plan;
    __shared__ u32 last;
    Engine& e = *engine;
    if (threadIdx.x == 0) {
        stage.messages = messages;
        stage.stride = stride;
    }
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
    ctx.self = blockIdx.x - 1;
    if (blockIdx.x == 0) {
        if (ctx.lane < 32) warden(ctx, stage);
    } else if (blockIdx.x <= plan.dedicated) {
        copy_words(&owner, &plan.owners[ctx.self], sizeof(Owner), ctx.lane, ctx.width);
        ctx.mailbox = fixed_of(plan.boxes[ctx.self]).slots;
        __syncthreads();
        serve_one<P>(ctx, stage, out);
        if (ctx.lane == 0) show(plan.boxes[ctx.self], owner);
        __syncthreads();
        copy_words(&plan.owners[ctx.self], &owner, sizeof(Owner), ctx.lane, ctx.width);
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
