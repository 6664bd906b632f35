// Updates at places: x[place(i)] = op(x[place(i)], value[i]) for each i in row-major order of the index arrays, also
// where places repeat.
//
// A word holds a place in its upper bits and an ordinal in the lower `shift` ones; indices out of range have place
// `places`, the number of places. Sorted by place (stable, so ordinals ascend), equal places are runs.
//
// pgk_at_words_kK: words[i] for each of the `members` elements of the index arrays (pygpukit/places.cuh).
// Op::apply(a, b) is the operator in its compute type C, Op::merge(b, c) such that apply(apply(a, b), c) =
// apply(a, merge(b, c)) but for rounding.
// windows: sums[w, c] of window w of 64 sorted words by merge, in order, if all have one place; 64 windows of the level
//   below, which begins at `below`, where that is not negative. `span` words per window.
// apply: the thread of a run's first word and of one of `inner` columns takes the first 64 values one by one; of longer
//   runs then the largest windows that lie in the run, up to `levels`, whose sums are at offsets 0, count of level 1, ...
//   The result is rounded to T once.
// x: contiguous [places, inner]. value: [members, inner] with any two strides. Launch: 256 threads, an element each.
// Determinism: run_to_run. Runs of up to 64 are computed in order: NumPy's bits, but for 8- and 16-bit floats, which are
// computed in float32; bits of longer runs depend on where in the sorted words they lie.
#include "pygpukit/places.cuh"

namespace pgk {

constexpr int WINDOW = 64;

template <int K>
PGK_FN void at_words(u64* words, const Indices& indices, i64 members, i64 places, const Nd<K>& space,
                     const Axes<1>& axes, int count, int wide, int shift) {
    const i64 base = static_cast<i64>(blockIdx.x) * PER_BLOCK_ND + threadIdx.x;
#pragma unroll 1
    for (int j = 0; j < PER_BLOCK_ND; j += THREADS) {
        const i64 i = base + j;
        if (i >= members) break;
        i64 key;
        if (!key_of<K>(key, static_cast<u64>(i), indices, space, axes, count, wide)) key = places;
        words[i] = static_cast<u64>(key) << shift | static_cast<u64>(i);
    }
}

// Row and column of an element of [rows, inner].
PGK_FN void divide(i64 at, i64 inner, i64& row, i64& column) {
    if (inner == 1) {
        row = at;
        column = 0;
    } else if ((static_cast<u64>(at) | static_cast<u64>(inner)) >> 32) {
        row = at / inner;
        column = at - row * inner;
    } else {
        row = static_cast<u32>(at) / static_cast<u32>(inner);
        column = at - row * inner;
    }
}

template <class T> struct Values {
    const T* p;
    i64 row, column, c;
    u64 ordinals;
    template <class C> PGK_FN C get(u64 word) const {
        return convert<C>(p[static_cast<i64>(word & ordinals) * row + c * column]);
    }
};

template <class Op>
PGK_FN void windows(typename Op::C* sums, const typename Op::C* below, const typename Op::T* value, const u64* words,
                    i64 count, i64 inner, i64 row, i64 column, i64 span, int shift) {
    using C = typename Op::C;
    await_predecessor();
    i64 window, c;
    divide(blockIdx.x * static_cast<i64>(THREADS) + threadIdx.x, inner, window, c);
    if (window >= count) return;
    const u64* mine = words + window * span;
    if (mine[0] >> shift != mine[span - 1] >> shift) return;
    const Values<typename Op::T> values{value, row, column, c, (u64(1) << shift) - 1};
    constexpr int unroll = 8;
    C sum{};
#pragma unroll 1
    for (int i = 0; i < WINDOW; i += unroll) {
        C v[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if (below) v[u] = below[(window * WINDOW + i + u) * inner + c];
            else v[u] = values.template get<C>(mine[i + u]);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) sum = i + u ? Op::merge(sum, v[u]) : v[u];
    }
    sums[window * inner + c] = sum;
}

template <class Op>
PGK_FN void apply_at(typename Op::T* x, const typename Op::T* value, const typename Op::C* sums, const u64* words,
                     i64 members, i64 inner, i64 places, i64 row, i64 column, int shift, int levels) {
    using C = typename Op::C;
    using T = typename Op::T;
    await_predecessor();
    i64 i, c;
    divide(blockIdx.x * static_cast<i64>(THREADS) + threadIdx.x, inner, i, c);
    if (i >= members) return;
    u64 word = words[i];
    const u64 key = word >> shift;
    if (key >= static_cast<u64>(places) || (i > 0 && words[i - 1] >> shift == key)) return;
    const Values<T> values{value, row, column, c, (u64(1) << shift) - 1};
    T* target = x + static_cast<i64>(key) * inner + c;
    C sum = convert<C>(*target);
    const i64 stop = members - i < WINDOW ? members : i + WINDOW;
    for (;;) {
        sum = Op::apply(sum, values.template get<C>(word));
        if (++i >= members) break;
        word = words[i];
        if (word >> shift != key || i >= stop) break;
    }
    if (i < members && word >> shift == key) {
        i64 low = i + 1, high = members;
        while (low < high) {
            const i64 middle = low + (high - low) / 2;
            if (words[middle] >> shift == key) low = middle + 1;
            else high = middle;
        }
        while (i < low) {
            int level = 0;
            i64 span = 1, offset = 0, before = 0;
            // The largest window that begins here and lies in the run.
            while (level < levels && i % (span * WINDOW) == 0 && i + span * WINDOW <= low) {
                offset += before;
                span *= WINDOW;
                before = members / span;
                ++level;
            }
            const C v = level ? sums[(offset + i / span) * inner + c] : values.template get<C>(words[i]);
            sum = Op::apply(sum, v);
            i += span;
        }
    }
    *target = convert<T>(sum);
}

}  // namespace pgk

#define PGK_AT_WORDS(entry, K) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        unsigned long long* words, const void* i0, const void* i1, const void* i2, const void* i3, const void* i4, \
        const void* i5, const void* i6, const void* i7, long long members, long long places, \
        const __grid_constant__ pgk::Nd<K> space, const __grid_constant__ pgk::Axes<1> axes, int count, int wide, \
        int shift) { \
        pgk::await_predecessor(); \
        const pgk::Indices indices{{i0, i1, i2, i3, i4, i5, i6, i7}}; \
        pgk::at_words<K>(words, indices, members, places, space, axes, count, wide, shift); \
    }

#define PGK_AT_WINDOWS(entry, OP) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::OP::C* sums, const pgk::OP::T* value, const unsigned long long* words, long long first, \
        long long below, long long count, long long inner, long long row, long long column, long long span, \
        int shift) { \
        pgk::windows<pgk::OP>(sums + first * inner, below < 0 ? nullptr : sums + below * inner, value, words, count, \
                              inner, row, column, span, shift); \
    }

#define PGK_AT_APPLY(entry, OP) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::OP::T* x, const pgk::OP::T* value, const pgk::OP::C* sums, const unsigned long long* words, \
        long long members, long long inner, long long places, long long row, long long column, int shift, \
        int levels) { \
        pgk::apply_at<pgk::OP>(x, value, sums, words, members, inner, places, row, column, shift, levels); \
    }
