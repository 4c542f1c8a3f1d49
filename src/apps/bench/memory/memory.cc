#include "apps/bench/memory/memory.h"

#include "apps/bench/memory/formula.h"
#include "apps/bench/memory/limit_group.h"
#include "apps/bench/memory/measured.h"
#include "apps/bench/memory/report.h"
#include "apps/bench/step/modes.h"

#include <lockstep/base/check.h>
#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

namespace lockstep::apps {
namespace {

constexpr int pss_ranks = 2, shared_ranks = 4, limited_ranks = 4;
constexpr double replica_bytes = 12;  // a parameter in fp32 and its two averages
constexpr double unsharded_bytes = 16;
constexpr double model_over_limit = 3;

RankCommand command_of(const MlpSizes& sizes, int ranks) {
  return {.name = "lockstep",
          .program = std::filesystem::read_symlink("/proc/self/exe"),
          .arguments = {"memory-rank", "--width", std::to_string(sizes.width), "--depth",
                        std::to_string(sizes.depth), "--rows", std::to_string(sizes.rows)},
          .ranks = ranks};
}

template <typename Value>
std::int64_t most_of(const std::vector<RankMemory>& ranks, Value&& value) {
  std::int64_t most = 0;
  for (const RankMemory& rank : ranks) most = std::max<std::int64_t>(most, value(rank));
  return most;
}

MemoryRow row_of(const char* kind, const MlpSizes& sizes, const std::string& mode,
                 const std::string& dtype, const std::vector<RankMemory>& ranks) {
  return {.kind = kind,
          .model = formatted("mlp {} x {}", sizes.depth, sizes.width),
          .parameters = sizes.parameters(),
          .mode = mode,
          .dtype = dtype,
          .ranks = static_cast<int>(ranks.size()),
          .units = most_of(ranks, [](const RankMemory& rank) { return rank.units; }),
          .peak_units = most_of(ranks, [](const RankMemory& rank) { return rank.peak_units; }),
          .seconds = ranks.front().seconds};
}

double expected_bytes(const MlpSizes& sizes, const std::string& mode, const std::string& dtype,
                      int ranks) {
  int element_bytes = dtype == "float32" ? 4 : 2;
  return bytes_a_parameter(mode, element_bytes, ranks) * static_cast<double>(sizes.parameters());
}

void measure_counters(const MemoryOptions& options) {
  for (int count = 1; count <= options.most_ranks; ++count) {
    MemoryRanks processes(command_of(options.counted, count));
    for (const std::string dtype : {"float32", "bfloat16"})
      for (std::string_view name : our_modes()) {
        std::string mode(name);
        auto ranks = processes.measure(mode, dtype, options.steps);
        MemoryRow row = row_of("counters", options.counted, mode, dtype, ranks);
        row.bytes = most_of(ranks, [](const RankMemory& rank) { return rank.kept; });
        row.expected = expected_bytes(options.counted, mode, dtype, count);
        row.goal = exactly_one;
        print(row, options.json);
      }
  }
}

// init() lets malloc keep what was freed, because fresh pages cost time in every step. Whoever is
// short of memory says this, and pays that time.
RankCommand giving_back(RankCommand command) {
  command.variables.emplace_back("MALLOC_TRIM_THRESHOLD_", "131072");
  return command;
}

// A page that several ranks have touched counts in each by its share, and who touches which is
// chance: what a rank has is the mean.
std::int64_t mean_growth(const std::vector<RankMemory>& ranks) {
  std::int64_t sum = 0;
  for (const RankMemory& rank : ranks) sum += rank.growth();
  return sum / static_cast<std::int64_t>(ranks.size());
}

// Each in processes of its own, so that nothing is left of the one before.
void measure_pss_of(const MemoryOptions& options, const std::string& mode, bool gives_back) {
  RankCommand command = command_of(options.measured, pss_ranks);
  MemoryRanks processes(gives_back ? giving_back(command) : command);
  auto ranks = processes.measure(mode, "float32", options.steps);
  MemoryRow row = row_of(gives_back ? "pss" : "pss kept", options.measured, mode, "float32", ranks);
  row.bytes = mean_growth(ranks);
  row.expected =
      expected_bytes(options.measured, mode, "float32", pss_ranks) + static_cast<double>(row.units);
  if (gives_back) row.goal = Goal{.must = 1.05, .aim = 1.02, .at_least = false};
  print(row, options.json);
}

void measure_pss(const MemoryOptions& options) {
  for (const char* mode : {"optimizer", "gradients", "full"})
    for (bool gives_back : {true, false}) measure_pss_of(options, mode, gives_back);
}

// Gradients are no part of what one replica needs between steps.
void measure_node_shared(const MemoryOptions& options) {
  MemoryRanks processes(giving_back(command_of(options.measured, shared_ranks)));
  auto ranks = processes.measure("full-node-shared", "float32", options.steps);
  MemoryRow row = row_of("node-shared", options.measured, "full-node-shared", "float32", ranks);
  for (const RankMemory& rank : ranks) row.bytes += rank.idle_growth();
  row.expected = replica_bytes * static_cast<double>(options.measured.parameters());
  row.goal = Goal{.must = 1.1, .aim = 1, .at_least = false};
  print(row, options.json);
}

std::string own_control_groups() {
  std::ifstream file("/proc/self/cgroup");
  return {std::istreambuf_iterator<char>(file), {}};
}

// The ranks are in their groups before they load anything.
RankCommand inside(const MemoryControl& parent, const std::string& prefix, RankCommand command) {
  std::string folder = (parent.folder / prefix).string();
  std::vector<std::string> words{"-c", "echo $$ > \"$0$RANK/cgroup.procs\" && exec \"$@\"", folder,
                                 command.program};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  command.program = "/bin/sh";
  command.arguments = std::move(words);
  return command;
}

// Shards, gradients and units lie in the shared arena, averages of the optimizer outside. By
// default the arena is a smaller share of what there is.
RankCommand with_arena(RankCommand command, std::int64_t bytes) {
  command.variables.emplace_back("LOCKSTEP_ARENA", std::to_string(bytes));
  return command;
}

void measure_limited(const MemoryOptions& options) {
  auto control = memory_control(own_control_groups());
  check_input(control.has_value(), "bench memory: this process is in no memory control group");
  double whole = unsharded_bytes * static_cast<double>(options.limited.parameters());
  auto limit = static_cast<std::int64_t>(whole / model_over_limit);
  std::string prefix = formatted("lockstep-{}-rank-", ::getpid());
  std::vector<LimitGroup> groups;
  for (int rank = 0; rank < limited_ranks; ++rank)
    groups.emplace_back(*control, prefix + std::to_string(rank), limit);
  MemoryRow row;
  {
    MemoryRanks processes(
        inside(*control, prefix,
               with_arena(giving_back(command_of(options.limited, limited_ranks)), limit / 2)));
    auto ranks = processes.measure("full", "float32", options.steps, "parts");
    row = row_of("limited", options.limited, "full", "float32", ranks);
  }
  for (const LimitGroup& group : groups) row.bytes = std::max(row.bytes, group.peak());
  row.expected = static_cast<double>(limit);
  row.limit = limit;
  row.goal = Goal{.must = 1, .at_least = false};
  print(row, options.json);
}

}  // namespace

void measure_memory(const MemoryOptions& options) {
  auto wanted = [&](const char* kind) {
    return options.rows.empty() || std::ranges::find(options.rows, kind) != options.rows.end();
  };
  if (!options.json) print_heading();
  if (wanted("counters")) measure_counters(options);
  if (wanted("pss")) measure_pss(options);
  if (wanted("node-shared")) measure_node_shared(options);
  if (wanted("limited")) measure_limited(options);
}

}  // namespace lockstep::apps
