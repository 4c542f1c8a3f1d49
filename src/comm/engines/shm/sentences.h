// The sentences of errors, made from posted descriptors.
#pragma once

#include "comm/engines/shm/group_block.h"

#include <lockstep/base/deadline.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace lockstep::shm {

// An operation that a rank has waited too long for.
struct Waited {
  const Peers& peers;
  LaneMemory memory;
  std::span<const int> ranks;  // the lane's members as numbers of the group
  std::uint64_t sequence;
  std::uint64_t lane_key;
};

// ranks 0-2 called all_reduce #5 (sum, 100 x float32, a.cc:3) where rank 3 called broadcast #5
// (root 0, ...). `other` below 0: some two whose counts in an all_to_all do not fit.
[[nodiscard]] std::string mismatch_sentence(const Peers& peers, const LaneMemory& memory,
                                            std::span<const int> ranks, std::uint64_t sequence,
                                            int one, int other);

// rank 3 never called all_reduce #417 (bucket 2, 12 MB, train.cc:88) that ranks 0-2 wait in; its
// last call was ... `is_executing(rank, word)`: whether that rank executes a segment of operation
// `word` (control.h) now.
[[nodiscard]] std::string overdue_sentence(
    const Waited& operation, const GroupBlock& block, Duration waited,
    const std::function<bool(int, std::uint64_t)>& is_executing);

// its last call was all_reduce #416 (...); ranks 0, 2 wait in all_reduce #417 (...)
[[nodiscard]] std::string lost_sentence(const LaneMemory& collectives, int member);

}  // namespace lockstep::shm
