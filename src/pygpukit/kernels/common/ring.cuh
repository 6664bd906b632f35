// Ring kernels, the device's side: actors with mailboxes, a run queue, rings from and to the host.
//
// One persistent kernel serves all actors. Block 0 is the warden: it takes the host's orders and its messages for actors that
// share blocks, keeps the heartbeat, and ends the kernel when the host is gone. A dedicated actor has a block and rings of its
// own; the others are served by the blocks that are left, which take them from a run queue. Between two messages everything an
// actor has is in memory, so that the kernel can leave the device and come back.
//
// Messages travel as words of 8 bytes, 4 of the message and a tag of 4 that says which round of the ring they belong to: a word
// is there or it is not, so a message needs no flag, no fence and one trip. Whoever must see other memory too sends a fence
// first (`Context::fence`). Words in mapped memory have one writer each; nothing is read, modified and written across the bus.
#pragma once

namespace ring {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

const u32 HOST = 0xffffffffu;
const u32 NOBODY = 0xfffffffeu;

// Numbers that the host knows too: pygpukit.ring.device.
enum Mode : u32 { CREATED = 0, ACTIVE = 1, PAUSED = 2, DRAINING = 3, ENDED = 4, FAILED = 5 };
enum Full : u32 { BLOCK = 0, REJECT = 1, DROP_OLDEST = 2, DROP_NEW = 3 };
enum Order : u32 { SET_MODE = 1, LEAVE = 2 };
enum Why : u32 { PARKED = 1, LEASE_ENDED = 2, SLICE_ENDED = 3 };
enum Flag : u16 { REPLY = 1, DEAD = 2 };
enum Reason : u8 { UNKNOWN = 1, REFUSED = 2, OVERFLOWN = 3, EXPIRED = 4, GONE = 5, WRONG_TYPE = 6, FAILURE = 7, DROPPED = 8 };

struct alignas(16) Header {
    u32 type;
    u16 flags;
    u8 priority;
    u8 reason;
    u64 id;
    u64 correlation;
    u64 deadline;
    u32 source;
    u32 destination;
    u32 bytes;
    u32 spare;
};
static_assert(sizeof(Header) == 48, "as in pygpukit.ring.header");
const u32 HEADER_WORDS = 12, BYTES_WORD = 10;

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
// Relaxed: of words whose value is all that is learnt, at device or system scope (the latter is right for both).
__device__ __forceinline__ u64 peek(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 peek(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void poke(u64* p, u64 v) { asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
// Acquire and release: of words behind which there is more to see.
__device__ __forceinline__ u64 load(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store(u64* p, u64 v) { asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ u64 load_host(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_host(u64* p, u64 v) { asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ u64 swap_if(u64* p, u64 expected, u64 v) {
    u64 old;
    asm volatile("atom.acq_rel.gpu.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(v) : "memory");
    return old;
}
__device__ __forceinline__ u64 claim_if(u64* p, u64 expected, u64 v) {
    u64 old;
    asm volatile("atom.acquire.gpu.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(v) : "memory");
    return old;
}
__device__ __forceinline__ u64 set_bits(u64* p, u64 bits) {
    u64 old;
    asm volatile("atom.acq_rel.gpu.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(bits) : "memory");
    return old;
}

// Sleeps longer and longer while nothing happens.
struct Backoff {
    u32 ns = 0;
    __device__ void rest(u32 longest) {
        if (ns >= 128) __nanosleep(ns < longest ? ns : longest);
        if (ns < longest) ns = ns < 128 ? ns + 1 : 2 * ns;
    }
    __device__ void reset() { ns = 0; }
};

// Slots of tagged words.
struct Slots {
    u64* base;
    u32 mask, words;
    __device__ __forceinline__ u64* at(u64 position) const { return base + (position & mask) * words; }
};
__device__ __forceinline__ u32 tag_of(u64 position) { return (u32)position + 1; }
__device__ __forceinline__ u64 tagged(u32 tag, u32 data) { return ((u64)tag << 32) | data; }

// A ring with the host that one side writes and the other reads; ours is one of them.
struct Port {
    Slots slots;
    u64* head;  // the reader's count, in mapped memory
    u64 at;     // how far we are
    u64 seen;   // how far the reader was when we looked
};

// A ring with the host of plain messages, for actors that take many at a time.
struct Bulk {
    char* base;
    u64 mask, stride;
    u64 *tail, *head;
    u64 at, seen;
};

// What does not change of an actor while the kernel runs. With one sender and a block of its own a mailbox needs no claims.
struct alignas(128) Fixed {
    Slots slots;
    u32 accepts, full;
    u16 dedicated, single;
    u32 spare;
};

// What senders use of an actor.
struct Box {
    u64 word;  // twice the messages claimed, and whether the actor is in the run queue
    u64 head;  // messages taken
    u64 generation, drain_at;
    u32 wanted, spare0;
    u64 spare1[11];
    Fixed fixed;
};
static_assert(sizeof(Box) == 256, "two lines");
__device__ __forceinline__ Fixed fixed_of(const Box& box) {
    union {
        Fixed fixed;
        uint4 parts[2];
    } u;
    u.parts[0] = __ldg((const uint4*)&box.fixed);
    u.parts[1] = __ldg((const uint4*)&box.fixed + 1);
    return u.fixed;
}

// What the host sees of an actor, in mapped memory.
struct Seen {
    u64 mode, generation;
    u64 processed, from_host, sent, dropped, dead, failed, restarts;
    u64 busy, depth, deepest;
    u64 spare[4];
};

// The way to an actor that nobody else sends to, once it was taken.
struct Route {
    Slots slots;
    u32 to, type;
    u64 at, seen;
};

// What only the block needs that serves the actor; in shared memory meanwhile.
struct alignas(16) Owner {
    u64 head;
    u32 type, mode;
    u64 answered, restarts_left;
    Port in, out;
    Bulk bulk_in, bulk_out;
    u64* taken;  // messages to the host that were received there, in mapped memory
    u64 window, out_sent, out_taken;
    Seen* seen;
    char *state, *initial;
    u64 state_bytes;
    char* outbox;
    u32 waiting, outbox_size;
    u64 outbox_stride, limit, next_id;
    u64 processed, from_host, sent, dropped, dead, failed, restarts, busy, deepest, shown;
    u32 failing, spare[3];
    Route route;
};

// What every block knows, in shared memory.
struct alignas(16) Plan {
    u32 actors, dedicated, idle_ns, idle_common_ns;
    u64* queue;
    u64 queue_mask;
    Box* boxes;
    Owner* owners;
    Port common_out;
};

struct Engine {
    u32 leaving;
    u32 spare0[31];
    u64 queue_tail;
    u64 spare1[15];
    u64 queue_head;
    u64 spare2[15];
    u64 out_tail, out_seen;
    u64 spare3[14];
    u32 left, spare4[3];
    Port common_in;
    u64 spare5[1];
    Plan plan;
    // In mapped memory, the host's: orders written, its beat. Ours: orders taken, our beat, how we left.
    u64 *orders_tail, *host_beat, *orders_head, *beat, *exited;
    u64* orders;
    u64 orders_mask, orders_taken;
    u64 lease_ns, slice_ns;
};

__device__ __forceinline__ bool is_leaving(const Engine& e) { return peek(&e.leaving) != 0; }

// The run queue. An actor is in it once at most, and there are more cells than actors. A worker takes a number and waits for its
// cell to be filled; cells hold a tag and an actor, or the tag of the round they are free for.
__device__ inline void enqueue(Engine& e, const Plan& plan, u32 actor) {
    u64 at = atomicAdd(&e.queue_tail, 1ull);
    u64* cell = plan.queue + (at & plan.queue_mask);
    while (peek(cell) != tagged((u32)at, NOBODY)) __nanosleep(50);
    store(cell, tagged((u32)at + 1, actor));
}
__device__ __forceinline__ u32 dequeue(const Plan& plan, u64 number) {
    u64* cell = plan.queue + (number & plan.queue_mask);
    u64 found = load(cell);
    if ((u32)(found >> 32) != (u32)number + 1 || (u32)found == NOBODY) return NOBODY;
    store(cell, tagged((u32)(number + plan.queue_mask + 1), NOBODY));
    return (u32)found;
}
// Have an actor looked at.
__device__ inline void schedule(Engine& e, const Plan& plan, u32 actor) {
    Box& box = plan.boxes[actor];
    if (!fixed_of(box).dedicated && !(set_bits(&box.word, 1) & 1)) enqueue(e, plan, actor);
}

// A place in a mailbox, or false when it is full. One thread.
__device__ inline bool claim(Engine& e, const Plan& plan, const Fixed& fixed, u32 actor, u64& position) {
    Box& box = plan.boxes[actor];
    for (;;) {
        u64 word = peek(&box.word);
        u64 head = load(&box.head);
        position = word >> 1;
        if (position - head > fixed.slots.mask) return false;
        u64 next = (word + 2) | (fixed.dedicated ? 0 : 1);
        if (claim_if(&box.word, word, next) != word) continue;
        if ((next & 1) && !(word & 1)) enqueue(e, plan, actor);
        return true;
    }
}

// The same for the only sender of a dedicated actor: it knows how far it is.
__device__ inline bool claim_alone(const Plan& plan, const Fixed& fixed, Owner& own, u32 actor, u64& position) {
    Box& box = plan.boxes[actor];
    Route& route = own.route;
    if (route.to != actor) {
        route.slots = fixed.slots;
        route.type = fixed.accepts;
        route.at = peek(&box.word) >> 1;
        route.seen = load(&box.head);
        route.to = actor;
    }
    position = route.at;
    if (position - route.seen > fixed.slots.mask) {
        route.seen = load(&box.head);
        if (position - route.seen > fixed.slots.mask) return false;
    }
    route.at = position + 1;
    poke(&box.word, (position + 1) << 1);
    return true;
}

// A place in the ring that all actors without one of their own have to the host. It is read all the time. One thread.
__device__ inline u64 claim_common(Engine& e, const Plan& plan) {
    Backoff backoff;
    const u64 size = (u64)plan.common_out.slots.mask + 1;
    for (;;) {
        u64 at = peek(&e.out_tail);
        if (at - peek(&e.out_seen) >= size) {
            u64 head = load_host(plan.common_out.head);
            atomicMax(&e.out_seen, head);
            if (at - head >= size) {
                backoff.rest(2000);
                continue;
            }
        }
        if (claim_if(&e.out_tail, at, at + 1) == at) return at;
    }
}

// Write a message as tagged words. One warp.
__device__ __forceinline__ void write_words(u64* slot, u32 tag, const Header* header, const void* payload, u32 lane) {
    const u32 words = HEADER_WORDS + header->bytes / 4;
    for (u32 i = lane; i < words; i += 32) {
        u32 data = i < HEADER_WORDS ? ((const u32*)header)[i] : ((const u32*)payload)[i - HEADER_WORDS];
        poke(slot + i, tagged(tag, data));
    }
}

// Room for that many messages: as they come, and as they are read.
const u32 LOOK = 8;
struct Stage {
    u32* messages;
    u32 stride;
    u64 raw[32 * LOOK];
};

// Read as many of the next messages as are there, `count` at most, into the stage. One warp.
__device__ __forceinline__ u32 read_words(const Slots& slots, u64 position, u32 count, Stage& stage, u32 lane) {
    // Slots of at least 32 words, so that every lane has one of the first.
    u64 v[LOOK];
#pragma unroll
    for (u32 j = 0; j < LOOK; j++)
        if (j < count) v[j] = peek(slots.at(position + j) + lane);
    if (!__all_sync(~0u, lane >= HEADER_WORDS || (u32)(v[0] >> 32) == tag_of(position))) return 0;
#pragma unroll
    for (u32 j = 0; j < LOOK; j++)
        if (j < count) stage.raw[32 * j + lane] = v[j];
    u32 done = 0;
#pragma unroll 1
    for (; done < count; done++) {
        const u32 tag = tag_of(position + done);
        const u64* slot = slots.at(position + done);
        u64 word = stage.raw[32 * done + lane];
        if (!__all_sync(~0u, lane >= HEADER_WORDS || (u32)(word >> 32) == tag)) break;
        u32 words = HEADER_WORDS + __shfl_sync(~0u, (u32)word, BYTES_WORD) / 4;
        if (words > slots.words) words = slots.words;
        u32* to = stage.messages + done * stage.stride;
        // The header may be faster than the rest.
#pragma unroll 1
        for (u32 i = lane; i < words; i += 32) {
            if (i >= 32) word = peek(slot + i);
            while ((u32)(word >> 32) != tag) word = peek(slot + i);
            to[i] = (u32)word;
        }
    }
    __syncwarp();
    return done;
}

__device__ __forceinline__ void copy_words(void* to, const void* from, u64 bytes, u32 lane, u32 width) {
    for (u64 i = lane; i < bytes / 16; i += width) ((uint4*)to)[i] = ((const uint4*)from)[i];
}

// A message that goes nowhere is told to the host, with the reason. One warp.
__device__ __noinline__ void bury(Engine* e, const Plan* plan, Owner* own, Header* header, const void* payload, u8 reason, u32 lane) {
    u64 position = 0;
    if (lane == 0) {
        own->dead++;
        header->flags |= DEAD;
        header->reason = reason;
        position = claim_common(*e, *plan);
    }
    __syncwarp();
    position = __shfl_sync(~0u, position, 0);
    write_words(plan->common_out.slots.at(position), tag_of(position), header, payload, lane);
}

// Keep a message until there is room for it. One warp.
__device__ __noinline__ void keep(Engine* e, const Plan* plan, Owner* own, Header* header, const void* payload, u32 full, u32 lane) {
    if (full == REJECT) return bury(e, plan, own, header, payload, REFUSED, lane);
    if (full == DROP_NEW) return bury(e, plan, own, header, payload, DROPPED, lane);
    if (full == DROP_OLDEST && lane == 0) schedule(*e, *plan, header->destination);
    const u32 index = own->waiting;
    if (index >= own->outbox_size) return bury(e, plan, own, header, payload, OVERFLOWN, lane);
    char* slot = own->outbox + index * own->outbox_stride;
    copy_words(slot, header, sizeof(Header), lane, 32);
    copy_words(slot + sizeof(Header), payload, header->bytes, lane, 32);
    __syncwarp();
    if (lane == 0) own->waiting = index + 1;
    __syncwarp();
}

// Put one message where it goes; false when there is no room now. One warp.
__device__ __noinline__ bool deliver(Engine* e, const Plan* plan, Owner* own, const Header* header, const void* payload, u32 lane) {
    const u32 to = header->destination;
    u64 position = 0;
    u32 room = 0;
    Slots slots = own->out.slots.base ? own->out.slots : plan->common_out.slots;
    Fixed fixed;
    if (to != HOST) {
        fixed = fixed_of(plan->boxes[to]);
        slots = fixed.slots;
    }
    if (lane == 0) {
        if (to == HOST) {
            room = own->out_sent - own->out_taken < own->window;
            if (!room) {
                own->out_taken = load_host(own->taken);
                room = own->out_sent - own->out_taken < own->window;
            }
            if (room && own->out.slots.base) {
                position = own->out.at;
                if (position - own->out.seen > slots.mask) own->out.seen = load_host(own->out.head);
                room = position - own->out.seen <= slots.mask;
                if (room) own->out.at = position + 1;
            } else if (room) {
                position = claim_common(*e, *plan);
            }
            if (room) own->out_sent++;
        } else if (fixed.single) {
            room = claim_alone(*plan, fixed, *own, to, position);
        } else {
            room = claim(*e, *plan, fixed, to, position);
        }
        own->sent += room;
    }
    room = __shfl_sync(~0u, room, 0);
    if (!room) return false;
    position = __shfl_sync(~0u, position, 0);
    write_words(slots.at(position), tag_of(position), header, payload, lane);
    return true;
}

// Deliver what had to wait; false when something still has to. One warp.
__device__ __noinline__ bool flush(Engine* e, const Plan* plan, Owner* own, Header* header, u32 lane) {
    const u32 count = own->waiting;
    u32 done = 0;
    while (done < count) {
        char* slot = own->outbox + done * own->outbox_stride;
        copy_words(header, slot, sizeof(Header), lane, 32);
        __syncwarp();
        if (!deliver(e, plan, own, header, slot + sizeof(Header), lane)) break;
        done++;
    }
    for (u32 i = done; done > 0 && i < count; i++) {
        copy_words(own->outbox + (i - done) * own->outbox_stride, own->outbox + i * own->outbox_stride, own->outbox_stride, lane, 32);
        __syncwarp();
    }
    if (lane == 0) own->waiting = count - done;
    __syncwarp();
    return done == count;
}

// Send what a handler has written. One warp.
__device__ __noinline__ void put(Engine* e, const Plan* plan, Owner* own, Header* header, const void* payload, u32 lane) {
    const u32 to = header->destination;
    u32 full = BLOCK;
    if (to != HOST) {
        if (to >= plan->actors) return bury(e, plan, own, header, payload, UNKNOWN, lane);
        const Fixed fixed = fixed_of(plan->boxes[to]);
        if (fixed.accepts != header->type) return bury(e, plan, own, header, payload, WRONG_TYPE, lane);
        full = fixed.full;
    }
    // In order: what waits goes first.
    if (own->waiting == 0 && deliver(e, plan, own, header, payload, lane)) return;
    keep(e, plan, own, header, payload, full, lane);
}

// What a handler sees: a group of threads, one message, and ways to send others.
struct Context {
    u32 lane, width;
    Engine* engine;
    Owner* owner;      // in shared memory
    const Plan* plan;  // in shared memory
    u32 self;
    Slots mailbox;
    const Header* message;  // in shared memory, its payload behind it
    u64* shared;

    __device__ __forceinline__ void sync() {
        if (width == 32) __syncwarp();
        else __syncthreads();
    }
    __device__ __forceinline__ u32 id() const { return self; }
    __device__ __forceinline__ const Header& header() const { return *message; }
    __device__ __forceinline__ u64 time() const { return now(); }
    // What this group wrote elsewhere is seen by whoever gets a message sent later.
    __device__ __forceinline__ void fence() {
        __threadfence();
        sync();
    }
    // This message could not be handled: it becomes a dead letter, and the actor begins anew.
    __device__ __forceinline__ void fail() {
        if (lane == 0) owner->failing = 1;
    }

    // A small message to a place that is known and free needs nothing but its words. The first warp.
    __device__ __forceinline__ bool post_at_once(const Header& h, const u32* payload, u32 words) {
        Owner& own = *owner;
        const bool host = h.destination == HOST;
        const Slots slots = host ? own.out.slots : own.route.slots;
        const u64 at = host ? own.out.at : own.route.at, seen = host ? own.out.seen : own.route.seen;
        const bool known = host ? own.out.slots.base != 0 && own.out_sent - own.out_taken < own.window
                                : own.route.to == h.destination && own.route.type == h.type;
        if (words > 32 || own.waiting != 0 || !known || at - seen > slots.mask) return false;
        __syncwarp();
        u32 data = 0;
        if (lane >= HEADER_WORDS && lane < words) data = payload[lane - HEADER_WORDS];
        data = lane == 0 ? h.type : lane == 1 ? h.flags | (u32)h.priority << 16 : lane == 2 ? (u32)h.id : data;
        data = lane == 3 ? (u32)(h.id >> 32) : lane == 4 ? (u32)h.correlation : lane == 5 ? (u32)(h.correlation >> 32) : data;
        data = lane == 8 ? h.source : lane == 9 ? h.destination : lane == BYTES_WORD ? h.bytes : data;
        if (lane < words) poke(slots.at(at) + lane, tagged(tag_of(at), data));
        if (lane == 0) {
            own.sent++;
            if (host) {
                own.out.at = at + 1;
                own.out_sent++;
            } else {
                own.route.at = at + 1;
                poke(&plan->boxes[h.destination].word, (at + 1) << 1);
            }
        }
        return true;
    }

    template <class M> __device__ __forceinline__ void post(const M& payload, u32 destination, u64 correlation, u16 flags) {
        sync();
        if (lane < 32) {
            Header h;
            h.type = M::TYPE;
            h.flags = flags;
            h.priority = message->priority;
            h.reason = 0;
            h.id = ((u64)(self + 1) << 40) | owner->next_id;
            h.correlation = correlation;
            h.deadline = 0;
            h.source = self;
            h.destination = destination;
            h.bytes = sizeof(M);
            h.spare = 0;
            if (!post_at_once(h, (const u32*)&payload, HEADER_WORDS + sizeof(M) / 4)) {
                Header* header = (Header*)(shared + 2);
                if (lane == 0) *header = h;
                __syncwarp();
                put(engine, plan, owner, header, &payload, lane);
            }
            __syncwarp();
            if (lane == 0) owner->next_id++;
        }
        sync();
    }

    // Send to an actor. As all of these: called by the whole group, with a message that the group shares.
    template <class M> __device__ __forceinline__ void send(u32 destination, const M& payload) { post(payload, destination, 0, 0); }
    // Answer the message: to the actor that sent it, or to the host.
    template <class M> __device__ __forceinline__ void reply(const M& payload) { post(payload, message->source, message->id, REPLY); }
    // Put a message into the actor's output, which the host receives.
    template <class M> __device__ __forceinline__ void emit(const M& payload) { post(payload, HOST, message->id, 0); }
};

}  // namespace ring
