// Spectra of real rows of 2 N elements, and of the N complex numbers that are their pairs of elements, from each other:
// the first or the last step of real transforms too long for a block.
//
// separate: out[k], k <= N, from z[k] and z[N - k]. join: z[k] from x[k] and x[N - k].
// z is contiguous [rows, N]. Row g is (m, i), i = g % inner; the other array has strides stride_m, stride_i, stride_k.
// Launch: 256 threads, grid = rows * per_row blocks, one pair k and N - k per thread. No shared memory.
// Roots of order 2 N are products of two entries of a table computed in double. Determinism: batch_invariant.
#include "pygpukit/dft.cuh"
#include "pygpukit/elementwise.cuh"

namespace pgk {

enum Flag { CONJUGATE = 2, MIRROR = 4 };

template <class T> struct alignas(2 * sizeof(T)) Pair { T re, im; };

template <class T, int SHIFT> PGK_FN cx<T> root_of(const Pair<T>* table, int k) {
    const Pair<T> coarse = table[k >> SHIFT], fine = table[(1 << SHIFT) + k % (1 << SHIFT)];
    return product(cx<T>{coarse.re, coarse.im}, cx<T>{fine.re, fine.im});
}

template <class T, int N, int SHIFT>
PGK_FN void separate(T* out, const T* z, i64 per_row, i64 inner, i64 stride_m, i64 stride_i, i64 stride_k, T scale,
                     int flags, const Pair<T>* table) {
    await_predecessor();
    const i64 row = static_cast<i64>(blockIdx.x) / per_row;
    const int k = static_cast<int>((blockIdx.x - row * per_row) * 256 + threadIdx.x);
    if (2 * k >= N + N % 2) return;
    const Pair<T>* from = reinterpret_cast<const Pair<T>*>(z) + row * N;
    Pair<T>* to = reinterpret_cast<Pair<T>*>(out) + row / inner * stride_m + row % inner * stride_i;
    const T sign = flags & CONJUGATE ? -scale : scale;
    const auto store = [&](i64 i, T re, T im) {
        to[i * stride_k] = {re * scale, im * sign};
        if (flags & MIRROR && i > 0 && i < N) to[(2 * N - i) * stride_k] = {re * scale, -im * sign};
    };
    const Pair<T> p = from[k], q = from[k == 0 ? N / 2 : N - k];
    if (k == 0) {
        store(0, p.re + p.im, T(0));
        store(N, p.re - p.im, T(0));
        if (N % 2 == 0) store(N / 2, q.re, -q.im);
        return;
    }
    const cx<T> w = root_of<T, SHIFT>(table, k), even = {T(0.5) * (p.re + q.re), T(0.5) * (p.im - q.im)};
    const cx<T> odd = product(cx<T>{T(0.5) * (p.im + q.im), T(0.5) * (q.re - p.re)}, w);
    store(k, even.re + odd.re, even.im + odd.im);
    store(N - k, even.re - odd.re, odd.im - even.im);
}

template <class T, int N, int SHIFT>
PGK_FN void join(T* z, const T* x, i64 per_row, i64 inner, i64 stride_m, i64 stride_i, i64 stride_k, T, int flags,
                 const Pair<T>* table) {
    await_predecessor();
    const i64 row = static_cast<i64>(blockIdx.x) / per_row;
    const int k = static_cast<int>((blockIdx.x - row * per_row) * 256 + threadIdx.x);
    if (2 * k >= N + N % 2) return;
    const Pair<T>* from = reinterpret_cast<const Pair<T>*>(x) + row / inner * stride_m + row % inner * stride_i;
    Pair<T>* to = reinterpret_cast<Pair<T>*>(z) + row * N;
    const T sign = flags & CONJUGATE ? T(-1) : T(1);
    const auto load = [&](i64 i) -> cx<T> {
        const Pair<T> v = from[i * stride_k];
        return {v.re, v.im * sign};
    };
    const cx<T> p = load(k), q = load(N - k);
    if (k == 0) {
        to[0] = {p.re + q.re, p.re - q.re};
        if (N % 2 == 0) {
            const cx<T> h = load(N / 2);
            to[N / 2] = {T(2) * h.re, T(-2) * h.im};
        }
        return;
    }
    const cx<T> w = root_of<T, SHIFT>(table, k), even = {p.re + q.re, p.im - q.im};
    const cx<T> odd = product(cx<T>{p.re - q.re, p.im + q.im}, cx<T>{w.re, -w.im});
    to[k] = {even.re - odd.im, even.im + odd.re};
    to[N - k] = {even.re + odd.im, odd.re - even.im};
}

}  // namespace pgk

#define PGK_FFT_HALVES(entry, T, N, SHIFT, WHICH) \
    extern "C" __global__ void __launch_bounds__(256) entry( \
        pgk::T* out, const pgk::T* x, long long per_row, long long inner, long long stride_m, long long stride_i, \
        long long stride_k, pgk::T scale, int flags) { \
        pgk::WHICH<pgk::T, N, SHIFT>(out, x, per_row, inner, stride_m, stride_i, stride_k, scale, flags, \
                                     reinterpret_cast<const pgk::Pair<pgk::T>*>(fft_extra)); \
    }
#define PGK_FFT_SEPARATE(entry, T, N, SHIFT) PGK_FFT_HALVES(entry, T, N, SHIFT, separate)
#define PGK_FFT_JOIN(entry, T, N, SHIFT) PGK_FFT_HALVES(entry, T, N, SHIFT, join)
