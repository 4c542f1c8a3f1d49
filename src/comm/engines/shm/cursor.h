// Cursor words: how segments are claimed and counted without ever being initialised.
//
// A word holds the number of an operation and a count: (sequence << 16) | count. Invariants:
//   - A word only grows. Sequence 0 is no operation, so fresh memory is a valid word.
//   - A word whose sequence is older than an operation's counts as zero for that operation: slots
//     of the ring are reused without a reset, and the first thread to come writes the new sequence
//     with its claim.
//   - An operation is complete when all of its segments are done, and a slot is reused only after
//     that. A segment that exists and is not claimed keeps its operation incomplete. So a claim
//     that succeeds proves that the operation is still under way, and a claimer that slept through
//     a reuse of the slot finds a later sequence and gets nothing.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace lockstep::shm {

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

// Claims the next of `segments` segments of operation `sequence`; nothing when all are claimed.
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

// Counts one more segment as done and returns how many are.
inline std::int64_t count_done(CursorWord& word, std::uint64_t sequence) {
  std::uint64_t seen = word.load(std::memory_order_relaxed);
  for (;;) {
    Cursor now = Cursor::of(seen);
    std::uint64_t next = (now.sequence == sequence ? now.count : 0) + 1;
    // seq_cst: a doorbell check follows (waiting.h).
    if (word.compare_exchange_weak(seen, Cursor{sequence, next}.word(),
                                   std::memory_order_seq_cst)) {
      return static_cast<std::int64_t>(next);
    }
  }
}

// True when all segments are done, or the slot already serves a later operation.
[[nodiscard]] inline bool all_done(const CursorWord& word, std::uint64_t sequence,
                                   std::int64_t segments) {
  Cursor now = Cursor::of(word.load(std::memory_order_seq_cst));
  return now.sequence > sequence ||
         (now.sequence == sequence && now.count >= static_cast<std::uint64_t>(segments));
}

}  // namespace lockstep::shm
