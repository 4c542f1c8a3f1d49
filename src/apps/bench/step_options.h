// What `lockstep bench step` is told, and what it tells its ranks.
#pragma once

#include <string>
#include <vector>

namespace lockstep::apps {

struct StepOptions {
  std::string model = "mlp";  // mlp, gpt
  std::string mode = "ddp";   // ddp, none
  int ranks = 2;
  int threads = 1;  // a rank
  int pairs = 20;
  int steps = 3;       // of one system in one pair
  bool fused = false;  // AdamW as one pass over memory on both sides
  bool json = false;
  std::string python;  // empty: LOCKSTEP_PYTHON, else the source tree's .venv
};

// The options that both systems' rank processes understand.
[[nodiscard]] inline std::vector<std::string> rank_words(const StepOptions& options) {
  std::vector<std::string> words{"--model",    options.model, "--mode",
                                 options.mode, "--threads",   std::to_string(options.threads)};
  if (options.fused) words.push_back("--fused");
  return words;
}

}  // namespace lockstep::apps
