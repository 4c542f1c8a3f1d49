// TensorSlice: the elements of a whole tensor that a rank has. Pure arithmetic: no tensor,
// thread-safe.
//
// A tensor can be divided twice. Tensor parallelism divides it along dims: the rank has a box.
// fully_shard() or a sharded optimizer then divides the box as flat memory: the rank has a range of
// the box's elements. Either step may be absent.
//
//   sizes [4, 6], box [0, 3] + [4, 3], range 4..9:     . . . . . .
//                                                      . . . . a a
//                                                      . . . b b b
//                                                      . . . . . .
//
// A rank stores the elements of a slice contiguously, in the order of the range.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::layout {

// Assigns the elements of a flat tensor to ranks. Pure arithmetic: no tensor, no group,
// thread-safe.
//
//   numel 10, world 4:   rank 0 [0, 3)   rank 1 [3, 6)   rank 2 [6, 9)   rank 3 [9, 10)
//   numel  4, world 3:   rank 0 [0, 2)   rank 1 [2, 4)   rank 2 [4, 4)
//
// Every shard has ceil(numel / world) elements while there are enough, as with torch.chunk. If
// numel is a multiple of the world size (FlatLayout pads to one), all shards have the same length.

// Elements begin, begin + 1, ..., end - 1; begin <= end.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  [[nodiscard]] std::int64_t length() const { return end - begin; }
  [[nodiscard]] bool empty() const { return begin == end; }
  bool operator==(const Range&) const = default;
};

// Returns the smallest multiple of `multiple` (at least 1) that is not below `value` (at least 0).
[[nodiscard]] std::int64_t round_up(std::int64_t value, std::int64_t multiple);

// Returns the elements that rank `rank` owns of `numel`. Throws InvalidArgument if there is no such
// rank or numel is negative.
[[nodiscard]] Range shard_range(std::int64_t numel, int world, int rank);
// Returns the lengths of all ranks' shards, in rank order, as Group's uneven operations take them.
[[nodiscard]] std::vector<std::int64_t> shard_counts(std::int64_t numel, int world);
// Returns the rank that owns element `element`, 0 <= element < numel.
[[nodiscard]] int owner_of(std::int64_t element, std::int64_t numel, int world);

// Returns the intersection. If it is empty, its begin still lies inside `a`.
[[nodiscard]] Range intersect(Range a, Range b);

// Box: a block of an N-dimensional tensor. Pure arithmetic: no tensor, no group, thread-safe.
//
//   tensor [4, 6]     . . . . . .
//                     . . x x x .      offsets {1, 2}, sizes {2, 3}
//                     . . x x x .
//                     . . . . . .
//
// A tensor without dimensions has one element, which is the box with empty lists.
struct Box {
  std::vector<std::int64_t> offsets;  // of the first element, in each dim
  std::vector<std::int64_t> sizes;

  [[nodiscard]] bool empty() const;
  bool operator==(const Box&) const = default;
};

// Returns the number of elements of a tensor of these sizes. Throws InvalidArgument if a size is
// negative or the number does not fit 64 bits.
[[nodiscard]] std::int64_t numel_of(std::span<const std::int64_t> sizes);
[[nodiscard]] inline std::int64_t numel_of(const Box& box) { return numel_of(box.sizes); }

// Returns the box of a whole tensor.
[[nodiscard]] Box box_of(std::span<const std::int64_t> sizes);

// Returns true if all of `inner` lies in `outer`. Every box contains a box without elements.
[[nodiscard]] bool contains(const Box& outer, const Box& inner);

// Returns the intersection, which may be without elements. Throws InvalidArgument if the boxes have
// different numbers of dims.
[[nodiscard]] Box intersect(const Box& a, const Box& b);

// Returns the part of `a` that is not in `b`: boxes without common elements, at most two per dim.
[[nodiscard]] std::vector<Box> subtract(const Box& a, const Box& b);

// Returns the elements of a range of a row-major tensor as boxes in the order of the range: at most
// 2N - 1 for N dims. Throws InvalidArgument if the range exceeds the tensor.
//
//   tensor [4, 6], range [9, 20)     . . . . . .
//                                    . . . a a a
//                                    b b b b b b
//                                    c c . . . .
[[nodiscard]] std::vector<Box> boxes_of(std::span<const std::int64_t> sizes, Range range);

// Returns "[1, 2] + [2, 3]": offsets and sizes, for messages.
[[nodiscard]] std::string describe(const Box& box);

struct TensorSlice {
  std::vector<std::int64_t> sizes;  // of the whole tensor
  Box box;                          // of the whole tensor
  Range range;                      // of the box's elements, counted in the order of `dim_order`
  // The dims from the outermost to the innermost in memory, as in at::Tensor::dim_order(); empty:
  // row-major.
  std::vector<int> dim_order = {};

  [[nodiscard]] std::int64_t numel() const { return range.length(); }
  // Returns true if the slice has all elements.
  [[nodiscard]] bool is_whole() const { return numel() == numel_of(sizes); }
  bool operator==(const TensorSlice&) const = default;
};

// Make slices: all of a tensor; a box of it; a range of its elements in memory. Throw
// InvalidArgument if the box or range exceeds a tensor of `sizes`, or `dim_order` does not name
// each dim once.
[[nodiscard]] TensorSlice whole_slice(std::span<const std::int64_t> sizes);
[[nodiscard]] TensorSlice box_slice(std::span<const std::int64_t> sizes, Box box);
[[nodiscard]] TensorSlice range_slice(std::span<const std::int64_t> sizes, Range range,
                                      std::vector<int> dim_order = {});

// Returns the slice's elements as boxes of the whole tensor, in the order in which the rank stores
// them: none, one or, for a range of N dims, at most 2N - 1.
[[nodiscard]] std::vector<Box> boxes_of(const TensorSlice& slice);

// The strided position of a box's elements in a storage, as as_strided() takes it: index (i, j,
// ...) of the box is element offset + i * strides[0] + j * strides[1] + ...
struct Strided {
  std::int64_t offset = 0;
  std::vector<std::int64_t> strides;
  bool operator==(const Strided&) const = default;
};

// Returns the position of `box` among the elements of the slice. `box` is one of boxes_of(slice) or
// a part of one.
[[nodiscard]] Strided place_of(const TensorSlice& slice, const Box& box);

}  // namespace lockstep::layout

#pragma GCC visibility pop
