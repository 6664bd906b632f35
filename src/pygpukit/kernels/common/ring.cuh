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

// Numbers that the host knows too: pygpukit.ring.tables.
enum Mode : u32 { CREATED = 0, ACTIVE = 1, PAUSED = 2, DRAINING = 3, ENDED = 4, FAILED = 5 };
enum Full : u32 { BLOCK = 0, REJECT = 1, DROP_OLDEST = 2, DROP_NEW = 3 };
enum Order : u32 { SET_MODE = 1, LEAVE = 2, TRIM = 3, CLOCK = 4, TRAP = 5 };
enum Why : u32 { PARKED = 1, LEASE_ENDED = 2, SLICE_ENDED = 3 };
enum Flag : u16 { CALL = 1, ANSWER = 2, DEAD = 4 };
enum Reason : u8 { UNKNOWN = 1, REFUSED = 2, OVERFLOWN = 3, EXPIRED = 4, GONE = 5, WRONG_TYPE = 6, FAILURE = 7, OLDEST = 8, NEWEST = 9 };

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
    u32 stamp;  // when it was sent, of some messages: else 0
};
static_assert(sizeof(Header) == 48, "as in ring/mapped.rs");
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
    u32 spins = 0;
    __device__ void rest(u32 longest, u32 patience) {
        if (spins < patience) {
            spins++;
            return;
        }
        if (ns < longest) ns = ns == 0 ? 128 : 2 * ns;
        __nanosleep(ns < longest ? ns : longest);
    }
    __device__ bool is_idle() const { return ns != 0; }
    __device__ void reset() { ns = spins = 0; }
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
    u32 width;
    u32 limit;  // messages of other actors it has room for
};

// What others use of an actor.
struct Box {
    u64 word;     // twice the messages claimed, and whether the actor is in the run queue
    u64 head;     // messages taken
    u64 control;  // twice the number of the host's last order, and whether the block is to leave
    u64 drain_at;
    u64 trim, trim_host;  // messages that shall make room for those of actors; how many of the host's shall be gone
    u32 wanted, spare0;
    u64 spare1[9];
    Fixed fixed;
};
static_assert(sizeof(Box) == 256, "two lines");
__device__ __forceinline__ Fixed fixed_of(const Box& box) {
    union {
        Fixed fixed;
        uint4 parts[3];
    } u;
    u.parts[0] = __ldg((const uint4*)&box.fixed);
    u.parts[1] = __ldg((const uint4*)&box.fixed + 1);
    u.parts[2] = __ldg((const uint4*)&box.fixed + 2);
    return u.fixed;
}

// What the host sees of an actor: a line of figures and one of buckets, in mapped memory.
enum Figure : u32 { MODE, GENERATION, PROCESSED, FROM_HOST, SENT, DISPLACED, EXPIRED_COUNT, DISCARDED, FAILURES, RESTARTS, BUSY, DEPTH, DEEPEST, WAITING, DEAD_COUNT, FIGURES };
const u32 BUCKETS = 32;

// The way to an actor, as it was when it was last taken.
struct Route {
    Slots slots;
    u32 to, type, limit, full;
    u16 dedicated, single;
    u32 spare;
    u64 word, seen;
};

// What only the block needs that serves the actor; in shared memory meanwhile.
struct alignas(16) Owner {
    u64 head;  // messages taken from the mailbox
    u32 type, mode;
    u64 answered;  // the host's last order that was carried out
    Port in, out;
    Bulk bulk_in, bulk_out;
    u64* taken;  // messages to the host that were received there, in mapped memory
    u64 window, out_sent, out_taken;
    u64* seen;
    char *state, *initial;
    u64 state_bytes;
    char* outbox;
    u32 waiting, outbox_size;
    u64 outbox_stride, next_id;
    u64 restarts_left, max_restarts, restart_window, window_began;
    u64 shown;
    u32 failing, names;  // where its names are in the plan's
    u64 figures[16];
    u32 buckets[BUCKETS];
    Route route;
};

