#include <lockstep/layout/shard_range.h>

#include "base/check.h"

#include <algorithm>

namespace lockstep::layout {
namespace {

std::int64_t shard_length(std::int64_t numel, int world) { return (numel + world - 1) / world; }

}  // namespace

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  check(multiple >= 1 && value >= 0,
        "round_up: needs a value >= 0 and a multiple >= 1, found {} and {}", value, multiple);
  return (value + multiple - 1) / multiple * multiple;
}

Range shard_range(std::int64_t numel, int world, int rank) {
  check(numel >= 0, "shard: elements must be at least 0, found {}", numel);
  check(world >= 1 && rank >= 0 && rank < world, "shard: rank must be 0..{}, found {}", world - 1,
        rank);
  std::int64_t length = shard_length(numel, world);
  return {std::min(rank * length, numel), std::min((rank + 1) * length, numel)};
}

std::vector<std::int64_t> shard_counts(std::int64_t numel, int world) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < world; ++rank)
    counts.push_back(shard_range(numel, world, rank).length());
  return counts;
}

int owner_of(std::int64_t element, std::int64_t numel, int world) {
  check(world >= 1, "shard: the world must have a rank, found {}", world);
  check(element >= 0 && element < numel, "shard: element must be 0..{}, found {}", numel - 1,
        element);
  return static_cast<int>(element / shard_length(numel, world));
}

Range intersect(Range a, Range b) {
  std::int64_t begin = std::clamp(b.begin, a.begin, a.end);
  return {begin, std::clamp(b.end, begin, a.end)};
}

}  // namespace lockstep::layout
