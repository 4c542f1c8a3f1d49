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

#include <lockstep/layout/box.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::layout {

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
