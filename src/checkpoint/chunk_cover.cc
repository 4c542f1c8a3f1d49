#include "checkpoint/chunk_cover.h"

#include "base/check.h"
#include "base/visible.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace lockstep::checkpoint {
namespace {

using layout::Box;

std::int64_t end_of(const Box& box, std::size_t dim) { return box.offsets[dim] + box.sizes[dim]; }

bool overlap(const Box& a, const Box& b) {
  for (std::size_t dim = 0; dim < a.offsets.size(); ++dim)
    if (a.offsets[dim] >= end_of(b, dim) || b.offsets[dim] >= end_of(a, dim)) return false;
  return true;
}

// Returns the number of pairs of boxes that overlap in one dim, ignoring the other dims.
std::size_t overlapping_pairs(std::span<const Box> boxes, std::size_t dim) {
  std::vector<std::int64_t> begins, ends;
  for (const Box& box : boxes) {
    begins.push_back(box.offsets[dim]);
    ends.push_back(end_of(box, dim));
  }
  std::ranges::sort(begins);
  std::ranges::sort(ends);
  std::size_t pairs = 0, ended = 0;
  for (std::size_t begun = 0; begun < begins.size(); ++begun) {
    while (ends[ended] <= begins[begun]) ++ended;
    pairs += begun - ended;
  }
  return pairs;
}

std::size_t best_dim(std::span<const Box> boxes, std::size_t dims) {
  std::size_t best = 0, fewest = SIZE_MAX;
  for (std::size_t dim = 0; dim < dims; ++dim)
    if (const std::size_t pairs = overlapping_pairs(boxes, dim); pairs < fewest) {
      best = dim;
      fewest = pairs;
    }
  return best;
}

}  // namespace

std::size_t check_cover(const std::string& name, std::span<const std::int64_t> sizes,
                        std::span<const Box> boxes) {
  std::int64_t covered = 0;
  for (const Box& box : boxes) covered += layout::numel_of(box);
  std::vector<std::size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const std::size_t dim = best_dim(boxes, sizes.size());
  if (!sizes.empty())
    std::ranges::stable_sort(order, {}, [&](std::size_t i) { return boxes[i].offsets[dim]; });
  std::size_t compared = 0;
  std::vector<std::size_t> open;  // boxes that may overlap later ones
  for (const std::size_t i : order) {
    if (!sizes.empty())
      std::erase_if(open,
                    [&](std::size_t j) { return end_of(boxes[j], dim) <= boxes[i].offsets[dim]; });
    for (const std::size_t j : open) {
      ++compared;
      check_input(!overlap(boxes[i], boxes[j]), "parts {} and {} of '{}' overlap",
                  layout::describe(boxes[j]), layout::describe(boxes[i]), visible(name));
    }
    open.push_back(i);
  }
  check_input(covered == layout::numel_of(sizes),
              "the number of elements in the parts of '{}' is {}, expected {}", visible(name),
              covered, layout::numel_of(sizes));
  return compared;
}

}  // namespace lockstep::checkpoint
