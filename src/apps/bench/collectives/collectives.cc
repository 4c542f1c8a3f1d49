#include "apps/bench/collectives/collectives.h"

#include "apps/bench/collectives/calls.h"
#include "apps/bench/collectives/host_bounds.h"
#include "apps/bench/collectives/kinds.h"
#include "apps/bench/spread.h"
#include "apps/bench/together.h"
#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "sys/program.h"
#include "sys/topology.h"

#include <lockstep/comm/init.h>
#include <lockstep/comm/run_on_all_or_fail.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::apps {
namespace {

// One operation of one size on one backend and kind of memory.
struct CollectivesLine {
  Collective op = Collective::all_reduce;
  std::int64_t bytes = 0;
  int ranks = 1;
  Memory memory = Memory::ordinary;
  std::string backend;
  Spread seconds;
  // The shortest time in which the ranks read and wrote as many bytes as the operation must
  // (host_bounds.h). Only set if the tensors are larger than the caches.
  std::optional<double> bound;

  // Returns bytes of the tensor per second, at the median time; 0 for a barrier.
  [[nodiscard]] double algorithm_bandwidth() const {
    return seconds.p50 > 0 ? static_cast<double>(bytes) / seconds.p50 : 0;
  }

  // Returns the algorithm bandwidth times bus_share().
  [[nodiscard]] double bus_bandwidth() const {
    return algorithm_bandwidth() * bus_share(op, ranks);
  }
};

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
  const Spread& seconds = line.seconds;
  nlohmann::ordered_json object{{"bench", "collectives"},
                                {"op", lockstep::name_of(line.op)},
                                {"bytes", line.bytes},
                                {"ranks", line.ranks},
                                {"memory", name_of(line.memory)},
                                {"backend", line.backend},
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
  const Spread& seconds = line.seconds;
  std::string size = line.op == Collective::barrier ? "-" : format_bytes(line.bytes);
  print_to(stdout, "{:<15}{:>9}  {:<12}{:<13}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9.2f}{:>9.2f}",
           lockstep::name_of(line.op), size, name_of(line.memory), line.backend,
           as_time(seconds.min), as_time(seconds.p50), seconds.p99 ? as_time(*seconds.p99) : "-",
           as_time(seconds.max), as_time(seconds.mean), seconds.calls,
           line.algorithm_bandwidth() / 1e9, line.bus_bandwidth() / 1e9);
  if (line.bound) print_to(stdout, "{:>8.0f} %", 100 * *line.bound / seconds.p50);
  print_to(stdout, "\n");
}

// `core_to_core` is in seconds; 0 with a single core.
void print_heading(int ranks, c10::Device device, double core_to_core) {
  print_to(stdout, "ranks {}; device {}; cores {}; from core to core {}\n", ranks, device.str(),
           sys::usable_cores(),
           core_to_core > 0 ? as_time(core_to_core) : "not measured with one core");
  print_to(stdout, "{:<15}{:>9}  {:<12}{:<13}{:>9}{:>9}{:>9}{:>9}{:>9}{:>8}{:>9}{:>9}{:>10}\n",
           "operation", "bytes", "tensors", "backend", "min", "p50", "p99", "max", "mean", "calls",
           "alg GB/s", "bus GB/s", "of bound");
  std::fflush(stdout);
}

void print_line(const CollectivesLine& line, bool json) {
  json ? print_json(line) : print_text(line);
  std::fflush(stdout);
}

constexpr int fewest_calls = 2, most_calls = 5000;  // per turn
constexpr std::int64_t beyond_caches = 1 << 27;     // bytes moved

using Groups = std::vector<Group>;

// One backend on one kind of memory, with its measurements so far.
struct Participant {
  Group group;
  MeasuredCalls calls;
  int calls_a_turn = fewest_calls;
  std::vector<double> seconds = {};
};

// Returns the seconds of each call on the rank that took longest for it.
std::vector<double> slowest(const Group& world, MeasuredCalls& calls, int uncounted, int count) {
  std::vector<double> seconds;
  for (std::int64_t nanoseconds : calls.run(uncounted, count))
    seconds.push_back(static_cast<double>(nanoseconds) / 1e9);
  return largest_of_ranks(world, seconds);
}

// Returns the number of calls that fill a turn. The first calls are slower, because they touch the
// memory; if a call is short, more calls are needed to estimate its length.
int calls_of_a_turn(const Group& world, MeasuredCalls& calls, double turn_seconds) {
  auto length = [&](int count) { return spread_of(slowest(world, calls, 1, count)).mean; };
  double call = length(2);
  if (call < 1e-2) call = length(20);
  if (call < 1e-4) call = length(200);
  return static_cast<int>(
      std::clamp<double>(turn_seconds / std::max(call, 1e-9), fewest_calls, most_calls));
}

void take_turn(const Group& world, Participant& participant) {
  int uncounted = std::clamp(participant.calls_a_turn / 10, 1, 100);
  auto seconds = slowest(world, participant.calls, uncounted, participant.calls_a_turn);
  participant.seconds.insert(participant.seconds.end(), seconds.begin(), seconds.end());
}

// A device has one kind of memory. On the CPU, if ranks cannot share memory, there is only one
// kind, too.
bool has(const Group& group, c10::Device device, Memory memory) {
  if (memory == Memory::device || !device.is_cpu())
    return memory == Memory::device && !device.is_cpu();
  return memory == Memory::ordinary || group.backend() == "shm";
}

std::vector<Participant> participants_of(const CollectivesOptions& options, const Groups& groups,
                                         c10::Device device, Collective op, std::int64_t bytes) {
  std::vector<Participant> participants;
  for (const Group& group : groups)
    for (Memory memory : {Memory::arena, Memory::ordinary, Memory::node_shared, Memory::device}) {
      bool wanted =
          options.memories.empty() || std::ranges::count(options.memories, name_of(memory)) > 0;
      if (wanted && has(group, device, memory) && can_lie_in(memory, op))
        participants.push_back({group, MeasuredCalls(group, op, bytes, memory, device)});
    }
  return participants;
}

bool has_bound(const Groups& groups, c10::Device device, Collective op, std::int64_t bytes) {
  return op == Collective::all_reduce && device.is_cpu() && groups.front().backend() == "shm" &&
         2 * groups.front().size() * bytes >= beyond_caches;
}

double fastest_pass(const Group& world, MemoryBound& bound) {
  double least = std::numeric_limits<double>::max();
  for (PassKind kind : pass_kinds()) {
    bound.pass(kind);  // warm-up, like the first calls of a turn
    for (int pass = 0; pass < passes_of_a_kind; ++pass)
      least = std::min(least, seconds_together(world, [&] { bound.pass(kind); }));
  }
  return least;
}

void measure_row(const CollectivesOptions& options, const Groups& groups, c10::Device device,
                 Collective op, std::int64_t bytes) {
  const Group& world = groups.front();
  auto participants = participants_of(options, groups, device, op, bytes);
  for (Participant& participant : participants) {
    participant.calls.check_result();
    participant.calls_a_turn = calls_of_a_turn(world, participant.calls, options.turn);
  }
  std::optional<MemoryBound> memory;
  if (has_bound(groups, device, op, bytes)) memory.emplace(bytes);
  std::optional<double> bound;
  for (std::size_t round = 0; round < static_cast<std::size_t>(options.rounds); ++round) {
    for (std::size_t i = 0; i < participants.size(); ++i)
      take_turn(world, participants[(i + round) % participants.size()]);
    if (memory) bound = std::min(bound.value_or(1e9), fastest_pass(world, *memory));
  }
  if (!world.is_root()) return;
  for (Participant& participant : participants)
    print_line({.op = op,
                .bytes = bytes,
                .ranks = world.size(),
                .memory = participant.calls.memory(),
                .backend = std::string(participant.group.backend()),
                .seconds = spread_of(std::move(participant.seconds)),
                .bound = bound},
               options.json);
}

Groups groups_of(const CollectivesOptions& options, const Group& world) {
  if (options.backends.empty()) return {world};
  Groups groups;
  for (const std::string& name : options.backends)
    groups.push_back(name == world.backend() ? world
                                             : init({.backend = name, .device = options.device}));
  return groups;
}

// Checks that memory suffices for an input and an output on each kind of memory of each backend, on
// every rank of this host.
void check_that_it_fits(const CollectivesOptions& options, const Groups& groups) {
  std::int64_t largest = sizes_of(options, Collective::all_reduce, 1).back();
  std::int64_t tensors = 2 * groups.front().size() * static_cast<std::int64_t>(groups.size() + 2);
  std::int64_t available = sys::memory_size().available;
  check_input(
      largest <= available / tensors,
      "--to: {} tensors of {} are needed at once, and only {} are free: give a smaller --to",
      tensors, format_bytes(largest), format_bytes(available));
}

void check_memories(const CollectivesOptions& options, const Groups& groups, c10::Device device) {
  for (const std::string& name : options.memories) {
    const auto has_it = [&](const Group& group) { return has(group, device, memory_named(name)); };
    check_input(std::ranges::any_of(groups, has_it),
                "--memory {}: the backend {} has no such tensors on {}", name,
                groups.front().backend(), device.str());
  }
}

}  // namespace

