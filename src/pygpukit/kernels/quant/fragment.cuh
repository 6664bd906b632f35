// Fragments of products whose first operand is the weight: results lie transposed, features along rows.
#pragma once
#include "pygpukit/epilogue.cuh"

namespace pgk {

// What results are written to: rows of x become rows of out. `pairs`: two neighbours of a row can be written as one word.
template <class T> struct Results {
    T* out;
    i64 ld, m, n;
    bool pairs;
    Epilogue<T> end;
};

// 8 x 8 elements of 16 bits, two of a row per lane, turned.
PGK_FN u32 turned(u32 pair) {
    u32 r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(pair));
    return r;
}

// Writes sums of features feature .. + 15 and rows row .. + 7: a lane has features g and g + 8, rows 2 t and 2 t + 1.
template <int ACTIVATION, class T>
PGK_FN void put(const Results<T>& to, f32 a, f32 b, f32 c, f32 d, i64 feature, i64 row, int lane) {
    const int g = lane / 4, t = lane % 4;
    const f32 sums[2][2] = {{a, b}, {c, d}};
    if (to.pairs) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            f32 made[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                // Indices beyond the last are those of numbers that are not written.
                const i64 n = feature + g + 8 * h, m = row + 2 * t + i;
                made[i] = finish<ACTIVATION>(sums[h][i], m < to.m ? m : to.m - 1, n < to.n ? n : to.n - 1, to.end);
            }
            const u32 word = turned(outputs<T>(made).w[0]);
            const i64 n = feature + 8 * h + 2 * t;
            if (n < to.n && row + g < to.m) *reinterpret_cast<u32*>(to.out + (row + g) * to.ld + n) = word;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const i64 n = feature + g + i / 2 * 8, m = row + 2 * t + i % 2;
            if (n < to.n && m < to.m) {
                to.out[m * to.ld + n] = output<T>(finish<ACTIVATION>(sums[i / 2][i % 2], m, n, to.end));
            }
        }
    }
}

}  // namespace pgk
