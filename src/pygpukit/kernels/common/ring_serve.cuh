// Ring kernels: the loops of the persistent kernel, over handlers that are compiled with it.
//
// A program gives `dispatch(type, context, out)`, `dispatch_batch(type, context, batch)` and `takes_batches(type)`.
#pragma once
#include <pygpukit/ring.cuh>

namespace ring {

// Messages in a row, from the host or from other actors, and a reply to each in the ring to the host.
struct Run {
    char* slots;
    u64 mask, stride, at;
    u32 size;
    Engine* engine;
    u64 out_at;
    __device__ Slot* in_slot(u32 i) const { return (Slot*)(slots + ((at + i) & mask) * stride); }
    __device__ Slot* out_slot(u32 i) const { return ring::out_slot(*engine, out_at + i); }
};
template <class In, class Out> struct Batch {
    Run run;
    u32 size;
    __device__ const In& in(u32 i) const { return *(const In*)run.in_slot(i)->payload(); }
    __device__ Out& out(u32 i) const { return *(Out*)run.out_slot(i)->payload(); }
    __device__ const Header& header(u32 i) const { return run.in_slot(i)->header; }
};

enum Source : u32 { NOTHING = 0, MAILBOX = 1, INLET = 2, GOING = 3 };

__device__ inline bool is_ready(const Actor& a, u64 head) { return load(&slot_at(a, head)->turn) == head + 1; }

// Messages that are there now; the host's ring is looked at when nothing else is left. One thread.
__device__ inline u32 find(Engine& e, Actor& a) {
    if (is_leaving(e)) return GOING;
    if (is_ready(a, a.head)) return MAILBOX;
    if (Inlet* in = a.inlet) {
        if (in->taken == in->seen) in->seen = load_host(in->tail);
        if (in->taken != in->seen) return INLET;
    }
    return NOTHING;
}

// Give a slot back to its senders. One thread.
__device__ inline void give_back(Actor& a, u32 source, const Slot* slot, u32 from, u64 count) {
    if (source == MAILBOX) {
        for (u64 i = 0; i < count; i++) {
            store(&slot_at(a, a.head)->turn, a.head + a.mask + 1);
            a.head++;
        }
        a.from_host += from == HOST ? count : 0;
    } else {
        a.inlet->taken += count;
        a.from_host += count;
        tell_host(a.inlet->head, a.inlet->taken);
    }
}

// The oldest ones go when there are more than the actor wants. One thread.
__device__ inline void trim(Actor& a) {
    while (peek(&a.tail) - a.head > a.limit && is_ready(a, a.head)) {
        a.dropped++;
        give_back(a, MAILBOX, 0, slot_at(a, a.head)->header.source, 1);
    }
}

// A handler has said that it failed: its message is a dead letter, its state begins anew.
__device__ inline void restart(Context& ctx, Slot* slot) {
    Actor& a = *ctx.actor;
    ctx.bury(slot->header, slot->payload(), slot->bytes, FAILURE);
    copy_words(a.state, a.initial, a.state_bytes, ctx.lane, ctx.width);
    ctx.sync();
    if (ctx.lane == 0) {
        a.failing = 0;
        a.failed++;
        if (a.restarts_left > 0) {
            a.restarts_left--;
            a.restarts++;
        } else {
            store(&a.wanted, (u32)FAILED);
            acknowledge(a, FAILED, a.answered);
        }
    }
    ctx.sync();
}

// Do what the host wants of the actor. One thread; returns what the actor does now.
__device__ inline u32 obey(Actor& a) {
    u64 generation = load(&a.generation);
    if (generation != a.answered && a.mode != FAILED) {
        a.answered = generation;
        u32 wanted = a.wanted;
        if (wanted == DRAINING) a.mode = DRAINING;
        else acknowledge(a, wanted, generation);
    }
    return a.mode;
}

template <class P> __device__ u32 serve_batch(Context& ctx, u32 source, u32 limit) {
    Engine& e = *ctx.engine;
    Actor& a = *ctx.actor;
    u64* shared = ctx.shared;
    Run run;
    run.engine = &e;
    bool inlet = source == INLET;
    run.slots = inlet ? a.inlet->slots : a.slots;
    run.mask = inlet ? a.inlet->mask : a.mask;
    run.stride = inlet ? a.inlet->stride : a.stride;
    run.at = inlet ? a.inlet->taken : a.head;
    if (ctx.lane == 0) {
        u64 count = inlet ? a.inlet->seen - a.inlet->taken : 1;
        if (!inlet)
            while (count < limit && is_ready(a, a.head + count)) count++;
        if (count > limit) count = limit;
        u64 room = a.window - (a.out_sent - a.out_taken);
        if (room < count) {
            a.out_taken = load_host(a.taken);
            room = a.window - (a.out_sent - a.out_taken);
        }
        if (count > room) count = room;
        shared[0] = count;
        if (count > 0) {
            a.out_sent += count;
            shared[1] = claim_out(e, count);
        }
    }
    ctx.sync();
    run.size = (u32)shared[0];
    run.out_at = shared[1];
    ctx.sync();
    if (run.size == 0) return 0;
    P::dispatch_batch(a.type, ctx, run);
    u64 first = a.next_id;
    u32 from_host = 0;
    for (u32 i = ctx.lane; i < run.size; i += ctx.width) {
        const Header& asked = run.in_slot(i)->header;
        Slot* slot = run.out_slot(i);
        Header h;
        h.type = P::reply_type(a.type);
        h.flags = REPLY;
        h.priority = asked.priority;
        h.reason = 0;
        h.id = ((u64)(ctx.id() + 1) << 40) | (first + i);
        h.correlation = asked.id;
        h.deadline = 0;
        h.source = ctx.id();
        h.destination = HOST;
        h.sent = 0;
        slot->bytes = P::reply_bytes(a.type);
        slot->header = h;
        from_host += asked.source == HOST;
    }
    // Every thread's part of the replies is there before any of them is published.
    ctx.sync();
    __threadfence_system();
    for (u32 i = ctx.lane; i < run.size; i += ctx.width) tell_host(&run.out_slot(i)->turn, run.out_at + i + 1);
    ctx.sync();
    if (ctx.lane == 0) {
        a.next_id += run.size;
        a.processed += run.size;
        a.sent += run.size;
        if (inlet) {
            give_back(a, INLET, 0, HOST, run.size);
        } else {
            for (u32 i = 0; i < run.size; i++) give_back(a, MAILBOX, 0, slot_at(a, a.head)->header.source, 1);
        }
    }
    ctx.sync();
    return run.size;
}

// Serve an actor for at most so many messages. Returns the number handled; `blocked` when it waits for room elsewhere.
template <class P> __device__ u32 serve(Context& ctx, u32 limit, char* out, bool& blocked) {
    Engine& e = *ctx.engine;
    Actor& a = *ctx.actor;
    u64* shared = ctx.shared;
    blocked = false;
    if (ctx.lane == 0) {
        shared[2] = obey(a);
        if (a.full == DROP_OLDEST) trim(a);
    }
    ctx.sync();
    u32 mode = (u32)shared[2];
    ctx.sync();
    if (mode != ACTIVE && mode != DRAINING) return 0;
    u32 handled = 0;
    u64 began = 0;
    while (handled < limit) {
        if (!ctx.flush()) {
            blocked = true;
            break;
        }
        if (ctx.lane == 0) shared[2] = find(e, a);
        ctx.sync();
        u32 source = (u32)shared[2];
        ctx.sync();
        if (source == NOTHING || source == GOING) break;
        if (began == 0) began = now();
        if (P::takes_batches(a.type)) {
            u32 done = serve_batch<P>(ctx, source, 4 * ctx.width);
            if (done == 0) {
                blocked = true;
                break;
            }
            handled += done;
            continue;
        }
        Slot* slot = source == MAILBOX ? slot_at(a, a.head) : (Slot*)(a.inlet->slots + (a.inlet->taken & a.inlet->mask) * a.inlet->stride);
        ctx.message = slot;
        u64 deadline = slot->header.deadline;
        if (deadline != 0 && now() > deadline) {
            ctx.bury(slot->header, slot->payload(), slot->bytes, EXPIRED);
        } else {
            P::dispatch(a.type, ctx, out);
            ctx.sync();
            if (a.failing) restart(ctx, slot);
            if (ctx.lane == 0) a.processed++;
        }
        ctx.sync();
        if (ctx.lane == 0) {
            give_back(a, source, slot, slot->header.source, 1);
            shared[2] = a.mode;
        }
        ctx.sync();
        handled++;
        if (shared[2] == FAILED) break;
        ctx.sync();
    }
    if (ctx.lane == 0) {
        if (a.mode == DRAINING && !blocked && a.waiting == 0 && a.from_host >= a.drain_at && find(e, a) == NOTHING) {
            store(&a.wanted, (u32)ENDED);
            acknowledge(a, ENDED, a.answered);
        }
        if (handled > 0) {
            a.busy += now() - began;
            show(a);
        }
    }
    ctx.sync();
    return handled;
}

// An actor with a block of its own.
template <class P> __device__ void dedicated(Context& ctx, char* out) {
    Backoff backoff;
    Engine& e = *ctx.engine;
    for (;;) {
        bool blocked;
        u32 handled = serve<P>(ctx, 64, out, blocked);
        if (ctx.lane == 0) ctx.shared[3] = is_leaving(e);
        ctx.sync();
        bool leaving = ctx.shared[3] != 0;
        ctx.sync();
        if (leaving) break;
        if (handled > 0) backoff.reset();
        else backoff.rest(e.idle_ns);
    }
}

// A block that serves whoever has something to do.
template <class P> __device__ void work(Context& ctx, char* out) {
    Backoff backoff;
    Engine& e = *ctx.engine;
    for (;;) {
        if (ctx.lane == 0) ctx.shared[3] = is_leaving(e) ? HOST : pop(e);
        ctx.sync();
        u32 index = (u32)ctx.shared[3];
        ctx.sync();
        if (index == HOST) break;
        if (index == NOBODY) {
            backoff.rest(1000);
            continue;
        }
        Actor& a = e.all[index];
        ctx.actor = &a;
        bool blocked;
        u32 handled = serve<P>(ctx, 16, out, blocked);
        if (ctx.lane == 0) {
            u64 head = a.head, answered = a.answered;
            bool runs = a.mode == ACTIVE || a.mode == DRAINING;
            if (blocked || (runs && is_ready(a, head))) {
                push(e, index);
            } else {
                exchange(&a.scheduled, 0);
                bool again = (runs && is_ready(a, head)) || load(&a.generation) != answered;
                if (again && exchange(&a.scheduled, 1) == 0) push(e, index);
            }
        }
        ctx.sync();
        if (handled > 0) backoff.reset();
        else backoff.rest(1000);
    }
}

// Messages of the host for actors that share blocks. The host counts room, so there is some.
__device__ inline void carry(Context& ctx, u64 tail) {
    Engine& e = *ctx.engine;
    Inlet& in = e.common;
    u64* shared = ctx.shared;
    while (in.taken != tail) {
        Slot* from = (Slot*)(in.slots + (in.taken & in.mask) * in.stride);
        if (ctx.lane == 0) {
            Actor& to = e.all[from->header.destination];
            u64 at;
            Slot* slot;
            while (!(slot = claim(to, at))) schedule(e, to);
            slot->bytes = from->bytes;
            slot->header = from->header;
            shared[0] = (u64)slot;
            shared[1] = at;
            shared[2] = (u64)&to;
        }
        ctx.sync();
        Slot* slot = (Slot*)shared[0];
        copy_words(slot->payload(), from->payload(), from->bytes, ctx.lane, ctx.width);
        ctx.sync();
        if (ctx.lane == 0) {
            store(&slot->turn, shared[1] + 1);
            schedule(e, *(Actor*)shared[2]);
            in.taken++;
        }
        ctx.sync();
    }
    if (ctx.lane == 0) tell_host(in.head, in.taken);
}

__device__ inline u32 order(Engine& e, const Command& c) {
    if (c.order == LEAVE) return PARKED;
    Actor& a = e.all[c.actor];
    a.wanted = (u32)c.mode;
    a.drain_at = c.argument;
    store(&a.generation, c.generation);
    schedule(e, a);
    return 0;
}

// The host's orders and messages, the heartbeat, the lease.
__device__ inline void warden(Context& ctx) {
    Engine& e = *ctx.engine;
    u64* shared = ctx.shared;
    Backoff backoff;
    u64 started = now(), beaten = 0, host_beat = 0, heard = started;
    for (;;) {
        if (ctx.lane == 0) {
            u64 orders, messages, why = 0;
            asm volatile("ld.relaxed.sys.v2.u64 {%0, %1}, [%2];" : "=l"(orders), "=l"(messages) : "l"(e.told) : "memory");
            bool news = orders != e.orders_taken || messages != e.common.taken;
            if (news) __threadfence_system();
            while (e.orders_taken != orders && why == 0) {
                why = order(e, ((Command*)e.orders)[e.orders_taken & e.orders_mask]);
                e.orders_taken++;
            }
            if (news) tell_host(e.orders_head, e.orders_taken);
            u64 t = now();
            if (t - beaten > 1000000) {
                beaten = t;
                tell_host(e.beat, t);
                u64 beat = load_host(e.told + 2);
                if (beat != host_beat) {
                    host_beat = beat;
                    heard = t;
                } else if (e.lease_ns != 0 && t - heard > e.lease_ns) {
                    why = LEASE_ENDED;
                }
                if (e.slice_ns != 0 && t - started > e.slice_ns) why = SLICE_ENDED;
            }
            shared[4] = messages;
            shared[5] = why;
            shared[6] = news;
        }
        ctx.sync();
        u64 messages = shared[4], why = shared[5], news = shared[6];
        ctx.sync();
        if (why != 0) {
            if (ctx.lane == 0) store(&e.leaving, (u32)why);
            break;
        }
        if (messages != e.common.taken) carry(ctx, messages);
        if (news) backoff.reset();
        else backoff.rest(e.idle_common_ns);
    }
}

template <class P> __device__ void run(Engine* engine, u64 launch, char* out) {
    __shared__ __align__(16) u64 shared[16];
    Engine& e = *engine;
    Context ctx;
    ctx.lane = threadIdx.x;
    ctx.width = blockDim.x;
    ctx.engine = engine;
    ctx.shared = shared;
    ctx.message = 0;
    if (blockIdx.x == 0) {
        ctx.actor = 0;
        warden(ctx);
    } else if (blockIdx.x <= e.dedicated) {
        ctx.actor = e.all + (blockIdx.x - 1);
        dedicated<P>(ctx, out);
    } else {
        work<P>(ctx, out);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        u32 why = load(&e.leaving);
        __threadfence();
        if (atomicAdd(&e.left, 1) == gridDim.x - 1) {
            e.left = 0;
            e.leaving = 0;
            store_host(e.exited, (launch << 8) | why);
        }
    }
}

}  // namespace ring
