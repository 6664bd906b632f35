// Ring kernels, the device's side: actors with mailboxes, a run queue, rings from and to the host.
//
// One persistent kernel serves all actors. Block 0 is the warden: it takes the host's orders and messages for actors that
// share blocks, keeps the heartbeat, and ends the kernel when the host is gone. Dedicated actors have a block each; the
// others are served by the blocks that are left, which take them from a run queue. Everything an actor has is in memory,
// so that the kernel can leave the device between two messages and come back.
//
// Words in mapped memory have one writer each, the host or the device, and nothing is read, modified and written across
// the bus. Mailboxes are bounded rings of slots whose `turn` says whose turn it is; a sender looks for room before it claims.
#pragma once

namespace ring {

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

const u32 HOST = 0xffffffffu;
const u32 NOBODY = 0xfffffffeu;

// What an actor is told to do, and does. As in pygpukit.ring.device.
enum Mode : u32 { CREATED = 0, ACTIVE = 1, PAUSED = 2, DRAINING = 3, ENDED = 4, FAILED = 5 };
enum Full : u32 { BLOCK = 0, REJECT = 1, DROP_OLDEST = 2, DROP_NEW = 3 };
enum Order : u32 { SET_MODE = 1, LEAVE = 2, RESET = 3 };
enum Why : u32 { PARKED = 1, LEASE_ENDED = 2, SLICE_ENDED = 3 };
enum Flag : u16 { REPLY = 1, DEAD = 2 };
enum Reason : u32 { UNKNOWN = 1, REFUSED = 2, OVERFLOWN = 3, EXPIRED = 4, GONE = 5, WRONG_TYPE = 6, FAILURE = 7, DROPPED = 8 };

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
    u64 sent;
};
static_assert(sizeof(Header) == 48, "as in pygpukit.ring.header");

