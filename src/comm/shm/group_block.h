// What a group keeps in shared memory: one block in the arena of its first member, fresh (zero)
// when the group begins. Zero is the valid beginning of everything in it, so no page is touched
// before it is used.
//
//   header | one left-flag a member | the collective lane | for each ordered pair of ranks a lane
//   for messages
//
// A lane is a ring of `depth` operations among its members: a slot for each member (descriptor.h),
// room for the input that a small operation carries with it, the words by which segments are
// claimed and counted (cursor.h), how far each member has read what is carried, and a place for
// uneven counts.
#pragma once

#include "comm/shm/cursor.h"
#include "comm/shm/descriptor.h"
#include "comm/shm/shared_text.h"

#include <atomic>
#include <bit>
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

struct LaneSize {
  int members;
  int depth;                  // a power of two: a position in the ring costs no division
  std::size_t carried_bytes;  // the largest input that a slot carries; a multiple of 64
};

// The memory of one lane. A view: copies speak of the same memory.
class LaneMemory {
 public:
  LaneMemory(std::byte* base, LaneSize size);
  [[nodiscard]] static std::size_t bytes(const LaneSize& size, bool with_counts);

  [[nodiscard]] int members() const { return members_; }
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] std::size_t carried_bytes() const { return carried_bytes_; }

  // Where in the ring an operation lies.
  [[nodiscard]] std::size_t position(std::uint64_t sequence) const {
    return sequence & (static_cast<std::uint64_t>(depth_) - 1);
  }
  [[nodiscard]] Slot& slot(int member, std::uint64_t sequence) const {
    return reinterpret_cast<Slot*>(base_)[position(sequence) * members_ + member];
  }
  [[nodiscard]] std::byte* carried(int member, std::uint64_t sequence) const {
    return base_ + carried_ + (position(sequence) * members_ + member) * carried_bytes_;
  }
  // The last operation whose carried inputs `member` has read and will not read again; only that
  // member writes.
  [[nodiscard]] std::atomic<std::uint64_t>& consumed(int member) const {
    return *reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + consumed_ + member * line_bytes);
  }
  [[nodiscard]] CursorWord& done(std::uint64_t sequence) const {
    return line(position(sequence) * (members_ + 1));
  }
  [[nodiscard]] CursorWord& cursor(int part, std::uint64_t sequence) const {
    return line(position(sequence) * (members_ + 1) + 1 + part);
  }
  // The counts that `member` passed for `other`, where its call is uneven: of its input, and
  // (second) of its output. What it sends to and expects from `other` in an all_to_all.
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

  [[nodiscard]] CursorWord& line(std::size_t index) const {
    return *reinterpret_cast<CursorWord*>(base_ + words_ + index * line_bytes);
  }
  [[nodiscard]] std::atomic<std::int64_t>* counts(int member, std::uint64_t sequence) const {
    return reinterpret_cast<std::atomic<std::int64_t>*>(base_ + counts_) +
           (position(sequence) * members_ + member) * 2 * members_;
  }

  std::byte* base_;
  int members_;
  int depth_;
  std::size_t carried_bytes_;
  std::size_t carried_;  // where each region begins
  std::size_t words_;
  std::size_t consumed_;
  std::size_t counts_;
};

class GroupBlock {
 public:
  static constexpr int collective_depth = 64;
  static constexpr int message_depth = 16;
  static_assert(std::has_single_bit(unsigned{collective_depth}) &&
                std::has_single_bit(unsigned{message_depth}));
  // A copy of so much costs less than a second hand-off.
  static constexpr std::size_t collective_carried_bytes = 1024;
  static constexpr std::size_t message_carried_bytes = 256;

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