std::vector<std::int64_t> sizes_of(const CollectivesOptions& options, Collective op, int ranks) {
  if (op == Collective::barrier) return {0};
  std::vector<std::int64_t> sizes;
  for (std::int64_t bytes = options.from;; bytes *= options.factor) {
    std::int64_t even = even_bytes(op, bytes, ranks);
    if (sizes.empty() || sizes.back() != even) sizes.push_back(even);
    if (bytes > options.to / options.factor) return sizes;
  }
}

void check_options(const CollectivesOptions& options) {
  if (options.from > options.to)
    throw UsageError(formatted("--from: expected at most --to, which is {}, found {}",
                               format_bytes(options.to), format_bytes(options.from)));
}

void measure_collectives(const CollectivesOptions& options, Group world, c10::Device device) {
  Groups groups = groups_of(options, world);
  run_on_all_or_fail(world, [&] {
    check_memories(options, groups, device);
    check_that_it_fits(options, groups);
  });
  double core_to_core = 0;
  if (world.is_root()) core_to_core = core_to_core_seconds();
  world.barrier().wait();
  if (world.is_root() && !options.json) print_heading(world.size(), device, core_to_core);
  for (const std::string& name : options.ops) {
    Collective op = collective_named(name);
    for (std::int64_t bytes : sizes_of(options, op, world.size()))
      measure_row(options, groups, device, op, bytes);
  }
}

}  // namespace lockstep::apps
