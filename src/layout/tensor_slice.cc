#include <lockstep/layout/tensor_slice.h>

#include "base/check.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::layout {
namespace {

std::int64_t shard_length(std::int64_t numel, int world) { return (numel + world - 1) / world; }

}  // namespace

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  check(multiple >= 1 && value >= 0,
        "round_up: expected a value >= 0 and a multiple >= 1, found {} and {}", value, multiple);
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
  check(world >= 1, "shard: expected a world of at least one rank, found {}", world);
  check(element >= 0 && element < numel, "shard: element must be 0..{}, found {}", numel - 1,
        element);
  return static_cast<int>(element / shard_length(numel, world));
}

Range intersect(Range a, Range b) {
  std::int64_t begin = std::clamp(b.begin, a.begin, a.end);
  return {begin, std::clamp(b.end, begin, a.end)};
}

namespace {

std::int64_t end_of(const Box& box, std::size_t dim) { return box.offsets[dim] + box.sizes[dim]; }

// Adds the boxes of the non-empty `range` over the dims from `dim` on; `box` gives the index in the
// dims before.
void add_boxes(std::span<const std::int64_t> sizes, std::size_t dim, Range range, Box box,
               std::vector<Box>& boxes) {
  if (dim == sizes.size()) {
    boxes.push_back(std::move(box));
    return;
  }
  std::int64_t row = numel_of(sizes.subspan(dim + 1));
  auto add_rows = [&](std::int64_t begin, std::int64_t end) {
    if (begin == end) return;
    Box rows = box;
    rows.offsets[dim] = begin;
    rows.sizes[dim] = end - begin;
    boxes.push_back(std::move(rows));
  };
  auto add_part = [&](std::int64_t index, Range part) {
    if (part.empty()) return;
    Box inside = box;
    inside.offsets[dim] = index;
    inside.sizes[dim] = 1;
    add_boxes(sizes, dim + 1, part, std::move(inside), boxes);
  };
  std::int64_t first = range.begin / row, last = range.end / row;
  Range head{range.begin % row, row}, tail{0, range.end % row};
  if (first == last) return add_part(first, {head.begin, tail.end});
  if (head.begin == 0) {
    add_rows(first, last);
  } else {
    add_part(first, head);
    add_rows(first + 1, last);
  }
  add_part(last, tail);
}

}  // namespace

bool Box::empty() const { return std::ranges::find(sizes, 0) != sizes.end(); }

std::int64_t numel_of(std::span<const std::int64_t> sizes) {
  bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  std::int64_t numel = is_empty ? 0 : 1;
  for (std::int64_t size : sizes) {
    check(size >= 0, "layout: a size must be at least 0, found {}", size);
    if (__builtin_mul_overflow(numel, size, &numel))
      throw InvalidArgument(
          formatted("layout: a tensor of [{}] has more elements than 64 bits can count",
                    listed(sizes, ", ")));
  }
  return numel;
}

Box box_of(std::span<const std::int64_t> sizes) {
  return {std::vector<std::int64_t>(sizes.size(), 0), {sizes.begin(), sizes.end()}};
}

bool contains(const Box& outer, const Box& inner) {
  return inner.empty() || intersect(outer, inner) == inner;
}

Box intersect(const Box& a, const Box& b) {
  check(a.sizes.size() == b.sizes.size(),
        "layout: boxes must have the same number of dims, found {} and {}", a.sizes.size(),
        b.sizes.size());
  Box both = a;
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    std::int64_t begin = std::max(a.offsets[dim], b.offsets[dim]);
    both.offsets[dim] = begin;
    both.sizes[dim] = std::max<std::int64_t>(0, std::min(end_of(a, dim), end_of(b, dim)) - begin);
  }
  return both;
}

std::vector<Box> subtract(const Box& a, const Box& b) {
  if (a.empty()) return {};
  Box common = intersect(a, b);
  if (common.empty()) return {a};
  std::vector<Box> boxes;
  Box rest = a;  // shrinks, dim by dim, to the intersection
  for (std::size_t dim = 0; dim < a.sizes.size(); ++dim) {
    std::int64_t below = common.offsets[dim] - rest.offsets[dim];
    std::int64_t above = end_of(rest, dim) - end_of(common, dim);
    if (below > 0) boxes.push_back(rest);
    if (below > 0) boxes.back().sizes[dim] = below;
    if (above > 0) boxes.push_back(rest);
    if (above > 0) boxes.back().offsets[dim] = end_of(common, dim);
    if (above > 0) boxes.back().sizes[dim] = above;
    rest.offsets[dim] = common.offsets[dim];
    rest.sizes[dim] = common.sizes[dim];
  }
  return boxes;
}

std::vector<Box> boxes_of(std::span<const std::int64_t> sizes, Range range) {
  std::int64_t numel = numel_of(sizes);
  check(range.begin >= 0 && range.begin <= range.end && range.end <= numel,
        "layout: the range {}..{} does not lie in a tensor of size {}", range.begin, range.end,
        numel);
  std::vector<Box> boxes;
  if (!range.empty()) add_boxes(sizes, 0, range, box_of(sizes), boxes);
  return boxes;
}

std::string describe(const Box& box) {
  return formatted("[{}] + [{}]", listed(box.offsets, ", "), listed(box.sizes, ", "));
}

namespace {

std::vector<int> order_of(const TensorSlice& slice) {
  if (!slice.dim_order.empty()) return slice.dim_order;
  std::vector<int> order(slice.sizes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Returns the dims' `values`, the outermost in memory first.
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
        "layout: a box and its tensor must have the same number of dims, found {} and {}",
        box.sizes.size(), sizes.size());
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    check(box.offsets[dim] >= 0 && box.sizes[dim] >= 0 &&
              box.offsets[dim] <= sizes[dim] - box.sizes[dim],
          "layout: dim {} has size {}, but the box is {} + {}", dim, sizes[dim], box.offsets[dim],
          box.sizes[dim]);
  Range all{0, numel_of(box)};
  return {{sizes.begin(), sizes.end()}, std::move(box), all};
}

TensorSlice range_slice(std::span<const std::int64_t> sizes, Range range,
                        std::vector<int> dim_order) {
  check(range.begin >= 0 && range.begin <= range.end && range.end <= numel_of(sizes),
        "layout: the range {}..{} does not lie in a tensor of size {}", range.begin, range.end,
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
