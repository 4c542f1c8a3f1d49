// What `lockstep bench step` is told, and what it tells its ranks.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

struct StepOptions {
  // modes, tail, trigger; empty: all, or only modes where some are named.
  std::vector<std::string> parts = {};
  std::string model = "mlp";                                // mlp, gpt
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
  std::string mode = "ddp";
  int threads = 1;
  bool fused = false;  // AdamW in one pass over memory
};

[[nodiscard]] inline std::vector<std::string> rank_words(const StepRankOptions& options) {
  std::vector<std::string> words{"--model",    options.model, "--mode",
                                 options.mode, "--threads",   std::to_string(options.threads)};
  if (options.fused) words.push_back("--fused");
  return words;
}

}  // namespace lockstep::apps
