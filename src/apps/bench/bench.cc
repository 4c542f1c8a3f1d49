// lockstep-bench: `lockstep bench collectives`, `step`, `memory` and `optimizer` measure Lockstep
// on this host.
#include "apps/bench/collectives/collectives.h"
#include "apps/bench/memory/memory.h"
#include "apps/bench/optimizer/optimizer.h"
#include "apps/bench/step/step.h"
#include "base/format.h"
#include "base/text.h"
#include "comm/init/backends.h"
#include "sys/program.h"
#include "train/program.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::apps;

using Words = std::vector<std::string>;

constexpr std::int64_t most_width = 1 << 20;
constexpr std::int64_t most_threads = 1024;
constexpr std::int64_t most_turns = 100'000;
constexpr std::int64_t most_elements = 1 << 30;
constexpr std::int64_t most_ranks = 1024;
constexpr std::int64_t usual_ranks = 2;
constexpr std::array<std::string_view, 2> optimizer_names{"default", "fused"};
constexpr std::array<std::string_view, 2> dtype_names{"float32", "bfloat16"};

template <std::integral Number>
void add_number(CommandOptions& options, const char* name, const char* help, Number& target,
                std::int64_t least, std::int64_t most) {
  options.add({name, "N", help, std::to_string(target)}, number_into(target, least, most));
}

void add_bytes(CommandOptions& options, const char* name, const char* help, std::int64_t& target) {
  options.add({name, "BYTES", help, format_bytes(target)}, [&target](const std::string& text) {
    auto bytes = parse_bytes(text);
    if (!bytes || *bytes <= 0)
      throw BadInput(formatted("expected bytes such as 1KiB, 64MiB or 4096, found '{}'", text));
    target = *bytes;
  });
}

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

void add_ranks(CommandOptions& options, std::int64_t& ranks) {
  options.add({"ranks", "N", "ranks on this machine", "as the launcher says, else 2", 'n'},
              number_into(ranks, 1, most_ranks));
}

void add_output(CommandOptions& options, bool& json) {
  options.add({"json", "", "one JSON object per row instead of a table"}, flag_into(json));
}

