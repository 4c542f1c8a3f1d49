// What a group keeps in shared memory: one block in the arena of its first member, fresh (zero)
// when the group begins. Zero is the valid beginning of everything in it, so no page is touched
// before it is used.
//
//   header | one left-flag a member | for each ordered pair of ranks where its channel for messages
//   lies | the collective channel
//
// A channel is a ring of `depth` operations among its members: a slot for each member
// (descriptor.h), room for the input that a small operation carries with it, the words by which
// segments are claimed and counted (cursor.h), how far each member has read what is carried, and
// where its uneven counts lie.
//
// What few groups need lies outside of the block, in a block of its own in the arena of the member
// that needs it first: the channel of a pair that exchanges messages, and the counts of a member
// that makes an uneven call. All who may use it hold it, until they have done with the group.
#pragma once

#include "comm/diagnose/failure.h"
#include "comm/engines/shm/cursor.h"
#include "comm/engines/shm/descriptor.h"
#include "comm/engines/shm/peers.h"
#include "sys/shared_text.h"

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep::shm {

// Why the group is dead. The first rank that finds an error writes it; all throw it.
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

struct ChannelSize {
  int members;
  int depth;                  // a power of two: a position in the ring costs no division
  std::size_t carried_bytes;  // the largest input that a slot carries; a multiple of 64
};

// The counts that one member passed with its uneven calls, for each operation of the ring. A view.
class CountsMemory {
 public:
  using Count = std::atomic<std::int64_t>;
  CountsMemory(std::byte* base, int members, int depth)
      : base_(reinterpret_cast<Count*>(base)), members_(members), depth_(depth) {}
  [[nodiscard]] static std::size_t bytes(int members, int depth) {
    return sizeof(Count) * 2 * static_cast<std::size_t>(members) * static_cast<std::size_t>(depth);
  }

  // For `other`: of its input, and (second) of its output. What it sends to and expects from
  // `other` in an all_to_all.
  [[nodiscard]] Count& sends(int other, std::uint64_t sequence) const {
    return of(sequence)[other];
  }
  [[nodiscard]] Count& expects(int other, std::uint64_t sequence) const {
    return of(sequence)[members_ + other];
  }

 private:
  [[nodiscard]] Count* of(std::uint64_t sequence) const {
    auto position = sequence & (static_cast<std::uint64_t>(depth_) - 1);
    return base_ + position * 2 * static_cast<std::uint64_t>(members_);
  }

  Count* base_;
  int members_;
  int depth_;
};

// The memory of one channel. A view: copies speak of the same memory.
class ChannelMemory {
 public:
  ChannelMemory(std::byte* base, ChannelSize size);
  [[nodiscard]] static std::size_t bytes(const ChannelSize& size);

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
  // Of a member that has posted an uneven call.
  [[nodiscard]] CountsMemory counts(const Peers& peers, int member) const;
  // Makes those of this rank, unless they are there. Throws BadInput when the arena is full.
  void make_counts(const Peers& peers, int me) const;
  // Where they lie; 0 while there are none.
  [[nodiscard]] std::atomic<std::uint64_t>& counts_word(int member) const {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(base_ + counts_)[member];
  }

 private:
  static constexpr std::size_t line_bytes = 64;

  [[nodiscard]] CursorWord& line(std::size_t index) const {
    return *reinterpret_cast<CursorWord*>(base_ + words_ + index * line_bytes);
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
  // A copy of so much costs less than a second hand-off. With more ranks each reads more, which one
  // of them could do for all.
  [[nodiscard]] static constexpr std::size_t collective_carried_bytes(int members) {
    return members <= 8 ? 4096 : 1024;
  }
  static constexpr std::size_t message_carried_bytes = 256;

  GroupBlock(std::byte* base, int members) : base_(base), members_(members) {}
  [[nodiscard]] static std::size_t bytes(int members);

  [[nodiscard]] SharedFailure& failure() const {
    return reinterpret_cast<GroupHeader*>(base_)->failure;
  }
  // What has become of a member: it posts until its handles are gone, and looks here until all that
  // it posted is complete. `by_exception` is added if an exception took the handles away.
  enum : std::uint32_t { present, posts_no_more, gone, by_exception = 4 };
  [[nodiscard]] std::atomic<std::uint32_t>& left(int member) const;
  [[nodiscard]] bool everyone_is_gone() const;
  [[nodiscard]] ChannelMemory collectives() const;
  // The channel of messages from one member to another; nothing when neither has used it yet.
  [[nodiscard]] std::optional<ChannelMemory> messages(const Peers& peers, int source,
                                                      int destination) const;
  // By one of the two. Throws BadInput when the arena is full.
  [[nodiscard]] ChannelMemory make_messages(const Peers& peers, int source, int destination) const;
  // That member will not use what lies outside of the block any more. Before it is `gone`.
  void release_hold(const Peers& peers, int member) const;

 private:
  // Where the channel lies; 0 while there is none.
  [[nodiscard]] std::atomic<std::uint64_t>& channel_word(int source, int destination) const;

  std::byte* base_;
  int members_;
};

}  // namespace lockstep::shm
