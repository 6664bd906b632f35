// Ring kernels: the run queue, and how a message comes from a handler to where it goes.
#pragma once
#include <pygpukit/ring.cuh>

namespace ring {

// An actor by its name, whose number stands in this place of the names its sender knows.
struct Name {
    u32 place;
};
struct Topic;

// The run queue. An actor is in it once at most, and there are more cells than actors and blocks. A worker that is idle takes a number
// and waits for its cell to be filled; cells hold a tag and an actor, or the tag of the round they are free for. With an actor that was
// at rest comes a hint where its message is, which may be wrong.
// Filling a cell is no release, which would be a fence for every message: what the actor's last block left behind was performed before
// it cleared the word that was changed for this.
struct alignas(16) Cell {
    u64 word, hint;
};
__device__ __noinline__ void fill(Engine* e, u64 number, u32 actor, const u64* slot) {
    Cell& cell = block.plan.queue[number & block.plan.queue_mask];
    const u64 is_free = tagged((u32)number, NOBODY);
    poke(&cell.hint, (u64)slot);
    const u64 head = peek(&e->queue_head);
    while (claim_quietly(&cell.word, is_free, tagged((u32)number + 1, actor)) != is_free) {
        // Whoever was to empty the cell may have left; all actors are in the queue when the kernel comes back.
        if (peek(&e->leaving) != 0) return;
        __nanosleep(50);
    }
    // A worker that has a guest takes numbers when it is asked to; one of nobody can wait for the next.
    if (number >= head && actor != SKIPPED) atomicMax(&e->wanted, number + 1);
}
__device__ __forceinline__ void enqueue(Engine* e, u32 actor) { fill(e, atomicAdd(&e->queue_tail, 1ull), actor, 0); }
__device__ __forceinline__ bool is_filled(u64 word, u64 number) { return (u32)(word >> 32) == (u32)number + 1 && (u32)word != NOBODY; }
// The cell of this number is free for the next round.
__device__ __forceinline__ void empty(Cell& cell, u64 number) { poke(&cell.word, tagged((u32)(number + block.plan.queue_mask + 1), NOBODY)); }
// The actor in the cell of this number, SKIPPED, NOBODY when there is none yet, or HOST when the kernel is to leave. One thread.
__device__ __forceinline__ u32 dequeue(Engine* e, u64 number, u64& hint) {
    Cell& cell = block.plan.queue[number & block.plan.queue_mask];
    const u64 leaving = peek(&e->leaving);
    for (u32 i = 0; i < GLANCES; i++) {
        u64 parts[2];
        peek_pair(&cell.word, parts);
        // That there is work is no reason to stay: it may make more for ever. All actors are in the queue when the kernel comes back.
        if (i == 0 && leaving != 0) return HOST;
        hint = parts[1];
        if (is_filled(parts[0], number)) {
            empty(cell, number);
            return (u32)parts[0];
        }
    }
    return NOBODY;
}
// A number, and a claim, on their way at the same time.
__device__ __forceinline__ u64 take_number_and_claim(Engine* e, u64* p, u64 expected, u64 v, u64& old) {
    u64 number;
    asm volatile("{ atom.relaxed.gpu.global.add.u64 %0, [%2], 1; atom.relaxed.gpu.global.cas.b64 %1, [%3], %4, %5; }"
                 : "=&l"(number), "=&l"(old) : "l"(&e->queue_tail), "l"(p), "l"(expected), "l"(v) : "memory");
    return number;
}
// Have an actor looked at.
__device__ __noinline__ void schedule(Engine* e, u32 actor) {
    Box& box = block.plan.boxes[actor];
    if (!fixed_of(box).dedicated && !(set_bits(&box.word, 1) & 1)) enqueue(e, actor);
}

// Look at an actor, to send to it. One thread.
__device__ __noinline__ void find_route(u32 actor) {
    Route& route = block.owner.route;
    Box& box = block.plan.boxes[actor];
    const u64 word = peek(&box.word), head = load(&box.head);
    const Fixed fixed = fixed_of(box);
    route.slots = fixed.slots;
    route.type = fixed.accepts;
    route.limit = fixed.limit;
    route.full = fixed.full;
    route.dedicated = fixed.dedicated;
    route.single = fixed.single;
    route.word = word;
    route.seen = head;
    route.to = actor;
    block.ready[TO_ACTOR].left = 0;
}

// A place in the mailbox of the route, or false when it is full. `number`: the actor's in the run queue, to be filled once the message
// is written; or NONE. It is taken before it is known to be needed, for both take long. One thread.
const u64 NONE = ~0ull;
__device__ __forceinline__ bool claim(Engine* e, u32 limit, u64& position, u64& number) {
    Route& route = block.owner.route;
    Box& box = block.plan.boxes[route.to];
    u64 word = route.word;
    number = NONE;
    for (;;) {
        position = word >> 1;
        if (position - route.seen >= limit) {
            route.seen = load(&box.head);
            word = route.word = peek(&box.word);
            position = word >> 1;
            if (position - route.seen >= limit) break;
        }
        u64 next = word + 2;
        if (route.single) {
            poke(&box.word, next);
            route.word = next;
            return true;
        }
        if (!route.dedicated) next |= 1;
        const bool rests = (next & ~word & 1) != 0;
        u64 old;
        if (rests && number == NONE) number = take_number_and_claim(e, &box.word, word, next, old);
        else old = claim_quietly(&box.word, word, next);
        if (old == word) {
            if (number != NONE && !rests) {
                fill(e, number, SKIPPED, 0);
                number = NONE;
            }
            // It is likely to be found as it was this time: at work, or at rest again.
            route.word = rests ? next & ~1ull : next;
            return true;
        }
        word = old;
    }
    if (number != NONE) fill(e, number, SKIPPED, 0);
    number = NONE;
    return false;
}

// A place in the ring that all actors without one of their own have to the host. It is read all the time. One thread.
__device__ __noinline__ u64 claim_common(Engine* e) {
    Backoff backoff;
    const u64 size = (u64)block.plan.common_out.slots.mask + 1;
    for (;;) {
        u64 at = peek(&e->out_tail);
        if (at - peek(&e->out_seen) >= size) {
            u64 head = load_host(block.plan.common_out.head);
            atomicMax(&e->out_seen, head);
            if (at - head >= size) {
                backoff.rest(2000, 16);
                continue;
            }
        }
        if (claim_if(&e->out_tail, at, at + 1) == at) return at;
    }
}

// The message in `block.header` that goes nowhere is told to the host, with the reason. One warp.
__device__ __noinline__ void bury(Engine* e, const void* payload, u8 reason, u32 lane) {
    u64 position = 0;
    if (lane == 0) {
        block.owner.figures[DEAD_COUNT]++;
        block.header.flags |= DEAD;
        block.header.reason = reason;
        position = claim_common(e);
    }
    __syncwarp();
    position = __shfl_sync(~0u, position, 0);
    write_words(block.plan.common_out.slots.at(position), tag_of(position), &block.header, payload, lane);
    __syncwarp();
}

// Keep the message in `block.header` until there is room for it. One warp.
__device__ __noinline__ void keep(Engine* e, const void* payload, u32 full, u32 lane) {
    Owner& own = block.owner;
    if (full == REJECT) return bury(e, payload, REFUSED, lane);
    if (full == DROP_NEW) return bury(e, payload, NEWEST, lane);
    const u32 index = own.waiting;
    if (index >= own.outbox_size) return bury(e, payload, OVERFLOWN, lane);
    if (full == DROP_OLDEST && lane == 0) {
        atomicAdd(&block.plan.boxes[block.header.destination].trim, 1ull);
        schedule(e, block.header.destination);
    }
    char* slot = own.outbox + index * own.outbox_stride;
    copy_words(slot, &block.header, sizeof(Header), lane, 32);
    copy_words(slot + sizeof(Header), payload, block.header.bytes, lane, 32);
    __syncwarp();
    // What is sent from now on waits behind it.
    if (lane == 0) {
        own.waiting = index + 1;
        block.ready[TO_HOST].left = block.ready[TO_ACTOR].left = 0;
    }
    __syncwarp();
}

// The next message of this type to this place can go at once, if the ring is only ours and has room. One thread.
__device__ __noinline__ void prepare(u32 way, u32 type, u32 to) {
    Owner& own = block.owner;
    Ready& r = block.ready[way];
    r.left = 0;
    const Slots slots = way == TO_HOST ? own.out.slots : own.route.slots;
    if (own.waiting != 0 || (way == TO_HOST ? slots.base == 0 : !own.route.single)) return;
    const u64 at = way == TO_HOST ? own.out.at : own.route.word >> 1;
    long long left;
    if (way == TO_HOST) {
        const long long window = (long long)own.window - (long long)(own.out_sent - own.out_taken);
        left = (long long)slots.mask + 1 - (long long)(at - own.out.seen);
        left = window < left ? window : left;
    } else {
        left = (long long)own.route.limit - (long long)(at - own.route.seen);
    }
    r.left = left > 0x40000000 ? 0x40000000 : left < 0 ? 0 : (u32)left;
    r.to = to;
    r.type = type;
    r.tag = tag_of(at);
    r.slot = slots.at(at);
}

// Put the message in `block.header` where it goes; false when there is no room now. One warp.
__device__ __noinline__ bool deliver(Engine* e, const void* payload, u32 lane) {
    Owner& own = block.owner;
    const u32 to = block.header.destination;
    u64 position = 0;
    u32 room = 0;
    u64 number = NONE;
    if (lane == 0) {
        if (to == HOST) {
            // The host may say that it has taken more than there was.
            room = (long long)(own.out_sent - own.out_taken) < (long long)own.window;
            if (!room) {
                own.out_taken = load_host(own.taken);
                room = (long long)(own.out_sent - own.out_taken) < (long long)own.window;
            }
            if (room && own.out.slots.base) {
                position = own.out.at;
                if (position - own.out.seen > own.out.slots.mask) own.out.seen = load_host(own.out.head);
                room = position - own.out.seen <= own.out.slots.mask;
                if (room) own.out.at = position + 1;
            } else if (room) {
                position = claim_common(e);
            }
            if (room) own.out_sent++;
        } else {
            if (own.route.to != to) find_route(to);
            room = claim(e, own.route.limit, position, number);
        }
        own.figures[SENT] += room;
    }
    __syncwarp();
    room = __shfl_sync(~0u, room, 0);
    if (!room) return false;
    position = __shfl_sync(~0u, position, 0);
    const Slots slots = to != HOST ? own.route.slots : own.out.slots.base ? own.out.slots : block.plan.common_out.slots;
    write_words(slots.at(position), tag_of(position), &block.header, payload, lane);
    if (number != NONE) fill(e, number, to, slots.at(position));
    __syncwarp();
    return true;
}

// The message in `block.header` found no room where the oldest go, and nothing is on its way out: others took the room that was
// asked for when the message came. One thread.
__device__ __noinline__ void ask_again(Engine* e) {
    const Route& route = block.owner.route;
    const u32 to = block.header.destination;
    if (to == HOST || route.full != DROP_OLDEST) return;
    Box& box = block.plan.boxes[to];
    // In this order: when no room is asked for, what was made is there.
    if (load(&box.trim) != 0 || (peek(&box.word) >> 1) - load(&box.head) < route.limit) return;
    atomicMax(&box.trim, 1ull);
    schedule(e, to);
}

// Deliver what had to wait; false when something still has to. One warp.
__device__ __noinline__ bool flush(Engine* e, u32 lane) {
    Owner& own = block.owner;
    const u32 count = own.waiting;
    u32 done = 0;
    while (done < count) {
        char* slot = own.outbox + done * own.outbox_stride;
        copy_words(&block.header, slot, sizeof(Header), lane, 32);
        __syncwarp();
        if (!deliver(e, slot + sizeof(Header), lane)) {
            if (lane == 0) ask_again(e);
            break;
        }
        done++;
    }
    for (u32 i = done; done > 0 && i < count; i++) {
        copy_words(own.outbox + (i - done) * own.outbox_stride, own.outbox + i * own.outbox_stride, own.outbox_stride, lane, 32);
        __syncwarp();
    }
    if (lane == 0) own.waiting = count - done;
    __syncwarp();
    return done == count;
}

// Send what a handler has written, with the header in `block.header`. One warp.
__device__ __noinline__ void put(Engine* e, const void* payload, u32 lane) {
    const u32 to = block.header.destination;
    const Route& route = block.owner.route;
    if (to != HOST) {
        if (to >= block.plan.actors) return bury(e, payload, UNKNOWN, lane);
        // Read by all before it changes: compilers have all lanes read what one needs.
        const bool is_there = route.to == to;
        __syncwarp();
        if (lane == 0 && !is_there) find_route(to);
        __syncwarp();
        if (route.type != block.header.type) return bury(e, payload, WRONG_TYPE, lane);
    }
    // In order: what waits goes first.
    if (block.owner.waiting == 0 && deliver(e, payload, lane)) {
        if (lane == 0) prepare(to == HOST ? TO_HOST : TO_ACTOR, block.header.type, to);
        return;
    }
    keep(e, payload, to == HOST ? (u32)BLOCK : route.full, lane);
}

// The words of a small message. One warp.
__device__ __forceinline__ void write_small(u64* slot, u32 tag, const Header& h, const u32* payload, u32 lane) {
    const bool in_payload = lane - HEADER_WORDS < h.bytes / 4;
    u32 data = payload[in_payload ? lane - HEADER_WORDS : 0];
    data = pick(in_payload, data, 0);
    data = pick(lane == 0, h.type, data);
    data = pick(lane == 1, h.flags | (u32)h.priority << 16, data);
    data = pick(lane == 2, (u32)h.id, data);
    data = pick(lane == 3, (u32)(h.id >> 32), data);
    data = pick(lane == 4, (u32)h.correlation, data);
    data = pick(lane == 5, (u32)(h.correlation >> 32), data);
    data = pick(lane == 8, h.source, data);
    data = pick(lane == 9, h.destination, data);
    data = pick(lane == BYTES_WORD, h.bytes, data);
    data = pick(lane == STAMP_WORD, h.stamp, data);
    poke(slot + lane, tagged(tag, data));
}

// A small message to the mailbox that was used last, if that has room. One warp.
__device__ __noinline__ bool post_again(Engine* e, const Header h, const u32* payload, u32 lane) {
    Owner& own = block.owner;
    if (h.destination >= NOBODY || own.route.to != h.destination || own.route.type != h.type || own.route.single || own.waiting != 0) return false;
    u64 position = 0, number = NONE;
    u32 room = 0;
    if (lane == 0) room = claim(e, own.route.limit, position, number);
    if (!__shfl_sync(~0u, room, 0)) return false;
    position = __shfl_sync(~0u, position, 0);
    u64* slot = own.route.slots.at(position);
    write_small(slot, tag_of(position), h, payload, lane);
    if (number != NONE) fill(e, number, h.destination, slot);
    __syncwarp();
    if (lane == 0) own.figures[SENT]++;
    return true;
}

// A small message whose place is known needs nothing but its words. One warp.
__device__ __forceinline__ bool post_at_once(const Header& h, const u32* payload, u32 lane) {
    Ready& r = block.ready[h.destination == HOST ? TO_HOST : TO_ACTOR];
    const uint4 place = *(const uint4*)&r;
    if (rarely(place.z == 0 || place.x != h.destination || place.y != h.type)) return false;
    write_small(r.slot, place.w, h, payload, lane);
    __syncwarp();
    if (lane == 0) {
        Owner& own = block.owner;
        Slots slots;
        u64 at;
        if (h.destination == HOST) {
            slots = own.out.slots;
            at = ++own.out.at;
            own.out_sent++;
        } else {
            slots = own.route.slots;
            at = (own.route.word >> 1) + 1;
            own.route.word = at << 1;
            poke(&block.plan.boxes[h.destination].word, at << 1);
        }
        r.tag = tag_of(at);
        r.slot = slots.at(at);
        r.left--;
        own.figures[SENT]++;
    }
    return true;
}

// The first threads of a block that serve an actor.
__device__ __forceinline__ void sync_threads(u32 count) {
    if (NARROW || count <= 32) __syncwarp();
    else asm volatile("bar.sync 1, %0;" ::"r"(count) : "memory");
}
// All threads of a group of blocks: what they did before is seen by all after it.
__device__ __noinline__ void meet(Group* group, u32 threads, u32 blocks) {
    sync_threads(threads);
    if (threadIdx.x == 0) {
        const u64 all = ++block.meetings * blocks;
        __threadfence();
        atomicAdd(&group->arrived, 1ull);
        Backoff backoff;
        while (load(&group->arrived) < all) backoff.rest(500, 64);
    }
    sync_threads(threads);
}

// The number of a message's type; specialised for each.
template <class M> struct TypeOf;

// What a handler sees: a group of threads, one message, and ways to send others.
struct Context {
    u32 lane, width;  // of the group's threads, in all its blocks
    u32 self;
    u32 at;  // of the message, in the stage
    Engine* engine;
    char* state;
    const u32* names;  // actors that the handler names
    Group* group;      // of several blocks, or null
    u32 here;          // threads in this block, if it is one of several

