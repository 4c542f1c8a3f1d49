// What `lockstep bench step` is told, and what it tells its ranks.
#pragma once

#include "apps/bench/model_size.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::apps {

// Parameters of both systems in the tail of a step: so many tensors of so many elements.
struct TailSizes {
  int tensors = 16;
  int elements = 1 << 20;

  [[nodiscard]] std::int64_t parameters() const { return std::int64_t{tensors} * elements; }
  [[nodiscard]] bool operator==(const TailSizes&) const = default;
};

struct StepOptions {
  // modes, tail, trigger; empty: all, or only modes where some are named.
  std::vector<std::string> parts = {};
  std::string model = "mlp";           // mlp, gpt
  std::optional<ModelSize> size = {};  // absent: the model's usual one
  TailSizes tail = {};
  std::vector<std::string> modes = {};                      // ours; empty: the whole table
  std::vector<std::string> against = {};                    // PyTorch's; empty: the counterparts
  std::vector<std::string> optimizers{"default", "fused"};  // AdamW of both systems
  int ranks = 2;
  int threads = 1;  // a rank
  int rounds = 10;
  int steps = 3;  // of one contender in one round
  bool json = false;
  std::string python;  // empty: LOCKSTEP_PYTHON, else the source tree's .venv
};

// What one rank process is told, of ours and of PyTorch's.
struct StepRankOptions {
  std::string model = "mlp";
  ModelSize size = {};
  std::string mode = "ddp";
  int threads = 1;
  bool fused = false;  // AdamW in one pass over memory
};

// The size of a model in this run.
[[nodiscard]] inline ModelSize size_of(const StepOptions& options, const std::string& model) {
  return options.size.value_or(usual_size(model));
}

[[nodiscard]] inline std::vector<std::string> rank_words(const ModelSize& size) {
  return {"--width", std::to_string(size.width), "--depth", std::to_string(size.depth)};
}

[[nodiscard]] inline std::vector<std::string> rank_words(const StepRankOptions& options) {
  std::vector<std::string> words = rank_words(options.size);
  words.insert(words.end(), {"--model", options.model, "--mode", options.mode, "--threads",
                             std::to_string(options.threads)});
  if (options.fused) words.push_back("--fused");
  return words;
}

}  // namespace lockstep::apps
