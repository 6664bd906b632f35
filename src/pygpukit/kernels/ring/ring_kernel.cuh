// Ring kernels: the persistent kernel, over handlers that are compiled with it.
#pragma once
#include <pygpukit/ring_serve.cuh>
#include <pygpukit/ring_share.cuh>
#include <pygpukit/ring_warden.cuh>

namespace ring {

// The block of an actor that has one of its own, or the first of several.
template <class P> __device__ __forceinline__ void serve_alone(Context& ctx) {
    Owner& own = block.owner;
    if (ctx.lane < 32) load_state(ctx.state, ctx.lane);
    u64* desk = &block.plan.desks[blockIdx.x].at;
    if (ctx.lane == 0) {
        poke(desk, own.answered << 1 | HERE);
        block.heard = own.in.at;
        block.closing = 0;
    }
    __syncthreads();
    if (ctx.lane < ctx.threads()) {
        serve_one<P>(ctx);
        if (GROUPS && ctx.group && ctx.lane == 0) dismiss(ctx.group);
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
    ctx.group = 0;
    ctx.here = 0;
    if (blockIdx.x == 0) {
        if (ctx.lane < 32) warden(engine, ctx.lane);
    } else if (blockIdx.x <= block.plan.dedicated) {
        ctx.self = block.plan.places[blockIdx.x - 1];
        const Fixed fixed = fixed_of(block.plan.boxes[ctx.self]);
        ctx.width = fixed.width;
        copy_words(&own, &block.plan.owners[ctx.self], sizeof(Owner), ctx.lane, blockDim.x);
        if (threadIdx.x == 0) block.meetings = block.turn = 0;
        __syncthreads();
        ctx.state = own.state_bytes <= STATE_BYTES ? block.state : own.state;
        ctx.names = block.plan.names + own.names;
        if (GROUPS && fixed.blocks > 1) {
            ctx.group = own.group;
            ctx.here = fixed.width;
            ctx.width = fixed.width * fixed.blocks;
            ctx.state = own.state;
            // All have read what the first one will write when it leaves.
            if (threadIdx.x < fixed.width) ctx.sync();
        }
        if (GROUPS && blockIdx.x != fixed.first) {
            ctx.lane += (blockIdx.x - fixed.first) * fixed.width;
            if (threadIdx.x < fixed.width) follow<P>(ctx);
        } else {
            serve_alone<P>(ctx);
        }
    } else if (ctx.lane < blockDim.x - 32) {
        serve_all<P>(ctx);
    }
    __syncthreads();
    u32 why = 0;
    if (threadIdx.x == 0) {
        why = (u32)peek(&engine->leaving);
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
