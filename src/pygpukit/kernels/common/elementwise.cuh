// Elementwise kernels: out[i] = Op::apply(a[i], b[i], c[i]) over storage types; a generated unit supplies Op and the
// entries. Op::apply returns the output type, or float to be rounded to a 16-bit one here, two at a time.
//
// dense<Op, E, U>: 256 threads; one block covers 256 * E * U consecutive elements; grid = ceil(n / (256 * E * U)).
//   `vec` nonzero promises that out and every dense operand are aligned to E elements.
// strided<Op, B, E>: 256 threads, 256 * max(8, E) elements per block (E = 1: 1024), offsets from Nd in row-major index
//   order; E elements at a time where rows of out and of every operand allow it, else B single ones. Rows on one outer
//   axis, which are joined matrices, broadcast rows and columns, take the fewest steps.
// turned<Op, E>: the same for one operand with a transposed layout, through tiles in shared memory; else strided.
// No shared memory but for that. Every path evaluates the same expression on one element's own inputs: results are batch
// invariant. out may be one of the inputs (same address, same layout); any other overlap is the caller's to avoid.
#pragma once
#include "pygpukit/bf16.cuh"
#include "pygpukit/complex.cuh"
#include "pygpukit/fp8.cuh"

// Cache hint of the vector path: "" keeps the default, ".cs" streams (read and written once, evicted first).
#ifndef PGK_LOAD_HINT
#define PGK_LOAD_HINT ""
#endif
#ifndef PGK_STORE_HINT
#define PGK_STORE_HINT ""
#endif

namespace pgk {

constexpr int THREADS = 256;
constexpr int PER_BLOCK_ND = 4 * THREADS;

// The first statement of every kernel: lets the next kernel of a graph be launched early, then waits until this one's own
// predecessors have ended and their writes are visible. Nothing before it may touch global memory. All threads must run
// it, or a successor could start before a predecessor's predecessor has ended. Without early launch it does nothing.
PGK_FN void await_predecessor() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// One input. p == nullptr: the scalar `value`; step 0: the single element *p; step 1: dense.
template <class T, class C> struct Operand {
    using element = T;
    const T* p;
    long long step;
    C value;
};
static_assert(sizeof(Operand<f32, f32>) == 24 && sizeof(Operand<b1, u8>) == 24, "the host packs 24 bytes");
static_assert(sizeof(Operand<c64, c64>) == 24 && sizeof(Operand<c128, c128>) == 32, "and 32 for complex128");
static_assert(alignof(Operand<c128, c128>) == 8, "operands are packed at multiples of 8");

// Stands for the inputs an operator does not have.
struct none {};
struct NoOperand { using element = none; };

// Shape and element strides; stride[0] belongs to out, the others to the inputs in order.
template <int K> struct Nd {
    int ndim;
    int pad;
    long long shape[8];
    long long stride[K][8];
};
static_assert(sizeof(Nd<2>) == 200 && sizeof(Nd<3>) == 264 && sizeof(Nd<4>) == 328, "the host packs Nd");

template <class T, int E> union Vec {
    static constexpr int bytes = E * static_cast<int>(sizeof(T));
    T e[E];
    u32 w[(bytes + 3) / 4];
};
template <int E> union Vec<none, E> { none e[E]; };

// v = *p where `on`; otherwise v keeps its value. One predicated instruction each, so that all loads are in flight.
template <class T, int E> PGK_FN void load(Vec<T, E>& v, const T* p, bool on) {
    const int q = on;
    if constexpr (Vec<T, E>::bytes == 16) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %5, 0;"
                     "  @q ld.global" PGK_LOAD_HINT ".v4.u32 {%0, %1, %2, %3}, [%4]; }"
                     : "+r"(v.w[0]), "+r"(v.w[1]), "+r"(v.w[2]), "+r"(v.w[3]) : "l"(p), "r"(q));
    } else if constexpr (Vec<T, E>::bytes == 8) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %3, 0; @q ld.global" PGK_LOAD_HINT ".v2.u32 {%0, %1}, [%2]; }"
                     : "+r"(v.w[0]), "+r"(v.w[1]) : "l"(p), "r"(q));
    } else if constexpr (Vec<T, E>::bytes == 4) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global" PGK_LOAD_HINT ".u32 %0, [%1]; }"
                     : "+r"(v.w[0]) : "l"(p), "r"(q));
    } else if constexpr (Vec<T, E>::bytes == 2) {
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global" PGK_LOAD_HINT ".u16 %0, [%1]; }"
                     : "+r"(v.w[0]) : "l"(p), "r"(q));
    } else {
        static_assert(Vec<T, E>::bytes == 1, "vectors are 1 to 16 bytes");
        asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global" PGK_LOAD_HINT ".u8 %0, [%1]; }"
                     : "+r"(v.w[0]) : "l"(p), "r"(q));
    }
}