// What every block knows, in shared memory.
struct alignas(16) Plan {
    u32 actors, dedicated, idle_ns, idle_common_ns;
    u32 *places, *names;  // actors of the dedicated blocks; actors that handlers name
    u64* queue;
    u64 queue_mask;
    Box* boxes;
    Owner* owners;
    Port common_out;
    u32 port_every, spare;  // looks at the mailbox for one at the host's ring, of a block that is idle
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
    // In mapped memory, the host's: orders written, its beat. Ours: orders taken, our beat, how we left, our clock.
    u64 *orders_tail, *host_beat, *orders_head, *beat, *exited, *clock;
    u64* orders;
    u64 orders_mask, orders_taken;
    u64 lease_ns, slice_ns;
    u64 spare6[1];
};

// What a block works on, in its shared memory. Sizes are the program's: RING_LOOK messages of RING_STRIDE words are read together,
// and RING_OUT bytes are the largest result.
const u32 LOOK = RING_LOOK;
const u32 STATE_BYTES = 2048;  // a state up to this size is here while its actor has a block of its own
// The next place of a ring that only this block writes, and the header of what goes there: a message for it needs nothing more.
struct alignas(16) Ready {
    u32 to, type, left, tag;
    u64* slot;
    u64 spare;
    u32 words[HEADER_WORDS];
};
enum Way : u32 { TO_HOST, TO_ACTOR };

struct alignas(16) Block {
    Owner owner;
    Plan plan;
    Ready ready[2];
    Header header;  // of a message on its way
    u64 found[2];
    u32 stage[LOOK * RING_STRIDE];
    char out[RING_OUT];
    char state[STATE_BYTES];
};
static __shared__ Block block;

// An actor by its name, whose number stands in this place of the names its sender knows.
struct Name {
    u32 place;
};

