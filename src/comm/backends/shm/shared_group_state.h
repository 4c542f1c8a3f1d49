// SharedGroupState: one process's view of the state that the members of a group share: their ranks,
// the group's block in shared memory, and the failure, if any.
//
// Invariants:
//   - The first failure is written once into the group's block, and every rank throws it. A failed
//     group executes no more segments.
//   - A member that has left posts nothing more (its flag is set after its last post), but its
//     posted operations remain valid.
#pragma once

#include "comm/backends/shm/peers.h"
#include "comm/backends/shm/ring.h"
#include "comm/call/record.h"
#include "comm/diagnose/report.h"
#include "sys/shared_memory.h"

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace lockstep::shm {

// The shared memory of a group: one block in the arena of its first member, zero when the group
// begins. Zero is the valid initial state of all fields, so no page is touched before its first
// use.
//
//   header | one left-flag per member | for each ordered pair of ranks, the location of its channel
//   for messages | the collective channel
//
// Data that few groups need lies in separate blocks, each in the arena of the member that needs it
// first: the channel of a pair that exchanges messages, and the counts of a member that makes an
// uneven call. All members that may use such a block hold it until they have left the group.

// Why the group has failed. The first rank that finds an error writes it; all ranks throw it.
using diagnose::FailureKind;
struct SharedFailure {
  enum : std::uint32_t { alive, being_written, written };
  std::atomic<std::uint32_t> state{alive};
  std::atomic<std::uint32_t> kind{0};
  sys::SharedText<512> text;
};

struct GroupHeader {
  alignas(64) SharedFailure failure;
};

class GroupBlock {
 public:
  static constexpr int collective_depth = 64;
  static constexpr int message_depth = 16;
  static_assert(std::has_single_bit(unsigned{collective_depth}) &&
                std::has_single_bit(unsigned{message_depth}));
  // Copying this many bytes is cheaper than a second hand-off. With more ranks, every rank reads
  // all inputs, and one rank reducing for all is cheaper.
  [[nodiscard]] static constexpr std::size_t collective_inline_bytes(int members) {
    return members <= 8 ? 4096 : 1024;
  }
  static constexpr std::size_t message_inline_bytes = 256;

  GroupBlock(std::byte* base, int members) : base_(base), members_(members) {}
  [[nodiscard]] static std::size_t bytes(int members);

  [[nodiscard]] SharedFailure& failure() const {
    return reinterpret_cast<GroupHeader*>(base_)->failure;
  }
  // The state of a member: `present` until its handles are gone; `gone` when all its posted
  // operations are complete, so that it does not read this block any more. The bit `by_exception`
  // is set if an exception destroyed the handles.
  enum : std::uint32_t { present, posts_no_more, gone, by_exception = 4 };
  [[nodiscard]] std::atomic<std::uint32_t>& left(int member) const;
  [[nodiscard]] bool everyone_is_gone() const;
  [[nodiscard]] ChannelMemory collectives() const;
  // Returns the channel of messages from one member to another, or nothing if neither has used it
  // yet.
  [[nodiscard]] std::optional<ChannelMemory> messages(const PeerMappings& peers, int source,
                                                      int destination) const;
  // Called by one of the two members. Throws BadInput if the arena is full.
  [[nodiscard]] ChannelMemory make_messages(const PeerMappings& peers, int source,
                                            int destination) const;
  // Releases the member's hold on separate blocks. Call it before the member is `gone`.
  void release_hold(const PeerMappings& peers, int member) const;

 private:
  // The location of the channel; 0 if it does not exist.
  [[nodiscard]] std::atomic<std::uint64_t>& channel_word(int source, int destination) const;

  std::byte* base_;
  int members_;
};

class SharedGroupState {
 public:
  // `members`: ranks of the endpoint in the group's order; `block`: the group's block as mapped in
  // this process.
  SharedGroupState(const PeerMappings& peers, const PeerLiveness& liveness, GroupNames names,
                   std::vector<int> members, std::byte* block);

  [[nodiscard]] const PeerMappings& peers() const { return peers_; }
  [[nodiscard]] const PeerLiveness& liveness() const { return liveness_; }
  [[nodiscard]] const GroupBlock& block() const { return block_; }
  [[nodiscard]] const GroupNames& names() const { return names_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] const std::vector<int>& members() const { return members_; }
  [[nodiscard]] int world_rank(int number) const {
    return members_[static_cast<std::size_t>(number)];
  }

  // Returns true if the member `number` posts nothing more.
  [[nodiscard]] bool has_departed(int number) const;
  // Returns true if the member has departed because of an exception.
  [[nodiscard]] bool has_left_by_exception(int number) const;
  // Returns true if the member has published that it executes an operation with the
  // execution_word() `word`.
  [[nodiscard]] bool executes(int number, std::uint64_t word) const;

  // Sequentially consistent, because threads check it before they sleep (peers.h).
  [[nodiscard]] bool has_failed() const {
    return block_.failure().state.load(std::memory_order_seq_cst) != SharedFailure::alive;
  }
  // If the group has not failed yet, fails it and wakes all threads that wait in it.
  void fail(FailureKind kind, std::string_view text) const;
  // Throws the error of the failed group; `more` is added to the end of the message.
  [[noreturn]] void throw_failure(std::string_view more) const;

 private:
  const PeerMappings& peers_;
  const PeerLiveness& liveness_;
  const GroupNames names_;
  const std::vector<int> members_;
  const GroupBlock block_;
  int rank_ = -1;
};

}  // namespace lockstep::shm
