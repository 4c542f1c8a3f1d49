// What a rank holds before a checked call, and what it must hold afterwards. Values differ by rank
// and by position, so that a part of another rank, or one in another place, is seen; and they are
// whole numbers small enough that fp32 sums over 64 ranks are exact in any order.
#pragma once

#include <lockstep/comm/op.h>

#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::apps {

// One checked call on one rank, rooted operations with root 0.
struct CheckedCall {
  Collective op = Collective::all_reduce;
  int rank = 0;
  int ranks = 1;
  std::int64_t whole = 0;  // elements of the larger of input and output; `ranks` divides it

  [[nodiscard]] std::int64_t part() const { return whole / ranks; }
};

// Element `position` of the input of `rank`.
[[nodiscard]] float input_value(int rank, std::int64_t position);

// Element `position` of what the call leaves in its output. Meaningless where has_output() is
// false.
[[nodiscard]] float output_value(const CheckedCall& call, std::int64_t position);

// False for a barrier, and for other ranks than the root of a reduce or gather.
[[nodiscard]] bool has_output(const CheckedCall& call);

// Writes the input of this rank.
void fill_input(std::span<float> input, int rank);

// The first position at which `output` has another value than the call leaves there.
[[nodiscard]] std::optional<std::int64_t> first_wrong(const CheckedCall& call,
                                                      std::span<const float> output);

}  // namespace lockstep::apps
