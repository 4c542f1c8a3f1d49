// The memory bound of AdamW: a pass that reads four arrays and writes three of them, like the
// update, but with almost no arithmetic.
#pragma once

#include <cstdint>

namespace lockstep::bench {

// Memory of one parameter tensor: float32, `count` elements each.
struct MixSpan {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* average = nullptr;
  float* square = nullptr;
  std::int64_t count = 0;
};

// With or without prefetching; the faster kind differs among processors.
enum class Mix { plain, ahead };

// Computes a = a * one + gradient * nothing for the three arrays; with 1 and 0, their values do not
// change.
void run_memory_mix(const MixSpan& span, Mix mix, float one, float nothing);

}  // namespace lockstep::bench
