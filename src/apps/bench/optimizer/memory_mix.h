// The memory bound of AdamW: a pass that reads four arrays and writes three of them, as the update
// does, and computes next to nothing.
#pragma once

#include <cstdint>

namespace lockstep::apps {

// One parameter tensor's memory: float32, `count` elements each.
struct MixSpan {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* average = nullptr;
  float* square = nullptr;
  std::int64_t count = 0;
};

// Whether the pass asks for memory before it reads it: which is faster differs among processors.
enum class Mix { plain, ahead };

// a = a * one + gradient * nothing for the three arrays: with 1 and 0 their values stay.
void run_memory_mix(const MixSpan& span, Mix mix, float one, float nothing);

}  // namespace lockstep::apps
