#include "elastic/slot_layout.h"

#include <algorithm>
#include <bit>
#include <iterator>

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

using layout::Range;

SlotLayout SlotLayout::whole(const std::vector<std::int64_t>& elements, int ranks) {
  SlotLayout all;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    all.pieces_.push_back({static_cast<int>(i), {0, elements[i]}, all.length_});
    all.length_ += elements[i];
  }
  all.counts_ = {all.length_};
  all.length_ += std::ssize(elements);
  for (int rank = 0; rank < ranks; ++rank)
    all.chunks_.push_back({all.length_ * rank / ranks, all.length_ * (rank + 1) / ranks});
  return all;
}

SlotLayout SlotLayout::divided(const std::vector<std::vector<Range>>& parts) {
  SlotLayout all;
  for (const std::vector<Range>& of_rank : parts) {
    const std::int64_t begin = all.length_;
    for (std::size_t i = 0; i < of_rank.size(); ++i) {
      all.pieces_.push_back({static_cast<int>(i), of_rank[i], all.length_});
      all.length_ += of_rank[i].length();
    }
    all.counts_.push_back(all.length_);
    all.length_ += std::ssize(of_rank);
    all.chunks_.push_back({begin, all.length_});
  }
  return all;
}

Range SlotLayout::gradients(int rank) const {
  const Range all = chunk(rank);
  const std::int64_t end =
      counts_.size() == 1 ? counts_.front() : counts_[static_cast<std::size_t>(rank)];
  return {all.begin, std::clamp(end, all.begin, all.end)};
}

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
