// Addresses of shared memory, as instructions that name it by 32 bits take them.
#pragma once
#include "pygpukit/types.cuh"

namespace pgk {

PGK_FN u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

}  // namespace pgk
