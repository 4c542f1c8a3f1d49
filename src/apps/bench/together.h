// Values that the ranks of a benchmark exchange outside of the timed part.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/group.h>

#include <chrono>
#include <span>
#include <vector>

namespace lockstep::apps {

// Returns the element-wise maximum over ranks, on every rank. Collective.
[[nodiscard]] std::vector<double> largest_of_ranks(Group world, std::span<const double> values);

// Returns the seconds from the first rank's start of `work` to the last rank's end, by the clock
// that the ranks of one host share. Collective.
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
