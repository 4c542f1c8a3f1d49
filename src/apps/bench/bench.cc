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
#include "apps/program.h"

#include <lockstep/base/format.h>
#include <lockstep/base/nearest.h>
#include <lockstep/base/text.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace {

using namespace lockstep;
using namespace lockstep::apps;

using Words = std::vector<std::string>;

constexpr std::int64_t most_width = 1 << 20;
constexpr std::int64_t most_threads = 1024;
constexpr std::int64_t most_turns = 100'000;
constexpr std::int64_t most_elements = 1 << 30;
constexpr std::array<std::string_view, 2> model_names{"mlp", "gpt"};
constexpr std::array<std::string_view, 3> part_names{"modes", "tail", "trigger"};
constexpr std::array<std::string_view, 2> optimizer_names{"default", "fused"};
constexpr std::array<std::string_view, 4> memory_rows{"counters", "pss", "node-shared", "limited"};
constexpr std::array<std::string_view, 3> state_names{"float32", "bfloat16", "blocks"};

template <std::integral Number>
void add_number(CommandOptions& options, const char* name, const char* help, Number& target,
                std::int64_t least, std::int64_t most) {
  options.add({name, "N", help, std::to_string(target)}, number_into(target, least, most));
}

// "4096x12": width and layers.
template <typename Take>
void add_size(CommandOptions& options, const char* name, const char* help, Take take) {
  options.add({name, "WxL", help}, [take](const std::string& text) {
    std::size_t times = text.find('x');
    auto width = parse_integer(text.substr(0, times));
    auto depth = times == std::string::npos ? std::nullopt : parse_integer(text.substr(times + 1));
    if (!width || !depth || *width < 1 || *depth < 1 || *width > most_width || *depth > most_width)
      throw BadInput(formatted("expected width x layers such as 4096x12, found '{}'", text));
    take(ModelSize{.width = *width, .depth = static_cast<int>(*depth)});
  });
}

void add_output(CommandOptions& options, const char* help, bool& json) {
  options.add({"json", "", help}, flag_into(json));
}

void add_python(CommandOptions& options, std::string& python) {
  options.add(
      {"python", "PATH", "a Python with torch; else LOCKSTEP_PYTHON, else .venv/bin/python"},
      text_into(python));
}

void declare(CommandOptions& options, StepOptions& chosen) {
  options.add({"measure", "WORDS",
               "modes (the tables of steps), tail (sync and AdamW in one pass), trigger (what "
               "noticing parameters costs); else all, or with --mode only modes"},
              words_into(chosen.parts, part_names));
  options.add({"model", "WORD", "mlp or gpt", chosen.model}, word_into(chosen.model, model_names));
  add_size(options, "size", "of the model, width x layers (mlp 2048x4, gpt 384x6)",
           [&](const ModelSize& size) { chosen.size = size; });
  add_number(options, "tensors", "of the tail: parameter tensors", chosen.tail.tensors, 1,
             most_turns);
  add_number(options, "elements", "of such a tensor", chosen.tail.elements, 1, most_elements);
  options.add({"mode", "WORDS",
               "ours: none (ranks that know nothing of each other), ddp, optimizer, gradients, "
               "full, full-node-shared; else all of both systems"},
              words_into(chosen.modes, our_modes()));
  options.add(
      {"against", "WORDS", "PyTorch's: none, ddp, zero1, fsdp2; else the counterparts of --mode"},
      words_into(chosen.against, pytorch_modes()));
  options.add({"optimizer", "WORDS",
               "AdamW of both systems, one table each: default (PyTorch's defaults), fused (one "
               "pass over memory)",
               join(chosen.optimizers, ",")},
              words_into(chosen.optimizers, optimizer_names));
  add_number(options, "ranks", "ranks of each system", chosen.ranks, 1, 1024);
  add_number(options, "threads", "threads of a rank", chosen.threads, 1, most_threads);
  add_number(options, "rounds", "turns of each contender", chosen.rounds, 1, most_turns);
  add_number(options, "steps", "training steps in a turn", chosen.steps, 1, most_turns);
  add_output(options, "one JSON object a contender instead of the tables", chosen.json);
  add_python(options, chosen.python);
}

