// The posted calls of ranks, read from their slots in shared memory: the facts of failure reports.
#pragma once

#include "comm/backends/shm/shared_group_state.h"
#include "comm/call/record.h"
#include "comm/diagnose/report.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::shm {

// A view of one channel's slots.
struct PostedCalls {
  const PeerMappings& peers;
  ChannelMemory memory;
  std::span<const int> ranks;  // the channel's members as ranks of the group
  bool has_messages = false;   // from the first member to the second

  // Returns the call in a member's slot for operation `sequence`.
  [[nodiscard]] CallRecord call(int member, std::uint64_t sequence) const;
  // Returns the latest call of a member; std::nullopt if it has made none.
  [[nodiscard]] std::optional<CallRecord> last(int member) const;
  [[nodiscard]] bool has_posted(int member, std::uint64_t sequence) const {
    return shm::has_posted(memory.slot(member, sequence), sequence);
  }
};

// Returns "rank 0 called all_reduce #5 (sum, 100 x float32, a.cc:3) where rank 3 called broadcast
// #5 (root 0, ...)". If `other` is negative, describes any two ranks whose all_to_all counts do not
// match.
[[nodiscard]] std::string difference_between(const PostedCalls& calls, std::uint64_t sequence,
                                             int one, int other, const GroupNames& group);

// Returns the status of each member of a channel for operation `sequence`, in which some members
// wait. `is_executing(rank)` returns true if that rank is executing a segment of the operation.
[[nodiscard]] std::vector<diagnose::PeerStatus> statuses_of(
    const PostedCalls& calls, const GroupBlock& block, std::uint64_t sequence,
    const std::function<bool(int rank)>& is_executing);

// Describes a lost member: its last call, and which other ranks wait in the next call.
[[nodiscard]] diagnose::LostRank lost_rank(const PostedCalls& collectives, int member);

}  // namespace lockstep::shm
