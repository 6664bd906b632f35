// Ring kernels: the loops of the persistent kernel, over handlers that are compiled with it.
//
// A program gives `dispatch(type, context)`, `dispatch_batch(type, context, run)`, `takes_batches(type)`, `reply_type(type)` and
// `reply_bytes(type)`.
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
    if (lane == 0) {
        const u64 depth = (peek(&block.plan.boxes[self].word) >> 1) - own.head;
        own.figures[DEPTH] = depth;
        if (depth > own.figures[DEEPEST]) own.figures[DEEPEST] = depth;
        own.figures[WAITING] = own.waiting;
        own.shown = events();
    }
    __syncwarp();
    if (lane < FIGURES) poke(own.seen + lane, own.figures[lane]);
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
    if (control >> 1 == own.answered) return;
    const u32 wanted = *(volatile u32*)&block.plan.boxes[self].wanted;
    __syncwarp();
    if (lane == 0) own.answered = control >> 1;
    __syncwarp();
    if (own.mode == FAILED || own.mode == ENDED) return acknowledge(self, own.mode, lane);
    if (wanted == DRAINING) {
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
    const u32 bucket = 32 - __clz((u32)now() - stamp);
    block.owner.buckets[bucket < BUCKETS ? bucket : BUCKETS - 1]++;
}

// The message is not handled: it goes to the dead letters. One warp.
__device__ __noinline__ void discard(Engine* e, const Header* header, u8 reason, u32 figure, u32 lane) {
    copy_words(&block.header, header, sizeof(Header), lane, 32);
    __syncwarp();
    bury(e, header + 1, reason, lane);
    if (lane == 0) {
        block.owner.figures[figure]++;
        block.owner.figures[FROM_HOST] += header->source == HOST;
    }
    __syncwarp();
}

// Handle the messages in the stage until one has to wait. Returns how many are done with. The whole group.
template <class P> __device__ __forceinline__ u32 handle(Context& ctx, u32 type, u32 count) {
    Owner& own = block.owner;
    const u64 began = clock64();
    u32 done = 0;
    do {
        ctx.at = done * RING_STRIDE;
        const u64 deadline = ctx.header().deadline;
        if (deadline != 0 && now() > deadline) {
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
                if (own.mode == FAILED) return done + 1;
            }
        }
        done++;
        ctx.sync();
    } while (done < count && own.waiting == 0);
    if (ctx.lane == 0) own.figures[BUSY] += clock64() - began;
    return done;
}

// Messages to an actor that has ended. One warp.
__device__ __noinline__ void discard_all(Engine* e, u32 count, u32 lane) {
    for (u32 i = 0; i < count; i++) discard(e, (const Header*)(block.stage + i * RING_STRIDE), GONE, DISCARDED, lane);
}

// The messages handled leave their ring. Their words are in shared memory: they were read. One thread.
__device__ __forceinline__ void release(u32 self, bool device, u32 count) {
    Owner& own = block.owner;
    if (device) {
        own.head += count;
        poke(&block.plan.boxes[self].head, own.head);
    } else {
        own.in.at += count;
        poke(own.in.head, own.in.at);
    }
}

// Messages that have to go from a ring of tagged words, whose reader is at `at`, for `wanted` new ones. One thread.
__device__ __forceinline__ u64 excess(const Slots slots, u64 at, u64 wanted) {
    const u64 size = (u64)slots.mask + 1;
    if (wanted > size) wanted = size;
    u64 free = 0;
    for (u64 last = at + slots.mask; free < wanted && (u32)(peek(slots.at(last - free)) >> 32) != tag_of(last - free);) free++;
    return wanted - free;
}

