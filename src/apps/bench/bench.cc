// lockstep-bench: `lockstep bench step`, `memory`, `collectives` and `optimizer`.
#include "apps/bench/collectives/collectives.h"
#include "apps/bench/collectives/rank.h"
#include "apps/bench/memory/memory.h"
#include "apps/bench/memory/rank.h"
#include "apps/bench/optimizer/optimizer.h"
#include "apps/bench/optimizer/serve.h"
#include "apps/bench/step/modes.h"
#include "apps/bench/step/rank.h"
#include "apps/bench/step/step.h"
#include "apps/bench/step/tail.h"
#include "apps/bench/step/trigger.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>
#include <CLI/CLI.hpp>

#include <csignal>
#include <cstdio>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lockstep::apps;

const std::string python_help = "a Python with torch; else LOCKSTEP_PYTHON, else .venv/bin/python";

std::vector<std::string> words_of(std::span<const std::string_view> names) {
  return {names.begin(), names.end()};
}

void declare_size(CLI::App& command, ModelSize& size) {
  command.add_option("--width", size.width, "")->required()->check(CLI::Range(1, 1 << 20));
  command.add_option("--depth", size.depth, "")->required()->check(CLI::Range(1, 1 << 20));
}

void declare_step_rank(CLI::App& command, StepRankOptions& options) {
  declare_size(command, options.size);
  command.add_option("--model", options.model, "")->check(CLI::IsMember({"mlp", "gpt"}));
  command.add_option("--mode", options.mode, "")->check(CLI::IsMember(words_of(our_modes())));
  command.add_option("--threads", options.threads, "")->check(CLI::Range(1, 1024));
  command.add_flag("--fused", options.fused, "");
}

void declare_tail_rank(CLI::App& command, TailSizes& sizes, int& threads) {
  command.add_option("--tensors", sizes.tensors, "")->check(CLI::Range(1, 100000));
  command.add_option("--elements", sizes.elements, "")->check(CLI::Range(1, 1 << 30));
  command.add_option("--threads", threads, "")->check(CLI::Range(1, 1024));
}

// "4096x12": width and layers.
template <typename Take>
std::function<void(const std::string&)> read_size(Take take) {
  return [take](const std::string& text) {
    std::size_t times = text.find('x');
    auto width = lockstep::parse_integer(text.substr(0, times));
    auto depth =
        times == std::string::npos ? std::nullopt : lockstep::parse_integer(text.substr(times + 1));
    if (!width || !depth || *width < 1 || *depth < 1 || *width > 1 << 20 || *depth > 1 << 20)
      throw CLI::ValidationError("expected width x layers such as 4096x12, found '" + text + "'");
    take(ModelSize{.width = *width, .depth = static_cast<int>(*depth)});
  };
}

void declare_step(CLI::App& command, StepOptions& options) {
  command
      .add_option("--measure", options.parts,
                  "modes (the tables of steps), tail (sync and AdamW in one pass), trigger (what "
                  "noticing parameters costs); else all, or with --mode only modes")
      ->delimiter(',')
      ->check(CLI::IsMember({"modes", "tail", "trigger"}));
  command.add_option("--model", options.model, "mlp or gpt")
      ->check(CLI::IsMember({"mlp", "gpt"}))
      ->capture_default_str();
  command.add_option_function("--size",
                              read_size([&](const ModelSize& size) { options.size = size; }),
                              "of the model, width x layers (mlp 2048x4, gpt 384x6)");
  command.add_option("--tensors", options.tail.tensors, "of the tail: parameter tensors")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--elements", options.tail.elements, "of such a tensor")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command
      .add_option("--mode", options.modes,
                  "ours: none (ranks that know nothing of each other), ddp, optimizer, gradients, "
                  "full, full-node-shared; else all of both systems")
      ->delimiter(',')
      ->check(CLI::IsMember(words_of(our_modes())));
  command
      .add_option("--against", options.against,
                  "PyTorch's: none, ddp, zero1, fsdp2; else the counterparts of --mode")
      ->delimiter(',')
      ->check(CLI::IsMember(words_of(pytorch_modes())));
  command
      .add_option("--optimizer", options.optimizers,
                  "AdamW of both systems, one table each: default (PyTorch's defaults), fused (one "
                  "pass over memory)")
      ->delimiter(',')
      ->check(CLI::IsMember({"default", "fused"}))
      ->capture_default_str();
  command.add_option("--ranks", options.ranks, "ranks of each system")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--threads", options.threads, "threads of a rank")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--rounds", options.rounds, "turns of each contender")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--steps", options.steps, "training steps in a turn")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_flag("--json", options.json, "one JSON object a contender instead of the tables");
  command.add_option("--python", options.python, python_help);
}

