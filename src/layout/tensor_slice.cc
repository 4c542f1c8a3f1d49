#include <lockstep/layout/tensor_slice.h>

#include "base/check.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::layout {
namespace {

std::vector<int> order_of(const TensorSlice& slice) {
  if (!slice.dim_order.empty()) return slice.dim_order;
  std::vector<int> order(slice.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// `values` of the dims, the outermost in memory first.
std::vector<std::int64_t> in_order(const std::vector<std::int64_t>& values,
                                   const std::vector<int>& order) {
  std::vector<std::int64_t> ordered;
  for (int dim : order) ordered.push_back(values[static_cast<std::size_t>(dim)]);
  return ordered;
}

void check_order(const std::vector<int>& order, std::size_t dims) {
  std::vector<int> sorted = order;
  std::ranges::sort(sorted);
  for (std::size_t dim = 0; dim < sorted.size(); ++dim)
    check(sorted.size() == dims && sorted[dim] == static_cast<int>(dim),
          "layout: dim_order must name each of {} dims once, found [{}]", dims,
          listed(order, ", "));
}

}  // namespace

TensorSlice whole_slice(std::span<const std::int64_t> sizes) {
  return range_slice(sizes, {0, numel_of(sizes)});
}

TensorSlice box_slice(std::span<const std::int64_t> sizes, Box box) {
  check(box.sizes.size() == sizes.size() && box.offsets.size() == sizes.size(),
        "layout: a box of {} dims cannot lie in a tensor of {}", box.sizes.size(), sizes.size());
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    check(box.offsets[dim] >= 0 && box.sizes[dim] >= 0 &&
              box.offsets[dim] <= sizes[dim] - box.sizes[dim],
          "layout: dim {} has {} elements, but the box {} + {}", dim, sizes[dim], box.offsets[dim],
          box.sizes[dim]);
  Range all{0, numel_of(box)};
  return {{sizes.begin(), sizes.end()}, std::move(box), all};
}

TensorSlice range_slice(std::span<const std::int64_t> sizes, Range range,
                        std::vector<int> dim_order) {
  check(range.begin >= 0 && range.begin <= range.end && range.end <= numel_of(sizes),
        "layout: the range {}..{} does not lie in a tensor of {} elements", range.begin, range.end,
        numel_of(sizes));
  check_order(dim_order, sizes.size());
  return {{sizes.begin(), sizes.end()}, box_of(sizes), range, std::move(dim_order)};
}

std::vector<Box> boxes_of(const TensorSlice& slice) {
  std::vector<int> order = order_of(slice);
  std::vector<Box> boxes = boxes_of(in_order(slice.box.sizes, order), slice.range);
  for (Box& box : boxes) {
    Box ordered = std::exchange(box, slice.box);
    for (std::size_t i = 0; i < order.size(); ++i) {
      auto dim = static_cast<std::size_t>(order[i]);
      box.offsets[dim] += ordered.offsets[i];
      box.sizes[dim] = ordered.sizes[i];
    }
  }
  return boxes;
}

Strided place_of(const TensorSlice& slice, const Box& box) {
  std::vector<int> order = order_of(slice);
  Strided place{-slice.range.begin, std::vector<std::int64_t>(order.size())};
  std::int64_t stride = 1;
  for (std::size_t i = order.size(); i-- > 0;) {
    auto dim = static_cast<std::size_t>(order[i]);
    place.strides[dim] = stride;
    place.offset += (box.offsets[dim] - slice.box.offsets[dim]) * stride;
    stride *= slice.box.sizes[dim];
  }
  return place;
}

}  // namespace lockstep::layout
