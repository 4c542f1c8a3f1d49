#include "measure/memory.h"

#include "apps/bench/spread.h"
#include "base/format.h"
#include "measure/step.h"
#include "module/checks.h"
#include "sys/failure_text.h"
#include "sys/heap.h"
#include "sys/process_info.h"

#include <lockstep/base/deadline.h>
#include <lockstep/parallel/sharded/deferred.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>

namespace lockstep::bench {
namespace {

constexpr ModelSize small_size{.width = 64, .depth = 2, .rows = 4};

// Bytes of one mode and dtype on one rank.
struct Measured {
  std::int64_t kept = 0;        // parameters, gradients and optimizer state, counted by the library
  std::int64_t units = 0;       // gathered and pooled after a step
  std::int64_t peak_units = 0;  // maximum gathered at a time, after the first step
  std::int64_t growth = 0;      // growth of the PSS since before the model was made
  std::int64_t idle_growth = 0;  // likewise after zero_grad()
};

// Results of all ranks.
struct Row {
  std::string mode, dtype;
  std::int64_t parameters = 0;
  double expected = 0;
  std::vector<Measured> ranks = {};
  std::vector<double> seconds = {};  // steps of rank 0

  [[nodiscard]] std::int64_t most(std::int64_t Measured::*value) const {
    return (*std::ranges::max_element(ranks, {}, value)).*value;
  }
  [[nodiscard]] std::int64_t sum(std::int64_t Measured::*value) const {
    return std::accumulate(
        ranks.begin(), ranks.end(), std::int64_t{0},
        [&](std::int64_t sum, const Measured& rank) { return sum + rank.*value; });
  }
};

BenchModel make_model(const MemoryOptions& options, const std::string& dtype,
                      const ModelSize& size) {
  auto make = [&] {
    BenchModel model = make_bench_model("mlp", size);
    if (dtype == "bfloat16") model.module->to(at::kBFloat16);
    return model;
  };
  return options.deferred ? deferred(make) : make();
}

double seconds_of_step(Training& training) {
  auto start = Clock::now();
  (void)training.step();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Reads the PSS between two barriers, so that no rank is touching shared pages meanwhile.
std::int64_t pss_together(Group world) {
  world.barrier().wait();
  std::int64_t pss = sys::proportional_bytes();
  world.barrier().wait();
  return pss;
}

Measured measured_here(Row& row, const MemoryOptions& options, const Group& world) {
  auto make = [&](const ModelSize& size) {
    return Training(make_model(options, row.dtype, size), row.mode, /*fused=*/true, world);
  };
  (void)make(small_size).step();  // loads code pages and the libraries' own tables
  sys::return_freed_memory();
  std::int64_t before = pss_together(world);
  Training training = make(options.size);
  for (int step = 0; step < options.steps; ++step) {
    row.seconds.push_back(seconds_of_step(training));
    if (step == 0) training.reset_peak();
  }
  Measured found{.growth = pss_together(world) - before};
  found.kept = training.held_bytes() - training.unit_bytes();
  found.units = training.unit_bytes();
  found.peak_units = training.peak_unit_bytes();
  training.zero_grad();
  found.idle_growth = pss_together(world) - before;
  return found;
}

Row measured_row(const std::string& mode, const std::string& dtype, const MemoryOptions& options,
                 const Group& world) {
  Row row{.mode = mode, .dtype = dtype};
  row.parameters = options.size.depth * (options.size.width + 1) * options.size.width;
  row.expected = expected_bytes(mode, dtype == "bfloat16" ? 2 : 4, world.size(), row.parameters);
  Measured own = measured_here(row, options, world);
  const auto all = modules::numbers_of_all(
      world, {own.kept, own.units, own.peak_units, own.growth, own.idle_growth});
  for (std::size_t i = 0; i < all.size(); i += 5)
    row.ranks.push_back({all[i], all[i + 1], all[i + 2], all[i + 3], all[i + 4]});
  return row;
}

void print_json(const Row& row) {
  apps::Spread seconds = apps::spread_of(row.seconds);
  std::int64_t kept = row.most(&Measured::kept);
  nlohmann::ordered_json object{{"bench", "memory"},
                                {"mode", row.mode},
                                {"dtype", row.dtype},
                                {"ranks", row.ranks.size()},
                                {"parameters", row.parameters},
                                {"bytes", kept},
                                {"expected_bytes", row.expected},
                                {"ratio", static_cast<double>(kept) / row.expected},
                                {"units_bytes", row.most(&Measured::units)},
                                {"peak_units_bytes", row.most(&Measured::peak_units)},
                                {"pss_bytes", row.sum(&Measured::growth) / std::ssize(row.ranks)},
                                {"idle_pss_bytes_of_all", row.sum(&Measured::idle_growth)},
                                {"min_s", seconds.min},
                                {"p50_s", seconds.p50}};
  print_to(stdout, "{}\n", object.dump());
}

void print_line(const Row& row) {
  auto parameters = static_cast<double>(row.parameters);
  auto kept = static_cast<double>(row.most(&Measured::kept));
  const auto size = [](std::int64_t bytes) {
    return sys::rough_size(static_cast<double>(bytes));  // short in all columns
  };
  print_to(stdout, "{:<18}{:<10}{:>11}{:>9.3f}{:>10.3f}{:>8.3f}{:>12}{:>12}{:>12}\n", row.mode,
           row.dtype, size(row.most(&Measured::kept)), kept / parameters, row.expected / parameters,
           kept / row.expected, size(row.most(&Measured::peak_units)),
           size(row.sum(&Measured::growth) / std::ssize(row.ranks)),
           size(row.sum(&Measured::idle_growth)));
}

void print_heading(const MemoryOptions& options, int ranks) {
  print_to(stdout,
           "memory: mlp {}x{}, ranks={}; bytes of the rank that keeps most, PSS as a mean of the "
           "ranks, idle PSS as a sum\n",
           options.size.width, options.size.depth, ranks);
  print_to(stdout, "{:<18}{:<10}{:>11}{:>9}{:>10}{:>8}{:>12}{:>12}{:>12}\n", "mode", "dtype",
           "bytes", "/ param", "expected", "ratio", "in flight", "PSS", "idle PSS");
}

}  // namespace

void measure_memory(const MemoryOptions& options, const Group& world) {
  auto modes = options.modes;
  if (modes.empty()) modes.assign(memory_modes().begin(), memory_modes().end());
  if (world.is_root() && !options.json) print_heading(options, world.size());
  for (const std::string& dtype : options.dtypes)
    for (const std::string& mode : modes) {
      Row row = measured_row(mode, dtype, options, world);
      if (!world.is_root()) continue;
      options.json ? print_json(row) : print_line(row);
      std::fflush(stdout);
    }
}

}  // namespace lockstep::bench
