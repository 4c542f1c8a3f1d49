#include "apps/bench/step/tail.h"

#include "apps/bench/goal.h"
#include "apps/bench/python.h"
#include "apps/bench/spread.h"
#include "apps/bench/step/contender.h"
#include "apps/bench/step/ratios.h"

#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::apps {
namespace {

constexpr Goal tail_goal{.must = 4, .aim = 5};
constexpr int goal_ranks = 2;

std::vector<std::string> words_of(const StepOptions& options) {
  return {"--tensors",  std::to_string(options.tail.tensors),
          "--elements", std::to_string(options.tail.elements),
          "--threads",  std::to_string(options.threads)};
}

RankCommand command_of(const StepOptions& options, bool ours) {
  RankCommand command{.name = ours ? "ours tail" : "PyTorch tail",
                      .ranks = options.ranks,
                      .threads = options.threads};
  if (ours) {
    command.program = std::filesystem::read_symlink("/proc/self/exe");
    command.arguments = {"tail-rank"};
  } else {
    command.program = find_python(options.python);
    command.arguments = {"-W", "ignore", peer_file("tail.py")};
  }
  for (std::string& word : words_of(options)) command.arguments.push_back(std::move(word));
  return command;
}

void print_json(const StepOptions& options, const StepContender& tail) {
  Spread seconds = spread_of(tail.seconds());
  nlohmann::ordered_json row{{"bench", "step"},
                             {"system", tail.name().system},
                             {"model", "flat"},
                             {"mode", tail.name().mode},
                             {"ranks", options.ranks},
                             {"min_s", seconds.min},
                             {"p50_s", seconds.p50},
                             {"bytes", tail.bytes()},
                             {"parameters", options.tail.parameters()},
                             {"round_means_s", tail.by_round()}};
  print_to(stdout, "{}\n", row.dump());
}

void print_line(const char* name, const StepContender& tail) {
  Spread seconds = spread_of(tail.seconds());
  print_to(stdout, "{:<46}{:>10.2f}{:>10.2f}{:>10.2f} ms\n", name, seconds.min * 1e3,
           seconds.p50 * 1e3, seconds.max * 1e3);
}

void print_table(const StepOptions& options, const StepContender& ours,
                 const StepContender& theirs) {
  print_to(stdout, "tail of a step: {} fp32 parameters, ranks={} threads={}\n",
           options.tail.parameters(), options.ranks, options.threads);
  print_to(stdout, "{:<46}{:>10}{:>10}{:>10}\n", "", "min", "p50", "max");
  print_line("PyTorch: Gloo all_reduce, then fused AdamW", theirs);
  print_line("ours: node-shared, one pass (reduce_in_step)", ours);
  Spread found = quotients_of(theirs.by_round(), ours.by_round());
  print_to(stdout, "{:<46}{:>8.3f}   {:.3f} .. {:.3f}   {}\n", "PyTorch / ours", found.p50,
           found.p25, found.p75,
           options.ranks == goal_ranks && options.tail == TailSizes()
               ? verdict_of(tail_goal, found.p50)
               : "");
  double moved = static_cast<double>(ours.bytes()) * options.ranks;
  print_to(stdout, "bytes moved a parameter, all ranks, by counter: {:.2f}; 4p + 24 is {}\n\n",
           moved / static_cast<double>(options.tail.parameters()), 4 * options.ranks + 24);
  std::fflush(stdout);
}

}  // namespace

void compare_tails(const StepOptions& options) {
  RankCommand their_command = command_of(options, false);
  StepContender ours({"lockstep", "tail"}, command_of(options, true));
  ours.wait_until_ready(true);
  StepContender theirs({"pytorch", "tail"}, their_command);
  theirs.wait_until_ready(true);
  std::array<StepContender*, 2> turns{&ours, &theirs};
  for (StepContender* tail : turns) {
    tail->take_turn(1);  // the first one after the other's start is not like the rest
    tail->forget();
  }
  for (int round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < turns.size(); ++i)
      turns[(i + static_cast<std::size_t>(round)) % turns.size()]->take_turn(options.steps);
  if (!options.json) return print_table(options, ours, theirs);
  print_json(options, ours);
  print_json(options, theirs);
}

}  // namespace lockstep::apps
