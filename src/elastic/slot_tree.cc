#include "elastic/slot_tree.h"

#include <algorithm>
#include <bit>

namespace lockstep {
namespace {

void add_nodes(layout::Range node, layout::Range own, std::vector<layout::Range>& found) {
  const std::int64_t begin = std::max(node.begin, own.begin), end = std::min(node.end, own.end);
  if (begin >= end) return;
  if (begin == node.begin && end == node.end) {
    found.push_back(node);
    return;
  }
  const std::int64_t middle = split_of(node);
  add_nodes({node.begin, middle}, own, found);
  add_nodes({middle, node.end}, own, found);
}

}  // namespace

layout::Range slots_of_rank(std::int64_t slots, int rank, int ranks) {
  const std::int64_t each = slots / ranks, more = slots % ranks;
  const std::int64_t begin = each * rank + std::min<std::int64_t>(rank, more);
  return {begin, begin + each + (rank < more ? 1 : 0)};
}

std::int64_t split_of(layout::Range node) {
  const auto count = static_cast<std::uint64_t>(node.end - node.begin);
  return node.begin + static_cast<std::int64_t>(std::bit_floor(count - 1));
}

std::vector<layout::Range> nodes_within(std::int64_t slots, layout::Range own) {
  std::vector<layout::Range> found;
  add_nodes({0, slots}, own, found);
  return found;
}

bool is_node(std::int64_t slots, layout::Range range) {
  layout::Range node{0, slots};
  while (node.end - node.begin > range.end - range.begin) {
    const std::int64_t middle = split_of(node);
    if (range.end <= middle)
      node.end = middle;
    else if (range.begin >= middle)
      node.begin = middle;
    else
      return false;
  }
  return node.begin == range.begin && node.end == range.end;
}

}  // namespace lockstep