void declare_sizes(CLI::App& command, MlpSizes& sizes) {
  command.add_option("--width", sizes.width, "")->check(CLI::Range(1, 1 << 20));
  command.add_option("--depth", sizes.depth, "")->check(CLI::Range(1, 1 << 20));
  command.add_option("--rows", sizes.rows, "")->check(CLI::Range(1, 1 << 20));
}

std::function<void(const std::string&)> read_sizes(MlpSizes& sizes) {
  return read_size([&sizes](const ModelSize& size) {
    sizes.width = size.width;
    sizes.depth = size.depth;
  });
}

void declare_memory(CLI::App& command, MemoryOptions& options) {
  command.add_option("--measure", options.rows, "counters, pss, node-shared, limited; else all")
      ->delimiter(',')
      ->check(CLI::IsMember({"counters", "pss", "node-shared", "limited"}));
  command.add_option("--most-ranks", options.most_ranks, "counters: for 1 rank to this many")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option_function("--counted", read_sizes(options.counted),
                              "model of the counters, width x layers (512x8)");
  command.add_option_function("--measured", read_sizes(options.measured),
                              "model whose pages are measured (2048x48)");
  command.add_option_function("--limited", read_sizes(options.limited),
                              "model of three times a rank's memory (2048x64)");
  command.add_option("--steps", options.steps, "training steps before anything is read")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_flag("--json", options.json, "one JSON object a row instead of the table");
}

// CLI::Range lets what is not a number pass.
std::string seconds_of_a_turn(const std::string& text) {
  auto seconds = lockstep::parse_number(text);
  bool good = seconds && *seconds >= 1e-4 && *seconds <= 60;
  return good ? "" : "expected 0.0001 to 60 seconds, found '" + text + "'";
}

void declare_collectives(CLI::App& command, CollectivesOptions& options) {
  command
      .add_option("--peers", options.peers,
                  "beside whom: gloo (PyTorch's), mpi, openmpi, mpich, lockstep-gloo, "
                  "lockstep-mpi, or none")
      ->delimiter(',')
      ->capture_default_str();
  command
      .add_option("--op", options.ops,
                  "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, reduce, gather, "
                  "scatter, barrier")
      ->delimiter(',');
  command.add_option("--sizes", options.sizes, "bytes of a tensor: 1KiB,64MiB,4096")
      ->delimiter(',');
  command.add_option("--ranks", options.ranks, "ranks of each system: 2,4")->delimiter(',');
  command.add_flag("--outsider", options.outsider, "every row also beside a busy process");
  command.add_option("--rounds", options.rounds, "turns of each system in a row of the table")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--turn", options.turn, "seconds that a turn should take")
      ->check(seconds_of_a_turn)
      ->capture_default_str();
  command.add_flag("--json", options.json, "one JSON object a line instead of the tables");
  command.add_option("--python", options.python, python_help);
}

void declare_optimizer_process(CLI::App& command, OptimizerOptions& options) {
  command.add_option("--tensors", options.tensors, "parameter tensors")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--elements", options.elements, "of a tensor")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command.add_option("--threads", options.threads, "threads of a system")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command.add_option("--states", options.states, "of our AdamW: float32,bfloat16,blocks")
      ->delimiter(',')
      ->check(CLI::IsMember({"float32", "bfloat16", "blocks"}));
}

