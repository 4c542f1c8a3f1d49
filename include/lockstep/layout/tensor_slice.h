// TensorSlice: which elements of a whole tensor a rank has. Pure arithmetic: no tensor, any thread.
//
// Two cuts can follow each other, and each may leave all there is: one along dims leaves a box of
// the whole (tensor parallel), and one of the box as flat memory leaves a range of its elements
// (fully_shard(), an optimizer's shards).
//
//   sizes [4, 6], box [0, 3] + [4, 3], range 4..9:     . . . . . .
//                                                      . . . . a a
//                                                      . . . b b b
//                                                      . . . . . .
//
// A rank keeps the elements of a slice one after the other, in the order of the range.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::layout {

// Which elements of a flat tensor belong to which rank. Pure arithmetic: no tensor, no group, any
// thread.
//
//   numel 10, world 4:   rank 0 [0, 3)   rank 1 [3, 6)   rank 2 [6, 9)   rank 3 [9, 10)
//   numel  4, world 3:   rank 0 [0, 2)   rank 1 [2, 4)   rank 2 [4, 4)
//
// Every shard has ceil(numel / world) elements until they run out: the cut of torch.chunk. Where
// numel is a multiple of the world's size (FlatLayout pads to one) all shards are equally long.

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

// Box: a block of an N-dimensional tensor. Pure arithmetic: no tensor, no group, any thread.
//
//   tensor [4, 6]     . . . . . .
//                     . . x x x .      offsets {1, 2}, sizes {2, 3}
//                     . . x x x .
//                     . . . . . .
//
// A tensor without dimensions has one element, which is the box with empty lists.
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

struct TensorSlice {
  std::vector<std::int64_t> sizes;  // of the whole tensor
  Box box;                          // of the whole
  Range range;                      // of the box's elements, counted in the order of `dim_order`
  // The dims from the outermost to the innermost in memory, as at::Tensor::dim_order() has them;
  // empty: row-major.
  std::vector<int> dim_order = {};

  [[nodiscard]] std::int64_t numel() const { return range.length(); }
  // Whether it has all elements.
  [[nodiscard]] bool is_whole() const { return numel() == numel_of(sizes); }
  bool operator==(const TensorSlice&) const = default;
};

// All of a tensor; a box of it; a range of its elements in memory. InvalidArgument when these do
// not lie in a tensor of `sizes`, or `dim_order` does not name each dim once.
[[nodiscard]] TensorSlice whole_slice(std::span<const std::int64_t> sizes);
[[nodiscard]] TensorSlice box_slice(std::span<const std::int64_t> sizes, Box box);
[[nodiscard]] TensorSlice range_slice(std::span<const std::int64_t> sizes, Range range,
                                      std::vector<int> dim_order = {});

// Its elements as boxes of the whole, in the order in which the rank keeps them: none, one, or, of
// a range of N dims, at most 2N - 1.
[[nodiscard]] std::vector<Box> boxes_of(const TensorSlice& slice);

// Where the elements of a box lie among others: that of index (i, j, ...) in the box is number
// offset + i * strides[0] + j * strides[1] + ... What as_strided() takes.
struct Strided {
  std::int64_t offset = 0;
  std::vector<std::int64_t> strides;
  bool operator==(const Strided&) const = default;
};

// Where the elements of `box`, which is one of boxes_of(slice) or a part of one, lie among those of
// the slice.
[[nodiscard]] Strided place_of(const TensorSlice& slice, const Box& box);

}  // namespace lockstep::layout

#pragma GCC visibility pop
