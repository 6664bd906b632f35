// Attention of float32 and float64 on CUDA cores: a block per query and head, in the order of sums of attention.cuh with
// single elements in place of groups of 16. Any size of a head, any strides; sm_80 and newer.
//
// Arguments: out, q, k, v (of type K: T, or codes of a paged cache), lengths, starts, table, mask, scales of codes, Attention
//   (dim may be any), scale and cap as T.
// Launch: 128 threads, grid = rows of q * heads. Shared memory: weights of a chunk. Thread t takes key t of a chunk and then
//   the columns t, t + 128, ... of the sums, 8 at most: heads of up to 1024 elements.
// Numerics: dot products and sums are fma chains in T, ascending; exponentials are exp of T. Chunks of 128 keys, folded in
//   ascending order. The sum of a chunk's weights is a tree over its 128 keys. Determinism: batch_invariant.
#include "pygpukit/attention.cuh"

namespace pgk {

constexpr int SCALAR_THREADS = 128, SCALAR_COLUMNS = 8;

// The elements of a key, or of a value; null where a page is outside of the cache.
template <class T, class K> struct Vector {
    const K* from;
    i64 step;
    f32 scale;

    template <bool PAGED> PGK_FN static Vector of(const K* base, const Arrays<T, K>& x, const f32* scales, const Attention& a,
                                                  const Sequence& s, i64 seq_stride, i64 token_stride, i64 step, int key) {
        if (!PAGED) return {base + s.index * seq_stride + key * token_stride, step, 1.0f};
        const Place at = Place::of(a, x.table, s, key);
        if (!at.there) return {nullptr, step, 1.0f};
        const f32 scale = same<T, K>::value ? 1.0f : at.scale(a, scales);
        return {base + at.page * seq_stride + at.step * token_stride, step, scale};
    }
    PGK_FN T operator[](i64 d) const {
        if constexpr (same<T, K>::value) return from[d * step];
        else return number<T>(from[d * step], scale);
    }
};

template <class T, class K, bool PAGED>
PGK_FN void attention_scalar(T* out, const Arrays<T, K>& x, const Attention& a, i64 q_step, i64 k_step, i64 v_step, i64 o_step,
                             T scale, T cap) {
    await_predecessor();
    __shared__ T weights[SCALAR_THREADS], tree[SCALAR_THREADS];
    __shared__ i64 sums[PAGED ? SCALAR_THREADS : 1];
    const int thread = threadIdx.x;
    const i64 heads = a.kv_heads * a.group, row = blockIdx.x / heads;
    const int head = static_cast<int>(blockIdx.x % heads), kv_head = head / static_cast<int>(a.group);
    int index, token;
    if constexpr (PAGED) {
        const auto count = [&](int i) -> i64 { return x.starts[i + 1] - x.starts[i]; };
        if (row >= count_items<SCALAR_THREADS>(sums, static_cast<int>(a.seqs), count)) {
            // A row behind the last sequence.
            for (int d = thread; d < a.dim; d += SCALAR_THREADS) {
                out[row * a.o_token + head * a.o_head + d * o_step] = T(0);
            }
            return;
        }
        i64 rest = row;
        index = find_item<SCALAR_THREADS>(sums, static_cast<int>(a.seqs), count, rest);
        token = static_cast<int>(rest);
    } else {
        index = static_cast<int>(row / a.queries);
        token = static_cast<int>(row - index * a.queries);
    }
    const Sequence s = Sequence::of<PAGED>(a, x, index);
    const int low = s.low(a, s.position + token), high = s.high(a, s.position + token);
    const T* q = x.q + (PAGED ? s.first_row * a.q_token : s.index * a.q_seq) + token * a.q_token + head * a.q_head;
    const K *keys = x.k + kv_head * a.k_head, *values = x.v + a.v_offset + kv_head * a.v_head;
    const f32 *k_scales = scales_of(x, a, kv_head, 0), *v_scales = scales_of(x, a, kv_head, 1);
    using Of = Vector<T, K>;
    const T none = -T(bit_cast<f32>(0x7f800000u));
    T o[SCALAR_COLUMNS] = {}, m = none, l = T(0);

    for (int chunk = low / SCALAR_THREADS; chunk * SCALAR_THREADS < high; ++chunk) {
        const int first = chunk * SCALAR_THREADS, key = first + thread;
        T score = none;
        if (key >= low && key < high) {
            const Of k = Of::template of<PAGED>(keys, x, k_scales, a, s, a.k_seq, a.k_token, k_step, key);
            T dot = T(0);
            if (k.from) {
                for (i64 d = 0; d < a.dim; ++d) dot = fused(q[d * q_step], k[d], dot);
            }
            score = mul_rn(dot, scale);
            if (cap != T(0)) score = mul_rn(cap, tanh<false>(div(score, cap)));
            if (a.mask_kind) {
                const i64 at = index * a.mask_seq + head * a.mask_head + token * a.mask_token + key * a.mask_key;
                if (a.mask_kind == 1) score = static_cast<const u8*>(x.mask)[at] ? score : none;
                else if (a.mask_kind == 2) score += static_cast<T>(static_cast<const f32*>(x.mask)[at]);
                else score += static_cast<const T*>(x.mask)[at];
            }
        }
        tree[thread] = score;
        __syncthreads();
        for (int d = SCALAR_THREADS / 2; d > 0; d /= 2) {
            if (thread < d) tree[thread] = ::fmax(tree[thread], tree[thread + d]);
            __syncthreads();
        }
        const T chunk_m = tree[0];
        __syncthreads();
        const T weight = chunk_m == none ? T(0) * score : exp<false>(score - chunk_m);
        weights[thread] = tree[thread] = score == none ? T(0) : weight;
        __syncthreads();
        for (int d = SCALAR_THREADS / 2; d > 0; d /= 2) {
            if (thread < d) tree[thread] = add(tree[thread], tree[thread + d]);
            __syncthreads();
        }
        const T chunk_l = tree[0], both = ::fmax(m, chunk_m), base = both == none ? T(0) : both;
        const T old_factor = exp<false>(m - base), new_factor = exp<false>(chunk_m - base);
        m = both;
        l = fused(chunk_l, new_factor, mul_rn(l, old_factor));
#pragma unroll
        for (int i = 0; i < SCALAR_COLUMNS; ++i) {
            const i64 d = thread + i * SCALAR_THREADS;
            if (d >= a.dim) break;
            T sum = T(0);
            for (int j = first < low ? low - first : 0; j < SCALAR_THREADS && first + j < high; ++j) {
                const Of v = Of::template of<PAGED>(values, x, v_scales, a, s, a.v_seq, a.v_token, v_step, first + j);
                if (v.from) sum = fused(weights[j], v[d], sum);
            }
            o[i] = fused(sum, new_factor, mul_rn(o[i], old_factor));
        }
        __syncthreads();
    }
    T* to = out + (PAGED ? s.first_row * a.o_token : s.index * a.o_seq) + token * a.o_token + head * a.o_head;
#pragma unroll
    for (int i = 0; i < SCALAR_COLUMNS; ++i) {
        const i64 d = thread + i * SCALAR_THREADS;
        if (d < a.dim) to[d * o_step] = l == T(0) ? T(0) : o[i] / l;
    }
}

}  // namespace pgk

#define PGK_ATTENTION_SCALAR(entry, T, K, PAGED) \
    extern "C" __global__ void __launch_bounds__(128) entry( \
        pgk::T* out, const pgk::T* q, const pgk::K* k, const pgk::K* v, const pgk::i32* lengths, const pgk::i32* starts, \
        const pgk::i32* table, const void* mask, const float* scales, const __grid_constant__ pgk::Attention a, \
        long long q_step, long long k_step, long long v_step, long long o_step, pgk::T scale, pgk::T cap) { \
        pgk::attention_scalar<pgk::T, pgk::K, PAGED>(out, {q, k, v, lengths, starts, table, mask, scales}, a, q_step, \
                                                     k_step, v_step, o_step, scale, cap); \
    }