void declare(CommandOptions& options, MemoryOptions& chosen) {
  auto into = [](MlpSizes& sizes) {
    return [&sizes](const ModelSize& size) {
      sizes.width = size.width;
      sizes.depth = size.depth;
    };
  };
  options.add({"measure", "WORDS", "counters, pss, node-shared, limited; else all"},
              words_into(chosen.rows, memory_rows));
  add_number(options, "most-ranks", "counters: for 1 rank to this many", chosen.most_ranks, 1, 64);
  add_size(options, "counted", "model of the counters, width x layers (512x8)",
           into(chosen.counted));
  add_size(options, "measured", "model whose pages are measured (2048x48)", into(chosen.measured));
  add_size(options, "limited", "model of three times a rank's memory (2048x64)",
           into(chosen.limited));
  add_number(options, "steps", "training steps before anything is read", chosen.steps, 1, 1000);
  add_output(options, "one JSON object a row instead of the table", chosen.json);
}

void declare(CommandOptions& options, CollectivesOptions& chosen) {
  options.add({"peers", "WORDS",
               "beside whom: gloo (PyTorch's), mpi, openmpi, mpich, lockstep-gloo, lockstep-mpi, "
               "or none",
               join(chosen.peers, ",")},
              [&chosen](const std::string& text) {
                chosen.peers.clear();
                each_of([&](const std::string& name) { chosen.peers.push_back(name); })(text);
              });
  options.add({"op", "WORDS",
               "all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, reduce, gather, "
               "scatter, barrier"},
              each_of([&chosen](const std::string& name) {
                chosen.ops.emplace_back(name_of(collective_named(name)));
              }));
  options.add({"sizes", "BYTES", "of a tensor: 1KiB,64MiB,4096"},
              each_of([&chosen](const std::string& size) { chosen.sizes.push_back(size); }));
  options.add({"ranks", "NUMBERS", "ranks of each system: 2,4"},
              each_of([&chosen](const std::string& text) {
                chosen.ranks.push_back(static_cast<int>(checked_number(text, 1, 64)));
              }));
  options.add({"outsider", "", "every row also beside a busy process"}, flag_into(chosen.outsider));
  add_number(options, "rounds", "turns of each system in a row of the table", chosen.rounds, 1,
             most_turns);
  options.add({"turn", "SECONDS", "that a turn should take", formatted("{}", chosen.turn)},
              [&chosen](const std::string& text) {
                auto seconds = parse_number(text);
                if (!seconds || *seconds < 1e-4 || *seconds > 60)
                  throw BadInput(formatted("expected 0.0001 to 60 seconds, found '{}'", text));
                chosen.turn = *seconds;
              });
  add_output(options, "one JSON object a line instead of the tables", chosen.json);
  add_python(options, chosen.python);
}

void declare_process(CommandOptions& options, OptimizerOptions& chosen) {
  add_number(options, "tensors", "parameter tensors", chosen.tensors, 1, most_turns);
  add_number(options, "elements", "of a tensor", chosen.elements, 1, most_elements);
  add_number(options, "threads", "threads of a system", chosen.threads, 1, most_threads);
  options.add({"states", "WORDS", "of our AdamW", join(chosen.states, ",")},
              words_into(chosen.states, state_names));
}

void declare(CommandOptions& options, OptimizerOptions& chosen) {
  declare_process(options, chosen);
  add_number(options, "rounds", "turns of each contender", chosen.rounds, 1, most_turns);
  add_number(options, "steps", "steps in a turn", chosen.steps, 1, most_turns);
  add_output(options, "one JSON object a contender instead of the table", chosen.json);
  add_python(options, chosen.python);
}

// What `lockstep bench` tells its own processes: no help lists it.
void declare_size(CommandOptions& options, ModelSize& size) {
  add_number(options, "width", "", size.width, 1, most_width);
  add_number(options, "depth", "", size.depth, 1, most_width);
}

struct RankOptions {
  StepRankOptions step;
  TailSizes tail;
  ModelSize trigger;
  MemoryRankOptions memory;
  OptimizerOptions optimizer;
  std::string pipes;
  int threads = 1;
};

void declare_step_rank(CommandOptions& options, RankOptions& told) {
  declare_size(options, told.step.size);
  options.add({"model", "WORD", ""}, word_into(told.step.model, model_names));
  options.add({"mode", "WORD", ""}, word_into(told.step.mode, our_modes()));
  add_number(options, "threads", "", told.step.threads, 1, most_threads);
  options.add({"fused", "", ""}, flag_into(told.step.fused));
}

void declare_tail_rank(CommandOptions& options, RankOptions& told) {
  add_number(options, "tensors", "", told.tail.tensors, 1, most_turns);
  add_number(options, "elements", "", told.tail.elements, 1, most_elements);
  add_number(options, "threads", "", told.threads, 1, most_threads);
}

void declare_trigger_rank(CommandOptions& options, RankOptions& told) {
  declare_size(options, told.trigger);
  add_number(options, "threads", "", told.threads, 1, most_threads);
}

