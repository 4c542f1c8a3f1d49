#include "layout/transfers.h"

#include "base/check.h"
#include "base/format.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <utility>

namespace lockstep::layout {
namespace {

// Calls found(source, box) for each box of elements in `sources` until every element of `wanted` is
// found.
template <typename Found>
void find_in(const std::vector<std::vector<Box>>& sources, Box wanted, const Found& found) {
  std::vector<Box> missing = {std::move(wanted)};
  for (std::size_t source = 0; source < sources.size() && !missing.empty(); ++source)
    for (const Box& box : sources[source]) {
      std::vector<Box> rest;
      for (const Box& one : missing) {
        Box common = intersect(one, box);
        if (!common.empty()) found(static_cast<int>(source), common);
        for (Box& part : subtract(one, box)) rest.push_back(std::move(part));
      }
      missing = std::move(rest);
    }
  if (!missing.empty())
    throw InvalidArgument(
        formatted("layout: no rank has the elements {}", describe(missing.front())));
}

}  // namespace

std::vector<BoxTransfer> transfers(std::span<const TensorSlice> from,
                                   std::span<const TensorSlice> to) {
  std::vector<std::vector<Box>> sources;
  for (const TensorSlice& slice : from) sources.push_back(boxes_of(slice));
  std::vector<BoxTransfer> all;
  for (std::size_t rank = 0; rank < to.size(); ++rank) {
    for (const TensorSlice& slice : from)
      if (slice.sizes != to[rank].sizes)
        throw InvalidArgument(
            formatted("layout: slices must be of tensors of equal sizes, found [{}] and [{}]",
                      listed(slice.sizes, ", "), listed(to[rank].sizes, ", ")));
    for (Box& box : boxes_of(to[rank]))
      find_in(sources, std::move(box), [&](int source, const Box& common) {
        all.push_back({source, static_cast<int>(rank), common,
                       place_of(from[static_cast<std::size_t>(source)], common),
                       place_of(to[rank], common)});
      });
  }
  return all;
}

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
