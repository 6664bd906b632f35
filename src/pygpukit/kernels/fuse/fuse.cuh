// Parts of fused kernels, which are generated: numbers of a call, and borders between operators.
//
// A fused kernel evaluates the structs of several elementwise operators one after the other. Each result is rounded to
// the element type it has as an array, so it has the bits it has when every operator is a kernel of its own. Products and
// sums of different operators must not become one fused multiply-add; unfused() and isolated() prevent that.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

// A number as an element: its bytes are the low ones of a word, and of a second one.
template <class T> PGK_FN T number(i64 low, i64 high = 0) {
    union {
        i64 words[2];
        T value;
    } u;
    u.words[0] = low;
    u.words[1] = high;
    return u.value;
}

// The same value, as a result of an operation whose result the compiler cannot know: `zero` is 0 in every launch. The
// product that an operator may end with is not fused with a sum of the next, neither in PTX nor in machine code.
template <class T> PGK_FN T unfused(T v, u32 zero) {
    if constexpr (same<T, f32>::value) {
        return bit_cast<f32>(bit_cast<u32>(v) ^ zero);
    } else if constexpr (same<T, f64>::value) {
        return bit_cast<f64>(bit_cast<u64>(v) ^ zero);
    } else if constexpr (is_complex<T>::value) {
        return {unfused(v.re, zero), unfused(v.im, zero)};
    }
    return v;
}

// The same value, of which the compiler knows nothing: an operator is compiled as it is in a kernel of its own.
template <class T> PGK_FN T isolated(T v) {
    if constexpr (same<T, f32>::value) asm volatile("" : "+f"(v));
    else if constexpr (same<T, f64>::value) asm volatile("" : "+d"(v));
    else if constexpr (is_complex<T>::value) return {isolated(v.re), isolated(v.im)};
    return v;
}

// The vector at p, or one element for all of it.
template <int E, class T> PGK_FN Vec<T, E> vector_of(const T* p, bool dense) {
    Vec<T, E> v;
    const T one = element(p, !dense, T{});
#pragma unroll
    for (int e = 0; e < E; ++e) v.e[e] = one;
    load(v, p, dense);
    return v;
}

}  // namespace pgk
