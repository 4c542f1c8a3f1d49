#include "comm/call/group_names.h"

#include "base/format.h"
#include "base/text.h"

#include <algorithm>
#include <utility>

namespace lockstep {

GroupNames::GroupNames(std::string name, std::vector<int> world_ranks)
    : name_(std::move(name)), world_ranks_(std::move(world_ranks)) {}

int GroupNames::world_rank(int rank) const {
  const auto index = static_cast<std::size_t>(rank);  // a peer's text may contain any number
  return index < world_ranks_.size() ? world_ranks_[index] : rank;
}

GroupNames GroupNames::part(std::span<const int> ranks, std::string name) const {
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(world_rank(rank));
  return {std::move(name), std::move(world_ranks)};
}

std::string GroupNames::in_world(std::span<const int> ranks) const {
  std::vector<int> world_ranks;
  for (const int rank : ranks) world_ranks.push_back(world_rank(rank));
  if (std::ranges::equal(ranks, world_ranks)) return {};
  return formatted(" ({} of the world)", rank_list(world_ranks));
}

std::string GroupNames::rank(int rank) const {
  return formatted("rank {}{}", rank, in_world({&rank, 1}));
}

std::string GroupNames::ranks_own(int rank) const {
  return formatted("rank {}'s{}", rank, in_world({&rank, 1}));
}

std::string GroupNames::ranks(std::span<const int> ranks) const {
  return rank_list(ranks) + in_world(ranks);
}

std::string GroupNames::ending() const {
  return name_ == "world" ? std::string() : formatted(" [group {}]", name_);
}

}  // namespace lockstep
