// Elements whose bits only move, by size: u8 to u64, u128 at multiples of 16 bytes, and p64 and p128 for complex numbers
// at multiples of their parts.
#pragma once
#include "pygpukit/elementwise.cuh"

namespace pgk {

struct alignas(16) u128 { u64 low, high; };
using p64 = cx<u32>;
using p128 = cx<u64>;

// Quotient of two numbers that are not negative, in 32 bits where `narrow`: a division of 64 bits is a long sequence.
PGK_FN i64 quotient(i64 a, i64 b, bool narrow) {
    return narrow ? static_cast<i64>(static_cast<u32>(a) / static_cast<u32>(b))
                  : static_cast<i64>(static_cast<u64>(a) / static_cast<u64>(b));
}
PGK_FN bool is_narrow(i64 total) { return total <= 0xffffffffll; }

}  // namespace pgk
