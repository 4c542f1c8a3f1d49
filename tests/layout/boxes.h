// All small tensors and all boxes in them, and which elements a box has: the oracle is a loop.
#pragma once

#include <lockstep/layout/tensor_slice.h>

#include <cstdint>
#include <set>
#include <vector>

namespace lockstep::layout {
using Sizes = std::vector<std::int64_t>;
}

namespace lockstep::test {

using layout::Box;
using layout::Sizes;

// Tensors of 0 to `dims` dims, each from 0 to `largest`.
inline std::vector<Sizes> all_sizes(std::size_t dims, std::int64_t largest) {
  std::vector<Sizes> all = {{}};
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::int64_t size = 0; size <= largest && all[i].size() < dims; ++size) {
      Sizes more = all[i];
      more.push_back(size);
      all.push_back(std::move(more));
    }
  return all;
}

inline std::vector<Box> all_boxes(const Sizes& sizes) {
  std::vector<Box> boxes = {{}};
  for (std::int64_t size : sizes) {
    std::vector<Box> more;
    for (const Box& box : boxes)
      for (std::int64_t offset = 0; offset <= size; ++offset)
        for (std::int64_t length = 0; offset + length <= size; ++length) {
          more.push_back(box);
          more.back().offsets.push_back(offset);
          more.back().sizes.push_back(length);
        }
    boxes = std::move(more);
  }
  return boxes;
}

// The elements of a box as numbers in the row-major tensor.
inline std::set<std::int64_t> indices_of(const Sizes& sizes, const Box& box) {
  std::vector<std::int64_t> indices = {0};
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    std::vector<std::int64_t> more;
    for (std::int64_t index : indices)
      for (std::int64_t i = 0; i < box.sizes[dim]; ++i)
        more.push_back(index * sizes[dim] + box.offsets[dim] + i);
    indices = std::move(more);
  }
  return {indices.begin(), indices.end()};
}

}  // namespace lockstep::test
