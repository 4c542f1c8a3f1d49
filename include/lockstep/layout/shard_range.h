// Which elements of a flat tensor belong to which rank. Pure arithmetic: no tensor, no group, any
// thread.
//
//   numel 10, world 4:   rank 0 [0, 3)   rank 1 [3, 6)   rank 2 [6, 9)   rank 3 [9, 10)
//   numel  4, world 3:   rank 0 [0, 2)   rank 1 [2, 4)   rank 2 [4, 4)
//
// Every shard has ceil(numel / world) elements until they run out: the cut of torch.chunk. Where
// numel is a multiple of the world's size (FlatLayout pads to one) all shards are equally long.
#pragma once

#include <cstdint>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::layout {

// Elements begin, begin + 1, ..., end - 1; begin <= end.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t length() const { return end - begin; }
  [[nodiscard]] bool empty() const { return begin == end; }
  bool operator==(const Range&) const = default;
};

// The least multiple of `multiple` (at least 1) that is not below `value` (at least 0).
[[nodiscard]] std::int64_t round_up(std::int64_t value, std::int64_t multiple);

// What rank `rank` owns of `numel` elements. InvalidArgument when there is no such rank or numel is
// negative.
[[nodiscard]] Range shard_range(std::int64_t numel, int world, int rank);
// The lengths of all ranks' shards, in rank order: what Group's uneven operations take.
[[nodiscard]] std::vector<std::int64_t> shard_counts(std::int64_t numel, int world);
// The rank that owns element `element`, 0 <= element < numel.
[[nodiscard]] int owner_of(std::int64_t element, std::int64_t numel, int world);

// What lies in both; empty ranges keep a begin inside `a`.
[[nodiscard]] Range intersect(Range a, Range b);

}  // namespace lockstep::layout

#pragma GCC visibility pop
