#include <lockstep/layout/box.h>

#include "base/check.h"

#include <algorithm>
#include <utility>

namespace lockstep::layout {
namespace {

std::int64_t end_of(const Box& box, std::size_t dim) { return box.offsets[dim] + box.sizes[dim]; }

// Adds the boxes of `range`, which is not empty, of the dims from `dim` on; `box` says which one
// element of the dims before is meant.
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
  check(a.sizes.size() == b.sizes.size(), "layout: boxes of {} and {} dims have nothing in common",
        a.sizes.size(), b.sizes.size());
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
  Box rest = a;  // shrinks, dim by dim, to what both have
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
        "layout: the range {}..{} does not lie in a tensor of {} elements", range.begin, range.end,
        numel);
  std::vector<Box> boxes;
  if (!range.empty()) add_boxes(sizes, 0, range, box_of(sizes), boxes);
  return boxes;
}

std::string describe(const Box& box) {
  return formatted("[{}] + [{}]", listed(box.offsets, ", "), listed(box.sizes, ", "));
}

}  // namespace lockstep::layout
