// D = A * B + C of one warp through nvcuda::wmma, for each kind of element. D overwrites C.
//
// wmma.ptx is this text compiled for compute_80.

#include <mma.h>

using namespace nvcuda;

template <int M, int N, int K, class T, class OrderA, class OrderB, class S, class P>
__device__ void product(P* c, const T* a, const T* b, int lda, int ldb, int ldc, wmma::layout_t order) {
    using Element = typename std::conditional<std::is_same<T, float>::value, wmma::precision::tf32, T>::type;
    wmma::fragment<wmma::matrix_a, M, N, K, Element, OrderA> fa;
    wmma::fragment<wmma::matrix_b, M, N, K, Element, OrderB> fb;
    wmma::fragment<wmma::accumulator, M, N, K, S> fc;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(fc, c, ldc, order);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, ldc, order);
}
