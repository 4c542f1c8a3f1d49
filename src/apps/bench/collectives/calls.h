// The tensors of one measured operation on one rank, and the calls on them.
#pragma once

#include "apps/bench/collectives/kinds.h"
#include "apps/bench/collectives/values.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace lockstep::apps {

// fp32 everywhere. What is reduced or replaced in place is one tensor of `bytes`; else the larger
// of input and output has `bytes`, and the other one part of it (all_to_all: as much). All ranks of
// the group make the same calls on it, in the same order.
class MeasuredCalls {
 public:
  MeasuredCalls(Group group, Collective op, std::int64_t bytes, Memory memory);

  // Makes the call once, on values.h's, and compares what it leaves. Throws Error on the rank that
  // found another value, with its position.
  void check_result();
  // Nanoseconds of each of `calls` calls on this rank, from the post to the end of the wait, after
  // `uncounted` more.
  [[nodiscard]] std::vector<std::int64_t> run(int uncounted, int calls);

  [[nodiscard]] Collective op() const { return op_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] Memory memory() const { return memory_; }

 private:
  [[nodiscard]] at::Tensor make(std::int64_t count);
  void call();
  [[nodiscard]] std::int64_t measured_call();
  // Values with which a reduction neither overflows at once nor meets denormal numbers.
  void refill();

  Group group_;
  Collective op_;
  std::int64_t bytes_;
  Memory memory_;
  at::Tensor input_, output_;  // the same tensor where the operation is in place
};

}  // namespace lockstep::apps
