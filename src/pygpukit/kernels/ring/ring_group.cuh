// Ring kernels: actors with several blocks. The first block is one with an actor of its own as any other, but every message that it
// handles goes to the other blocks too, which wait for it.
#pragma once
#include <pygpukit/ring_send.cuh>

namespace ring {

// All blocks of the actor get the message that the first one is about to handle. Its whole group of threads.
__device__ __noinline__ void share(const Context ctx) {
    Group* group = ctx.group;
    const u32* words = block.stage + ctx.at;
    for (u32 i = ctx.lane; i < RING_STRIDE; i += ctx.here) *(volatile u32*)&group->message[i] = words[i];
    if (ctx.lane == 0) poke(&group->next_id, block.owner.next_id);
    ctx.sync_block();
    if (ctx.lane == 0) {
        // After the barrier, so that it is for what all threads wrote.
        __threadfence();
        block.turn += 2;
        store(&group->turn, block.turn);
    }
}

// The other blocks are to leave. One thread.
__device__ __forceinline__ void dismiss(Group* group) { store(&group->turn, block.turn | 1); }

// One of the other blocks: handle what the first one gives. The threads of it that serve the actor.
template <class P> __device__ __forceinline__ void follow(Context& ctx) {
    Group* group = ctx.group;
    Owner& own = block.owner;
    const u32 type = own.type;
    Backoff backoff;
    for (u64 turn = 0;;) {
        if (threadIdx.x == 0) {
            u64 next;
            while ((next = load(&group->turn)) == turn) backoff.rest(block.plan.idle_ns, 64);
            backoff.reset();
            block.found[0] = next;
            own.next_id = peek(&group->next_id);
        }
        ctx.sync_block();
        turn = block.found[0];
        if (turn & 1) return;
        for (u32 i = threadIdx.x; i < RING_STRIDE; i += ctx.here) block.stage[i] = peek(&group->message[i]);
        ctx.sync_block();
        P::dispatch(type, ctx);
        // The first block does the rest.
        ctx.sync();
    }
}

}  // namespace ring
