// The tensors of one measured operation on one rank, and its calls.
#pragma once

#include "apps/bench/collectives/kinds.h"

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace lockstep::apps {

// All tensors are fp32. An operation that works in place has one tensor of `bytes`. Otherwise, the
// larger of input and output has `bytes`, and the other one is a rank's part of that (for
// all_to_all, they are equally large). All ranks of the group make the same calls on this object,
// in the same order.
class MeasuredCalls {
 public:
  // `device`: that of the tensors, for Memory::device.
  MeasuredCalls(Group group, Collective op, std::int64_t bytes, Memory memory,
                c10::Device device = c10::kCPU);

  // Makes one call with the values of kinds.h and checks its result. If a value is wrong, throws
  // Error with its position on the rank that found it.
  void check_result();
  // Makes `uncounted` calls and then `calls` timed calls. Returns the nanoseconds of each timed
  // call on this rank, from the post until the outputs are complete.
  //
  // If the calls run on streams of the device (has_streams()), returns a single value: the mean of
  // the timed calls. The rank posts them one after the other, and waits once for all of them.
  [[nodiscard]] std::vector<std::int64_t> run(int uncounted, int calls);

  [[nodiscard]] Collective op() const { return op_; }
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  [[nodiscard]] Memory memory() const { return memory_; }

 private:
  [[nodiscard]] at::Tensor make(std::int64_t count);
  // Makes one call; on a device, later work of the current stream comes after it.
  void call();
  // Blocks until the current stream of the device has completed its work.
  void finish();
  // Returns true if call() does not block the host.
  [[nodiscard]] bool runs_on_streams() const;
  [[nodiscard]] std::int64_t measured_call();
  [[nodiscard]] std::int64_t mean_in_stream_order(int calls);
  // Restores values with which a reduction neither overflows soon nor meets denormal numbers.
  void refill();

  Group group_;
  Collective op_;
  std::int64_t bytes_;
  Memory memory_;
  c10::Device device_;
  at::Tensor input_, output_;  // the same tensor if the operation works in place
};

}  // namespace lockstep::apps
