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
const u32 SKIPPED = 0xfffffffdu;  // in the run queue: a number that was not needed

// Numbers that the host knows too: pygpukit.ring.tables.
enum Mode : u32 { CREATED = 0, ACTIVE = 1, PAUSED = 2, DRAINING = 3, ENDED = 4, FAILED = 5 };
enum Full : u32 { BLOCK = 0, REJECT = 1, DROP_OLDEST = 2, DROP_NEW = 3 };
enum Order : u32 { SET_MODE = 1, LEAVE = 2, TRIM = 3, CLOCK = 4, TRAP = 5 };
enum Why : u32 { PARKED = 1, LEASE_ENDED = 2, SLICE_ENDED = 3 };
enum Flag : u16 { CALL = 1, ANSWER = 2, DEAD = 4, TICK = 8, MORE = 16 };
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
const u32 HEADER_WORDS = 12, BYTES_WORD = 10, STAMP_WORD = 11;

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
// What is not so most of the time: its code is put elsewhere, and the rest fits in fewer lines of the instruction cache.
__device__ __forceinline__ bool rarely(bool what) { return __builtin_expect(what, 0); }
// A choice without a branch: lanes that differ would take their turns.
__device__ __forceinline__ u32 pick(bool first, u32 a, u32 b) {
    u32 v;
    asm("{ .reg .pred p; setp.ne.u32 p, %3, 0; selp.u32 %0, %1, %2, p; }" : "=r"(v) : "r"(a), "r"(b), "r"((u32)first));
    return v;
}
// Relaxed: of words whose value is all that is learnt, at device or system scope (the latter is right for both).
__device__ __forceinline__ u64 peek(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u32 peek(const u32* p) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void poke(u64* p, u64 v) { asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ void peek_pair(const u64* p, u64* v) {
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(v[0]), "=l"(v[1]) : "l"(p) : "memory");
}
__device__ __forceinline__ void poke_pair(u64* p, const u64* v) {
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(v[0]), "l"(v[1]) : "memory");
}
// Acquire and release: of words behind which there is more to see.
__device__ __forceinline__ u64 load(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store(u64* p, u64 v) { asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ u64 load_host(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_host(u64* p, u64 v) { asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ u64 swap_if(u64* p, u64 expected, u64 v) {
    u64 old;
    asm volatile("atom.acq_rel.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(v) : "memory");
    return old;
}
__device__ __forceinline__ u64 claim_if(u64* p, u64 expected, u64 v) {
    u64 old;
    asm volatile("atom.acquire.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(v) : "memory");
    return old;
}
__device__ __forceinline__ u64 claim_quietly(u64* p, u64 expected, u64 v) {
    u64 old;
    asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(v) : "memory");
    return old;
}
__device__ __forceinline__ u64 set_bits(u64* p, u64 bits) {
    u64 old;
    asm volatile("atom.acq_rel.gpu.global.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(bits) : "memory");
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
    u32 width;  // threads of it in a block
    u32 limit;  // messages of other actors it has room for
    u32 blocks, first;  // with blocks of its own: how many, and the number of the first
};

// What others use of an actor.
struct Box {
    u64 word;     // twice the messages claimed, and whether the actor is in the run queue
    u64 head;     // messages taken
    u64 control;  // twice the number of the host's last order, and whether the block is to leave
    u64 drain_at;
    u64 trim, trim_host;  // messages that shall make room for those of actors; how many of the host's shall be gone
    u32 wanted, gone;  // what the host wants; has the actor ended or failed?
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
enum Figure : u32 { MODE, GENERATION, PROCESSED, FROM_HOST, SENT, DISPLACED, EXPIRED_COUNT, DISCARDED, FAILURES, RESTARTS, BUSY, DEPTH, DEEPEST, WAITING, DEAD_COUNT, READS, FIGURES };
const u32 BUCKETS = 32;

// The way to an actor, as it was when it was last taken.
struct Route {
    Slots slots;
    u32 to, type, limit, full;
    u16 dedicated, single;
    u32 spare;
    u64 word, seen;
};

// What blocks share that serve one actor together: the first takes the messages and gives them to the others.
struct alignas(128) Group {
    u64 turn;  // twice the messages they were given; odd when they are to leave
    u64 spare0[15];
    u64 arrived;  // blocks at a barrier, of all barriers
    u64 spare1[15];
    u64 next_id, told;
    u64 spare2[14];
    u32 message[1088];  // one of the largest, with its header
    char out[4096];
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
    Group* group;  // of an actor with several blocks
    u64 spare;
};

// In a control word: asks for a sign of life; in what a block says of itself: that is one.
const u64 ROLL = 1ull << 63, HERE = 1ull << 62;
struct Desk;  // where a block is: ring_watchdog.cuh

// What every block knows, in shared memory.
struct alignas(16) Plan {
    u32 actors, dedicated, idle_ns, idle_common_ns;
    u32 *places, *names;  // actors of the dedicated blocks; actors that handlers name
    struct Cell* queue;
    u64 queue_mask;
    Box* boxes;
    Owner* owners;
    Port common_out;
    u32 port_every;  // looks at the mailbox for one at the host's ring, of a block that is idle
    u32 stays;       // looks for which an actor stays with the worker that served it
    Desk* desks;            // of all blocks
    u64* alarms;            // in mapped memory: times anything changed and how many are stuck; the actor of each block that is
};

struct Engine {
    u64 leaving;
    u64 wanted;  // numbers of the run queue that were filled when nobody waited for them, all before this
    u64 spare0[14];
    u64 queue_tail;
    u64 spare1[15];
    u64 queue_head;
    u64 spare2[15];
    u64 out_tail, out_seen;
    u64 spare3[14];
    u32 left, accused, changes, spare4;  // blocks that have left; those in a handler for too long, and how often that changed
    Port common_in;
    u64 spare5[1];
    Plan plan;
    // In mapped memory, the host's: orders written, its beat. Ours: orders taken, our beat, how we left, our clock.
    u64 *orders_tail, *host_beat, *orders_head, *beat, *exited, *clock;
    u64* orders;
    u64 orders_mask, orders_taken;
    u64 lease_ns, slice_ns, look_ns;
    struct Timer* timers;
    u64 timer_count, *silent;  // in mapped memory: timers are to stop
    u64 spare6[1];
};

// What a block works on, in its shared memory. Sizes are the program's: RING_LOOK messages of RING_STRIDE words are read together,
// and RING_OUT bytes are the largest result.
const bool NARROW = RING_NARROW;  // no actor has more than one warp in a block
const bool GROUPS = RING_GROUPS;  // some actors have more than one block
const u32 LOOK = RING_LOOK;
const u32 GLANCES = 8;         // at what may be there, before a block looks up
const u32 HEARD = 2 * LOOK;    // messages of the host that are fetched before they are wanted
const u32 STATE_BYTES = 2048;  // a state up to this size is here while its actor has a block of its own
// The next place of a ring that only this block writes: a message for it needs nothing more.
struct alignas(16) Ready {
    u32 to, type, left, tag;
    u64* slot;
    u64 spare;
};
enum Way : u32 { TO_HOST, TO_ACTOR };

// What the first warp of a block with one actor looks at.
struct alignas(16) Watch {
    const u64* control_at;
    u64 control;
    Slots mailbox;
};

struct alignas(16) Block {
    Owner owner;
    Plan plan;
    Ready ready[2];
    Watch watch;
    Header header;  // of a message on its way
    u64 found[2];
    u64 heard;   // how far the host's ring was read: a ring of messages in the stage, behind those of the mailbox
    u32 closing;  // nobody has to listen any more
    u32 spare;
    u64 turn, meetings;  // of a group of blocks: messages, barriers
    u32 stage[(LOOK + HEARD) * RING_STRIDE];
    char out[RING_OUT];
    char state[STATE_BYTES];
};
static __shared__ Block block;

// Write a message as tagged words, all of the first 32. One warp.
__device__ __forceinline__ void write_words(u64* slot, u32 tag, const Header* header, const void* payload, u32 lane) {
    const u32 words = HEADER_WORDS + header->bytes / 4;
    u32 i = lane;
#pragma unroll 1
    do {
        u32 data = 0;
        if (i < HEADER_WORDS) data = ((const u32*)header)[i];
        else if (i < words) data = ((const u32*)payload)[i - HEADER_WORDS];
        poke(slot + i, tagged(tag, data));
        i += 32;
    } while (i < words);
}

// The first 32 words of a message are here: they and the rest go to a place of the stage. One warp.
__device__ __forceinline__ void keep_words(u64 word, const u64* slot, u32 slot_words, u32 tag, u32* to, u32 lane) {
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
}
// The message whose first words are these, into a place of the stage; false when it is not all there. Slots have at least 32 words,
// and all of the first 32 are written.
__device__ __forceinline__ bool take_words(u64 word, const u64* slot, u32 slot_words, u64 position, u32* to, u32 lane) {
    const u32 tag = tag_of(position);
    if (!__all_sync(~0u, (u32)(word >> 32) == tag)) return false;
    keep_words(word, slot, slot_words, tag, to, lane);
    return true;
}

// Where the host's message of this position is in the stage, once it was heard.
__device__ __forceinline__ u32 heard_at(u64 position) { return (LOOK + (u32)position % HEARD) * RING_STRIDE; }

// The message of this position, if it is there. One warp.
__device__ __forceinline__ u32 read_one(const Slots slots, u64 position, u32 at, u32 lane) {
    const u64* slot = slots.at(position);
    const u32 done = take_words(peek(slot + lane), slot, slots.words, position, block.stage + at, lane);
    __syncwarp();
    return done;
}
// As many of the next messages as are there, LOOK at most; those of the host to where they are heard. One warp.
__device__ __noinline__ u32 read_many(const Slots slots, u64 position, bool host, u32 lane) {
    u64 v[LOOK];
#pragma unroll
    for (u32 j = 0; j < LOOK; j++) v[j] = peek(slots.at(position + j) + lane);
    u32 done = 0;
#pragma unroll
    for (u32 j = 0; j < LOOK; j++) {
        u32* to = block.stage + (host ? heard_at(position + j) : j * RING_STRIDE);
        if (done == j && take_words(v[j], slots.at(position + j), slots.words, position + j, to, lane)) done = j + 1;
    }
    __syncwarp();
    return done;
}

__device__ __forceinline__ void copy_words(void* to, const void* from, u64 bytes, u32 lane, u32 width) {
    for (u64 i = lane; i < bytes / 16; i += width) ((uint4*)to)[i] = ((const uint4*)from)[i];
}

}  // namespace ring
