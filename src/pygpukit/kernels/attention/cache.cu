// Copies of keys and values into caches: row (t, h) of k and v goes to place(t) of head h of the caches.
//
//   place(t) = start + t (mode 0), index[0] + t (mode 1), or index[t], a slot (mode 2);
//   address  = cache + (place / page_tokens) * page + (place % page_tokens) * step + h * head.
// A place outside of [0, places) is not written. Head h takes row h / repeat, so that a cache may hold copies of a head.
//
// k, v: rows of `words` words of BYTES bytes each, element strides counted in words. Parts is 1 (k alone) or 2.
// Launch: 256 threads, a thread per word, grid = ceil(tokens * heads * parts * words / 256). No shared memory.
// Numerics: bytes are copied. Determinism: batch_invariant, while no two tokens have one place.
//
// kv_cache_encode makes codes K of numbers T instead: a warp per row of `words` numbers, 256 threads, grid = ceil(tokens *
// heads * parts / 8). float8: x / scale, rounded once; what is too large becomes 448. int8: scale = max |x| / 127 is written,
// codes are x / scale, rounded to nearest even. Every step in float32.
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

struct CacheEncode {
    CacheWrite to;
    i64 scale_page, scale_part, scale_step, scale_head;
};

template <class T, class K> PGK_FN void kv_cache_encode(
    K* cache, f32* scales, const T* k, const T* v, const i32* index, const CacheEncode& e) {
    await_predecessor();
    const CacheWrite& c = e.to;
    const int lane = threadIdx.x % 32;
    i64 at = blockIdx.x * 8ll + threadIdx.x / 32;
    if (at >= c.tokens * c.heads * 2) return;
    const i64 head = at % c.heads;
    at /= c.heads;
    const bool second = at >= c.tokens;
    const i64 token = second ? at - c.tokens : at;
    const i64 place = index[token];
    if (place < 0 || place >= c.places) return;
    const i64 page = place / c.page_tokens, step = place - page * c.page_tokens;
    const T* from = second ? v + token * c.v_token + head * c.v_head : k + token * c.k_token + head * c.k_head;
    K* to = cache + (second ? c.v_offset : 0) + page * c.k_page + step * c.k_step + head * c.k_cache_head;
    f32* scale = scales ? scales + page * e.scale_page + (second ? e.scale_part : 0) + step * e.scale_step + head * e.scale_head
                        : nullptr;
    if constexpr (same<K, i8>::value) {
        f32 largest = 0.0f;
        for (i64 d = lane; d < c.words; d += 32) {
            const f32 x = ::fabsf(convert<f32>(from[d]));
            // NaN wins, as it does in NumPy.
            largest = x > largest || x != x ? x : largest;
        }
#pragma unroll
        for (int other = 16; other; other /= 2) {
            const f32 x = __shfl_xor_sync(0xffffffffu, largest, other);
            largest = x > largest || x != x ? x : largest;
        }
        const f32 factor = __fdiv_rn(largest, 127.0f);
        if (lane == 0) *scale = factor;
        for (i64 d = lane; d < c.words; d += 32) {
            const f32 code = ::rintf(__fdiv_rn(convert<f32>(from[d]), factor == 0.0f ? 1.0f : factor));
            // Of a row that is not finite codes are NaN here; its scale says so.
            to[d] = static_cast<i8>(code != code ? 0 : static_cast<int>(::fminf(::fmaxf(code, -127.0f), 127.0f)));
        }
    } else {
        const f32 factor = scale ? *scale : 1.0f;
        for (i64 d = lane; d < c.words; d += 32) {
            const f32 x = __fdiv_rn(convert<f32>(from[d]), factor);
            to[d] = convert<K>(x > 448.0f ? 448.0f : x < -448.0f ? -448.0f : x);
        }
    }
}

}  // namespace pgk

#define PGK_KV_CACHE_ENCODE(entry, T, K) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::K* cache, float* scales, const pgk::T* k, const pgk::T* v, const pgk::i32* index, pgk::CacheEncode e) { \
        pgk::kv_cache_encode<pgk::T, pgk::K>(cache, scales, k, v, index, e); \
    }

#define PGK_KV_CACHE_WRITE(entry, BYTES) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        void* k_cache, void* v_cache, const void* k, const void* v, const pgk::i32* index, pgk::CacheWrite c) { \
        pgk::kv_cache_write<BYTES>(k_cache, v_cache, k, v, index, c); \
    }
