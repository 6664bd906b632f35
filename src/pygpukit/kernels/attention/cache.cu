// Copies of keys and values into caches: row (t, h) of k and v goes to place(t) of head h of the caches.
//
//   place(t) = start + t (mode 0), index[0] + t (mode 1), or index[t], a slot (mode 2);
//   address  = cache + (place / page_tokens) * page + (place % page_tokens) * step + h * head.
// A place outside of [0, places) is not written. Head h takes row h / repeat, so that a cache may hold copies of a head.
//
// k, v: rows of `words` words of BYTES bytes each, element strides counted in words. Parts is 1 (k alone) or 2.
// Launch: 256 threads, a thread per word, grid = ceil(tokens * heads * parts * words / 256). No shared memory.
// Numerics: bytes are copied. Determinism: batch_invariant, while no two tokens have one place.
#include "pygpukit/elementwise.cuh"

namespace pgk {

struct CacheWrite {
    i64 tokens, heads, repeat, places, page_tokens, start, mode, parts, words;
    i64 k_token, k_head, v_token, v_head;
    i64 k_page, k_step, k_cache_head, v_page, v_step, v_cache_head, v_offset;
};

template <int BYTES> PGK_FN void kv_cache_write(
    void* k_cache, void* v_cache, const void* k, const void* v, const i32* index, const CacheWrite& c) {
    await_predecessor();
    i64 at = blockIdx.x * 256ll + threadIdx.x;
    if (at >= c.tokens * c.heads * c.parts * c.words) return;
    const i64 word = at % c.words;
    at /= c.words;
    const i64 head = at % c.heads;
    at /= c.heads;
    const bool second = at >= c.tokens;
    const i64 token = second ? at - c.tokens : at;
    const i64 place = c.mode == 2 ? index[token] : token + (c.mode == 1 ? index[0] : c.start);
    if (place < 0 || place >= c.places) return;
    const i64 page = place / c.page_tokens, step = place - page * c.page_tokens, row = head / c.repeat;
    const i64 from = second ? token * c.v_token + row * c.v_head : token * c.k_token + row * c.k_head;
    const i64 to = second ? c.v_offset + page * c.v_page + step * c.v_step + head * c.v_cache_head
                          : page * c.k_page + step * c.k_step + head * c.k_cache_head;
    Vec<u8, BYTES> value;
    load(value, static_cast<const u8*>(second ? v : k) + (from + word) * BYTES, true);
    store(static_cast<u8*>(second ? v_cache : k_cache) + (to + word) * BYTES, value);
}

}  // namespace pgk

#define PGK_KV_CACHE_WRITE(entry, BYTES) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        void* k_cache, void* v_cache, const void* k, const void* v, const pgk::i32* index, pgk::CacheWrite c) { \
        pgk::kv_cache_write<BYTES>(k_cache, v_cache, k, v, index, c); \
    }
