// D = A * B + C of one warp through nvcuda::wmma, for each kind of element. D overwrites C.
//
// Rows of A, columns of B and rows of C follow each other, except in `bfloats`, where it is the other way round.
// wmma.ptx is this text compiled for compute_80.

#include <mma.h>

using namespace nvcuda;

template <int M, int N, int K, class E, class OrderA, class OrderB, class S, class T>
__device__ void product(S* c, const T* a, const T* b, int lda, int ldb, int ldc, wmma::layout_t order) {
    wmma::fragment<wmma::matrix_a, M, N, K, E, OrderA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, E, OrderB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, S> fc;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(fc, c, ldc, order);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, ldc, order);
}

typedef wmma::row_major Rows;
typedef wmma::col_major Columns;

extern "C" __global__ void halves(float* c, const half* a, const half* b, int lda, int ldb, int ldc) {
    product<16, 16, 16, half, Rows, Columns>(c, a, b, lda, ldb, ldc, wmma::mem_row_major);
}

extern "C" __global__ void half_sums(half* c, const half* a, const half* b, int lda, int ldb, int ldc) {
    product<8, 32, 16, half, Rows, Columns>(c, a, b, lda, ldb, ldc, wmma::mem_row_major);
}

extern "C" __global__ void bfloats(float* c, const __nv_bfloat16* a, const __nv_bfloat16* b, int lda, int ldb, int ldc) {
    product<32, 8, 16, __nv_bfloat16, Columns, Rows>(c, a, b, lda, ldb, ldc, wmma::mem_col_major);
}

extern "C" __global__ void tf32s(float* c, const float* a, const float* b, int lda, int ldb, int ldc) {
    product<16, 16, 8, wmma::precision::tf32, Rows, Columns>(c, a, b, lda, ldb, ldc, wmma::mem_row_major);
}

extern "C" __global__ void bytes(int* c, const signed char* a, const signed char* b, int lda, int ldb, int ldc) {
    product<8, 32, 16, signed char, Rows, Columns>(c, a, b, lda, ldb, ldc, wmma::mem_row_major);
}

extern "C" __global__ void doubles(double* c, const double* a, const double* b, int lda, int ldb, int ldc) {
    product<8, 8, 4, double, Rows, Columns>(c, a, b, lda, ldb, ldc, wmma::mem_row_major);
}

// B by way of shared memory, without padding.
extern "C" __global__ void staged(float* c, const half* a, const unsigned* b, int lda, int ldc) {
    __shared__ __align__(32) unsigned tile[128];
#pragma unroll 1
    for (int i = threadIdx.x; i < 128; i += 32) {
        tile[i] = b[i];
    }
    __syncwarp();
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, Rows> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, Columns> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::fill_fragment(fc, 1.0f);
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, (const half*)tile, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, ldc, wmma::mem_row_major);
}
