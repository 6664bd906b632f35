// Ring kernels: which handlers do not return.
#pragma once
#include <pygpukit/ring_send.cuh>

namespace ring {

// Where a block is, for the watchdog. The block says what it works on: a worker the actor it has taken, under a number that changes
// with each, and one with an actor of its own the control word it saw last; 0 while it works on nothing or is not there. The rest
// is the warden's.
struct Desk {
    u64 at, turn;  // `turn` changes between messages that were read together
    u64 seen_at, seen_turn;
    u32 looks, accused;  // looks that found it in the same place; the actor that was told to the host
    u64 spare[3];
};
static_assert(sizeof(Desk) == 64, "as in tables.py");
const u32 LOOKS = 4;  // in the time a handler has

// The watchdog: which blocks are in the same handler, with the same message, as at the last looks? Those are told to the host, and
// also when they are not any more. A worker says whom it serves. A block with an actor of its own is asked for a sign of life, which
// it gives between messages; one that has just given it is asked again. Looks are counted, not time: while the host or the device
// stands still there are none. So many threads of one warp.
__device__ __noinline__ void look_around(Engine* e, u32 lane, u32 width) {
    for (u32 b = 1 + lane; b < gridDim.x; b += width) {
        Desk& desk = block.plan.desks[b];
        const u64 at = peek(&desk.at), turn = peek(&desk.turn);
        bool rests = at == 0;
        u32 actor = (u32)at - 1;
        if (b <= block.plan.dedicated) {
            actor = block.plan.places[b - 1];
            u64* control = &block.plan.boxes[actor].control;
            const u64 asked = peek(control);
            rests = rests || at == (asked | HERE);
            if (at != 0 && rests && !(asked & 1)) store(control, asked ^ ROLL);
        }
        const bool same = !rests && at == desk.seen_at && turn == desk.seen_turn;
        desk.looks = same ? desk.looks + 1 : 0;
        // Whoever was asked just now is in the place where it was asked.
        desk.seen_at = at;
        desk.seen_turn = turn;
        const u32 accused = desk.looks >= LOOKS ? actor + 1 : 0;
        if (accused == desk.accused) continue;
        poke(block.plan.alarms + b, accused);
        atomicAdd(&e->accused, accused == 0 ? ~0u : desk.accused == 0 ? 1u : 0u);
        desk.accused = accused;
        atomicAdd(&e->changes, 1u);
    }
}

// Tell the host if anything changed since it was told. One thread.
__device__ __forceinline__ void raise_alarm(Engine* e) {
    const u64 word = (u64)peek(&e->changes) << 32 | peek(&e->accused);
    if (peek(block.plan.alarms) == word) return;
    __threadfence_system();
    poke(block.plan.alarms, word);
}

}  // namespace ring
