// Pieces of a tile of a quantised weight in shared memory: SPAN chunks of every plane, as bulk copies bring them (SM 90).
//
// A piece: codes, high bits, records of scales, records of extra, each as in its plane (decode.cuh). Scales of whole rows come
// with a tile's first piece. Copies have multiples of 16 bytes. A scale that the rows of a tile share has 4, and is loaded.
#pragma once
#include "pygpukit/decode.cuh"
#include "pygpukit/sm90.cuh"

namespace pgk {

// `bytes`, a multiple of 16, from global to shared memory; the barrier counts them.
PGK_FN void load_bytes(u32 to, const void* from, u32 bytes, u32 barrier, u64 hint = KEEP_NORMAL) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
        :: "r"(to), "l"(from), "r"(bytes), "r"(barrier), "l"(hint) : "memory");
}

template <int WORDS> PGK_FN void load_shared(u32 (&to)[WORDS], u32 at) {
    if constexpr (WORDS % 4 == 0) {
#pragma unroll
        for (int i = 0; i < WORDS; i += 4) {
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(to[i]), "=r"(to[i + 1]), "=r"(to[i + 2]), "=r"(to[i + 3]) : "r"(at + i * 128) : "memory");
        }
    } else if constexpr (WORDS == 2) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(at) : "memory");
    } else {
        static_assert(WORDS == 1, "one, two or whole vectors");
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(at) : "memory");
    }
}
// A record of 2, 4, 8 or 16 bytes.
template <int BYTES> PGK_FN void load_shared_record(u32* to, u32 at) {
    if constexpr (BYTES == 2) {
        unsigned short v;
        asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at) : "memory");
        to[0] = v;
    } else if constexpr (BYTES == 4) {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(to[0]) : "r"(at) : "memory");
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 8; ++i) {
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(to[2 * i]), "=r"(to[2 * i + 1]) : "r"(at + i * 8) : "memory");
        }
    }
}

