#include "measure/optimizer.h"

#include "apps/bench/spread.h"
#include "base/format.h"

#include <nlohmann/json.hpp>

#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

namespace lockstep::bench {
namespace {

// One row of the table. The memory pass uses the arrays of float32.
struct Contender {
  std::string name;
  double bytes = 0;  // bytes per parameter that a step moves
  std::function<double()> step;
  std::vector<double> seconds = {};   // of all steps
  std::vector<double> by_round = {};  // mean per round
};

std::vector<Contender> contenders_of(const OptimizerOptions& options) {
  std::vector<Contender> contenders;
  for (const std::string& state : options.states) {
    auto work = std::make_shared<OptimizerWork>(options.sizes, state);
    contenders.push_back({state, bytes_moved(state), [work] { return work->update(); }});
    if (state == "float32")
      contenders.push_back({"memory", bytes_moved(state), [work] { return work->memory(); }});
  }
  return contenders;
}

// Runs a turn. Its first step is not counted, because it evicts dirty cache lines of the previous
// turn.
void take_turn(Contender& contender, int steps) {
  (void)contender.step();
  std::vector<double> seconds(static_cast<std::size_t>(steps));
  for (double& value : seconds) value = contender.step();
  contender.seconds.insert(contender.seconds.end(), seconds.begin(), seconds.end());
  contender.by_round.push_back(std::accumulate(seconds.begin(), seconds.end(), 0.0) / steps);
}

// Returns the ratio of two times: the time that the memory pass needs to move the contender's
// bytes, and the contender's own time.
std::optional<apps::Spread> share_of_bound(const Contender& contender,
                                           const std::vector<Contender>& contenders) {
  for (const Contender& memory : contenders) {
    if (memory.name != "memory") continue;
    std::vector<double> shares;
    for (std::size_t i = 0; i < memory.by_round.size(); ++i)
      shares.push_back(memory.by_round[i] * contender.bytes / memory.bytes / contender.by_round[i]);
    return apps::spread_of(std::move(shares));
  }
  return std::nullopt;
}

nlohmann::ordered_json json_of(const apps::Spread& spread) {
  return {{"min", spread.min},
          {"p25", spread.p25},
          {"p50", spread.p50},
          {"p75", spread.p75},
          {"max", spread.max}};
}

void print_json(const OptimizerOptions& options, const Contender& contender,
                const std::optional<apps::Spread>& share) {
  apps::Spread seconds = apps::spread_of(contender.seconds);
  nlohmann::ordered_json row{{"bench", "optimizer"},
                             {"kind", contender.name},
                             {"parameters", options.sizes.parameters()},
                             {"threads", options.threads},
                             {"rounds", options.rounds},
                             {"bytes_per_parameter", contender.bytes},
                             {"min_s", seconds.min},
                             {"p50_s", seconds.p50},
                             {"max_s", seconds.max}};
  if (share) row["share_of_memory_bound"] = json_of(*share);
  print_to(stdout, "{}\n", row.dump());
}

void print_heading(const OptimizerOptions& options) {
  print_to(stdout, "optimizer: AdamW over {} float32 parameters, threads={} rounds={} steps={}\n",
           options.sizes.parameters(), options.threads, options.rounds, options.steps);
  print_to(stdout, "{:<12}{:>10}{:>10}{:>8}{:>9}  share of memory bound (quartiles of rounds)\n",
           "state", "ms min", "ms p50", "bytes", "GB/s");
}

void print_line(const OptimizerOptions& options, const Contender& contender,
                const std::optional<apps::Spread>& share) {
  apps::Spread seconds = apps::spread_of(contender.seconds);
  double moved = contender.bytes * static_cast<double>(options.sizes.parameters());
  print_to(stdout, "{:<12}{:>10.2f}{:>10.2f}{:>8.2f}{:>9.2f}  {}\n", contender.name,
           seconds.min * 1e3, seconds.p50 * 1e3, contender.bytes, moved / seconds.p50 / 1e9,
           share ? formatted("{:.2f} ({:.2f} .. {:.2f})", share->p50, share->p25, share->p75)
                 : std::string("-"));
}

}  // namespace

void measure_optimizers(const OptimizerOptions& options) {
  std::vector<Contender> contenders = contenders_of(options);
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.rounds); ++round) {
    print_to(stderr, "measuring round {} of {}\n", round + 1, options.rounds);
    for (std::size_t i = 0; i < contenders.size(); ++i)
      take_turn(contenders[(i + round) % contenders.size()], options.steps);
  }
  if (!options.json) print_heading(options);
  for (const Contender& contender : contenders) {
    auto share = share_of_bound(contender, contenders);
    options.json ? print_json(options, contender, share) : print_line(options, contender, share);
  }
  std::fflush(stdout);
}

}  // namespace lockstep::bench
