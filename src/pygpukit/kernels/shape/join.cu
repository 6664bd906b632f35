// Up to 32 arrays side by side, as rows of one.
//
// out[o, start[s] + j] = p[s][o, j] for each source s and j < start[s + 1] - start[s]. Sources are contiguous, rows of
// out are `stride` units apart; a row has `width` = start[32] units. A unit is 1, 2, 4, 8 or 16 bytes and may be part of
// an element or several. Sources that are not there have no units.
// Launch: 256 threads, 1024 units per block. Determinism: batch_invariant, bits are moved.
#include "pygpukit/units.cuh"

namespace pgk {

constexpr int JOINED = 32;
struct Sources {
    const void* p[JOINED];
    i64 start[JOINED + 1];
};
static_assert(sizeof(Sources) == 8 * (2 * JOINED + 1), "the host packs pointers, then starts");

template <class T> PGK_FN void join(T* out, const Sources& sources, i64 total, i64 width, i64 stride) {
    await_predecessor();
    constexpr int U = 4;
    const bool narrow = is_narrow(total);
    T value[U];
    i64 to[U];
#pragma unroll
    for (int j = 0; j < U; ++j) {
        const i64 at = blockIdx.x * static_cast<i64>(U * 256) + j * 256 + threadIdx.x;
        to[j] = -1;
        if (at >= total) continue;
        const i64 row = quotient(at, width, narrow), column = at - row * width;
        int s = 0;
#pragma unroll
        for (int half = JOINED / 2; half > 0; half /= 2) s += column >= sources.start[s + half] ? half : 0;
        const i64 first = sources.start[s], length = sources.start[s + 1] - first;
        value[j] = static_cast<const T*>(sources.p[s])[row * length + column - first];
        to[j] = row * stride + column;
    }
#pragma unroll
    for (int j = 0; j < U; ++j) {
        if (to[j] >= 0) out[to[j]] = value[j];
    }
}

}  // namespace pgk

#define PGK_JOIN(name, T)                                                                                      \
    extern "C" __global__ void __launch_bounds__(256) name(                                                    \
        pgk::T* out, const __grid_constant__ pgk::Sources sources, long long total, long long width, long long stride) { \
        pgk::join(out, sources, total, width, stride);                                                         \
    }