template <class R, int SPAN> struct Pieces {
    static constexpr int GROUP = R::GROUP_SIZE;
    static_assert(GROUP == 0 || SPAN * CHUNK % (GROUP ? GROUP : 1) == 0, "a piece has whole groups");
    static_assert(!R::SUPER || SPAN % 4 == 0, "and whole super-blocks");
    // Chunks per record of scales and of extra; 0 where a tile has one record.
    static constexpr int PER_SCALE = GROUP == 0 ? 0 : GROUP <= CHUNK ? 1 : GROUP / CHUNK;
    static constexpr int PER_EXTRA = R::SUPER ? 4 : PER_SCALE;
    static constexpr int SCALE = 8 * R::SCALE_BYTES, EXTRA = 8 * R::EXTRA_BYTES;
    static constexpr int HIGH_AT = SPAN * 128 * R::LOW_BITS, SCALE_AT = HIGH_AT + SPAN * 128 * R::HIGH_BITS;
    static constexpr int EXTRA_AT = SCALE_AT + SCALE * (PER_SCALE ? SPAN / PER_SCALE : 1);
    static constexpr int END = EXTRA_AT + EXTRA * (PER_EXTRA ? SPAN / PER_EXTRA : 1);
    static constexpr int BYTES = (END + 127) / 128 * 128;

    static constexpr u32 CODES = SPAN * 128 * R::LOW_BITS, HIGH = SPAN * 128 * R::HIGH_BITS;
    static constexpr u32 SCALES = SCALE * (PER_SCALE ? SPAN / PER_SCALE : 1), EXTRAS = EXTRA * (PER_EXTRA ? SPAN / PER_EXTRA : 1);

    // What a lane of a warp copies: lane 0 codes, lane 1 scales, lane 2 extra, lane 3 high bits; lane 31 announces the sum of
    // all. Bytes of the first piece of a tile, of the last, and of those between.
    static constexpr int ANNOUNCES = 31;
    struct Source {
        const u8 *base, *at;
        i64 per_tile;
        u32 place, first, full, last;
    };

    static PGK_FN Source source(const Planes& w, i64 tile, int pieces, int lane) {
        const int left = static_cast<int>(w.chunks) - (pieces - 1) * SPAN;
        const u32 codes = left * (128 * R::LOW_BITS), high = left * (128 * R::HIGH_BITS);
        const u32 scales = PER_SCALE ? (left + PER_SCALE - 1) / max(PER_SCALE, 1) * SCALE : 0;
        const u32 extras = PER_EXTRA ? (left + PER_EXTRA - 1) / max(PER_EXTRA, 1) * EXTRA : 0;
        Source from{w.codes, nullptr, 0, 0, 0, 0, 0};
        if (lane == 0) from = {w.codes, nullptr, w.chunks * (128 * R::LOW_BITS), 0, 0, CODES, codes};
        if (lane == 1) from = {w.scales, nullptr, w.records * SCALE, SCALE_AT, 0, PER_SCALE ? SCALES : 0, scales};
        if (lane == 2) {
            from = {w.extra, nullptr, (R::SUPER ? w.chunks / 4 : w.records) * EXTRA, EXTRA_AT, 0, PER_EXTRA ? EXTRAS : 0, extras};
        }
        if (lane == 3) from = {w.high, nullptr, w.chunks * (128 * R::HIGH_BITS), HIGH_AT, 0, HIGH, high};
        if (lane == ANNOUNCES) {
            from.full = CODES + HIGH + (PER_SCALE ? SCALES : 0) + (PER_EXTRA ? EXTRAS : 0);
            from.last = codes + high + scales + extras;
        }
        if (shared_scale(w) && PER_SCALE && (lane == 1 || lane == ANNOUNCES)) {
            from.full -= SCALES;
            from.last -= scales;
        }
        from.first = pieces == 1 ? from.last : from.full;
        const bool all = lane == ANNOUNCES;
        if (!PER_SCALE && !shared_scale(w) && (lane == 1 || all)) from.first += SCALE;
        if (!PER_EXTRA && (lane == 2 || all)) from.first += EXTRA;
        from.at = from.base + tile * from.per_tile;
        // Kept in registers: the compiler would compute them for every piece.
        asm volatile("" : "+r"(from.place), "+r"(from.first), "+r"(from.full), "+r"(from.last));
        return from;
    }
    static PGK_FN bool shared_scale(const Planes& w) { return R::SHARES && w.owners == 1; }
    // Does a chunk of a piece begin a group?
    static PGK_FN constexpr bool begins(int c) { return PER_SCALE > 0 && c % max(PER_SCALE, 1) == 0; }

    // Begins to copy the next piece of a tile: all lanes of a warp. `more` bytes come to its barrier from elsewhere.
    static PGK_FN void copy(u32 to, u32 barrier, Source& from, int piece, int pieces, int lane, u32 more = 0) {
        const u32 bytes = piece == 0 ? from.first : piece == pieces - 1 ? from.last : from.full;
        if (lane == ANNOUNCES) barrier_expect(barrier, bytes + more);
        // Bytes may come before they are announced: the barrier waits for the arrival.
        else if (bytes != 0) load_bytes(to + from.place, from.at, bytes, barrier, EVICT_FIRST);
        from.at += bytes;
    }
    // Goes on with another tile.
    static PGK_FN void begin(Source& from, i64 tile) { from.at = from.base + tile * from.per_tile; }

    // Loads of shared memory are served in order: a word that this returns, a zero, comes when the last codes have.
    static PGK_FN u32 arrived(const typename R::Raw& raw, u32 zero) { return raw.code[R::LOW_BITS - 1] & zero; }

    static PGK_FN void load_codes(typename R::Raw& raw, u32 from, int c, int lane) {
        load_shared(raw.code, from + c * (128 * R::LOW_BITS) + lane * 16);
        if constexpr (R::HIGH_BITS > 0) load_shared(raw.high, from + HIGH_AT + c * (128 * R::HIGH_BITS) + lane * (4 * R::HIGH_BITS));
    }
    // The record of scales, and of extra, of a chunk of a tile's piece.
    static PGK_FN void load_scale(typename R::Raw& raw, u32 from, const Planes& w, i64 tile, int piece, int c, int lane) {
        const int scale = PER_SCALE ? c / max(PER_SCALE, 1) : 0, extra = PER_EXTRA ? c / max(PER_EXTRA, 1) : 0;
        if (shared_scale(w)) {
            const i64 record = tile * w.records + (PER_SCALE ? piece * (SPAN / max(PER_SCALE, 1)) + scale : 0);
            load_record<4>(raw.scale, w.scales + record * 4);
            raw.scale[R::SHARES] = raw.scale[0];
        } else {
            load_shared_record<R::SCALE_BYTES>(raw.scale, from + SCALE_AT + scale * SCALE + lane / 4 * R::SCALE_BYTES);
        }
        if constexpr (EXTRA > 0) load_shared_record<R::EXTRA_BYTES>(raw.extra, from + EXTRA_AT + extra * EXTRA + lane / 4 * R::EXTRA_BYTES);
    }
};

}  // namespace pgk
