// The identity of a call in its group: the group gives it, and engines, histories and failure
// reports know the call by it.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>

#pragma GCC visibility push(default)

namespace lockstep {

// Calls that are numbered together: the collectives of a group, or the messages from one rank to
// another.
struct ChannelKey {
  int source = -1;  // both -1: the collectives
  int destination = -1;

  [[nodiscard]] constexpr bool is_collective() const { return source < 0; }
  // Among the channels of `rank`: 0 the collectives, then for each peer the messages to it and
  // those from it.
  [[nodiscard]] constexpr std::size_t index_at(int rank) const {
    if (is_collective()) return 0;
    return source == rank ? 1 + 2 * static_cast<std::size_t>(destination)
                          : 2 + 2 * static_cast<std::size_t>(source);
  }
  friend auto operator<=>(const ChannelKey&, const ChannelKey&) = default;
};

struct CallId {
  ChannelKey channel;
  std::uint64_t number = 0;  // in its channel, from 1

  friend auto operator<=>(const CallId&, const CallId&) = default;
};

}  // namespace lockstep

#pragma GCC visibility pop
