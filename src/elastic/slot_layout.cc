#include "elastic/slot_layout.h"

#include <algorithm>
#include <iterator>

namespace lockstep {

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

}  // namespace lockstep
