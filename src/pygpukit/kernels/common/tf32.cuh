// Rounding float32 to tf32.
#pragma once
#include "pygpukit/types.cuh"

namespace pgk {

// To the nearest, ties away from zero: half a unit of the last kept bit is added; what is below is cut off by tensor
// cores. A carry of the largest numbers gives infinity.
PGK_FN u32 to_tf32(u32 x) { return (x & 0x7fffffffu) > 0x7f800000u ? 0x7fffe000u : x + 0x1000u; }
PGK_FN uint4 to_tf32(const uint4& x) { return {to_tf32(x.x), to_tf32(x.y), to_tf32(x.z), to_tf32(x.w)}; }

}  // namespace pgk