void declare_memory_rank(CommandOptions& options, RankOptions& told) {
  add_number(options, "width", "", told.memory.sizes.width, 1, most_width);
  add_number(options, "depth", "", told.memory.sizes.depth, 1, most_width);
  add_number(options, "rows", "", told.memory.sizes.rows, 1, most_width);
}

// Reads `words` and does the command unless they only ask for help.
template <typename Chosen, typename Declare, typename Act>
int run_command(std::string_view name, const char* about, const Words& words, Declare declare,
                Act act) {
  Chosen chosen;
  CommandOptions options(formatted("lockstep bench {}", name), "[OPTIONS]", about);
  declare(options, chosen);
  auto request = options.read(words);
  if (auto code = answer(request, options)) return *code;
  return act(chosen);
}

struct Command {
  std::string_view name;
  const char* about;  // empty: unlisted
  std::function<int(const Command&, const Words&)> run;
};

template <typename Chosen, typename Act>
Command listed_command(std::string_view name, const char* about, Act act) {
  return {name, about, [act](const Command& own, const Words& words) {
            auto declared = [](CommandOptions& options, Chosen& chosen) {
              declare(options, chosen);
            };
            return run_command<Chosen>(own.name, own.about, words, declared, [&](auto& chosen) {
              act(chosen);
              return 0;
            });
          }};
}

template <typename Declare, typename Act>
Command rank_command(std::string_view name, Declare declare, Act act) {
  return {name, "", [declare, act](const Command& own, const Words& words) {
            return run_command<RankOptions>(own.name, "", words, declare, act);
          }};
}

std::vector<Command> commands() {
  using Told = RankOptions;
  return {
      listed_command<StepOptions>(
          "step", "A training step: forward, backward, averaging, AdamW; in every mode of both.",
          compare_steps),
      listed_command<MemoryOptions>(
          "memory", "What a rank holds at each level of sharding, beside what the formulas say.",
          measure_memory),
      listed_command<CollectivesOptions>(
          "collectives", "all_reduce and the others beside Gloo and MPI, and their lower bound.",
          compare_collectives),
      listed_command<OptimizerOptions>(
          "optimizer", "AdamW beside PyTorch's default and fused ones, and the memory bound.",
          compare_optimizers),
      rank_command("step-rank", declare_step_rank,
                   [](const Told& told) { return serve_steps(told.step); }),
      rank_command("tail-rank", declare_tail_rank,
                   [](const Told& told) { return serve_tails(told.tail, told.threads); }),
      rank_command("trigger-rank", declare_trigger_rank,
                   [](const Told& told) { return serve_trigger(told.trigger, told.threads); }),
      rank_command("memory-rank", declare_memory_rank,
                   [](const Told& told) { return serve_memory(told.memory); }),
      rank_command(
          "collectives-rank",
          [](CommandOptions& options, Told& told) {
            options.add({"pipes", "PATH", ""}, text_into(told.pipes));
          },
          [](const Told& told) { return serve_collectives(told.pipes); }),
      rank_command(
          "optimizer-rank",
          [](CommandOptions& options, Told& told) { declare_process(options, told.optimizer); },
          [](const Told& told) { return serve_optimizer(told.optimizer); })};
}

int bench(const Words& words) {
  const std::vector<Command> all = commands();
  std::string about =
      "Measures Lockstep beside others: the same work, in turn, in one run; ratios are what "
      "counts.\n\n";
  std::vector<std::string_view> known;
  for (const Command& command : all) {
    if (*command.about == '\0') continue;
    known.push_back(command.name);
    about += formatted("  {:<13}{}\n", command.name, command.about);
  }
  CommandOptions options("lockstep bench", "COMMAND [OPTIONS]", about,
                         CommandOptions::Words::begin_a_program);
  auto request = options.read(words);
  if (auto code = answer(request, options)) return *code;
  if (options.words().empty()) throw UsageError("name a command: " + listed(known, ", "));
  const std::string& name = options.words().front();
  auto found = std::ranges::find(all, name, &Command::name);
  if (found == all.end()) throw UsageError(unknown_name("command", name, known));
  return run_program(formatted("lockstep bench {}", name), [&] {
    return found->run(*found, {options.words().begin() + 1, options.words().end()});
  });
}

}  // namespace

int main(int count, char** words) {
  std::signal(SIGPIPE, SIG_IGN);  // a rank that ended is an error of the write
  return run_program("lockstep bench", [&] { return bench({words + 1, words + count}); });
}
