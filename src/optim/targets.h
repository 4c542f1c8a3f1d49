// For which instruction sets the kernels are compiled: enough to have the widest registers
// everywhere. Vectors of unknown length (SVE) cannot be kept in structs.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
