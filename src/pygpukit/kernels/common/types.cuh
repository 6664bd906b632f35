// Element types of arrays as plain structs and aliases, and the traits the operator expressions are written with.
#pragma once

#define PGK_FN __device__ __forceinline__

namespace pgk {

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using f32 = float;
using f64 = double;

// Storage types: bits only. Arithmetic happens in the compute type, which widen() gives.
struct b1 { u8 bits; };
struct f16 { u16 bits; };
struct bf16 { u16 bits; };
struct e4m3 { u8 bits; };
struct e5m2 { u8 bits; };

// Two members of 4 or 8 bytes: complex128 stays 8-byte aligned, as the host packs it.
template <class T> struct cx { T re, im; };
using c64 = cx<f32>;
using c128 = cx<f64>;

static_assert(sizeof(b1) == 1 && sizeof(e4m3) == 1 && sizeof(e5m2) == 1, "1-byte types");
static_assert(sizeof(f16) == 2 && sizeof(bf16) == 2, "2-byte types");
static_assert(sizeof(c64) == 8 && sizeof(c128) == 16 && alignof(c128) == 8, "complex layout");

template <class A, class B> struct same { static constexpr bool value = false; };
template <class A> struct same<A, A> { static constexpr bool value = true; };

template <class T> struct is_complex { static constexpr bool value = false; };
template <class T> struct is_complex<cx<T>> { static constexpr bool value = true; };

template <class T> struct is_float { static constexpr bool value = same<T, f32>::value || same<T, f64>::value; };
template <class T> struct is_integer { static constexpr bool value = !is_float<T>::value && !is_complex<T>::value; };
template <class T> struct is_signed { static constexpr bool value = T(-1) < T(0); };

// Arithmetic in the unsigned type of at least 32 bits wraps as NumPy's integers do; signed overflow would be undefined.
template <class T> struct wrapping { using type = u32; };
template <> struct wrapping<i64> { using type = u64; };
template <> struct wrapping<u64> { using type = u64; };

template <class To, class From> PGK_FN To bit_cast(From x) {
    static_assert(sizeof(To) == sizeof(From), "bit_cast needs equal sizes");
    union { From from; To to; } u;
    u.from = x;
    return u.to;
}

template <class T> PGK_FN T widen(T x) { return x; }
PGK_FN u8 widen(b1 x) { return x.bits != 0; }

// Narrow<To>::from(v): v, a value of a compute type, as storage type To. Complex to real drops the imaginary part.
// A float outside an integer type's range gives an unspecified integer, as in NumPy.
template <class To> struct Narrow {
    template <class V> static PGK_FN To from(V v) { return static_cast<To>(v); }
    template <class V> static PGK_FN To from(cx<V> v) { return static_cast<To>(v.re); }
};
template <> struct Narrow<b1> {
    template <class V> static PGK_FN b1 from(V v) { return b1{static_cast<u8>(v != V(0))}; }
    template <class V> static PGK_FN b1 from(cx<V> v) { return b1{static_cast<u8>(v.re != V(0) || v.im != V(0))}; }
};
template <class T> struct Narrow<cx<T>> {
    template <class V> static PGK_FN cx<T> from(V v) { return cx<T>{static_cast<T>(v), T(0)}; }
    template <class V> static PGK_FN cx<T> from(cx<V> v) { return cx<T>{static_cast<T>(v.re), static_cast<T>(v.im)}; }
};

// One conversion between any two storage or compute types; the headers of the small types add their widen and Narrow.
template <class To, class From> PGK_FN To convert(From x) {
    if constexpr (same<To, From>::value) return x;
    else return Narrow<To>::from(widen(x));
}

}  // namespace pgk
