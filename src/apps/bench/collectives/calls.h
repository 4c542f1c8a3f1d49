// The tensors of one measured operation on one of our ranks, and the call on them.
#pragma once

#include "apps/bench/collectives/row.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::apps {

// fp32 everywhere. What is reduced or replaced in place is one tensor of `bytes`; else the larger
// of input and output has `bytes`, and the other one part of it (all_to_all: as much).
class MeasuredCalls {
 public:
  MeasuredCalls(Group group, Collective op, std::int64_t bytes, Memory memory);

  // One operation from the post to the end of its wait.
  void call();
  // Values with which a reduction neither overflows at once nor meets denormal numbers.
  void refill();
  // The same call once, on values whose result is known. Error when it is another. All ranks
  // together.
  void check_result();

  [[nodiscard]] bool is_for(Collective op, std::int64_t bytes) const {
    return op == op_ && bytes == bytes_;
  }
  [[nodiscard]] Memory memory() const { return memory_; }

 private:
  [[nodiscard]] at::Tensor make(std::int64_t count);
  [[nodiscard]] at::Tensor expected_output() const;

  Group group_;
  Collective op_;
  std::int64_t bytes_;
  Memory memory_;
  at::Tensor input_, output_;  // the same tensor where the operation is in place
};

}  // namespace lockstep::apps