struct alignas(16) Slot {
    u64 turn;
    u64 bytes;
    Header header;
    __device__ char* payload() { return (char*)(this + 1); }
    __device__ const char* payload() const { return (const char*)(this + 1); }
};
static_assert(sizeof(Slot) == 64, "as in the host's rings");

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
__device__ __forceinline__ u32 load(const u32* p) {
    u32 v;
    asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ u64 load(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store(u32* p, u32 v) {
    asm volatile("st.release.gpu.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void store(u64* p, u64 v) {
    asm volatile("st.release.gpu.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
// Words the host writes, and reads.
__device__ __forceinline__ u64 load_host(const u64* p) {
    u64 v;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ __forceinline__ void store_host(u64* p, u64 v) {
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
__device__ __forceinline__ void tell_host(u64* p, u64 v) { asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }
__device__ __forceinline__ u32 exchange(u32* p, u32 v) {
    u32 old;
    asm volatile("atom.acq_rel.gpu.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
    return old;
}
__device__ __forceinline__ u64 swap_if(u64* p, u64 expected, u64 v) {
    u64 old;
    asm volatile("atom.relaxed.gpu.cas.b64 %0, [%1], %2, %3;" : "=l"(old) : "l"(p), "l"(expected), "l"(v) : "memory");
    return old;
}
__device__ __forceinline__ u64 peek(const u64* p) {
    u64 v;
    asm volatile("ld.relaxed.gpu.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

// Sleeps longer and longer while nothing happens.
struct Backoff {
    u32 ns = 0;
    __device__ void rest(u32 longest) {
        if (ns >= 64) __nanosleep(ns);
        ns = ns < 64 ? ns + 8 : (2 * ns < longest ? 2 * ns : longest);
    }
    __device__ void reset() { ns = 0; }
};

// A ring the host writes.
struct Inlet {
    u64* tail;    // in mapped memory, the host's
    u64* head;    // in mapped memory, ours
    char* slots;  // in mapped memory
    u64 mask, stride;
    u64 taken, seen;  // what was consumed, and how far the host was when we looked
};

// A ring the host reads: many write it.
struct Outlet {
    u64* head;    // in mapped memory, the host's
    char* slots;  // in mapped memory
    u64 mask, stride;
    u64 tail, seen;
};

// What the host sees of an actor, in mapped memory; the device's.
struct Seen {
    u64 mode, generation;
    u64 processed, from_host, sent, dropped, dead, failed, restarts;
    u64 busy, depth, deepest, waited, beat;
    u64 spare[2];
};
static_assert(sizeof(Seen) == 128, "one line");

struct Actor {
    // Senders' line.
    u64 tail;
    u32 scheduled, wanted;
    u64 generation, drain_at;
    u64 spare0[12];
    // The owner's, whoever serves the actor now.
    u64 head;
    char* slots;
    u64 mask, stride, limit;
    u32 type, mode;
    u32 full, dedicated;
    u64* taken;  // what the host took of our messages, in mapped memory
    u64 window, out_sent, out_taken;
    Seen* seen;
    char *state, *initial;
    u64 state_bytes;
    char* outbox;
    u32 waiting, outbox_size;
    u64 outbox_stride;
    Inlet* inlet;
    u64 next_id;
    u64 processed, from_host, sent, dropped, dead, failed, restarts, busy, deepest, waited;
    u32 failing, accepts;
    u64 answered;
    u64 restarts_left;
};

struct Engine {
    // Written by the warden, read by all.
    u32 leaving;
    u32 spare0[31];
    u64 queue_tail;
    u64 spare1[15];
    u64 queue_head;
    u64 spare2[15];
    u32 left;
    u32 actors, dedicated, blocks;
    u64* queue;  // pairs of a turn and an actor
    u64 queue_mask;
    Actor* all;
    Outlet out;
    Inlet common;
    // In mapped memory, the host's: orders' tail, messages' tail, its beat.
    u64* told;
    char* orders;
    u64 orders_mask, orders_taken;
    u64* orders_head;
    // In mapped memory, ours.
    u64* beat;
    u64* exited;
    u64 launch, lease_ns, slice_ns;
    u32 idle_ns, idle_common_ns;
};

struct Command {
    u64 order, actor, mode, generation, argument, spare[3];
};

__device__ __forceinline__ bool is_leaving(Engine& e) {
    u32 v;
    asm volatile("ld.relaxed.gpu.u32 %0, [%1];" : "=r"(v) : "l"(&e.leaving) : "memory");
    return v != 0;
}

// The run queue: every actor is in it once at most, so it has room.
__device__ inline void push(Engine& e, u32 actor) {
    for (;;) {
        u64 at = peek(&e.queue_tail);
        u64* cell = e.queue + 2 * (at & e.queue_mask);
        if (load(cell) == at && swap_if(&e.queue_tail, at, at + 1) == at) {
            cell[1] = actor;
            store(cell, at + 1);
            return;
        }
    }
}
__device__ inline u32 pop(Engine& e) {
    for (;;) {
        u64 at = peek(&e.queue_head);
        u64* cell = e.queue + 2 * (at & e.queue_mask);
        u64 turn = load(cell);
        if (turn == at) return NOBODY;
        if (turn == at + 1 && swap_if(&e.queue_head, at, at + 1) == at) {
            u32 actor = (u32)cell[1];
            store(cell, at + e.queue_mask + 1);
            return actor;
        }
    }
}
__device__ inline void schedule(Engine& e, Actor& to) {
    if (!to.dedicated && exchange(&to.scheduled, 1) == 0) push(e, (u32)(&to - e.all));
}

__device__ __forceinline__ Slot* slot_at(const Actor& a, u64 at) { return (Slot*)(a.slots + (at & a.mask) * a.stride); }

// Room in a mailbox, or null when it has none. One thread.
__device__ inline Slot* claim(Actor& to, u64& at) {
    for (;;) {
        at = peek(&to.tail);
        Slot* slot = slot_at(to, at);
        u64 turn = load(&slot->turn);
        if (turn == at) {
            if (swap_if(&to.tail, at, at + 1) == at) return slot;
        } else if (turn < at) {
            return 0;
        }
    }
}

// Room in the ring to the host. It is drained all the time, so this does not wait for long. One thread.
__device__ inline u64 claim_out(Engine& e, u64 count) {
    Backoff backoff;
    for (;;) {
        u64 at = peek(&e.out.tail);
        if (at + count - peek(&e.out.seen) > e.out.mask + 1) {
            u64 head = load_host(e.out.head);
            asm volatile("red.relaxed.gpu.max.u64 [%0], %1;" ::"l"(&e.out.seen), "l"(head) : "memory");
            if (at + count - head > e.out.mask + 1) {
                backoff.rest(2000);
                continue;
            }
        }
        if (swap_if(&e.out.tail, at, at + count) == at) return at;
    }
}
__device__ __forceinline__ Slot* out_slot(Engine& e, u64 at) { return (Slot*)(e.out.slots + (at & e.out.mask) * e.out.stride); }

// Whole groups copy; both sides are multiples of 16 bytes.
__device__ __forceinline__ void copy_words(void* to, const void* from, u64 bytes, u32 lane, u32 width) {
    for (u64 i = lane; i < bytes / 16; i += width) ((uint4*)to)[i] = ((const uint4*)from)[i];
}

// What a handler sees: a group of threads, one message, and ways to send others.
struct Context {
    u32 lane, width;
    Engine* engine;
    Actor* actor;
    Slot* message;  // in device memory or the host's
    u64* shared;    // a word of shared memory per purpose
    u32 status;

    __device__ __forceinline__ void sync() { __syncthreads(); }
    __device__ __forceinline__ u32 id() const { return (u32)(actor - engine->all); }
    __device__ __forceinline__ const Header& header() const { return message->header; }
    __device__ __forceinline__ u64 time() const { return now(); }

    // This message could not be handled: it is a dead letter, and the actor begins anew.
    __device__ __forceinline__ void fail() {
        if (lane == 0) actor->failing = 1;
    }

    __device__ void fill(Slot* slot, const Header& header, u64 bytes) {
        slot->bytes = bytes;
        slot->header = header;
    }

    __device__ Header outgoing(u32 type, u32 destination, u64 correlation, u16 flags) {
        Header h;
        h.type = type;
        h.flags = flags;
        h.priority = message->header.priority;
        h.reason = 0;
        h.id = ((u64)(id() + 1) << 40) | actor->next_id++;
        h.correlation = correlation;
        h.deadline = 0;
        h.source = id();
        h.destination = destination;
        h.sent = now();
        return h;
    }

    // Put one message where it goes; false when there is no room now. All threads, same arguments.
    __device__ bool deliver(const Header& header, const void* payload, u64 bytes) {
        u32 to = header.destination;
        if (lane == 0) {
            shared[0] = 0;
            if (to == HOST) {
                bool room = actor->out_sent - actor->out_taken < actor->window;
                if (!room) {
                    actor->out_taken = load_host(actor->taken);
                    room = actor->out_sent - actor->out_taken < actor->window;
                }
                if (room) {
                    actor->out_sent++;
                    u64 at = claim_out(*engine, 1);
                    Slot* slot = out_slot(*engine, at);
                    fill(slot, header, bytes);
                    shared[0] = (u64)slot;
                    shared[1] = at;
                }
            } else {
                u64 at;
                Slot* slot = claim(engine->all[to], at);
                if (slot) fill(slot, header, bytes);
                shared[0] = (u64)slot;
                shared[1] = at;
            }
        }
        sync();
        Slot* slot = (Slot*)shared[0];
        u64 at = shared[1];
        if (!slot) {
            sync();
            return false;
        }
        copy_words(slot->payload(), payload, bytes, lane, width);
        sync();
        if (lane == 0) {
            if (to == HOST) {
                store_host(&slot->turn, at + 1);
            } else {
                store(&slot->turn, at + 1);
                schedule(*engine, engine->all[to]);
            }
        }
        return true;
    }

    // A message that goes nowhere is told to the host, with the reason.
    __device__ void bury(Header header, const void* payload, u64 bytes, u32 reason) {
        if (lane == 0) {
            actor->dead++;
            u64 at = claim_out(*engine, 1);
            Slot* slot = out_slot(*engine, at);
            header.flags |= DEAD;
            header.reason = (u8)reason;
            fill(slot, header, bytes);
            shared[0] = (u64)slot;
            shared[1] = at;
        }
        sync();
        Slot* slot = (Slot*)shared[0];
        u64 at = shared[1];
        copy_words(slot->payload(), payload, bytes, lane, width);
        sync();
        if (lane == 0) store_host(&slot->turn, at + 1);
    }

    __device__ bool put(const Header& header, const void* payload, u64 bytes) {
        u32 to = header.destination;
        if (to != HOST) {
            if (to >= engine->actors) {
                bury(header, payload, bytes, UNKNOWN);
                return false;
            }
            Actor& other = engine->all[to];
            if (other.accepts != header.type) {
                bury(header, payload, bytes, WRONG_TYPE);
                return false;
            }
            u32 mode = load(&other.wanted);
            if (mode == ENDED || mode == FAILED) {
                bury(header, payload, bytes, GONE);
                return false;
            }
        }
        // In order: what waits goes first.
        if (actor->waiting == 0 && deliver(header, payload, bytes)) {
            if (lane == 0) actor->sent++;
            return true;
        }
        u32 full = to == HOST ? (u32)BLOCK : engine->all[to].full;
        if (full == REJECT || full == DROP_NEW) {
            bury(header, payload, bytes, full == REJECT ? REFUSED : DROPPED);
            return false;
        }
        if (full == DROP_OLDEST && lane == 0) schedule(*engine, engine->all[to]);
        u32 index = actor->waiting;
        if (index >= actor->outbox_size) {
            bury(header, payload, bytes, OVERFLOWN);
            return false;
        }
        Slot* slot = (Slot*)(actor->outbox + index * actor->outbox_stride);
        if (lane == 0) fill(slot, header, bytes);
        copy_words(slot->payload(), payload, bytes, lane, width);
        sync();
        if (lane == 0) actor->waiting = index + 1;
        sync();
        return true;
    }

    // Send to an actor. Called by the whole group.
    template <class M> __device__ bool send(u32 destination, const M& message_) {
        sync();
        if (lane == 0) *(Header*)(shared + 4) = outgoing(M::TYPE, destination, 0, 0);
        sync();
        Header header = *(Header*)(shared + 4);
        return put(header, &message_, sizeof(M));
    }

    // Answer the message: to the actor that sent it, or to the host.
    template <class M> __device__ bool reply(const M& message_) {
        sync();
        if (lane == 0) *(Header*)(shared + 4) = outgoing(M::TYPE, message->header.source, message->header.id, REPLY);
        sync();
        Header header = *(Header*)(shared + 4);
        return put(header, &message_, sizeof(M));
    }

    // Put a message into the actor's output, which the host receives.
    template <class M> __device__ bool emit(const M& message_) {
        sync();
        if (lane == 0) *(Header*)(shared + 4) = outgoing(M::TYPE, HOST, message->header.id, 0);
        sync();
        Header header = *(Header*)(shared + 4);
        return put(header, &message_, sizeof(M));
    }

    // Deliver what had to wait; false when something still has to.
    __device__ bool flush() {
        u32 count = actor->waiting;
        if (count == 0) return true;
        u32 done = 0;
        while (done < count) {
            Slot* slot = (Slot*)(actor->outbox + done * actor->outbox_stride);
            Header header = slot->header;
            if (!deliver(header, slot->payload(), slot->bytes)) break;
            if (lane == 0) actor->sent++;
            done++;
        }
        sync();
        if (done > 0) {
            for (u32 i = done; i < count; i++) {
                char* from = actor->outbox + i * actor->outbox_stride;
                copy_words(actor->outbox + (i - done) * actor->outbox_stride, from, actor->outbox_stride, lane, width);
                sync();
            }
            if (lane == 0) actor->waiting = count - done;
            sync();
        }
        return done == count;
    }
};

// What is true of the actor now, for the host.
__device__ inline void show(Actor& a) {
    Seen* s = a.seen;
    u64 depth = peek(&a.tail) - a.head + (a.inlet ? a.inlet->seen - a.inlet->taken : 0);
    if (depth > a.deepest) a.deepest = depth;
    tell_host(&s->processed, a.processed);
    tell_host(&s->sent, a.sent);
    tell_host(&s->dropped, a.dropped);
    tell_host(&s->dead, a.dead);
    tell_host(&s->failed, a.failed);
    tell_host(&s->restarts, a.restarts);
    tell_host(&s->busy, a.busy);
    tell_host(&s->depth, depth);
    tell_host(&s->deepest, a.deepest);
    tell_host(&s->waited, a.waited);
    // Last: the host gives this much room again.
    store_host(&s->from_host, a.from_host);
}

__device__ inline void acknowledge(Actor& a, u32 mode, u64 generation) {
    a.mode = mode;
    tell_host(&a.seen->mode, mode);
    store_host(&a.seen->generation, generation);
}

}  // namespace ring