    __device__ __forceinline__ void sync() const {
        if (GROUPS && group) meet(group, here, width / here);
        else sync_block();
    }
    // The threads of this block only.
    __device__ __forceinline__ void sync_block() const { sync_threads(threads()); }
    __device__ __forceinline__ u32 threads() const { return GROUPS && group ? here : width; }
    __device__ __forceinline__ char* out() const { return GROUPS && group ? group->out : block.out; }
    __device__ __forceinline__ u32 id() const { return self; }
    __device__ __forceinline__ Header& header() const { return *(Header*)(block.stage + at); }
    __device__ __forceinline__ u64 time() const { return now(); }
    // Who sent the message, and which one it answers: an actor or HOST; a number that `send` gave, or 0. A tick is of NOBODY.
    __device__ __forceinline__ u32 source() const { return header().source; }
    __device__ __forceinline__ u64 correlation() const { return header().correlation; }
    __device__ __forceinline__ bool is_tick() const { return header().flags & TICK; }
    // The actor of a name, or one nobody has.
    __device__ __forceinline__ u32 find(Name name) const { return __ldg(names + name.place); }
    // What this group wrote elsewhere is seen by whoever gets a message sent later.
    __device__ __forceinline__ void fence() const {
        __threadfence();
        sync();
    }
    // This message could not be handled: it becomes a dead letter, and the actor begins anew.
    __device__ __forceinline__ void fail() const {
        if (lane == 0) block.owner.failing = 1;
    }

