// What a group keeps in shared memory: one block in the arena of its first member, fresh (zero)
// when the group begins. Zero is the valid beginning of everything in it, so no page is touched
// before it is used.
//
//   header | one left-flag a member | the collective lane | for each ordered pair of ranks a lane
//   for messages
//
// A lane is a ring of `depth` operations among its members: a slot for each member (descriptor.h),
// the words by which segments are claimed and counted (cursor.h), and a place for uneven counts.
#pragma once

#include "comm/shm/cursor.h"
#include "comm/shm/descriptor.h"
#include "comm/shm/shared_text.h"

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace lockstep::shm {

// Why the group is dead. The first rank that finds an error writes it; everybody throws it.
enum class FailureKind : std::uint32_t { none, peer_lost, timeout, mismatch, aborted };

struct SharedFailure {
  enum : std::uint32_t { alive, being_written, written };
  std::atomic<std::uint32_t> state{alive};
  std::atomic<std::uint32_t> kind{0};
  SharedText<96> text;
};

struct GroupHeader {
  alignas(64) SharedFailure failure;
};

// The memory of one lane. A view: copies speak of the same memory.
class LaneMemory {
 public:
  LaneMemory(std::byte* base, int members, int depth)
      : base_(base), members_(members), depth_(depth) {}
  [[nodiscard]] static std::size_t bytes(int members, int depth, bool with_counts);

  [[nodiscard]] int members() const { return members_; }
  [[nodiscard]] int depth() const { return depth_; }

  [[nodiscard]] Slot& slot(int member, std::uint64_t sequence) const {
    return reinterpret_cast<Slot*>(base_)[position(sequence) * members_ + member];
  }
  [[nodiscard]] CursorWord& done(std::uint64_t sequence) const {
    return line(position(sequence) * (members_ + 1));
  }
  [[nodiscard]] CursorWord& cursor(int part, std::uint64_t sequence) const {
    return line(position(sequence) * (members_ + 1) + 1 + part);
  }
  // What member `member` sends to (or expects from, second) `other` in an uneven all_to_all.
  [[nodiscard]] std::atomic<std::int64_t>& sends(int member, int other,
                                                 std::uint64_t sequence) const {
    return counts(member, sequence)[other];
  }
  [[nodiscard]] std::atomic<std::int64_t>& expects(int member, int other,
                                                   std::uint64_t sequence) const {
    return counts(member, sequence)[members_ + other];
  }

 private:
  static constexpr std::size_t line_bytes = 64;

  [[nodiscard]] std::size_t position(std::uint64_t sequence) const {
    return sequence % static_cast<std::uint64_t>(depth_);
  }
  [[nodiscard]] CursorWord& line(std::size_t index) const {
    return *reinterpret_cast<CursorWord*>(base_ + slots_bytes(members_, depth_) +
                                          index * line_bytes);
  }
  [[nodiscard]] std::atomic<std::int64_t>* counts(int member, std::uint64_t sequence) const;
  [[nodiscard]] static std::size_t slots_bytes(int members, int depth) {
    return sizeof(Slot) * members * depth;
  }
  [[nodiscard]] static std::size_t words_bytes(int members, int depth) {
    return line_bytes * (members + 1) * depth;
  }

  std::byte* base_;
  int members_;
  int depth_;
};

class GroupBlock {
 public:
  static constexpr int collective_depth = 64;
  static constexpr int message_depth = 16;

  GroupBlock(std::byte* base, int members) : base_(base), members_(members) {}
  [[nodiscard]] static std::size_t bytes(int members);

  [[nodiscard]] SharedFailure& failure() const {
    return reinterpret_cast<GroupHeader*>(base_)->failure;
  }
  // What has become of a member: it posts until its handles are gone, and looks here until all that
  // it posted is complete.
  enum : std::uint32_t { present, posts_no_more, gone };
  [[nodiscard]] std::atomic<std::uint32_t>& left(int member) const;
  [[nodiscard]] bool everyone_is_gone() const;
  [[nodiscard]] LaneMemory collectives() const;
  [[nodiscard]] LaneMemory messages(int source, int destination) const;

 private:
  std::byte* base_;
  int members_;
};

}  // namespace lockstep::shm
