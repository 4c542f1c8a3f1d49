// The instruction sets for which the kernels are compiled: enough to use the widest registers on
// every processor. Vectors of unknown length (SVE) are excluded, because they cannot be struct
// members.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
