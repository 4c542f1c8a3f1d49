// What `lockstep bench optimizer` is told, and what it tells its processes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::apps {

struct OptimizerOptions {
  int tensors = 16;
  std::int64_t elements = 1 << 20;  // of a tensor
  int threads = 1;
  int rounds = 10;
  int steps = 3;  // of one contender in one round
  std::vector<std::string> states{"float32", "bfloat16", "blocks"};  // of our AdamW
  bool json = false;
  std::string python;  // empty: LOCKSTEP_PYTHON, else the source tree's .venv

  [[nodiscard]] std::int64_t parameters() const { return tensors * elements; }
};

}  // namespace lockstep::apps
