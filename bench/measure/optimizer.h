// `lockstep-measure optimizer`: compares a step of our AdamW with the memory bound.
#pragma once

#include "measure/memory_mix.h"

#include <lockstep/optim/adamw.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::bench {

// Returns the storage formats of AdamW's averages: float32, bfloat16, blocks.
[[nodiscard]] std::span<const std::string_view> state_names();
// Returns the bytes per parameter that one step moves.
[[nodiscard]] double bytes_moved(std::string_view state);

struct OptimizerSizes {
  int tensors = 16;
  std::int64_t elements = 1 << 20;  // elements per tensor

  [[nodiscard]] std::int64_t parameters() const { return tensors * elements; }
};

// AdamW over many parameters, and a pass over the same memory with almost no arithmetic.
class OptimizerWork {
 public:
  static constexpr int uncounted_steps = 2;

  // Makes the parameters and gradients, and runs the uncounted steps.
  OptimizerWork(const OptimizerSizes& sizes, const std::string& state);

  // Returns the seconds of one step.
  double update();
  // Returns the seconds of one pass that moves as many bytes over the same arrays. Uses the kind of
  // pass that was faster at construction. Throws BadInput unless the state is float32.
  double memory();

 private:
  void find_spans();
  void pass(Mix mix) const;
  void choose_mix();

  std::vector<at::Tensor> parameters_;
  optim::AdamW adamw_;
  std::vector<MixSpan> spans_;
  Mix mix_ = Mix::plain;
};

struct OptimizerOptions {
  OptimizerSizes sizes;
  int threads = 1;
  int rounds = 10;  // turns per state
  int steps = 3;    // steps per turn
  std::vector<std::string> states{"float32", "bfloat16", "blocks"};
  bool json = false;  // one JSON object per row
};

// Measures in this process; each state and the memory pass take turns. Prints the table.
void measure_optimizers(const OptimizerOptions& options);

}  // namespace lockstep::bench
