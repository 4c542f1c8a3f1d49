// lockstep-measure: measures steps, memory and optimizers of Lockstep on this host. Not installed.
#include "apps/bench/commands.h"
#include "measure/memory.h"
#include "measure/optimizer.h"
#include "measure/step.h"

#include <ATen/Parallel.h>

#include <array>

namespace lockstep::bench {
namespace {

using namespace apps;

constexpr const char* program_name = "lockstep-measure";
constexpr std::int64_t most_width = 1 << 20;
constexpr std::int64_t most_threads = 1024;
constexpr std::int64_t most_elements = 1 << 30;
constexpr std::array<std::string_view, 2> optimizer_names{"default", "fused"};
constexpr std::array<std::string_view, 2> dtype_names{"float32", "bfloat16"};

// Adds the option for a size "4096x12": width and layers.
template <typename Take>
void add_size(CommandOptions& options, const char* help, Take take) {
  options.add({"size", "WxL", help}, [take](const std::string& text) {
    std::size_t times = text.find('x');
    auto width = parse_integer(text.substr(0, times));
    auto depth = times == std::string::npos ? std::nullopt : parse_integer(text.substr(times + 1));
    if (!width || !depth || *width < 1 || *depth < 1 || *width > most_width || *depth > most_width)
      throw BadInput(formatted("expected width x layers such as 4096x12, found '{}'", text));
    take(*width, *depth);
  });
}

void declare(CommandOptions& options, StepOptions& chosen) {
  options.add({"model", "WORD", "mlp or gpt", chosen.model},
              word_into(chosen.model, model_names()));
  add_size(options, "size of the model, width x layers (mlp 2048x4, gpt 384x6)",
           [&](std::int64_t width, std::int64_t depth) {
             chosen.size = ModelSize{.width = width, .depth = depth};
           });
  options.add({"mode", "WORDS",
               "none (ranks that know nothing of each other), ddp, optimizer, gradients, full, "
               "full-node-shared, tensor",
               "all"},
              words_into(chosen.modes, step_modes()));
  options.add({"optimizer", "WORDS",
               "AdamW: default (torch::optim's), fused (lockstep::optim's, one pass over memory)",
               join(chosen.optimizers, ",")},
              words_into(chosen.optimizers, optimizer_names));
  add_ranks(options, chosen.ranks);
  add_number(options, "threads", "threads per rank", chosen.threads, 1, most_threads);
  add_number(options, "rounds", "turns per mode", chosen.rounds, 1, most_turns);
  add_number(options, "steps", "training steps per turn", chosen.steps, 1, most_turns);
  add_output(options, chosen.json);
}

void declare(CommandOptions& options, MemoryOptions& chosen) {
  options.add({"mode", "WORDS", "as of command step, except tensor", "all"},
              words_into(chosen.modes, memory_modes()));
  options.add({"dtype", "WORDS", "float32, bfloat16 (with fp32 masters)", join(chosen.dtypes, ",")},
              words_into(chosen.dtypes, dtype_names));
  add_size(options, "size of the mlp, width x layers (512x8)",
           [&](std::int64_t width, std::int64_t depth) {
             chosen.size.width = width;
             chosen.size.depth = depth;
           });
  options.add({"deferred-init", "", "make the model by deferred(), a unit at a time"},
              flag_into(chosen.deferred));
  add_ranks(options, chosen.ranks);
  add_number(options, "steps", "training steps before memory is read", chosen.steps, 1, 1000);
  add_output(options, chosen.json);
}

void declare(CommandOptions& options, OptimizerOptions& chosen) {
  add_number(options, "tensors", "parameter tensors", chosen.sizes.tensors, 1, most_turns);
  add_number(options, "elements", "of a tensor", chosen.sizes.elements, 1, most_elements);
  add_number(options, "threads", "threads", chosen.threads, 1, most_threads);
  options.add({"states", "WORDS", "formats of the state of our AdamW: float32, bfloat16, blocks",
               join(chosen.states, ",")},
              words_into(chosen.states, state_names()));
  add_number(options, "rounds", "turns per format of the state", chosen.rounds, 1, most_turns);
  add_number(options, "steps", "steps per turn", chosen.steps, 1, most_turns);
  add_output(options, chosen.json);
}

int act(const Words& words, const StepOptions& chosen) {
  check_size(chosen.model, chosen.size.value_or(usual_size(chosen.model)));
  return on_ranks(program_name, "step", words, chosen, [&](const Group& world) {
    at::set_num_threads(chosen.threads);
    measure_steps(chosen, world);
  });
}

int act(const Words& words, const MemoryOptions& chosen) {
  return on_ranks(program_name, "memory", words, chosen, [&](const Group& world) {
    at::set_num_threads(1);
    measure_memory(chosen, world);
  });
}

int act(const Words&, const OptimizerOptions& chosen) {
  at::set_num_threads(chosen.threads);
  measure_optimizers(chosen);
  return 0;
}

}  // namespace
}  // namespace lockstep::bench

int main(int count, char** words) {
  using namespace lockstep::bench;
  using lockstep::apps::command;
  return lockstep::sys::run_program(program_name, [&] {
    return lockstep::apps::run_measurement(
        program_name, "Measures Lockstep on this host.",
        {command<StepOptions>(program_name, "step",
                              "A training step in each mode: forward, backward, averaging, AdamW.",
                              declare, act),
         command<MemoryOptions>(program_name, "memory",
                                "Bytes of a rank in each mode, beside those of the formula.",
                                declare, act),
         command<OptimizerOptions>(program_name, "optimizer",
                                   "A step of AdamW beside the memory bound.", declare, act)},
        {words + 1, words + count});
  });
}
