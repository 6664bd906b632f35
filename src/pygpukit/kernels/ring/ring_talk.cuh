// Ring kernels: answers that come later, and messages to all who subscribe to a topic.
#pragma once
#include <pygpukit/ring_send.cuh>

namespace ring {

// A topic by its name: subscribers are listed where the number in this place of the sender's names says.
struct Topic {
    u32 place;
};

// Which of 32 subscribers take a message of this type now; all of them but its sender. One warp.
__device__ __noinline__ u32 takers(const u32* actors, u32 count, u32 type, u32 self, u32 lane) {
    bool takes = false;
    if (lane < count) {
        const u32 actor = __ldg(actors + lane);
        const Box& box = block.plan.boxes[actor];
        takes = actor != self && fixed_of(box).accepts == type && peek(&box.gone) == 0;
    }
    return __ballot_sync(~0u, takes);
}

// Keep who sent this message, to answer it when another one is handled. One thread.
__device__ __forceinline__ void Context::remember(u64 (&asker)[2]) const {
    asker[0] = header().id;
    asker[1] = (u64)(header().flags & CALL) << 32 | header().source;
}

// Answer a message that was remembered.
template <class M> __device__ __forceinline__ u64 Context::reply_to(const u64 (&asker)[2], const M& payload, u32 more) const {
    const u64 id = asker[0], who = asker[1];
    if ((u32)who >= NOBODY) return post(payload, HOST, id, who >> 32 != 0 ? ANSWER | more : 0);
    return post(payload, (u32)who, id, more);
}

// Send to all subscribers of a topic that take this type, but not to this actor itself; returns to how many.
template <class M> __device__ __forceinline__ u32 Context::publish(Topic topic, const M& payload) const {
    const u32* list = block.plan.names + __ldg(names + topic.place);
    const u32 count = __ldg(list++);
    u32 sent = 0;
    for (u32 first = 0; first < count; first += 32) {
        // What is true now may not be a moment later: all do as one found it.
        if (lane < 32) {
            const u32 found = takers(list + first, count - first, TypeOf<M>::value, self, lane);
            if (lane == 0 && GROUPS && group) poke(&group->told, found);
            else if (lane == 0) block.found[1] = found;
        }
        sync();
        u32 left = (u32)(GROUPS && group ? peek(&group->told) : block.found[1]);
        sync();
        for (; left != 0; left &= left - 1) {
            post(payload, __ldg(list + first + __ffs(left) - 1), 0, 0);
            sent++;
        }
    }
    return sent;
}

}  // namespace ring
