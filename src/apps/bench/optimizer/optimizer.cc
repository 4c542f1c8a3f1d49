#include "apps/bench/optimizer/optimizer.h"

#include "apps/bench/python.h"
#include "apps/bench/rank_processes.h"
#include "apps/bench/spread.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <optional>

namespace lockstep::apps {
namespace {

// One row of the table. Two of them may share a process.
struct Entrant {
  std::string system;   // lockstep, pytorch
  std::string kind;     // default, fused; float32, bfloat16, blocks; memory
  std::string command;  // what its process is told
  double bytes = 0;     // that it moves, a parameter
  std::shared_ptr<RankProcesses> process = {};
  std::vector<double> seconds = {};   // of all steps
  std::vector<double> by_round = {};  // means
};

double bytes_of(const std::string& state) {
  if (state == "bfloat16") return 20;
  return state == "blocks" ? 16 + 4 * 4.0 / 256 : 28;  // scales are read and written
}

RankCommand command_for(const OptimizerOptions& options, const std::string& name) {
  return {
      .name = name,
      .arguments = {"--tensors", std::to_string(options.tensors), "--elements",
                    std::to_string(options.elements), "--threads", std::to_string(options.threads)},
      .threads = options.threads};
}

std::shared_ptr<RankProcesses> start_ours(const OptimizerOptions& options,
                                          const std::string& state) {
  RankCommand command = command_for(options, "lockstep");
  command.program = std::filesystem::read_symlink("/proc/self/exe");
  command.arguments.insert(command.arguments.begin(), {"optimizer-rank", "--states", state});
  return std::make_shared<RankProcesses>(RankProcesses::start_each(command));
}

std::shared_ptr<RankProcesses> start_theirs(const OptimizerOptions& options,
                                            const std::string& kind) {
  RankCommand command = command_for(options, "pytorch");
  command.program = find_python(options.python);
  command.arguments.insert(command.arguments.begin(),
                           {"-W", "ignore", peer_file("optimizer.py"), "--serve", kind});
  return std::make_shared<RankProcesses>(RankProcesses::start_each(command));
}

std::vector<Entrant> start(const OptimizerOptions& options) {
  std::vector<Entrant> contenders;
  for (const char* kind : {"default", "fused"})
    contenders.push_back({"pytorch", kind, "update", 28, start_theirs(options, kind)});
  for (const std::string& state : options.states) {
    contenders.push_back(
        {"lockstep", state, "update", bytes_of(state), start_ours(options, state)});
    if (state == "float32")
      contenders.push_back({"lockstep", "memory", "memory", 28, contenders.back().process});
  }
  for (Entrant& contender : contenders)
    if (contender.command == "update") (void)contender.process->answer(0);  // ready
  return contenders;
}

// The first step of a turn is not counted: it writes back what the turn before left in the caches.
void run_turn(Entrant& contender, int steps) {
  contender.process->tell(formatted("{} {}", contender.command, steps + 1));
  auto answer = nlohmann::json::parse(contender.process->answer(0));
  std::vector<double> seconds = answer.at("seconds");
  seconds.erase(seconds.begin());
  contender.seconds.insert(contender.seconds.end(), seconds.begin(), seconds.end());
  contender.by_round.push_back(std::accumulate(seconds.begin(), seconds.end(), 0.0) /
                               static_cast<double>(seconds.size()));
}

// Round i begins with contender i, so that none always follows the same.
void run_rounds(std::vector<Entrant>& contenders, const OptimizerOptions& options) {
  for (Entrant& contender : contenders) run_turn(contender, 1);  // is not like the rest
  for (Entrant& contender : contenders) contender.seconds.clear(), contender.by_round.clear();
  for (int round = 0; round < options.rounds; ++round)
    for (std::size_t i = 0; i < contenders.size(); ++i)
      run_turn(contenders[(i + static_cast<std::size_t>(round)) % contenders.size()],
               options.steps);
}

// Seconds of `numerator` over those of `denominator`, round by round.
Spread ratio_of(const Entrant& numerator, const Entrant& denominator, double factor = 1) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < numerator.by_round.size(); ++i)
    ratios.push_back(factor * numerator.by_round[i] / denominator.by_round[i]);
  return spread_of(std::move(ratios));
}

struct Ratios {
  Spread to_default, to_fused;
  std::optional<Spread> of_bound;  // the time that its bytes take in the memory mix, over its own
};

Ratios ratios_of(const Entrant& contender, const std::vector<Entrant>& all) {
  auto named = [&](const std::string& kind) {
    return std::find_if(all.begin(), all.end(), [&](const auto& c) { return c.kind == kind; });
  };
  Ratios ratios{ratio_of(*named("default"), contender), ratio_of(*named("fused"), contender), {}};
  auto memory = named("memory");
  if (memory != all.end())
    ratios.of_bound = ratio_of(*memory, contender, contender.bytes / memory->bytes);
  return ratios;
}

nlohmann::ordered_json json_of(const Spread& spread) {
  return {{"min", spread.min},
          {"p25", spread.p25},
          {"p50", spread.p50},
          {"p75", spread.p75},
          {"max", spread.max}};
}

void print_json(const OptimizerOptions& options, const Entrant& contender, const Ratios& ratios) {
  Spread seconds = spread_of(contender.seconds);
  nlohmann::ordered_json row{{"bench", "optimizer"},
                             {"system", contender.system},
                             {"kind", contender.kind},
                             {"parameters", options.parameters()},
                             {"threads", options.threads},
                             {"rounds", options.rounds},
                             {"bytes_per_parameter", contender.bytes},
                             {"min_s", seconds.min},
                             {"p50_s", seconds.p50},
                             {"max_s", seconds.max},
                             {"ratio_default_to_this", json_of(ratios.to_default)},
                             {"ratio_fused_to_this", json_of(ratios.to_fused)}};
  if (ratios.of_bound) row["share_of_memory_bound"] = json_of(*ratios.of_bound);
  print_to(stdout, "{}\n", row.dump());
}

std::string text_of(const Spread& spread) {
  return formatted("{:.2f} ({:.2f} .. {:.2f})", spread.p50, spread.p25, spread.p75);
}

void print_table(const OptimizerOptions& options, const std::vector<Entrant>& contenders) {
  print_to(stdout,
           "optimizer: AdamW over {} float32 parameters, threads={} rounds={} of {} steps\n",
           options.parameters(), options.threads, options.rounds, options.steps);
  print_to(stdout, "ratios: median (quartiles) of the rounds\n");
  print_to(stdout, "{:<20}{:>10}{:>10}{:>8}  {:<22}{:<22}{:<22}\n", "", "ms min", "ms p50", "bytes",
           "default / this", "fused / this", "share of memory bound");
  for (const Entrant& contender : contenders) {
    Spread seconds = spread_of(contender.seconds);
    Ratios ratios = ratios_of(contender, contenders);
    print_to(stdout, "{:<20}{:>10.2f}{:>10.2f}{:>8.2f}  {:<22}{:<22}{:<22}\n",
             contender.system + " " + contender.kind, seconds.min * 1e3, seconds.p50 * 1e3,
             contender.bytes, text_of(ratios.to_default), text_of(ratios.to_fused),
             ratios.of_bound ? text_of(*ratios.of_bound) : "-");
  }
}

}  // namespace

void compare_optimizers(const OptimizerOptions& options) {
  std::vector<Entrant> contenders = start(options);
  run_rounds(contenders, options);
  if (!options.json) return print_table(options, contenders);
  for (const Entrant& contender : contenders)
    print_json(options, contender, ratios_of(contender, contenders));
}

}  // namespace lockstep::apps