void declare_optimizer(CLI::App& command, OptimizerOptions& options) {
  declare_optimizer_process(command, options);
  command.add_option("--rounds", options.rounds, "turns of each contender")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_option("--steps", options.steps, "steps in a turn")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command.add_flag("--json", options.json, "one JSON object a contender instead of the table");
  command.add_option("--python", options.python, python_help);
}

// What `lockstep bench` starts: commands that no help lists.
class RankCommands {
 public:
  explicit RankCommands(CLI::App& app);
  // The exit status of the one that was asked for, if one was.
  [[nodiscard]] std::optional<int> run() const;

 private:
  StepRankOptions step_options_;
  TailSizes tail_sizes_;
  ModelSize trigger_size_;
  MemoryRankOptions memory_options_;
  std::string pipes_;
  OptimizerOptions optimizer_options_;
  int threads_ = 1;
  CLI::App *step_, *tail_, *trigger_, *memory_, *collectives_, *optimizer_;
};

RankCommands::RankCommands(CLI::App& app) {
  auto unlisted = [&](const char* name) { return app.add_subcommand(name, "")->group(""); };
  step_ = unlisted("step-rank");
  declare_step_rank(*step_, step_options_);
  tail_ = unlisted("tail-rank");
  declare_tail_rank(*tail_, tail_sizes_, threads_);
  trigger_ = unlisted("trigger-rank");
  trigger_->add_option("--threads", threads_, "")->check(CLI::Range(1, 1024));
  declare_size(*trigger_, trigger_size_);
  memory_ = unlisted("memory-rank");
  declare_sizes(*memory_, memory_options_.sizes);
  collectives_ = unlisted("collectives-rank");
  collectives_->add_option("--pipes", pipes_, "");
  optimizer_ = unlisted("optimizer-rank");
  declare_optimizer_process(*optimizer_, optimizer_options_);
}

std::optional<int> RankCommands::run() const {
  if (step_->parsed()) return serve_steps(step_options_);
  if (tail_->parsed()) return serve_tails(tail_sizes_, threads_);
  if (trigger_->parsed()) return serve_trigger(trigger_size_, threads_);
  if (memory_->parsed()) return serve_memory(memory_options_);
  if (collectives_->parsed()) return serve_collectives(pipes_);
  if (optimizer_->parsed()) return serve_optimizer(optimizer_options_);
  return std::nullopt;
}

}  // namespace

int main(int count, char** words) {
  std::signal(SIGPIPE, SIG_IGN);  // a rank that ended is an error of the write
  CLI::App app(
      "Measures Lockstep beside others: the same work, in turn, in one run; ratios are what "
      "counts.",
      "lockstep bench");
  app.require_subcommand(1);
  StepOptions step_options;
  CLI::App* step = app.add_subcommand(
      "step", "a training step: forward, backward, averaging, AdamW; in every mode of both");
  declare_step(*step, step_options);
  MemoryOptions memory_options;
  CLI::App* memory = app.add_subcommand(
      "memory", "what a rank holds at each level of sharding, beside what the formulas say");
  declare_memory(*memory, memory_options);
  CollectivesOptions collectives_options;
  CLI::App* collectives = app.add_subcommand(
      "collectives", "all_reduce and the others beside Gloo and MPI, and their lower bound");
  declare_collectives(*collectives, collectives_options);
  OptimizerOptions optimizer_options;
  CLI::App* optimizer = app.add_subcommand(
      "optimizer", "AdamW beside PyTorch's default and fused ones, and the memory bound");
  declare_optimizer(*optimizer, optimizer_options);
  RankCommands ranks(app);
  try {
    app.parse(count, words);
    if (std::optional<int> status = ranks.run()) return *status;
    if (optimizer->parsed()) compare_optimizers(optimizer_options);
    if (collectives->parsed()) compare_collectives(collectives_options);
    if (memory->parsed()) measure_memory(memory_options);
    if (step->parsed()) compare_steps(step_options);
    return 0;
  } catch (const CLI::ParseError& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    lockstep::print_to(stderr, "lockstep bench: {}\n", error.what());
    return 1;
  }
}
