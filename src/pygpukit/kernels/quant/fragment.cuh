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

// A lane's features of a tile of 16, g and g + 8: what they end with, and where their results begin.
template <int ACTIVATION, class T> struct Column {
    Epilogue<T> end[2];
    T* out;
    i32 rows;
    i64 left;

    PGK_FN Column(const Results<T>& to, i64 feature, int lane) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            // A feature beyond the last ends as the last does, and is not written.
            const i64 n = feature + lane / 4 + 8 * h, at = n < to.n ? n : to.n - 1;
            end[h] = to.end;
            if constexpr (ACTIVATION != PLAIN) {
                if (to.end.bias) end[h].bias += at;
                if (to.end.residual) end[h].residual += at * to.end.column;
            }
        }
        out = to.out + feature;
        rows = static_cast<i32>(to.m);
        left = to.n - feature;
    }

    // Writes the sums of rows row .. + 7: a lane has 2 t and 2 t + 1 of feature g (a, b) and of feature g + 8 (c, d).
    PGK_FN void put(const Results<T>& to, f32 a, f32 b, f32 c, f32 d, i32 row, int lane) const {
        const int g = lane / 4, t = lane % 4;
        const f32 sums[2][2] = {{a, b}, {c, d}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            f32 made[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                made[i] = finish<ACTIVATION>(sums[h][i], min(row + 2 * t + i, rows - 1), 0, end[h]);
            }
            if (to.pairs) {
                const u32 word = turned(outputs<T>(made).w[0]);
                const int n = 8 * h + 2 * t;
                if (n < left && row + g < rows) *reinterpret_cast<u32*>(out + (row + g) * to.ld + n) = word;
            } else {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const int n = g + 8 * h, m = row + 2 * t + i;
                    if (n < left && m < rows) out[m * to.ld + n] = output<T>(made[i]);
                }
            }
        }
    }
};

}  // namespace pgk