// Senders wait for room, and the oldest messages have to go. One warp.
__device__ __noinline__ void trim(Engine* e, u32 self, u32 lane) {
    Owner& own = block.owner;
    Box& box = block.plan.boxes[self];
    u64 few = 0, few_of_host = 0;
    if (lane == 0) {
        few = atomicExch(&box.trim, 0ull);
        few_of_host = atomicExch(&box.trim_host, 0ull);
    }
    few = __shfl_sync(~0u, few, 0);
    few_of_host = __shfl_sync(~0u, few_of_host, 0);
    Header* header = (Header*)block.stage;
    u64 gone = lane == 0 && few_of_host > 0 && own.in.slots.base ? excess(own.in.slots, own.in.at, few_of_host) : 0;
    for (gone = __shfl_sync(~0u, gone, 0); gone > 0; gone--) {
        if (read_words<1>(own.in.slots, own.in.at, lane) == 0) break;
        discard(e, header, OLDEST, DISPLACED, lane);
        if (lane == 0) release(self, false, 1);
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
        discard(e, header, OLDEST, DISPLACED, lane);
        if (lane == 0) poke(bulk.head, ++bulk.at);
        __syncwarp();
    }
    const Fixed fixed = fixed_of(box);
    const bool has_rings = own.in.slots.base || bulk.base;
    while (agree((few > 0 && (peek(&box.word) >> 1) - own.head >= fixed.limit) || (few_of_host > 0 && !has_rings))) {
        if (read_words<1>(fixed.slots, own.head, lane) == 0) break;
        const bool of_host = header->source == HOST;
        discard(e, header, OLDEST, DISPLACED, lane);
        if (lane == 0) release(self, true, 1);
        __syncwarp();
        if (few > 0) few--;
        if (of_host && few_of_host > 0) few_of_host--;
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

// How a dedicated block watches its two sources: the one that was busy last is looked at more often, and many at a time.
struct Eye {
    u64 control;
    u32 mode, skipped;
    bool port, idle, trims, device, many;
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
    // What the host wrote takes long to come: meanwhile the mailbox is looked at. And it is a read across the bus, which one
    // that is idle does not do all the time.
    eye.skipped = eye.idle ? eye.skipped + 1 : block.plan.port_every;
    const bool asks = eye.port && eye.skipped >= block.plan.port_every;
    if (asks) eye.skipped = 0;
    const u64* there = own.in.slots.at(own.in.at);
    const u64 from_host = asks ? peek(there + lane) : 0;
    const u64 head = own.head;
    const u64* slot = mailbox.at(head);
    const u32 tries = eye.device ? 4 : 1;
    for (u32 i = 0; i < tries; i++) {
        const u64 control = peek(&box.control), word = peek(slot + lane);
        if (agree(control != eye.control)) return NEWS;
        if (take_words(word, slot, mailbox.words, head, block.stage, lane)) {
            __syncwarp();
            // Where there was one there may be others.
            eye.many = eye.device;
            eye.device = true;
            return 1 | FROM_DEVICE;
        }
    }
    if (asks && take_words(from_host, there, own.in.slots.words, own.in.at, block.stage, lane)) {
        __syncwarp();
        eye.many = !eye.device;
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
    eye.device = eye.many = eye.idle = false;
    for (;;) {
        u32 found = 0;
        if (ctx.lane < 32) {
            const bool takes = is_running(eye.mode) || eye.mode >= ENDED;
            const bool ready = takes && (own.waiting == 0 || flush(ctx.engine, ctx.lane));
            eye.idle = backoff.is_idle();
            if (ready && !bulk) found = look(box, fixed.slots, eye, ctx.lane);
            else if (agree(peek(&box.control) != eye.control)) found = NEWS;
            else if (ready) found = 1;
            if (eye.trims && agree(peek(&box.trim) + peek(&box.trim_host) != 0)) {
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
            if (fixed.full == DROP_OLDEST && agree(peek(&box.trim) + peek(&box.trim_host) != 0)) trim(e, index, ctx.lane);
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
            if (again) enqueue(e, index);
            else if (load(&box.control) >> 1 != own.answered || peek(&box.trim) + peek(&box.trim_host) != 0) schedule(e, index);
        }
    }
}

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
        atomicAdd(&box.trim_host, order[2]);
    } else {
        box.wanted = (u32)order[2];
        box.drain_at = order[4];
        store(&box.control, order[3] << 1);
    }
    schedule(e, (u32)order[1]);
    return 0;
}

// The host's orders, its messages for actors that share blocks, the heartbeat and the lease. One warp.
__device__ __noinline__ void warden(Engine* engine, u32 lane) {
    Engine& e = *engine;
    Route& route = block.owner.route;
    Backoff backoff;
    const u64 started = now();
    u64 beaten = 0, host_beat = 0, heard = started, at = e.common_in.at;
    if (lane == 0) route.to = NOBODY;
    for (;;) {
        u32 why = 0;
        bool news = false;
        if (lane == 0) {
            const u64 orders = load_host(e.orders_tail);
            news = orders != e.orders_taken;
            while (e.orders_taken != orders && why == 0) {
                why = carry_out(engine, e.orders + 8 * (e.orders_taken & e.orders_mask));
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
            for (u32 i = lane; i < block.plan.dedicated; i += 32) {
                u64* control = &block.plan.boxes[block.plan.places[i]].control;
                store(control, peek(control) | 1);
            }
            if (lane == 0) {
                e.common_in.at = at;
                atomicExch(&e.leaving, why);
            }
            break;
        }
        const u32 count = read_words<LOOK>(e.common_in.slots, at, lane);
        for (u32 i = 0; i < count; i++) {
            const Header* header = (const Header*)(block.stage + i * RING_STRIDE);
            const u32 to = header->destination;
            bool idle = false;
            if (lane == 0) {
                if (route.to != to) find_route(to);
                // The host counts the room it has, so there is some.
                while (!claim(route.slots.mask + 1, block.found[0], idle)) schedule(engine, to);
            }
            __syncwarp();
            const u64 position = block.found[0];
            write_words(route.slots.at(position), tag_of(position), header, header + 1, lane);
            if (idle) enqueue(engine, to);
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
    __syncthreads();
    for (u32 i = threadIdx.x; i < plan.actors; i += blockDim.x) {
        Box& box = plan.boxes[i];
        box.control &= ~1ull;
        plan.owners[i].route.to = NOBODY;
        if (fixed_of(box).dedicated) continue;
        box.word |= 1;
        const u32 place = atomicAdd(shared, 1u);
        plan.queue[place] = tagged(place + 1, i);
    }
    __syncthreads();
    for (u64 i = *shared + threadIdx.x; i <= plan.queue_mask; i += blockDim.x) plan.queue[i] = tagged((u32)i, NOBODY);
    if (threadIdx.x == 0) {
        e->queue_tail = *shared;
        e->queue_head = 0;
        e->left = 0;
        e->leaving = 0;
    }
}

template <class P> __device__ __forceinline__ void run(Engine* engine, u64 launch) {
    copy_words(&block.plan, &engine->plan, sizeof(Plan), threadIdx.x, blockDim.x);
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
        if (ctx.lane == 0) block.ready[TO_HOST].left = block.ready[TO_ACTOR].left = 0;
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
    __threadfence();
    __syncthreads();
    u32 why = 0;
    if (threadIdx.x == 0) {
        why = peek(&engine->leaving);
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
