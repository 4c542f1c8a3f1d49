// Subgroups: every rank learns the arguments of the others, then the members of each subgroup make
// it through the backend.
#include "base/fingerprint.h"
#include "base/format.h"
#include "comm/api/group_state.h"

#include <lockstep/base/error.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <tuple>
#include <vector>

namespace lockstep {
namespace {

// Returns `mine` of every rank, in rank order.
std::vector<std::int64_t> exchange(Group group, const std::vector<std::int64_t>& mine,
                                   std::string_view tag, Group::Where where) {
  auto input = at::tensor(mine, at::kLong);
  auto output = at::empty({static_cast<std::int64_t>(mine.size()) * group.size()}, at::kLong);
  group.all_gather(output, input, {.tag = tag}, where).wait();
  return {output.const_data_ptr<std::int64_t>(),
          output.const_data_ptr<std::int64_t>() + output.numel()};
}

// Good enough to notice that two ranks passed different lists.
std::int64_t hash_of(std::span<const int> ranks) {
  return static_cast<std::int64_t>(fingerprint_of(ranks));
}

void check_ranks(std::span<const int> ranks, const Group& group) {
  auto refuse = [&](std::string_view why) {
    throw InvalidArgument(
        formatted("subset [{}] of group {}: {}", listed(ranks, ", "), group.name(), why));
  };
  if (ranks.empty()) refuse("no rank is named");
  std::vector<int> sorted(ranks.begin(), ranks.end());
  std::ranges::sort(sorted);
  if (sorted.front() < 0 || sorted.back() >= group.size())
    refuse(formatted("ranks are 0..{}", group.size() - 1));
  if (std::ranges::adjacent_find(sorted) != sorted.end()) refuse("a rank is named twice");
}

}  // namespace

Group Group::split(int color, int key, Where where) const {
  auto prefix = formatted("{}/split#{}", name(), state_->next_part());
  auto all = exchange(*this, {color, key}, "split", where);
  std::vector<std::tuple<std::int64_t, int>> members;  // key, rank
  for (int rank = 0; rank < size(); ++rank) {
    if (all[2 * rank] == color) members.emplace_back(all[2 * rank + 1], rank);
  }
  std::ranges::sort(members);
  std::vector<int> ranks;
  for (auto [unused, rank] : members) ranks.push_back(rank);
  return Group(state_->part(ranks, formatted("{}/{}", prefix, color)));
}

std::optional<Group> Group::subset(std::span<const int> ranks, Where where) const {
  check_ranks(ranks, *this);
  auto part = formatted("{}/subset#{}", name(), state_->next_part());
  auto tag = formatted("subset [{}]", listed(ranks, ", "));
  auto hashes = exchange(*this, {hash_of(ranks)}, tag, where);
  if (auto other = std::ranges::find_if(hashes, [&](auto hash) { return hash != hash_of(ranks); });
      other != hashes.end()) {
    const auto& names = state_->names();
    auto text = formatted("{} of group {}: {} passed another list than {}", tag, name(),
                          names.rank(static_cast<int>(other - hashes.begin())), names.rank(rank()));
    state_->abort(text);
    throw Mismatch(text);
  }
  if (std::ranges::find(ranks, rank()) == ranks.end()) return std::nullopt;
  return Group(state_->part(ranks, std::move(part)));
}

}  // namespace lockstep
