#include "measure/step.h"

#include "apps/bench/spread.h"
#include "apps/bench/together.h"
#include "base/check.h"
#include "base/text.h"
#include "matmul/matmul.h"
#include "measure/training.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <utility>

namespace lockstep::bench {
namespace {

constexpr double equal_losses = 1e-4;  // relative

struct MeasuredMode {
  std::string name;
  std::unique_ptr<StepWork> work;
  std::vector<double> seconds = {};
  std::int64_t bytes = 0;
  // One value per step of this rank.
  std::vector<double> forward = {}, backward = {}, update = {};
};

void take_turn(const Group& world, MeasuredMode& mode, int steps) {
  std::vector<double> own(static_cast<std::size_t>(steps));
  for (double& seconds : own) {
    seconds = mode.work->step();
    const StepParts& parts = mode.work->training().parts();
    mode.forward.push_back(parts.forward);
    mode.backward.push_back(parts.backward);
    mode.update.push_back(parts.update);
  }
  auto slowest = apps::largest_of_ranks(world, own);
  mode.seconds.insert(mode.seconds.end(), slowest.begin(), slowest.end());
}

std::vector<MeasuredMode> modes_of(const StepOptions& options, bool fused, const Group& world) {
  auto names = options.modes;
  if (names.empty()) names.assign(step_modes().begin(), step_modes().end());
  std::vector<MeasuredMode> modes;
  for (const std::string& name : names) {
    StepWorkOptions told{.model = options.model,
                         .size = options.size.value_or(usual_size(options.model)),
                         .mode = name,
                         .fused = fused};
    modes.push_back({name, std::make_unique<StepWork>(told, world)});
  }
  return modes;
}

void run_rounds(std::vector<MeasuredMode>& modes, const StepOptions& options, const Group& world) {
  for (MeasuredMode& mode : modes) {
    // Warm-up: the first step after the construction of the other modes is not representative.
    take_turn(world, mode, 1);
    for (auto* kept : {&mode.seconds, &mode.forward, &mode.backward, &mode.update}) kept->clear();
  }
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.rounds); ++round)
    for (std::size_t i = 0; i < modes.size(); ++i)
      take_turn(world, modes[(i + round) % modes.size()], options.steps);
  for (MeasuredMode& mode : modes) {
    std::int64_t own[] = {mode.work->training().held_bytes()};
    for (const auto& rank : apps::gathered(world, own))
      mode.bytes = std::max(mode.bytes, rank.front());
  }
}

// Checks that modes have equal losses. Modes that train on one rank's batch and modes that train on
// all batches agree only in the first step, before their updates differ. Mode tensor has the losses
// of rank 0.
void check_losses(const std::vector<MeasuredMode>& modes, bool is_root) {
  for (const MeasuredMode& mode : modes)
    for (const MeasuredMode& other : modes) {
      if (!is_root && (mode.name == "tensor") != (other.name == "tensor")) continue;
      bool alone = trains_on_one_batch(mode.name) != trains_on_one_batch(other.name);
      const auto &own = mode.work->losses(), &others = other.work->losses();
      for (std::size_t step = 0; step < (alone ? 1 : own.size()); ++step)
        if (!(std::abs(own[step] - others[step]) <= equal_losses * std::abs(others[step])))
          throw Error(
              formatted("step: expected equal losses at step {}, found {} in mode {} "
                        "and {} in mode {}",
                        step, own[step], mode.name, others[step], other.name));
    }
}

void print_json(const StepOptions& options, const std::string& optimizer, int ranks,
                const MeasuredMode& mode) {
  apps::Spread seconds = apps::spread_of(mode.seconds);
  ModelSize size = options.size.value_or(usual_size(options.model));
  nlohmann::ordered_json row{{"bench", "step"},      {"model", options.model},
                             {"width", size.width},  {"depth", size.depth},
                             {"mode", mode.name},    {"optimizer", optimizer},
                             {"ranks", ranks},       {"threads", options.threads},
                             {"min_s", seconds.min}, {"p25_s", seconds.p25},
                             {"p50_s", seconds.p50}, {"p75_s", seconds.p75},
                             {"max_s", seconds.max}, {"steps", mode.seconds.size()},
                             {"bytes", mode.bytes},  {"losses", mode.work->losses()}};
  row["products"] = matmul::library();
  row["cpu_forward_s"] = apps::spread_of(mode.forward).p50;
  row["cpu_backward_s"] = apps::spread_of(mode.backward).p50;
  row["cpu_update_s"] = apps::spread_of(mode.update).p50;
  print_to(stdout, "{}\n", row.dump());
}

void print_table(const StepOptions& options, const std::string& optimizer, int ranks,
                 const std::vector<MeasuredMode>& modes) {
  ModelSize size = options.size.value_or(usual_size(options.model));
  print_to(
      stdout,
      "step: model={} {}x{} ranks={} threads={} rounds={} steps={}; AdamW {}; products by {}\n",
      options.model, size.width, size.depth, ranks, options.threads, options.rounds, options.steps,
      optimizer, matmul::library());
  print_to(stdout, "{:<18}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}   first losses\n", "seconds", "min",
           "p25", "p50", "p75", "max", "bytes");
  for (const MeasuredMode& mode : modes) {
    apps::Spread seconds = apps::spread_of(mode.seconds);
    print_to(stdout, "{:<18}", mode.name);
    for (double value : {seconds.min, seconds.p25, seconds.p50, seconds.p75, seconds.max})
      print_to(stdout, "{:>10.4f}", value);
    print_to(stdout, "{:>12}   {:.6f} {:.6f}\n", format_bytes(mode.bytes),
             mode.work->losses().at(0), mode.work->losses().at(1));
  }
  print_to(stdout, "{:<18}{:>10}{:>10}{:>10}\n", "cpu of rank 0, p50", "forward", "backward",
           "update");
  for (const MeasuredMode& mode : modes)
    print_to(stdout, "{:<18}{:>10.4f}{:>10.4f}{:>10.4f}\n", mode.name,
             apps::spread_of(mode.forward).p50, apps::spread_of(mode.backward).p50,
             apps::spread_of(mode.update).p50);
  print_to(stdout, "\n");
}

}  // namespace

void measure_steps(const StepOptions& options, const Group& world) {
  for (const std::string& optimizer : options.optimizers) {
    auto modes = modes_of(options, optimizer == "fused", world);
    run_rounds(modes, options, world);
    check_losses(modes, world.is_root());
    if (!world.is_root()) continue;
    if (!options.json) print_table(options, optimizer, world.size(), modes);
    if (options.json)
      for (const MeasuredMode& mode : modes) print_json(options, optimizer, world.size(), mode);
    std::fflush(stdout);
  }
}

}  // namespace lockstep::bench
