#include "apps/bench/collectives/measure.h"

#include "apps/bench/collectives/memory_mix.h"
#include "apps/bench/collectives/outsider.h"
#include "apps/bench/spread.h"

#include <lockstep/base/deadline.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace lockstep::apps {
namespace {

constexpr int fewest_calls = 2, most_calls = 5000;  // of a turn
constexpr int fewest_rounds = 5;
constexpr double row_seconds = 15;               // after which no round begins, beyond the fewest
constexpr std::int64_t beyond_caches = 1 << 27;  // bytes moved

// A system on one kind of tensors, with what was measured so far.
struct Participant {
  Contender* contender;
  Memory memory;
  int calls = fewest_calls;
  std::vector<double> seconds = {};
  std::vector<double> medians = {};
};

Turn turn_for(const Row& row, const Participant& participant, int uncounted, int calls) {
  return {.op = row.op,
          .bytes = row.bytes,
          .memory = participant.memory,
          .uncounted = uncounted,
          .calls = calls};
}

// How many calls fill a turn. The first ones touch the memory and are slower; the shorter a call,
// the more of them tell its length.
int calls_of_a_turn(const Row& row, const Participant& participant, double turn_seconds) {
  auto length = [&](int calls) {
    return summary_of(participant.contender->run(turn_for(row, participant, 1, calls))).mean;
  };
  double call = length(2);
  if (call < 1e-2) call = length(20);
  if (call < 1e-4) call = length(200);
  return static_cast<int>(std::clamp(turn_seconds / std::max(call, 1e-9),
                                     static_cast<double>(fewest_calls),
                                     static_cast<double>(most_calls)));
}

void take_turn(const Row& row, Participant& participant) {
  int uncounted = std::clamp(participant.calls / 10, 1, 100);
  auto seconds =
      participant.contender->run(turn_for(row, participant, uncounted, participant.calls));
  participant.medians.push_back(spread_of(seconds).p50);
  participant.seconds.insert(participant.seconds.end(), seconds.begin(), seconds.end());
}

std::vector<Participant> participants_of(const Row& row, Contenders& contenders) {
  std::vector<Participant> participants;
  for (auto& contender : contenders) {
    if (row.ours_only && contender != contenders.front()) continue;
    for (Memory memory : contender->memories())
      if (can_lie_in(memory, row.op)) participants.push_back({contender.get(), memory});
  }
  return participants;
}

// In the order of the contenders and of their kinds of memory.
std::vector<Line> lines_of(const Contenders& contenders, std::vector<Participant>& participants) {
  std::vector<Line> lines;
  for (const auto& contender : contenders)
    for (Memory memory : contender->memories())
      for (Participant& participant : participants)
        if (participant.contender == contender.get() && participant.memory == memory)
          lines.push_back({.backend = contender->name(),
                           .library = contender->library(),
                           .memory = memory,
                           .seconds = summary_of(std::move(participant.seconds)),
                           .medians = std::move(participant.medians)});
  return lines;
}

std::int64_t bytes_moved(const Row& row) { return 2 * row.ranks * row.bytes; }

bool has_bound(const Row& row) {
  return row.op == Collective::all_reduce && !row.outsider && bytes_moved(row) >= beyond_caches;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

Summary summary_of(std::vector<double> seconds) {
  if (seconds.empty()) return {};
  std::ranges::sort(seconds);
  double count = static_cast<double>(seconds.size());
  return {.min = seconds.front(),
          .p50 = quantile(seconds, 0.5),
          .p99 = quantile(seconds, 0.99),
          .mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / count,
          .calls = static_cast<int>(seconds.size())};
}

std::optional<double> MeasuredRow::bound_seconds() const {
  if (!bytes_per_second) return std::nullopt;
  return static_cast<double>(bytes_moved(row)) / *bytes_per_second;
}

const Line* MeasuredRow::find(std::string_view backend, Memory memory) const {
  auto found = std::ranges::find_if(
      lines, [&](const Line& line) { return line.backend == backend && line.memory == memory; });
  return found == lines.end() ? nullptr : &*found;
}

std::optional<double> MeasuredRow::ratio(std::string_view other, Memory ours) const {
  const Line *theirs = find(other, Memory::ordinary), *own = find("shm", ours);
  if (theirs == nullptr || own == nullptr) return std::nullopt;
  return theirs->seconds.p50 / own->seconds.p50;
}

MeasuredRow measure_row(const Row& row, Contenders& contenders, const CollectivesOptions& options) {
  auto participants = participants_of(row, contenders);
  std::optional<Outsider> outsider;
  if (row.outsider) outsider.emplace();
  for (Participant& participant : participants)
    participant.calls = calls_of_a_turn(row, participant, options.turn);
  std::optional<MemoryMix> mix;
  std::vector<double> mix_seconds;
  if (has_bound(row)) mix.emplace(bytes_moved(row) / MemoryMix::passes);
  auto start = Clock::now();
  for (int round = 0; round < options.rounds; ++round) {
    if (round >= fewest_rounds && seconds_since(start) > row_seconds) break;
    for (Participant& participant : participants) take_turn(row, participant);
    if (mix)
      for (double seconds : mix->run(3)) mix_seconds.push_back(seconds);
    std::ranges::rotate(participants, participants.begin() + 1);
  }
  MeasuredRow measured{
      .row = row, .lines = lines_of(contenders, participants), .bytes_per_second = {}};
  if (mix)
    measured.bytes_per_second =
        static_cast<double>(mix->bytes_moved()) / spread_of(mix_seconds).p50;
  return measured;
}

}  // namespace lockstep::apps
