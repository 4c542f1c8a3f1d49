// The ring of a channel in shared memory: `depth` operations among its members. It contains, for
// each operation, a slot per member, room for the inline inputs of a small operation, and the words
// by which segments are claimed and counted; and, for each member, how far it has read inline
// inputs, and the location of its uneven counts. Zero is the valid initial state of all fields.
#pragma once

#include "base/fingerprint.h"
#include "comm/call/record.h"

#include "comm/backends/shm/peers.h"
#include "comm/backends/shm/plan.h"
#include "sys/shared_memory.h"

#include <lockstep/comm/call.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lockstep::shm {

// Cursor words: how segments are claimed and counted without ever being initialised.
//
// A word holds the number of an operation and a count: (sequence << 16) | count. Invariants:
//   - A word only grows. Sequence 0 is no operation, so fresh memory is a valid word.
//   - A word whose sequence is older than an operation's counts as zero for that operation: slots
//     of the ring are reused without a reset, and the first thread to come writes the new sequence
//     with its claim.
//   - An operation is complete when all of its segments are done, and a slot is reused only after
//     that. An unclaimed segment keeps its operation incomplete. So a claim that succeeds proves
//     that the operation is still under way. If the slot was reused while a claimer slept, the
//     claimer finds a later sequence and gets nothing.
using CursorWord = std::atomic<std::uint64_t>;

inline constexpr int cursor_count_bits = 16;

struct Cursor {
  std::uint64_t sequence = 0;
  std::uint64_t count = 0;
  [[nodiscard]] static Cursor of(std::uint64_t word) {
    return {word >> cursor_count_bits, word & ((1U << cursor_count_bits) - 1)};
  }
  [[nodiscard]] std::uint64_t word() const { return (sequence << cursor_count_bits) | count; }
};

// Claims the next of `segments` segments of operation `sequence`; std::nullopt if all are claimed.
[[nodiscard]] inline std::optional<std::int64_t> claim(CursorWord& word, std::uint64_t sequence,
                                                       std::int64_t segments) {
  std::uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    Cursor now = Cursor::of(seen);
    if (now.sequence > sequence) return std::nullopt;
    std::uint64_t next = now.sequence == sequence ? now.count : 0;
    if (next >= static_cast<std::uint64_t>(segments)) return std::nullopt;
    if (word.compare_exchange_weak(seen, Cursor{sequence, next + 1}.word(),
                                   std::memory_order_acq_rel)) {
      return static_cast<std::int64_t>(next);
    }
  }
}

// Counts one more segment as done and returns the number of done segments.
inline std::int64_t count_done(CursorWord& word, std::uint64_t sequence) {
  std::uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    Cursor now = Cursor::of(seen);
    std::uint64_t next = (now.sequence == sequence ? now.count : 0) + 1;
    // seq_cst: a doorbell check follows (peers.h).
    if (word.compare_exchange_weak(seen, Cursor{sequence, next}.word(),
                                   std::memory_order_seq_cst)) {
      return static_cast<std::int64_t>(next);
    }
  }
}

// Returns true if all segments are done, or the slot already serves a later operation.
[[nodiscard]] inline bool all_done(const CursorWord& word, std::uint64_t sequence,
                                   std::int64_t segments) {
  Cursor now = Cursor::of(word.load(std::memory_order_seq_cst));
  return now.sequence > sequence ||
         (now.sequence == sequence && now.count >= static_cast<std::uint64_t>(segments));
}

// Descriptor: one call in shared memory, as a rank posts it and other ranks read it.
//
// Invariants of a slot (one per member and ring position; only that member writes):
//   - If stamp = sequence * 2, the fields belong to operation `sequence` and do not change until it
//     is complete.
//   - If stamp = sequence * 2 + 1, the fields are being written for `sequence`, and the previous
//     operation in the slot is complete. So a reader may trust its copy if it saw the same even
//     stamp before and after copying (a seqlock; fields are atomics, so a torn copy is discarded
//     and not undefined).
//   - Stamps only grow.
// The properties of a call that must be equal on all ranks, packed into three words for comparison.
struct Fingerprint {
  std::uint64_t call = 0;   // collective, op, dtype, root, is even
  std::uint64_t count = 0;  // count_of() the call
  std::uint64_t names = 0;  // hash of the tag and of uneven counts; most calls have neither

