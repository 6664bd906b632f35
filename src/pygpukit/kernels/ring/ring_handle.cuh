// Ring kernels: messages that were taken come to their handlers, one by one or many together.
//
// A program gives `dispatch(type, context)`, `dispatch_batch(type, context, run)`, `takes_batches(type)`, `reply_type(type)` and
// `reply_bytes(type)`.
#pragma once
#include <pygpukit/ring_actor.cuh>
#include <pygpukit/ring_group.cuh>
#include <pygpukit/ring_talk.cuh>
#include <pygpukit/ring_watchdog.cuh>

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
    ctx.sync_block();
    const bool late = block.found[1] != 0;
    ctx.sync_block();
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
            if (GROUPS && ctx.group) share(ctx);
            P::dispatch(type, ctx);
            ctx.sync();
            if (!rarely(own.failing != 0)) {
                if (ctx.lane == 0) {
                    own.figures[PROCESSED]++;
                    own.figures[FROM_HOST] += ctx.header().source == HOST;
                    note_latency(ctx.header().stamp);
                }
            } else {
                ctx.sync_block();
                if (ctx.lane < 32) {
                    discard(ctx.engine, &ctx.header(), FAILURE, FAILURES, ctx.lane);
                    begin_anew(ctx.self, ctx.state, ctx.lane);
                }
                ctx.sync_block();
                const bool failed = own.mode == FAILED;
                ctx.sync_block();
                if (failed) return done + 1;
            }
        }
        done++;
        // Read before the first warp goes on and delivers what waits.
        waits = own.waiting != 0;
        ctx.sync_block();
    } while (done < count && !waits);
    if (ctx.lane == 0) own.figures[BUSY] += clock64() - began;
    return done;
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

}  // namespace ring
