#include "apps/bench/step.h"

#include "apps/bench/python.h"
#include "apps/bench/side.h"
#include "apps/bench/spread.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <initializer_list>
#include <numeric>

namespace lockstep::apps {
namespace {

namespace fs = std::filesystem;

// What ended in pair number i took this long.
struct Pair {
  double lockstep = 0;
  double pytorch = 0;
};

RankCommand our_side(const StepOptions& options) {
  RankCommand side{.name = "lockstep",
                   .program = fs::read_symlink("/proc/self/exe"),
                   .arguments = {"step-rank"},
                   .ranks = options.ranks,
                   .threads = options.threads};
  for (const std::string& word : rank_words(options)) side.arguments.push_back(word);
  return side;
}

RankCommand their_side(const StepOptions& options) {
  RankCommand side{.name = "pytorch",
                   .program = find_python(options.python),
                   .arguments = {"-W", "ignore", peer_file("step.py"), "--serve"},
                   .ranks = options.ranks,
                   .threads = options.threads};
  for (const std::string& word : rank_words(options)) side.arguments.push_back(word);
  return side;
}

double seconds_a_step(Side& side, int steps) {
  std::vector<double> seconds = side.run(steps);
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) / steps;
}

Pair measure_pair(Side& lockstep, Side& pytorch, int steps, bool ours_first) {
  Pair pair;
  if (ours_first) pair.lockstep = seconds_a_step(lockstep, steps);
  pair.pytorch = seconds_a_step(pytorch, steps);
  if (!ours_first) pair.lockstep = seconds_a_step(lockstep, steps);
  return pair;
}

void print_json(const StepOptions& options, const Side& side, const Spread& ratio) {
  Spread seconds = spread_of(side.seconds());
  nlohmann::ordered_json row{{"bench", "step"},
                             {"system", side.name()},
                             {"model", options.model},
                             {"mode", options.mode},
                             {"ranks", options.ranks},
                             {"threads", options.threads},
                             {"optimizer", options.fused ? "fused" : "default"},
                             {"pairs", options.pairs},
                             {"steps", side.seconds().size()},
                             {"min_s", seconds.min},
                             {"p25_s", seconds.p25},
                             {"p50_s", seconds.p50},
                             {"p75_s", seconds.p75},
                             {"max_s", seconds.max},
                             {"losses", side.losses()}};
  row["ratio_pytorch_to_lockstep"] = {{"min", ratio.min},
                                      {"p25", ratio.p25},
                                      {"p50", ratio.p50},
                                      {"p75", ratio.p75},
                                      {"max", ratio.max}};
  print_to(stdout, "{}\n", row.dump());
}

void print_row(const std::string& name, const Spread& spread, int digits) {
  print_to(stdout, "{:<18}", name);
  for (double value : {spread.min, spread.p25, spread.p50, spread.p75, spread.max})
    print_to(stdout, "{:>10.{}f}", value, digits);
  print_to(stdout, "\n");
}

void print_table(const StepOptions& options, const Side& lockstep, const Side& pytorch,
                 const Spread& ratio) {
  print_to(stdout,
           "step: model={} mode={} ranks={} threads={} optimizer={} pairs={} of {} steps each\n",
           options.model, options.mode, options.ranks, options.threads,
           options.fused ? "fused AdamW on both sides" : "default AdamW on both sides",
           options.pairs, options.steps);
  print_to(stdout, "{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}\n", "", "min", "p25", "p50", "p75", "max");
  print_row("lockstep, s", spread_of(lockstep.seconds()), 4);
  print_row("pytorch, s", spread_of(pytorch.seconds()), 4);
  print_row("pytorch/lockstep", ratio, 3);
  print_to(stdout, "first losses: lockstep {}\n              pytorch  {}\n",
           listed(lockstep.losses(), " ", "{:.6f}"), listed(pytorch.losses(), " ", "{:.6f}"));
}

// What is compared must be what was asked for, on both sides.
void check_same_optimizer(const StepOptions& options, std::initializer_list<const Side*> sides) {
  for (const Side* side : sides)
    if (side->is_fused() != options.fused)
      throw Error(formatted("{}: expected the {} AdamW, found the other", side->name(),
                            options.fused ? "fused" : "default"));
}

}  // namespace

void compare_steps(const StepOptions& options) {
  RankCommand theirs = their_side(options);
  Side lockstep(our_side(options));
  lockstep.wait_until_ready();
  Side pytorch(theirs);
  pytorch.wait_until_ready();
  check_same_optimizer(options, {&lockstep, &pytorch});
  // The first turn after the other's start is not like the rest.
  (void)measure_pair(lockstep, pytorch, 1, true);
  lockstep.forget();
  pytorch.forget();
  std::vector<double> ratios;
  for (int number = 0; number < options.pairs; ++number) {
    Pair pair = measure_pair(lockstep, pytorch, options.steps, number % 2 == 0);
    ratios.push_back(pair.pytorch / pair.lockstep);
  }
  Spread ratio = spread_of(ratios);
  if (!options.json) return print_table(options, lockstep, pytorch, ratio);
  print_json(options, lockstep, ratio);
  print_json(options, pytorch, ratio);
}

}  // namespace lockstep::apps