  // send and recv are the two ends of one call. Arguments that a collective does not use are
  // ignored. `uneven_counts`: the counts that must be equal on all ranks.
  [[nodiscard]] static Fingerprint of(const CallInfo& call, std::int64_t count,
                                      std::span<const std::int64_t> uneven_counts = {});
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// Returns true for operations in which each rank has an equal part of the tensor whose size is
// equal on all ranks.
[[nodiscard]] constexpr bool has_equal_parts(Collective collective, bool is_uneven) {
  return !is_uneven &&
         (collective == Collective::all_gather || collective == Collective::reduce_scatter ||
          collective == Collective::all_to_all);
}
// Returns the number of elements of a call as in Shape::count: if parts are equal, the elements of
// one rank's part; 0 for an uneven all_to_all, in which each rank has its own counts.
[[nodiscard]] inline std::int64_t count_of(const CallInfo& call, int members) {
  if (has_equal_parts(call.collective, call.is_uneven())) return call.elements / members;
  return call.is_uneven() && call.collective == Collective::all_to_all ? 0 : call.elements;
}

inline Fingerprint Fingerprint::of(const CallInfo& call, std::int64_t count,
                                   std::span<const std::int64_t> uneven_counts) {
  auto kind = call.collective == Collective::recv ? Collective::send : call.collective;
  std::uint64_t word =
      static_cast<std::uint64_t>(kind) | static_cast<std::uint64_t>(call.is_uneven()) << 8;
  if (combines(kind)) word |= static_cast<std::uint64_t>(call.op) << 16;
  if (call.dtype) word |= static_cast<std::uint64_t>(*call.dtype) << 24;
  if (has_root(kind))
    word |= static_cast<std::uint64_t>(static_cast<std::uint32_t>(call.root)) << 32;
  std::uint64_t names = call.tag.empty() ? 0 : fingerprint(call.tag);
  if (!uneven_counts.empty()) names = combine_fingerprints(names, fingerprint_of(uneven_counts));
  return {word, static_cast<std::uint64_t>(count), names};
}

// One cache line that the hand-off reads; the rest is only used for messages.
struct alignas(64) Slot {
  std::atomic<std::uint64_t> stamp{0};
  std::atomic<std::uint64_t> call{0};
  std::atomic<std::uint64_t> count{0};
  std::atomic<std::uint64_t> names{0};
  std::atomic<std::uint64_t> input{0};
  std::atomic<std::uint64_t> output{0};
  std::atomic<std::uint64_t> line{0};  // of the call site; higher bits: the collective
  alignas(64) sys::SharedText<12> tag;
  sys::SharedText<4> file;
};
static_assert(sizeof(Slot) == 192);

// The fields of a slot that the hand-off reads.
struct Descriptor {
  Fingerprint print;
  RemoteAddress input;
  RemoteAddress output;
};

// Marks the slot as being written for `sequence`. Call it before changing data that belongs to the
// slot but lies outside of it. write() calls it too.
void begin_write(Slot& slot, std::uint64_t sequence);
// `file_in_slot`: the file name that the slot contains; the owner keeps this pointer between calls.
void write(Slot& slot, std::uint64_t sequence, const Descriptor& descriptor, const CallInfo& call,
           const char*& file_in_slot);

enum class Posted { not_yet, yes, complete };  // complete: the slot contains a later operation
// `descriptor` is set only if the result is `yes`.
[[nodiscard]] inline Posted read(const Slot& slot, std::uint64_t sequence, Descriptor& descriptor) {
  constexpr auto relaxed = std::memory_order_relaxed;
  std::uint64_t stamp = slot.stamp.load(std::memory_order_seq_cst);
  if (stamp < sequence * 2 || stamp == sequence * 2 + 1) return Posted::not_yet;
  if (stamp > sequence * 2) return Posted::complete;
  descriptor.print = {slot.call.load(relaxed), slot.count.load(relaxed), slot.names.load(relaxed)};
  descriptor.input = RemoteAddress::of(slot.input.load(relaxed));
  descriptor.output = RemoteAddress::of(slot.output.load(relaxed));
  std::atomic_thread_fence(std::memory_order_acquire);
  return slot.stamp.load(std::memory_order_acquire) == stamp ? Posted::yes : Posted::complete;
}
// Returns true if `sequence` has been posted; costs one load.
[[nodiscard]] inline bool has_posted(const Slot& slot, std::uint64_t sequence) {
  std::uint64_t stamp = slot.stamp.load(std::memory_order_seq_cst);
  return stamp >= sequence * 2 && stamp != sequence * 2 + 1;
}
// Returns the number of the operation in the slot; 0 if the slot was never used.
[[nodiscard]] inline std::uint64_t sequence_in(const Slot& slot) {
  return slot.stamp.load(std::memory_order_acquire) / 2;
}

inline constexpr std::uint64_t line_bits = 32;

inline std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

inline void begin_write(Slot& slot, std::uint64_t sequence) {
  // Release: a thread that sees this stamp also sees the results of the previous operation.
  slot.stamp.store(sequence * 2 + 1, std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_release);
}

inline void write(Slot& slot, std::uint64_t sequence, const Descriptor& descriptor,
                  const CallInfo& call, const char*& file_in_slot) {
  constexpr auto relaxed = std::memory_order_relaxed;
  begin_write(slot, sequence);
  slot.call.store(descriptor.print.call, relaxed);
  slot.count.store(descriptor.print.count, relaxed);
  slot.names.store(descriptor.print.names, relaxed);
  slot.input.store(descriptor.input.word(), relaxed);
  slot.output.store(descriptor.output.word(), relaxed);
  slot.line.store(static_cast<std::uint64_t>(call.collective) << line_bits | call.where.line(),
                  relaxed);
  slot.tag.store(call.tag);
  if (file_in_slot != call.where.file_name()) {
    file_in_slot = call.where.file_name();
    slot.file.store(file_name(file_in_slot));
  }
  // seq_cst: the poster reads the other stamps next. If two ranks post at once, at least one of
  // them must see both stamps.
  slot.stamp.store(sequence * 2, std::memory_order_seq_cst);
}

// Returns the call in the slot, without its number and uneven counts. The slot must not change
// meanwhile. `elements` is the result of count_of(), and a message has no root.
[[nodiscard]] inline CallRecord record_in(const Slot& slot) {
  constexpr auto relaxed = std::memory_order_relaxed;
  const auto word = slot.call.load(relaxed);
  const auto line = slot.line.load(relaxed);
  const auto collective = static_cast<Collective>(line >> line_bits);
  CallRecord call{.collective = collective,
                  .op = static_cast<Op>(word >> 16 & 0xff),
                  .elements = static_cast<std::int64_t>(slot.count.load(relaxed)),
                  .tag = slot.tag.load(),
                  .file = slot.file.load(),
                  .line = static_cast<std::uint32_t>(line)};
  if (collective != Collective::barrier) call.dtype = static_cast<DType>(word >> 24 & 0xff);
  if (has_root(collective)) call.root = static_cast<int>(word >> 32);
  return call;
}
[[nodiscard]] inline bool is_uneven_in(const Slot& slot) {
  return (slot.call.load(std::memory_order_relaxed) >> 8 & 1) != 0;
}

struct ChannelSize {
  int members;
  int depth;                 // a power of two, to avoid divisions
  std::size_t inline_bytes;  // the largest inline input; a multiple of 64
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

