// What the ranks of a benchmark find out together, beside what is timed.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::apps {

// Collective. Element by element the largest value of all ranks, the same on every rank.
[[nodiscard]] std::vector<double> largest_of_ranks(Group world, std::span<const double> values);

// Collective. Rank r's values are at [r].
[[nodiscard]] std::vector<std::vector<std::int64_t>> gathered(Group world,
                                                              std::span<const std::int64_t> values);

// Collective. Seconds from the first rank's begin of `work` to the last rank's end, by the clock
// that the ranks of one host share.
template <typename Work>
[[nodiscard]] double seconds_together(Group world, Work&& work) {
  world.barrier().wait();
  auto seconds = [] {
    return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  };
  double begin = seconds();
  work();
  double ends[] = {-begin, seconds()};
  auto most = largest_of_ranks(world, ends);
  return most[0] + most[1];
}

}  // namespace lockstep::apps