// The run queue. An actor is in it once at most, and there are more cells than actors. A worker that is idle takes a number and
// waits for its cell to be filled; cells hold a tag and an actor, or the tag of the round they are free for.
// Filling a cell is no release, which would be a fence for every message: what the actor's last block left behind was performed before
// it cleared the word that was changed for this.
__device__ __noinline__ void enqueue(Engine* e, u32 actor) {
    const u64 at = atomicAdd(&e->queue_tail, 1ull);
    u64* cell = block.plan.queue + (at & block.plan.queue_mask);
    const u64 is_free = tagged((u32)at, NOBODY);
    while (claim_if(cell, is_free, tagged((u32)at + 1, actor)) != is_free) {
        // Whoever was to empty the cell may have left; all actors are in the queue when the kernel comes back.
        if (peek(&e->leaving) != 0) return;
        __nanosleep(50);
    }
}
// The actor in the cell of this number, NOBODY, or HOST when the kernel is to leave. One thread.
__device__ __forceinline__ u32 dequeue(Engine* e, u64 number) {
    u64* cell = block.plan.queue + (number & block.plan.queue_mask);
    const u32 leaving = peek(&e->leaving);
    const u64 found = load(cell);
    // Who waits for room is in the queue all the time, so that is no reason to stay; all are in it when the kernel comes back.
    if (leaving != 0) return HOST;
    if ((u32)(found >> 32) != (u32)number + 1 || (u32)found == NOBODY) return NOBODY;
    poke(cell, tagged((u32)(number + block.plan.queue_mask + 1), NOBODY));
    return (u32)found;
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

// A place in the mailbox of the route, or false when it is full. `idle`: the actor has to be put into the run queue, once the
// message is written. One thread.
__device__ __forceinline__ bool claim(u32 limit, u64& position, bool& idle) {
    Route& route = block.owner.route;
    Box& box = block.plan.boxes[route.to];
    u64 word = route.word;
    idle = false;
    for (;;) {
        position = word >> 1;
        if (position - route.seen >= limit) {
            route.seen = load(&box.head);
            word = route.word = peek(&box.word);
            position = word >> 1;
            if (position - route.seen >= limit) return false;
        }
        const u64 next = route.dedicated ? word + 2 : (word + 2) | 1;
        if (route.single) {
            poke(&box.word, next);
        } else {
            const u64 old = claim_if(&box.word, word, next);
            if (old != word) {
                word = old;
                continue;
            }
            idle = next & 1 && !(word & 1);
        }
        route.word = next;
        return true;
    }
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

// Write a message as tagged words, all of the first 32. One warp.
__device__ __forceinline__ void write_words(u64* slot, u32 tag, const Header* header, const void* payload, u32 lane) {
    const u32 words = HEADER_WORDS + header->bytes / 4;
    u32 i = lane;
    do {
        u32 data = 0;
        if (i < HEADER_WORDS) data = ((const u32*)header)[i];
        else if (i < words) data = ((const u32*)payload)[i - HEADER_WORDS];
        poke(slot + i, tagged(tag, data));
        i += 32;
    } while (i < words);
}

// The message whose first words are these, into a place of the stage; false when it is not there. Slots have at least 32 words.
__device__ __forceinline__ bool take_words(u64 word, const u64* slot, u32 slot_words, u64 position, u32* to, u32 lane) {
    const u32 tag = tag_of(position);
    if (!__all_sync(~0u, lane >= HEADER_WORDS || (u32)(word >> 32) == tag)) return false;
    // The header may be faster than the rest. All of the first 32 words are written.
    while ((u32)(word >> 32) != tag) word = peek(slot + lane);
    to[lane] = (u32)word;
    if (slot_words > 32) {
        __syncwarp();
        u32 words = HEADER_WORDS + to[BYTES_WORD] / 4;
        if (words > slot_words) words = slot_words;
        for (u32 i = lane + 32; i < words; i += 32) {
            do word = peek(slot + i);
            while ((u32)(word >> 32) != tag);
            to[i] = (u32)word;
        }
    }
    return true;
}

// Read as many of the next messages as are there, `N` at most, into the stage. One warp.
template <u32 N> __device__ __forceinline__ u32 read_words(const Slots slots, u64 position, u32 lane) {
    u64 v[N];
#pragma unroll
    for (u32 j = 0; j < N; j++) v[j] = peek(slots.at(position + j) + lane);
    u32 done = 0;
#pragma unroll
    for (u32 j = 0; j < N; j++)
        if (done == j && take_words(v[j], slots.at(position + j), slots.words, position + j, block.stage + j * RING_STRIDE, lane)) done = j + 1;
    __syncwarp();
    return done;
}

__device__ __forceinline__ void copy_words(void* to, const void* from, u64 bytes, u32 lane, u32 width) {
    for (u64 i = lane; i < bytes / 16; i += width) ((uint4*)to)[i] = ((const uint4*)from)[i];
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
__device__ __noinline__ void prepare(u32 way, u32 type, u32 to, u32 bytes) {
    Owner& own = block.owner;
    Ready& r = block.ready[way];
    r.left = 0;
    const Slots slots = way == TO_HOST ? own.out.slots : own.route.slots;
    if (own.waiting != 0 || bytes > 4 * (32 - HEADER_WORDS) || (way == TO_HOST ? slots.base == 0 : !own.route.single)) return;
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
    for (u32 i = 0; i < HEADER_WORDS; i++) r.words[i] = 0;
    r.words[0] = type;
    r.words[8] = block.header.source;
    r.words[9] = to;
    r.words[BYTES_WORD] = bytes;
}

// Put the message in `block.header` where it goes; false when there is no room now. One warp.
__device__ __noinline__ bool deliver(Engine* e, const void* payload, u32 lane) {
    Owner& own = block.owner;
    const u32 to = block.header.destination;
    u64 position = 0;
    u32 room = 0;
    bool idle = false;
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
            room = claim(own.route.limit, position, idle);
        }
        own.figures[SENT] += room;
    }
    __syncwarp();
    room = __shfl_sync(~0u, room, 0);
    if (!room) return false;
    position = __shfl_sync(~0u, position, 0);
    const Slots slots = to != HOST ? own.route.slots : own.out.slots.base ? own.out.slots : block.plan.common_out.slots;
    write_words(slots.at(position), tag_of(position), &block.header, payload, lane);
    if (idle) enqueue(e, to);
    __syncwarp();
    return true;
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
        if (!deliver(e, slot + sizeof(Header), lane)) break;
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
        if (lane == 0) prepare(to == HOST ? TO_HOST : TO_ACTOR, block.header.type, to, block.header.bytes);
        return;
    }
    keep(e, payload, to == HOST ? (u32)BLOCK : route.full, lane);
}

// The number of a message's type; specialised for each.
template <class M> struct TypeOf;

// What a handler sees: a group of threads, one message, and ways to send others.
struct Context {
    u32 lane, width;
    u32 self;
    u32 at;  // of the message, in the stage
    Engine* engine;
    char* state;

