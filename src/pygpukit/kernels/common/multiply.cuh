// A step of a sum of products, in the type A that is summed in.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

// sum + a * b: floats in one rounding, integers wrap, LOGICAL is `or` of `and`.
template <bool LOGICAL, class A> PGK_FN A multiply_add(A a, A b, A sum) {
    if constexpr (LOGICAL) return A(sum | (a & b));
    else if constexpr (is_float<A>::value) return fused(a, b, sum);
    else return add(sum, mul(a, b));
}

}  // namespace pgk