template <class T, int E> PGK_FN void store(T* p, const Vec<T, E>& v) {
    if constexpr (Vec<T, E>::bytes == 16) {
        asm volatile("st.global" PGK_STORE_HINT ".v4.u32 [%0], {%1, %2, %3, %4};"
                     :: "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3]) : "memory");
    } else if constexpr (Vec<T, E>::bytes == 8) {
        asm volatile("st.global" PGK_STORE_HINT ".v2.u32 [%0], {%1, %2};"
                     :: "l"(p), "r"(v.w[0]), "r"(v.w[1]) : "memory");
    } else if constexpr (Vec<T, E>::bytes == 4) {
        asm volatile("st.global" PGK_STORE_HINT ".u32 [%0], %1;" :: "l"(p), "r"(v.w[0]) : "memory");
    } else {
        for (int i = 0; i < E; ++i) p[i] = v.e[i];
    }
}

// An input in its compute type and a result in its storage type, where the bits of a NaN do not matter: arithmetic has
// lost them already. Casts use convert.
template <class C, class T> PGK_FN C input(T x) {
    if constexpr (same<T, f16>::value && same<C, f32>::value) return widen_fast(x);
    return convert<C>(x);
}
template <class To, class V> PGK_FN To output(V v) {
    if constexpr ((same<To, f16>::value || same<To, bf16>::value) && same<V, f32>::value) {
        return To{static_cast<u16>(pack(To{}, v, 0.0f))};
    }
    return convert<To>(v);
}
template <class To, class V, int E> PGK_FN Vec<To, E> outputs(const V (&v)[E]) {
    Vec<To, E> r;
    if constexpr (E % 2 == 0 && sizeof(To) == 2 && same<V, f32>::value) {
#pragma unroll
        for (int i = 0; i < E; i += 2) r.w[i / 2] = pack(To{}, v[i], v[i + 1]);
        return r;
    }
#pragma unroll
    for (int i = 0; i < E; ++i) r.e[i] = output<To>(v[i]);
    return r;
}

// A value as an array of type To holds it: what a fused operator computes with where its parts go through memory.
template <class To, class V> PGK_FN V rounded(V v) { return input<V>(output<To>(v)); }

// *p where `on`, otherwise `other`, without a branch. A complex number may be aligned to its parts only.
template <class T> PGK_FN T element(const T* p, bool on, T other) {
    Vec<T, 1> v;
    v.e[0] = other;
    load(v, p, on);
    return v.e[0];
}
template <class T> PGK_FN cx<T> element(const cx<T>* p, bool on, cx<T> other) {
    return {element(&p->re, on, other.re), element(&p->im, on, other.im)};
}

// An operand as the block sees it: a dense pointer, or one element for every index.
template <class A> struct Source {
    using T = typename A::element;
    const T* p;
    T scalar;
    bool dense;
    PGK_FN static Source of(const A& a, i64 base, bool dense) {
        Source s;
        s.dense = dense;
        s.p = a.p + (dense ? base : 0);
        s.scalar = dense ? T{} : a.p ? *a.p : convert<T>(a.value);
        return s;
    }
    template <int E> PGK_FN Vec<T, E> vector(i64 at, bool on) const {
        Vec<T, E> v;
#pragma unroll
        for (int i = 0; i < E; ++i) v.e[i] = scalar;
        load(v, p + at, on && dense);
        return v;
    }
    PGK_FN T one(i64 at, bool on) const { return element(p + at, on && dense, scalar); }
};
template <> struct Source<NoOperand> {
    PGK_FN static Source of(NoOperand, i64, bool) { return {}; }
    template <int E> PGK_FN Vec<none, E> vector(i64, bool) const { return {}; }
    PGK_FN none one(i64, bool) const { return {}; }
};

template <class A> PGK_FN bool is_dense(const A& a) { return a.p != nullptr && a.step != 0; }
template <class A> PGK_FN bool is_array(const A& a) { return a.p != nullptr; }
PGK_FN bool is_dense(NoOperand) { return false; }
PGK_FN bool is_array(NoOperand) { return false; }

template <class Op, int E, int U, class To, class A, class B = NoOperand, class C = NoOperand>
PGK_FN void dense(To* out, i64 n, int vec, const A& a, const B& b = {}, const C& c = {}) {
    await_predecessor();
    constexpr int span = THREADS * E * U;
    const i64 base = static_cast<i64>(blockIdx.x) * span;
    const int left = n - base < span ? static_cast<int>(n - base) : span;
    const int lane = static_cast<int>(threadIdx.x);
    const auto x = Source<A>::of(a, base, is_dense(a));
    const auto y = Source<B>::of(b, base, is_dense(b));
    const auto z = Source<C>::of(c, base, is_dense(c));
    out += base;

    int start = 0;
    if (vec) {
        Vec<typename A::element, E> va[U];
        Vec<typename B::element, E> vb[U];
        Vec<typename C::element, E> vc[U];
#pragma unroll
        for (int j = 0; j < U; ++j) {
            const int at = (j * THREADS + lane) * E;
            va[j] = x.template vector<E>(at, at + E <= left);
            vb[j] = y.template vector<E>(at, at + E <= left);
            vc[j] = z.template vector<E>(at, at + E <= left);
        }
#pragma unroll
        for (int j = 0; j < U; ++j) {
            const int at = (j * THREADS + lane) * E;
            if (at + E <= left) {
                typename Op::value r[E];
#pragma unroll
                for (int i = 0; i < E; ++i) r[i] = Op::apply(va[j].e[i], vb[j].e[i], vc[j].e[i]);
                store(out + at, outputs<To>(r));
            }
        }
        start = left & ~(E - 1);
    }
    // What a vector does not cover: the last elements, or everything when a pointer is not aligned.
#pragma unroll 1
    for (int first = start + lane; first < left; first += THREADS * U) {
        typename A::element ea[U];
        typename B::element eb[U];
        typename C::element ec[U];
#pragma unroll
        for (int j = 0; j < U; ++j) {
            const int at = first + j * THREADS;
            ea[j] = x.one(at, at < left);
            eb[j] = y.one(at, at < left);
            ec[j] = z.one(at, at < left);
        }
#pragma unroll
        for (int j = 0; j < U; ++j) {
            const int at = first + j * THREADS;
            if (at < left) out[at] = output<To>(Op::apply(ea[j], eb[j], ec[j]));
        }
    }
}

// Elements per block of a strided kernel whose vectors have E: eight per thread, so that what is the same for a block is
// worked out seldom.
PGK_FN constexpr int strided_block(int E) { return E == 1 ? PER_BLOCK_ND : THREADS * (E > 8 ? E : 8); }

// Element offsets, in out and the inputs, of the U indices first + ahead + j * THREADS, counted in vectors of E along the
// last axis. `first` is the block's and costs one division per axis; what lies ahead of it (at most a block) is carried
// from axis to axis.
template <int K, int U, int E = 1> PGK_FN void locate(i64 (&offset)[K][U], u64 first, u32 ahead, const Nd<K>& nd) {
    u32 carry[U];
#pragma unroll
    for (int j = 0; j < U; ++j) {
        carry[j] = ahead + j * THREADS;
#pragma unroll
        for (int k = 0; k < K; ++k) offset[k][j] = 0;
    }
#pragma unroll 1
    for (int d = nd.ndim - 1; d >= 0; --d) {
        const int unit = d == nd.ndim - 1 ? E : 1;
        const u64 extent = static_cast<u64>(nd.shape[d]) / static_cast<u32>(unit);
        const u64 rest = d ? first / extent : 0;
        const u64 position = first - rest * extent;
        first = rest;
#pragma unroll
        for (int j = 0; j < U; ++j) {
            u64 at = position + carry[j];
            // Beyond the first axis's end lie only indices past n, which are never used.
            if (d) {
                carry[j] = extent >= strided_block(16) ? at >= extent : static_cast<u32>(at) / static_cast<u32>(extent);
                at -= carry[j] * extent;
            }
#pragma unroll
            for (int k = 0; k < K; ++k) offset[k][j] += static_cast<i64>(at) * unit * nd.stride[k][d];
        }
    }
}

// May elements be read E at a time along the last axis: all at neighbouring addresses, or all the same element?
template <class T, int E, int K> PGK_FN bool has_rows(const T* p, int k, const Nd<K>& nd) {
    const int last = nd.ndim - 1;
    if (nd.stride[k][last] != 1) return k > 0 && nd.stride[k][last] == 0;
    i64 odd = static_cast<i64>(reinterpret_cast<u64>(p) & (E * sizeof(T) - 1));
#pragma unroll 1
    for (int d = 0; d < last; ++d) odd |= nd.stride[k][d] & (E - 1);
    return odd == 0;
}
template <int E, class S, int K> PGK_FN bool source_has_rows(const S& s, int k, const Nd<K>& nd) {
    return !s.dense || has_rows<typename S::T, E>(s.p, k, nd);
}
template <int E, int K> PGK_FN bool source_has_rows(const Source<NoOperand>&, int, const Nd<K>&) { return true; }

// E elements along the last axis, or one for all.
template <int E, class S, int K> PGK_FN auto row_of(const S& s, i64 at, bool on, int k, const Nd<K>& nd) {
    if (nd.stride[k][nd.ndim - 1] != 0) return s.template vector<E>(at, on);
    Vec<typename S::T, E> v;
    v.e[0] = s.one(at, on);
#pragma unroll
    for (int i = 1; i < E; ++i) v.e[i] = v.e[0];
    return v;
}
template <int E, int K> PGK_FN Vec<none, E> row_of(const Source<NoOperand>&, i64, bool, int, const Nd<K>&) { return {}; }

// Of rows on one outer axis at most, the bits that keep E elements from being one vector.
template <class T, int E, int K> PGK_FN u64 oddness(const T* p, int k, const Nd<K>& nd, int last) {
    if (nd.stride[k][last] != 1) return k == 0 || nd.stride[k][last] != 0;
    return (reinterpret_cast<u64>(p) | static_cast<u64>(nd.stride[k][0] * sizeof(T)) * last) & (E * sizeof(T) - 1);
}
template <int E, class A, int K> PGK_FN u64 operand_oddness(const A& a, int k, const Nd<K>& nd, int last) {
    return is_array(a) ? oddness<typename A::element, E>(a.p, k, nd, last) : 0;
}
template <int E, int K> PGK_FN u64 operand_oddness(const NoOperand&, int, const Nd<K>&, int) { return 0; }

// Rows on one outer axis at most: the place of a vector is one division of 32 bits, made while the predecessor ends.
// False, and nothing done, where the arrays are not such rows.
template <class Op, int U, int E, class To, int K, class A, class B, class C>
PGK_FN bool rows_on_one_axis(To* out, i64 n, const Nd<K>& nd, const A& a, const B& b, const C& c) {
    constexpr int y_at = K > 2 ? 2 : 0, z_at = K > 3 ? 3 : 0;
    constexpr int all = strided_block(E) / (THREADS * E), V = U == 1 ? 1 : all;
    const int last = nd.ndim - 1;
    if (static_cast<u32>(last) > 1 || n >= 1ll << 31 || (nd.shape[last] & (E - 1)) != 0) return false;
    if (oddness<To, E>(out, 0, nd, last) | operand_oddness<E>(a, 1, nd, last) | operand_oddness<E>(b, y_at, nd, last) |
        operand_oddness<E>(c, z_at, nd, last)) {
        return false;
    }
    const u32 width = static_cast<u32>(nd.shape[last]) / E;
#pragma unroll 1
    for (int done = 0; done < all; done += V) {
        i64 offset[K][V];
        bool on[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
            const u32 at = (blockIdx.x * all + done + j) * THREADS + threadIdx.x;
            const u32 row = at / width, column = (at - row * width) * E;
            on[j] = at < static_cast<u32>(n) / E;
#pragma unroll
            for (int k = 0; k < K; ++k) {
                // One axis has row 0 only.
                offset[k][j] = static_cast<i64>(row) * nd.stride[k][0] + (nd.stride[k][last] ? column : 0u);
            }
        }
        if (done == 0) await_predecessor();
        const auto x = Source<A>::of(a, 0, is_array(a));
        const auto y = Source<B>::of(b, 0, is_array(b));
        const auto z = Source<C>::of(c, 0, is_array(c));
        Vec<typename A::element, E> va[V];
        Vec<typename B::element, E> vb[V];
        Vec<typename C::element, E> vc[V];
#pragma unroll
        for (int j = 0; j < V; ++j) {
            va[j] = row_of<E>(x, offset[1][j], on[j], 1, nd);
            vb[j] = row_of<E>(y, offset[y_at][j], on[j], y_at, nd);
            vc[j] = row_of<E>(z, offset[z_at][j], on[j], z_at, nd);
        }
#pragma unroll
        for (int j = 0; j < V; ++j) {
            if (!on[j]) continue;
            typename Op::value r[E];
#pragma unroll
            for (int i = 0; i < E; ++i) r[i] = Op::apply(va[j].e[i], vb[j].e[i], vc[j].e[i]);
            store(out + offset[0][j], outputs<To>(r));
        }
    }
    return true;
}

template <class Op, int U, int E = 1, class To, int K, class A, class B = NoOperand, class C = NoOperand>
PGK_FN void strided_elements(To* out, i64 n, const Nd<K>& nd, const A& a, const B& b = {}, const C& c = {}) {
    const auto x = Source<A>::of(a, 0, is_array(a));
    const auto y = Source<B>::of(b, 0, is_array(b));
    const auto z = Source<C>::of(c, 0, is_array(c));
    constexpr int span = strided_block(E);
    constexpr int y_at = K > 2 ? 2 : 0, z_at = K > 3 ? 3 : 0;
    const i64 base = static_cast<i64>(blockIdx.x) * span;
    if constexpr (E > 1) {
        if (nd.ndim > 0 && (nd.shape[nd.ndim - 1] & (E - 1)) == 0 && has_rows<To, E>(out, 0, nd) &&
            source_has_rows<E>(x, 1, nd) && source_has_rows<E>(y, y_at, nd) && source_has_rows<E>(z, z_at, nd)) {
            constexpr int V = U == 1 ? 1 : span / (THREADS * E);
#pragma unroll 1
            for (int ahead = threadIdx.x; ahead < span / E; ahead += V * THREADS) {
                const i64 first = base / E + ahead;
                i64 offset[K][V];
                locate<K, V, E>(offset, base / E, ahead, nd);
                Vec<typename A::element, E> va[V];
                Vec<typename B::element, E> vb[V];
                Vec<typename C::element, E> vc[V];
#pragma unroll
                for (int j = 0; j < V; ++j) {
                    const bool on = first + j * THREADS < n / E;
                    va[j] = row_of<E>(x, offset[1][j], on, 1, nd);
                    vb[j] = row_of<E>(y, offset[y_at][j], on, y_at, nd);
                    vc[j] = row_of<E>(z, offset[z_at][j], on, z_at, nd);
                }
#pragma unroll
                for (int j = 0; j < V; ++j) {
                    if (first + j * THREADS >= n / E) continue;
                    typename Op::value r[E];
#pragma unroll
                    for (int i = 0; i < E; ++i) r[i] = Op::apply(va[j].e[i], vb[j].e[i], vc[j].e[i]);
                    store(out + offset[0][j], outputs<To>(r));
                }
            }
            return;
        }
    }
#pragma unroll 1
    for (int ahead = threadIdx.x; ahead < span; ahead += U * THREADS) {
        const i64 first = base + ahead;
        i64 offset[K][U];
        locate<K, U>(offset, base, ahead, nd);
        typename A::element ea[U];
        typename B::element eb[U];
        typename C::element ec[U];
#pragma unroll
        for (int j = 0; j < U; ++j) {
            const bool on = first + j * THREADS < n;
            ea[j] = x.one(offset[1][j], on);
            eb[j] = y.one(offset[y_at][j], on);
            ec[j] = z.one(offset[z_at][j], on);
        }
#pragma unroll
        for (int j = 0; j < U; ++j) {
            if (first + j * THREADS < n) {
                out[offset[0][j]] = output<To>(Op::apply(ea[j], eb[j], ec[j]));
            }
        }
    }
}

template <class Op, int U, int E = 1, class To, int K, class A, class B = NoOperand, class C = NoOperand>
PGK_FN void strided(To* out, i64 n, const Nd<K>& nd, const A& a, const B& b = {}, const C& c = {}) {
    if constexpr (E > 1) {
        if (rows_on_one_axis<Op, U, E>(out, n, nd, a, b, c)) return;
    }
    await_predecessor();
    strided_elements<Op, U, E>(out, n, nd, a, b, c);
}

// out has rows along the last axis, and the operand along another one, both long enough for tiles: read along its own
// rows, turned in shared memory, written along out's.
template <class Op, int U, int E, class To, class A>
PGK_FN void turned(To* out, i64 n, const Nd<2>& nd, const A& a) {
    await_predecessor();
    using T = typename A::element;
    // Rows of 64 to 256 bytes both ways.
    constexpr int width = E > 2 ? 64 : 32, height = E > 4 ? 64 : 32, each = width * height / THREADS;
    const int last = nd.ndim - 1;
    int across = -1;
    if (a.p && last > 0 && nd.stride[0][last] == 1 && nd.shape[last] >= 8) {
        const i64 step = nd.stride[1][last];
        for (int d = 0; d < last; ++d) {
            if (step != 0 && step != 1 && nd.stride[1][d] == 1 && nd.shape[d] >= 8) across = d;
        }
    }
    if (across >= 0) {
        __shared__ T tile[width][height + 1];
        const i64 columns = (nd.shape[last] + width - 1) / width, rows = (nd.shape[across] + height - 1) / height;
        const i64 tiles = columns * rows * (n / (nd.shape[last] * nd.shape[across]));
#pragma unroll 1
        for (i64 at = blockIdx.x; at < tiles; at += gridDim.x) {
            i64 rest = at / columns, to = 0, from = 0;
            const i64 left = (at - rest * columns) * width;
            const i64 top = rest % rows * height;
            rest /= rows;
#pragma unroll 1
            for (int d = last - 1; d >= 0; --d) {
                if (d == across) continue;
                const i64 i = rest % nd.shape[d];
                rest /= nd.shape[d];
                to += i * nd.stride[0][d];
                from += i * nd.stride[1][d];
            }
            const int wide = nd.shape[last] - left < width ? static_cast<int>(nd.shape[last] - left) : width;
            const int high = nd.shape[across] - top < height ? static_cast<int>(nd.shape[across] - top) : height;
            const T* source = a.p + from + left * nd.stride[1][last] + top;
            T found[each];
#pragma unroll
            for (int j = 0; j < each; ++j) {
                const int i = j * THREADS + threadIdx.x, row = i % height, column = i / height;
                found[j] = element(source + column * nd.stride[1][last] + row, row < high && column < wide, T{});
            }
#pragma unroll
            for (int j = 0; j < each; ++j) {
                const int i = j * THREADS + threadIdx.x;
                tile[i / height][i % height] = found[j];
            }
            __syncthreads();
            To* target = out + to + left + top * nd.stride[0][across];
#pragma unroll
            for (int j = 0; j < each; ++j) {
                const int i = j * THREADS + threadIdx.x, column = i % width, row = i / width;
                if (row < high && column < wide) {
                    target[row * nd.stride[0][across] + column] = output<To>(Op::apply(tile[column][row], {}, {}));
                }
            }
            __syncthreads();
        }
        return;
    }
    strided_elements<Op, U, E>(out, n, nd, a);
}

}  // namespace pgk
