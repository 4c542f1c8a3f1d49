#include "apps/bench/collectives/report.h"

#include "base/format.h"
#include "base/text.h"
#include "sys/topology.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

namespace lockstep::apps {
namespace {

// Formats a time with three digits: "1.23 us".
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

nlohmann::ordered_json value_or_null(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

void print_json(const CollectivesLine& line) {
  const Summary& seconds = line.seconds;
  nlohmann::ordered_json object{{"bench", "collectives"},
                                {"op", lockstep::name_of(line.op)},
                                {"bytes", line.bytes},
                                {"ranks", line.ranks},
                                {"memory", name_of(line.memory)},
                                {"engine", line.engine},
                                {"min_s", seconds.min},
                                {"p50_s", seconds.p50},
                                {"p99_s", value_or_null(seconds.p99)},
                                {"max_s", seconds.max},
                                {"mean_s", seconds.mean},
                                {"calls", seconds.calls},
                                {"algorithm_bytes_per_s", line.algorithm_bandwidth()},
                                {"bus_bytes_per_s", line.bus_bandwidth()},
                                {"bound_s", value_or_null(line.bound)}};
  print_to(stdout, "{}\n", object.dump());
}

void print_text(const CollectivesLine& line) {
  const Summary& seconds = line.seconds;
  std::string size = line.op == Collective::barrier ? "-" : format_bytes(line.bytes);
  print_to(stdout, "{:<15}{:>9}  {:<12}{:<13}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9.2f}{:>9.2f}",
           lockstep::name_of(line.op), size, name_of(line.memory), line.engine,
           as_time(seconds.min), as_time(seconds.p50), seconds.p99 ? as_time(*seconds.p99) : "-",
           as_time(seconds.max), as_time(seconds.mean), seconds.calls,
           line.algorithm_bandwidth() / 1e9, line.bus_bandwidth() / 1e9);
  if (line.bound) print_to(stdout, "{:>8.0f} %", 100 * *line.bound / seconds.p50);
  print_to(stdout, "\n");
}

}  // namespace

double CollectivesLine::algorithm_bandwidth() const {
  return seconds.p50 > 0 ? static_cast<double>(bytes) / seconds.p50 : 0;
}

double CollectivesLine::bus_bandwidth() const {
  return algorithm_bandwidth() * bus_share(op, ranks);
}

void print_heading(int ranks, double core_to_core) {
  print_to(stdout, "ranks {}; cores {}; from core to core {}\n", ranks, sys::usable_cores(),
           core_to_core > 0 ? as_time(core_to_core) : "not measured with one core");
  print_to(stdout, "{:<15}{:>9}  {:<12}{:<13}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>9}{:>10}\n",
           "operation", "bytes", "tensors", "engine", "min", "p50", "p99", "max", "mean", "calls",
           "alg GB/s", "bus GB/s", "of bound");
  std::fflush(stdout);
}

void print_line(const CollectivesLine& line, bool json) {
  json ? print_json(line) : print_text(line);
  std::fflush(stdout);
}

}  // namespace lockstep::apps
