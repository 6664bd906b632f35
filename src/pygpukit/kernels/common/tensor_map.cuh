// CUtensorMap: a tensor map as a kernel's parameter.
//
// Declared as "const __grid_constant__ CUtensorMap map" and given a pygpukit.TensorMap. The kernel passes its address to
// cp.async.bulk.tensor and prefetch.tensormap (PTX, sm_90 and newer). The CUDA headers declare the same type.
#pragma once

#ifndef __cuda_cuda_h__
typedef struct __align__(64) CUtensorMap_st {
    unsigned long long opaque[16];
} CUtensorMap;
#endif
