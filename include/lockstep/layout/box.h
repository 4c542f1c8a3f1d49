// Box: a block of an N-dimensional tensor. Pure arithmetic: no tensor, no group, any thread.
//
//   tensor [4, 6]     . . . . . .
//                     . . x x x .      offsets {1, 2}, sizes {2, 3}
//                     . . x x x .
//                     . . . . . .
//
// A tensor without dimensions has one element, which is the box with empty lists.
#pragma once

#include <lockstep/layout/shard_range.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::layout {

struct Box {
  std::vector<std::int64_t> offsets;  // of its first element, in each dim
  std::vector<std::int64_t> sizes;

  [[nodiscard]] bool empty() const;
  bool operator==(const Box&) const = default;
};

// Elements of a tensor of these sizes. InvalidArgument when a size is negative, or where 64 bits
// do not hold their number.
[[nodiscard]] std::int64_t numel_of(std::span<const std::int64_t> sizes);
[[nodiscard]] inline std::int64_t numel_of(const Box& box) { return numel_of(box.sizes); }

// All of a tensor.
[[nodiscard]] Box box_of(std::span<const std::int64_t> sizes);

// Whether all of `inner` lies in `outer`. A box without elements lies in every box.
[[nodiscard]] bool contains(const Box& outer, const Box& inner);

// What lies in both; perhaps without elements. InvalidArgument when they have different numbers of
// dims.
[[nodiscard]] Box intersect(const Box& a, const Box& b);

// What of `a` does not lie in `b`: boxes without common elements, at most two for each dim.
[[nodiscard]] std::vector<Box> subtract(const Box& a, const Box& b);

// The elements of a range of a row-major tensor, as boxes in the order of the range: at most 2N - 1
// for N dims. InvalidArgument when the range does not lie in the tensor.
//
//   tensor [4, 6], range [9, 20)     . . . . . .
//                                    . . . a a a
//                                    b b b b b b
//                                    c c . . . .
[[nodiscard]] std::vector<Box> boxes_of(std::span<const std::int64_t> sizes, Range range);

// "[1, 2] + [2, 3]": offsets and sizes, for messages.
[[nodiscard]] std::string describe(const Box& box);

}  // namespace lockstep::layout

#pragma GCC visibility pop
