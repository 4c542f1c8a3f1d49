// The values of a rank before a checked call and the expected values after it. Values differ by
// rank and by position, so that a part from another rank or at another position is detected. They
// are integers small enough that fp32 sums over 64 ranks are exact in any order.
#pragma once

#include <lockstep/comm/call.h>

#include <cstdint>
#include <optional>
#include <span>

namespace lockstep::apps {

// One checked call on one rank; rooted operations use root 0.
struct CheckedCall {
  Collective op = Collective::all_reduce;
  int rank = 0;
  int ranks = 1;
  std::int64_t whole = 0;  // elements of the larger of input and output; divisible by `ranks`

  [[nodiscard]] std::int64_t part() const { return whole / ranks; }
};

// Returns element `position` of the input of `rank`.
[[nodiscard]] float input_value(int rank, std::int64_t position);

// Returns the expected element `position` of the output. Undefined if has_output() is false.
[[nodiscard]] float output_value(const CheckedCall& call, std::int64_t position);

// Returns false for a barrier, and for ranks other than the root of a reduce or gather.
[[nodiscard]] bool has_output(const CheckedCall& call);

// Writes the input of this rank.
void fill_input(std::span<float> input, int rank);

// Returns the first position at which `output` differs from the expected value.
[[nodiscard]] std::optional<std::int64_t> first_wrong(const CheckedCall& call,
                                                      std::span<const float> output);

}  // namespace lockstep::apps
