// All small tensors, all their boxes, and the elements of a box. A plain loop is the reference.
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

// All tensors with up to `dims` dims, each of size 0 to `largest`.
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

// The row-major indices of a box's elements in the whole tensor.
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
