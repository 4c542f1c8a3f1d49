#include "layout/runs.h"

#include "base/check.h"

#include <algorithm>

namespace lockstep::layout {
namespace {

std::size_t first_dim_above_one(const Box& box) {
  return static_cast<std::size_t>(
      std::ranges::find_if(box.sizes, [](std::int64_t size) { return size > 1; }) -
      box.sizes.begin());
}

std::int64_t numel_behind(const Box& box, std::size_t dim) {
  return numel_of(std::span(box.sizes).subspan(dim + 1));
}

bool has_all_behind(const Box& box, std::span<const std::int64_t> sizes, std::size_t dim) {
  return std::ranges::equal(std::span(box.sizes).subspan(dim + 1), sizes.subspan(dim + 1));
}

void split(const Box& box, std::span<const std::int64_t> sizes, std::int64_t most,
           const std::function<void(const Box&)>& action) {
  std::size_t dim = first_dim_above_one(box);
  if (dim == box.sizes.size()) return action(box);
  std::int64_t step = 1;
  if (has_all_behind(box, sizes, dim))
    step = std::max<std::int64_t>(1, most / numel_behind(box, dim));
  if (box.sizes[dim] <= step) return action(box);
  for (std::int64_t begin = 0; begin < box.sizes[dim]; begin += step) {
    Box some = box;
    some.offsets[dim] += begin;
    some.sizes[dim] = std::min(step, box.sizes[dim] - begin);
    bool is_run = step > 1 || numel_behind(box, dim) == 1;
    if (is_run) {
      action(some);
    } else {
      split(some, sizes, most, action);
    }
  }
}

}  // namespace

void for_each_run(const Box& box, std::span<const std::int64_t> sizes, std::int64_t most,
                  const std::function<void(const Box&)>& action) {
  check(most > 0, "layout: a run must have at least one element, found {}", most);
  check(contains(box_of(sizes), box), "layout: the box {} does not lie in a tensor of [{}]",
        describe(box), listed(sizes, ", "));
  if (!box.empty()) split(box, sizes, most, action);
}

std::int64_t first_element(const Box& box, std::span<const std::int64_t> sizes) {
  std::int64_t element = 0;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim)
    element = element * sizes[dim] + box.offsets[dim];
  return element;
}

}  // namespace lockstep::layout
