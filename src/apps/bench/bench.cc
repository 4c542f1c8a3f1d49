// lockstep-bench: `lockstep bench step`.
#include "apps/bench/step.h"
#include "apps/bench/step_rank.h"

#include <lockstep/base/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>

namespace {

using namespace lockstep::apps;

void declare_rank_options(CLI::App& command, StepOptions& options) {
  command.add_option("--model", options.model, "mlp or gpt")
      ->check(CLI::IsMember({"mlp", "gpt"}))
      ->capture_default_str();
  command
      .add_option("--mode", options.mode,
                  "ddp: gradients are averaged; none: ranks that know nothing of each other")
      ->check(CLI::IsMember({"ddp", "none"}))
      ->capture_default_str();
  command.add_option("--threads", options.threads, "threads of a rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_flag("--fused", options.fused, "AdamW as one pass over memory, on both sides");
}

void declare_step(CLI::App& command, StepOptions& options) {
  declare_rank_options(command, options);
  command.add_option("--ranks", options.ranks, "ranks of each system")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--pairs", options.pairs, "turns of each system")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--steps", options.steps, "training steps in a turn")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_flag("--json", options.json, "one JSON object a system instead of the table");
  command.add_option("--python", options.python,
                     "a Python with torch; else LOCKSTEP_PYTHON, else .venv/bin/python");
}

}  // namespace

int main(int count, char** words) {
  CLI::App app(
      "Measures Lockstep beside PyTorch: the same work, in turn, in one run; ratios are what "
      "counts.",
      "lockstep bench");
  app.require_subcommand(1);
  StepOptions options;
  CLI::App* step =
      app.add_subcommand("step", "a training step: forward, backward, averaging, AdamW");
  declare_step(*step, options);
  CLI::App* rank = app.add_subcommand("step-rank", "")->group("");  // what `step` starts
  declare_rank_options(*rank, options);
  try {
    app.parse(count, words);
    if (rank->parsed()) return serve_steps(options);
    compare_steps(options);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    lockstep::print_to(stderr, "lockstep bench: {}\n", error.what());
    return 1;
  }
}
