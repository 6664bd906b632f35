// Tiles of operands in shared memory: lines of 128 bytes of k, filled by copies of 16 bytes that run ahead.
//
// The chunks of a row are exchanged by XOR, so that reading one chunk of eight rows, as ldmatrix and vectors of threads
// do, meets no bank twice.
#pragma once
#include "pygpukit/mma.cuh"
#include "pygpukit/tiles.cuh"

namespace pgk {

constexpr int CHUNK = 16;   // bytes
constexpr int DEPTH = 128;  // bytes of k per tile

// COUNT lines of an operand (rows of a or columns of b) in a tile of shared memory.
template <class T, int COUNT, Lines LINES, int THREADS> struct Tile {
    static constexpr int E = CHUNK / static_cast<int>(sizeof(T));
    static constexpr int K = DEPTH / static_cast<int>(sizeof(T));
    static constexpr int LINE_COUNT = COUNT;
    static constexpr int BYTES = COUNT * DEPTH;
    // Chunks per stored row: along k, or across it.
    static constexpr int ROW = LINES == ACROSS ? COUNT / E : DEPTH / CHUNK;
    static constexpr int COPIES = BYTES / CHUNK / THREADS;
    static_assert(BYTES % (CHUNK * THREADS) == 0, "every thread copies as many chunks");

    // Chunk `chunk` of stored row `row`, where eight rows of ldmatrix lie in eight different groups of banks.
    static PGK_FN u32 place(int row, int chunk) {
        const int turn = ROW >= 8 ? row & 7 : ROW == 4 ? row >> 1 & 3 : row >> 2 & 1;
        return static_cast<u32>((row * ROW + (chunk ^ turn)) * CHUNK);
    }

    // Rows between two chunks of a thread; a multiple of 8, so that all of its chunks are exchanged alike.
    static constexpr int STRIDE = THREADS / ROW;
    static_assert(THREADS % ROW == 0 && STRIDE % 8 == 0, "a thread keeps to one chunk of its rows");

    // Fragments of a thread, as offsets in a tile: 16 bytes of k (or 8 lines) are one bit of the place, which XOR flips.
    template <bool HALVES> static PGK_FN u32 base(int line) {
        const int lane = threadIdx.x % 32, low = lane >> 3 & 1, high = lane >> 4;
        const int eight = HALVES ? high : low, half = HALVES ? low : high;
        if constexpr (LINES == ACROSS) return place(half * 8 + (lane & 7), line / 8 + eight);
        else return place(line + eight * 8 + (lane & 7), half);
    }
    // 16 lines further, and a step of k further.
    static PGK_FN u32 at(u32 base, int lines, int step) {
        if constexpr (LINES == ACROSS) return (base ^ static_cast<u32>(lines * 32)) + step * 16 * ROW * CHUNK;
        else return (base ^ static_cast<u32>(step * 32)) + lines * 16 * DEPTH;
    }

    // The same element by element, for any strides; chunks lie along k.
    static PGK_FN void fill(T* to, const T* p, i64 along, i64 step, i64 lines, i64 k0, i64 depth) {
        const bool by_depth = step == 1;
#pragma unroll 4
        for (int i = 0; i < COUNT * K / THREADS; ++i) {
            const int c = i * THREADS + static_cast<int>(threadIdx.x);
            const int line = by_depth ? c / K : c % COUNT;
            const int k = by_depth ? c % K : c / COUNT;
            const bool inside = line < lines && k0 + k < depth;
            to[place(line, k / E) / sizeof(T) + k % E] = inside ? p[line * along + (k0 + k) * step] : T{};
        }
    }
};

// This thread's part of the copies of an operand, tile by tile along k.
template <class Tile, class T, Lines LINES> struct Copier {
    const T* p;     // its first chunk of the next tile
    i64 skip;       // elements to its next chunk
    i64 next;       // elements to the next tile
    int row, first; // of its first chunk: stored row, and element along that
    int limit;      // lines of this block that exist; across k: bytes of its chunks that do
    u32 place;

    // `lines` exist from `p` on; `stride` lies between stored rows.
    PGK_FN Copier(const T* p, i64 stride, i64 lines) {
        const int t = static_cast<int>(threadIdx.x);
        row = t / Tile::ROW;
        first = t % Tile::ROW * Tile::E;
        place = Tile::place(row, t % Tile::ROW);
        this->p = p + row * stride + first;
        skip = Tile::STRIDE * stride;
        next = LINES == ACROSS ? Tile::K * stride : Tile::K;
        const int count = lines < Tile::LINE_COUNT ? static_cast<int>(lines) : Tile::LINE_COUNT;
        limit = LINES == ACROSS ? bytes(count) : count;
    }
    PGK_FN int bytes(int count) const {
        const int left = count - first;
        return left <= 0 ? 0 : (left < Tile::E ? left : Tile::E) * static_cast<int>(sizeof(T));
    }
    // Starts copying the next tile, of which `left` of k exist; what does not exist becomes zeros.
    PGK_FN void copy(u32 tile, int left) {
        const int along = LINES == ACROSS ? limit : bytes(left);
        const int rows = LINES == ACROSS ? left : limit;
        const T* from = p;
#pragma unroll
        for (int i = 0; i < Tile::COPIES; ++i) {
            copy_async(tile + place + i * Tile::STRIDE * Tile::ROW * CHUNK, from,
                       row + i * Tile::STRIDE < rows ? along : 0);
            from += skip;
        }
        p += next;
    }
};

}  // namespace pgk
