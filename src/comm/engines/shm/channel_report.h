// What ranks have posted, read from their slots in shared memory: the facts of failure reports.
#pragma once

#include "comm/call/record.h"
#include "comm/diagnose/report.h"
#include "comm/engines/shm/shared_group.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::shm {

// One channel as its slots show it. A view.
struct PostedCalls {
  const Peers& peers;
  ChannelMemory memory;
  std::span<const int> ranks;  // the channel's members as numbers of the group
  bool has_messages = false;   // from the first of the two to the second

  // What stands in the slot of a member for operation `sequence`.
  [[nodiscard]] CallRecord call(int member, std::uint64_t sequence) const;
  // The latest call of a member; nothing when it has made none.
  [[nodiscard]] std::optional<CallRecord> last(int member) const;
  [[nodiscard]] bool has_posted(int member, std::uint64_t sequence) const {
    return shm::has_posted(memory.slot(member, sequence), sequence);
  }
};

// rank 0 called all_reduce #5 (sum, 100 x float32, a.cc:3) where rank 3 called broadcast #5 (root
// 0, ...). `other` below 0: some two whose counts in an all_to_all do not fit.
[[nodiscard]] std::string difference_between(const PostedCalls& calls, std::uint64_t sequence,
                                             int one, int other, const GroupNames& group);

// Of each member of a channel, and of operation `sequence` that some wait in. `is_executing(rank)`:
// whether that rank executes a segment of it now.
[[nodiscard]] std::vector<diagnose::PeerStatus> statuses_of(
    const PostedCalls& calls, const GroupBlock& block, std::uint64_t sequence,
    const std::function<bool(int rank)>& is_executing);

// Of a member of a group, who is gone: what it called last, and which others wait in the next call.
[[nodiscard]] diagnose::LostRank lost_rank(const PostedCalls& collectives, int member);

}  // namespace lockstep::shm
