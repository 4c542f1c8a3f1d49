// The first page of every arena: what peers may know about this process without asking it.
//
// Written only by its owner, except the doorbell, which anybody rings.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace lockstep::shm {

// Sleepers of one kind in one process; waiting.h says how it is used.
struct alignas(64) Doorbell {
  std::atomic<std::uint32_t> rings{0};
  std::atomic<std::uint32_t> sleepers{0};
};

struct alignas(64) Control {
  static constexpr std::size_t bytes = 4096;
  static constexpr std::size_t executing_slots = 30;

  Doorbell waiting;  // threads inside wait()
  Doorbell helper;   // the helper thread
  // Set once, when the process leaves in order: from then on it posts and executes nothing.
  alignas(64) std::atomic<std::uint32_t> has_left{0};
  // What its threads are executing now: words of execution_word(), 0 for nothing.
  alignas(64) std::array<std::atomic<std::uint64_t>, executing_slots> executing{};
};
static_assert(sizeof(Control) <= Control::bytes);

// Which operation of which channel: 20 bits of the channel's key, so that two channels may look
// alike, and the operation's number.
inline constexpr int execution_sequence_bits = 44;

[[nodiscard]] constexpr std::uint64_t execution_word(std::uint64_t channel_key,
                                                     std::uint64_t sequence) {
  return channel_key << execution_sequence_bits |
         (sequence & ((std::uint64_t{1} << execution_sequence_bits) - 1));
}
// Whether it is of that channel.
[[nodiscard]] constexpr bool is_of_channel(std::uint64_t word, std::uint64_t channel_key) {
  return word >> execution_sequence_bits ==
         execution_word(channel_key, 0) >> execution_sequence_bits;
}

}  // namespace lockstep::shm