  // The counts of a call for rank `other`, in the input (sends) and the output (expects). In an
  // all_to_all, this member sends `sends` elements to `other` and expects `expects` elements from
  // it.
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

// The memory of one channel. A view: copies refer to the same memory.
class ChannelMemory {
 public:
  ChannelMemory(std::byte* base, ChannelSize size);
  [[nodiscard]] static std::size_t bytes(const ChannelSize& size);

  [[nodiscard]] int members() const { return members_; }
  [[nodiscard]] int depth() const { return depth_; }
  [[nodiscard]] std::size_t inline_bytes() const { return inline_bytes_; }

  // Returns the position of an operation in the ring.
  [[nodiscard]] std::size_t position(std::uint64_t sequence) const {
    return sequence & (static_cast<std::uint64_t>(depth_) - 1);
  }
  [[nodiscard]] Slot& slot(int member, std::uint64_t sequence) const {
    return reinterpret_cast<Slot*>(base_)[position(sequence) * members_ + member];
  }
  [[nodiscard]] std::byte* inline_input(int member, std::uint64_t sequence) const {
    return base_ + inline_inputs_ + (position(sequence) * members_ + member) * inline_bytes_;
  }
  // The last operation whose inline inputs `member` has read and will not read again; only that
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
  // Returns the counts of `member`, which must have posted an uneven call.
  [[nodiscard]] CountsMemory counts(const PeerMappings& peers, int member) const;
  // Makes the counts of this rank if they do not exist. Throws BadInput if the arena is full.
  void make_counts(const PeerMappings& peers, int me) const;
  // The location of the counts of `member`; 0 if they do not exist.
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
  std::size_t inline_bytes_;
  std::size_t inline_inputs_;  // the begin of each region
  std::size_t words_;
  std::size_t consumed_;
  std::size_t counts_;
};

inline std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

inline ChannelMemory::ChannelMemory(std::byte* base, ChannelSize size)
    : base_(base),
      members_(size.members),
      depth_(size.depth),
      inline_bytes_(size.inline_bytes),
      inline_inputs_(sizeof(Slot) * members_ * depth_),
      words_(inline_inputs_ + inline_bytes_ * members_ * depth_),
      consumed_(words_ + line_bytes * (members_ + 1) * depth_),
      counts_(consumed_ + line_bytes * members_) {}

inline std::size_t ChannelMemory::bytes(const ChannelSize& size) {
  return round_up(ChannelMemory(nullptr, size).counts_ +
                  sizeof(std::atomic<std::uint64_t>) * size.members);
}

inline CountsMemory ChannelMemory::counts(const PeerMappings& peers, int member) const {
  auto word = counts_word(member).load(std::memory_order_acquire);
  return {peers.address(RemoteAddress::of(word)), members_, depth_};
}

inline void ChannelMemory::make_counts(const PeerMappings& peers, int me) const {
  if (counts_word(me).load(std::memory_order_relaxed) != 0) return;
  auto bytes = CountsMemory::bytes(members_, depth_);
  auto* block = peers.arena()->allocate_held(bytes, members_);
  counts_word(me).store(peers.locate(block, bytes).word(), std::memory_order_release);
}

}  // namespace lockstep::shm