    __device__ __forceinline__ void sync() const {
        if (width <= 32) __syncwarp();
        else asm volatile("bar.sync 1, %0;" ::"r"(width) : "memory");
    }
    __device__ __forceinline__ u32 id() const { return self; }
    __device__ __forceinline__ Header& header() const { return *(Header*)(block.stage + at); }
    __device__ __forceinline__ u64 time() const { return now(); }
    // The actor of a name, or one nobody has.
    __device__ __forceinline__ u32 find(Name name) const { return __ldg(block.plan.names + block.owner.names + name.place); }
    // What this group wrote elsewhere is seen by whoever gets a message sent later.
    __device__ __forceinline__ void fence() const {
        __threadfence();
        sync();
    }
    // This message could not be handled: it becomes a dead letter, and the actor begins anew.
    __device__ __forceinline__ void fail() const {
        if (lane == 0) block.owner.failing = 1;
    }

    // A small message to a place that is known and free needs nothing but its words. The first warp.
    __device__ __forceinline__ bool post_at_once(u32 way, u32 type, u32 destination, const u32* payload, u32 words, u32 flags, u64 number, u64 correlation) const {
        Ready& r = block.ready[way];
        if (r.left == 0 || r.to != destination || r.type != type) return false;
        u32 data = lane < HEADER_WORDS ? r.words[lane] : 0;
        if (lane >= HEADER_WORDS && lane < words) data = payload[lane - HEADER_WORDS];
        data = lane == 1 ? flags : lane == 2 ? (u32)number : lane == 3 ? (u32)(number >> 32) : data;
        data = lane == 4 ? (u32)correlation : lane == 5 ? (u32)(correlation >> 32) : data;
        if (number % 16 == 0 && lane == 11) data = (u32)now() | 1;
        poke(r.slot + lane, tagged(r.tag, data));
        __syncwarp();
        if (lane == 0) {
            Owner& own = block.owner;
            Slots slots;
            u64 at;
            if (way == TO_HOST) {
                slots = own.out.slots;
                at = ++own.out.at;
                own.out_sent++;
            } else {
                slots = own.route.slots;
                at = (own.route.word >> 1) + 1;
                own.route.word = at << 1;
                poke(&block.plan.boxes[destination].word, at << 1);
            }
            r.tag = tag_of(at);
            r.slot = slots.at(at);
            r.left--;
            own.figures[SENT]++;
        }
        return true;
    }

    template <class M> __device__ __forceinline__ u64 post(const M& payload, u32 destination, u64 correlation, u32 flags) const {
        const u64 number = ((u64)(self + 1) << 40) | block.owner.next_id;
        const u32 priority = header().priority;
        const u32 words = HEADER_WORDS + sizeof(M) / 4;
        sync();
        if (lane < 32) {
            const u32 way = destination == HOST ? TO_HOST : TO_ACTOR;
            if (words > 32 || !post_at_once(way, TypeOf<M>::value, destination, (const u32*)&payload, words, flags | priority << 16, number, correlation)) {
                __syncwarp();
                if (lane == 0) {
                    Header& h = block.header;
                    h.type = TypeOf<M>::value;
                    h.flags = (u16)flags;
                    h.priority = (u8)priority;
                    h.reason = 0;
                    h.id = number;
                    h.correlation = correlation;
                    h.deadline = 0;
                    h.source = self;
                    h.destination = destination;
                    h.bytes = sizeof(M);
                    h.stamp = number % 16 == 0 ? (u32)now() | 1 : 0;
                }
                __syncwarp();
                put(engine, &payload, lane);
            }
            if (lane == 0) block.owner.next_id++;
        }
        sync();
        return number;
    }

    // Send to an actor; returns the message's number, which a reply to it has as its correlation. As all of these: called by the
    // whole group, with a message that the group shares.
    template <class M> __device__ __forceinline__ u64 send_to(u32 destination, const M& payload) const { return post(payload, destination, 0, 0); }
    template <class M> __device__ __forceinline__ u64 send(Name name, const M& payload) const { return post(payload, find(name), 0, 0); }
    // Give a result: to whoever called, or into the actor's output, which the host receives.
    template <class M> __device__ __forceinline__ u64 send(const M& payload) const {
        return post(payload, HOST, header().id, header().flags & CALL ? ANSWER : 0);
    }
    // Answer the message: to the actor that sent it, or to the host.
    template <class M> __device__ __forceinline__ u64 reply(const M& payload) const {
        return header().source == HOST ? send(payload) : post(payload, header().source, header().id, 0);
    }
};

}  // namespace ring