void declare(CommandOptions& options, CollectivesOptions& chosen) {
  options.add({"op", "WORDS", join(Words(collective_names().begin(), collective_names().end())),
               join(chosen.ops, ",")},
              words_into(chosen.ops, collective_names()));
  add_bytes(options, "from", "smallest size of a rank's larger tensor", chosen.from);
  add_bytes(options, "to", "largest size", chosen.to);
  add_number(options, "factor", "ratio of one size to the one before", chosen.factor, 2, 1 << 20);
  static const auto engines = backend_names();
  options.add({"engine", "WORDS", "engines, in turn", "the one that init() chooses"},
              words_into(chosen.engines, engines));
  options.add({"memory", "WORDS", "arena, ordinary, node-shared", "what the engine has"},
              words_into(chosen.memories, memory_names()));
  add_ranks(options, chosen.ranks);
  add_number(options, "rounds", "turns per row", chosen.rounds, 1, most_turns);
  options.add({"turn", "SECONDS", "intended duration of a turn", formatted("{}", chosen.turn)},
              [&chosen](const std::string& text) {
                auto seconds = parse_number(text);
                if (!seconds || *seconds < 1e-4 || *seconds > 60)
                  throw BadInput(formatted("expected 0.0001 to 60 seconds, found '{}'", text));
                chosen.turn = *seconds;
              });
  add_output(options, chosen.json);
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
  options.add({"mode", "WORDS", "as in lockstep bench step, except tensor", "all"},
              words_into(chosen.modes, memory_modes()));
  options.add({"dtype", "WORDS", "float32, bfloat16 (with fp32 masters)", join(chosen.dtypes, ",")},
              words_into(chosen.dtypes, dtype_names));
  add_size(options, "size of the mlp, width x layers (512x8)",
           [&](std::int64_t width, std::int64_t depth) {
             chosen.size.width = width;
             chosen.size.depth = depth;
           });
  options.add({"deferred", "", "make the model by deferred(), a unit at a time"},
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

// Runs `body` on every rank: on the ranks of the launcher that started this process, or else on
// copies of this process.
template <typename Chosen, typename Body>
int on_ranks(const std::string& name, const Words& words, const Chosen& chosen, Body body) {
  Words own = words;
  own.insert(own.begin(), name);
  return train::run_ranks({.command = "lockstep bench " + name,
                           .words = std::move(own),
                           .ranks = chosen.ranks,
                           .usual_ranks = usual_ranks,
                           .device = "cpu",
                           .body = [&](const Group& world) {
                             body(world);
                             return 0;
                           }});
}

int act(const Words& words, const CollectivesOptions& chosen) {
  check_options(chosen);
  return on_ranks("collectives", words, chosen, [&](const Group& world) {
    at::set_num_threads(1);
    measure_collectives(chosen, world);
  });
}

int act(const Words& words, const StepOptions& chosen) {
  check_size(chosen.model, chosen.size.value_or(usual_size(chosen.model)));
  return on_ranks("step", words, chosen, [&](const Group& world) {
    at::set_num_threads(chosen.threads);
    measure_steps(chosen, world);
  });
}

int act(const Words& words, const MemoryOptions& chosen) {
  return on_ranks("memory", words, chosen, [&](const Group& world) {
    at::set_num_threads(1);
    measure_memory(chosen, world);
  });
}

int act(const Words&, const OptimizerOptions& chosen) {
  at::set_num_threads(chosen.threads);
  measure_optimizers(chosen);
  return 0;
}

struct Command {
  std::string_view name;
  const char* about;
  std::function<int(const Command&, const Words&)> run;
};

// Makes a command that parses `words` and then runs, unless they only ask for help.
template <typename Chosen>
Command command(std::string_view name, const char* about) {
  return {name, about, [](const Command& own, const Words& words) {
            Chosen chosen;
            CommandOptions options(formatted("lockstep bench {}", own.name), "[OPTIONS]",
                                   own.about);
            declare(options, chosen);
            auto request = options.read(words);
            if (auto code = sys::answer(request, options)) return *code;
            return act(words, chosen);
          }};
}

std::vector<Command> commands() {
  return {command<StepOptions>(
              "step", "A training step in each mode: forward, backward, averaging, AdamW."),
          command<MemoryOptions>("memory",
                                 "What a rank holds in each mode, beside what the formula says."),
          command<CollectivesOptions>(
              "collectives", "Time and bandwidth of a group's operations, as in nccl-tests."),
          command<OptimizerOptions>("optimizer", "A step of AdamW beside the memory bound.")};
}

int bench(const Words& words) {
  const std::vector<Command> all = commands();
  std::string about = "Measures what this machine does with Lockstep.\n\n";
  std::vector<std::string_view> known;
  for (const Command& command : all) {
    known.push_back(command.name);
    about += formatted("  {:<13}{}\n", command.name, command.about);
  }
  CommandOptions options("lockstep bench", "COMMAND [OPTIONS]", about,
                         CommandOptions::Words::begin_a_program);
  auto request = options.read(words);
  if (auto code = sys::answer(request, options)) return *code;
  if (options.words().empty()) throw UsageError("name a command: " + listed(known, ", "));
  const std::string& name = options.words().front();
  auto found = std::ranges::find(all, name, &Command::name);
  if (found == all.end()) throw UsageError(unknown_name("command", name, known));
  return sys::run_program(formatted("lockstep bench {}", name), [&] {
    return found->run(*found, {options.words().begin() + 1, options.words().end()});
  });
}

}  // namespace

int main(int count, char** words) {
  return sys::run_program("lockstep bench", [&] { return bench({words + 1, words + count}); });
}