    template <class M> __device__ __forceinline__ u64 post(const M& payload, u32 destination, u64 correlation, u32 flags) const {
        Header h;
        h.type = TypeOf<M>::value;
        h.flags = (u16)flags;
        h.priority = header().priority;
        h.reason = 0;
        h.id = ((u64)(self + 1) << 40) | block.owner.next_id;
        h.correlation = correlation;
        h.deadline = 0;
        h.source = self;
        h.destination = destination;
        h.bytes = sizeof(M);
        h.stamp = rarely(h.id % 16 == 0) ? (u32)now() | 1 : 0;
        sync();
        if ((NARROW && !GROUPS) || lane < 32) {
            const bool small = HEADER_WORDS + sizeof(M) / 4 <= 32;
            const u32* words = (const u32*)&payload;
            if (!small || (rarely(!post_at_once(h, words, lane)) && !post_again(engine, h, words, lane))) {
                __syncwarp();
                if (lane == 0) block.header = h;
                __syncwarp();
                put(engine, &payload, lane);
            }
        }
        // Every block of a group counts.
        if (GROUPS ? threadIdx.x == 0 : lane == 0) block.owner.next_id++;
        sync();
        return h.id;
    }

    // Send to an actor; returns the message's number, which a reply to it has as its correlation. As all of these: called by the
    // whole group, with a message that the group shares.
    template <class M> __device__ __forceinline__ u64 send_to(u32 destination, const M& payload) const { return post(payload, destination, 0, 0); }
    template <class M> __device__ __forceinline__ u64 send(Name name, const M& payload) const { return post(payload, find(name), 0, 0); }
    // Give a result: to whoever called, or into the actor's output, which the host receives. With MORE it is not the last answer
    // to this message.
    template <class M> __device__ __forceinline__ u64 send(const M& payload, u32 more = 0) const {
        return post(payload, HOST, header().id, header().flags & CALL ? ANSWER | more : 0);
    }
    // Answer the message: to the actor that sent it, or to the host.
    template <class M> __device__ __forceinline__ u64 reply(const M& payload, u32 more = 0) const {
        return header().source >= NOBODY ? send(payload, more) : post(payload, header().source, header().id, more);
    }
    // In ring_talk.cuh: answer later, and send to many.
    __device__ __forceinline__ void remember(u64 (&asker)[2]) const;
    template <class M> __device__ __forceinline__ u64 reply_to(const u64 (&asker)[2], const M& payload, u32 more = 0) const;
    template <class M> __device__ __forceinline__ u32 publish(Topic topic, const M& payload) const;
};

}  // namespace ring
