// SharedGroup: what the members of a group have in common, as one process sees it: their numbers,
// the group's block in shared memory, and why the group has died, if it has.
//
// Invariants:
//   - The first failure stands: it is written once into the group's block, and every rank throws
//     the same one. A dead group executes no further segment.
//   - A member that has left posts nothing more (its flag is set after its last post), but what it
//     posted still counts.
#pragma once

#include "comm/call/group_names.h"
#include "comm/engines/shm/execution_marks.h"
#include "comm/engines/shm/group_block.h"
#include "comm/engines/shm/peers.h"
#include "comm/engines/shm/presence.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace lockstep::shm {

class SharedGroup {
 public:
  // `members`: ranks of the endpoint in the group's order; `block`: where this process sees the
  // group's block.
  SharedGroup(const Peers& peers, const Presence& presence, GroupNames names,
              std::vector<int> members, std::byte* block);

  [[nodiscard]] const Peers& peers() const { return peers_; }
  [[nodiscard]] const Presence& presence() const { return presence_; }
  [[nodiscard]] const GroupBlock& block() const { return block_; }
  [[nodiscard]] const GroupNames& names() const { return names_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] int world_rank(int number) const {
    return members_[static_cast<std::size_t>(number)];
  }

  // That member (a number of the group) posts nothing more.
  [[nodiscard]] bool has_departed(int number) const;
  // It has, and said that an exception is why.
  [[nodiscard]] bool has_left_by_exception(int number) const;
  // Whether it says that it executes something of that execution_word().
  [[nodiscard]] bool executes(int number, std::uint64_t word) const;

  // Sequentially consistent: a thread about to sleep asks (waiting.h).
  [[nodiscard]] bool has_failed() const {
    return block_.failure().state.load(std::memory_order_seq_cst) != SharedFailure::alive;
  }
  // Kills the group, unless something else has, and wakes everybody.
  void fail(FailureKind kind, std::string_view text) const;
  // Of a dead group, with more words at its end.
  [[noreturn]] void throw_failure(std::string_view more) const;

 private:
  const Peers& peers_;
  const Presence& presence_;
  const GroupNames names_;
  const std::vector<int> members_;
  const GroupBlock block_;
  int rank_ = -1;
};

}  // namespace lockstep::shm
