// The end of a matrix product: y[m, n] = round(activation(sum + bias[n]) + residual[m, n]); of float8 products with scales
// sum * scale_a[m] * scale_b[n] is in the place of the sum.
//
// Every kernel of a product ends with this, whatever its tiles and instructions, so that the same sum gives the same bits.
// Numerics: all of it happens in the accumulator's type (float, double for float64), each sum rounded by itself and never
// contracted with a product, and the result is rounded once to its storage type. So a fused product has the bits of the
// unrounded product followed by add, the activation and add in that type. Activations are those of the elementwise
// operators at full precision (LOW is false), also where the result has 16 bits.
// An absent bias or residual is a null pointer and adds -0, which changes no number.
#pragma once
#include "pygpukit/elementwise.cuh"
#include "pygpukit/math.cuh"

namespace pgk {

// Numbers of the activations, as pygpukit.ops.gemm.epilogue lists them. PLAIN: no epilogue, pointers are not looked at.
enum Activation { PLAIN = -1, IDENTITY = 0, RELU = 1, GELU = 2, GELU_ERF = 3, SILU = 4, RELU2 = 5 };

template <int ACTIVATION, class A> PGK_FN A activate(A x) {
    if constexpr (ACTIVATION == RELU) return relu(x);
    else if constexpr (ACTIVATION == GELU) return gelu<false>(x);
    else if constexpr (ACTIVATION == GELU_ERF) return gelu_erf<false>(x);
    else if constexpr (ACTIVATION == SILU) return silu<false>(x);
    else if constexpr (ACTIVATION == RELU2) return relu2(x);
    else return x;
}

// What a product's result gets. The kernel's parameters are these four, in this order, after all others.
template <class To> struct Epilogue {
    const To* bias;      // [n], contiguous; or null
    const To* residual;  // of the matrix at hand, once the kernel has added its batch's offset; or null
    i64 row, column;     // element strides of residual
    const f32* scale_a;  // of rows; or null
    const f32* scale_b;  // of columns; or null
    i64 step_a, step_b;  // their strides, 0 for one number
};

// The sum by the scales of its row and its column, in this order.
template <class To> PGK_FN f32 scaled(f32 sum, i64 m, i64 n, const Epilogue<To>& end) {
    if (end.scale_a) sum = mul_rn(sum, end.scale_a[m * end.step_a]);
    if (end.scale_b) sum = mul_rn(sum, end.scale_b[n * end.step_b]);
    return sum;
}

// The end with its operands at hand: -0 for one that is absent.
template <int ACTIVATION, class A> PGK_FN A finish_with(A sum, A bias, A residual) {
    return add_rn(activate<ACTIVATION>(add_rn(sum, bias)), residual);
}

template <int ACTIVATION, class To, class A> PGK_FN A finish(A sum, i64 m, i64 n, const Epilogue<To>& end) {
    if constexpr (ACTIVATION == PLAIN) {
        return sum;
    } else {
        const A bias = end.bias ? convert<A>(end.bias[n]) : -A(0);
        const A residual = end.residual ? convert<A>(end.residual[m * end.row + n * end.column]) : -A(0);
        return finish_with<ACTIVATION>(sum, bias, residual);
    }
}

}  // namespace pgk
