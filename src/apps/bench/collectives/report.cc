#include "apps/bench/collectives/report.h"

#include "apps/bench/collectives/goals.h"
#include "apps/bench/collectives/memory_mix.h"
#include "apps/bench/spread.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "sys/topology.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

namespace lockstep::apps {
namespace {

constexpr std::int64_t probe_bytes = 64 << 20;
constexpr int probe_runs = 5;

double gigabytes(double bytes_per_second) { return bytes_per_second / 1e9; }

// "1.23 us" in three digits.
std::string as_time(double seconds) {
  constexpr std::array<std::pair<double, std::string_view>, 4> units{
      {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}}};
  for (auto [unit, name] : units) {
    double value = seconds / unit;
    if (value < 1 && unit > 1e-9) continue;
    int digits = value < 10 ? 2 : value < 100 ? 1 : 0;
    return formatted("{:.{}f} {}", value, digits, name);
  }
  return "0 ns";
}

double algorithm_bandwidth(const Row& row, const Line& line) {
  return static_cast<double>(row.bytes) / line.seconds.p50;
}

void print_line(const MeasuredRow& measured, const Line& line) {
  const Summary& seconds = line.seconds;
  print_to(stdout, "  {:<14}{:<13}{:>9}{:>9}{:>9}{:>9}{:>8}", line.backend, name_of(line.memory),
           as_time(seconds.min), as_time(seconds.p50), as_time(seconds.p99), as_time(seconds.mean),
           seconds.calls);
  double algorithm = algorithm_bandwidth(measured.row, line);
  print_to(stdout, "{:>9.2f}{:>9.2f}", gigabytes(algorithm),
           gigabytes(algorithm * bus_share(measured.row.op, measured.row.ranks)));
  auto bound = measured.bound_seconds();
  if (bound) print_to(stdout, "{:>8.0f} %", 100 * *bound / seconds.p50);
  print_to(stdout, "\n");
}

// The ratio of every round's medians.
Spread round_ratios(const Line& theirs, const Line& ours) {
  std::vector<double> ratios;
  for (std::size_t round = 0; round < std::min(theirs.medians.size(), ours.medians.size()); ++round)
    ratios.push_back(theirs.medians[round] / ours.medians[round]);
  return spread_of(ratios);
}

void print_ratio(const MeasuredRow& measured, const Line& theirs, const Line& ours) {
  Spread rounds = round_ratios(theirs, ours);
  print_to(stdout, "{:<54}{:<13}{:>10}{:>9.2f}   {:.2f} to {:.2f}\n", title_of(measured.row),
           name_of(ours.memory), theirs.backend, theirs.seconds.p50 / ours.seconds.p50, rounds.min,
           rounds.max);
}

void print_goals(const std::vector<MeasuredRow>& rows) {
  std::vector<Judgement> judgements;
  for (const MeasuredRow& measured : rows)
    for (const Judgement& judgement : judge(measured)) judgements.push_back(judgement);
  if (judgements.empty()) return;
  print_to(stdout, "\n{:<78}{:>9}   goal\n", "goals", "found");
  for (const Judgement& judgement : judgements)
    print_to(stdout, "{:<78}{:>9.2f}   {} {:g}: {}\n", judgement.what, judgement.found,
             judgement.at_least ? ">=" : "<=", judgement.wanted,
             judgement.met() ? "met" : "missed");
}

void print_ratios_of(const MeasuredRow& measured) {
  for (const Line& theirs : measured.lines)
    for (Memory memory : {Memory::arena, Memory::ordinary, Memory::node_shared}) {
      const Line* ours = measured.find("shm", memory);
      if (theirs.backend != "shm" && ours != nullptr) print_ratio(measured, theirs, *ours);
    }
}

bool has_peers(const MeasuredRow& measured) {
  return std::ranges::any_of(measured.lines,
                             [](const Line& line) { return line.backend != "shm"; });
}

}  // namespace

MachineFigures measure_machine() {
  MemoryMix mix(probe_bytes);
  return {.cores = sys::usable_cores(),
          .bytes_per_second =
              static_cast<double>(mix.bytes_moved()) / spread_of(mix.run(probe_runs)).p50,
          .core_to_core_seconds = core_to_core_seconds()};
}

void print_machine(const MachineFigures& machine) {
  print_to(stdout,
           "cores {}; memory {:.1f} GB/s with {} of them, reading as much as writing; from core to "
           "core {}\n",
           machine.cores, gigabytes(machine.bytes_per_second), std::min(2, machine.cores),
           machine.core_to_core_seconds > 0 ? as_time(machine.core_to_core_seconds)
                                            : "not measured with one core");
}

void print_row(const MeasuredRow& measured) {
  print_to(stdout, "\n{}", title_of(measured.row));
  if (auto bound = measured.bound_seconds())
    print_to(stdout, "; bound 2pn/B {} at B = {:.1f} GB/s", as_time(*bound),
             gigabytes(*measured.bytes_per_second));
  print_to(stdout, "\n  {:<14}{:<13}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>9}{}\n", "", "tensors", "min",
           "p50", "p99", "mean", "calls", "alg GB/s", "bus GB/s",
           measured.bytes_per_second ? "  of bound" : "");
  for (const Line& line : measured.lines) print_line(measured, line);
  std::fflush(stdout);
}

void print_ratios(const std::vector<MeasuredRow>& rows) {
  if (std::ranges::any_of(rows, has_peers))
    print_to(stdout, "\n{:<54}{:<13}{:>10}{:>9}   in the rounds\n", "p50 / p50", "ours on", "peer",
             "ratio");
  for (const MeasuredRow& measured : rows) print_ratios_of(measured);
  print_goals(rows);
}

void print_json(const MeasuredRow& measured, const MachineFigures& machine) {
  const Row& row = measured.row;
  for (const Line& line : measured.lines) {
    double algorithm = algorithm_bandwidth(row, line);
    nlohmann::ordered_json object{
        {"op", lockstep::name_of(row.op)},
        {"bytes", row.bytes},
        {"ranks", row.ranks},
        {"memory", name_of(line.memory)},
        {"backend", line.backend},
        {"min_s", line.seconds.min},
        {"p50_s", line.seconds.p50},
        {"p99_s", line.seconds.p99},
        {"mean_s", line.seconds.mean},
        {"calls", line.seconds.calls},
        {"outsider", row.outsider},
        {"library", line.library},
        {"algorithm_bytes_per_s", algorithm},
        {"bus_bytes_per_s", algorithm * bus_share(row.op, row.ranks)},
        {"memory_bytes_per_s", measured.bytes_per_second.value_or(machine.bytes_per_second)},
        {"core_to_core_s", machine.core_to_core_seconds}};
    object["bound_s"] = measured.bound_seconds() ? nlohmann::ordered_json(*measured.bound_seconds())
                                                 : nlohmann::ordered_json();
    print_to(stdout, "{}\n", object.dump());
  }
  std::fflush(stdout);
}

}  // namespace lockstep::apps
