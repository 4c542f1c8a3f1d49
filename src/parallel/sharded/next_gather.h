// NextGather: what ranks gather next in a backward() whose gathers come in no known order. Each
// rank says it before it gathers and when backward() has ended, so that a rank whose backward() has
// ended with an exception can take part in the gathers of the others.
#pragma once

#include <lockstep/comm/group.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>

namespace lockstep::sharded {

class NextGather {
 public:
  static constexpr int end = -1;  // in place of a unit: no gather, backward() has ended

  struct Answer {
    int unit = end;       // what the ranks without an exception say; `end` where there are none
    bool agreed = true;   // all of them say the same
    bool failed = false;  // a rank has had an exception
  };

  // Collective, does not block. `own`: what this rank says, which is nothing after an exception.
  // `device`: where the group's engine takes tensors.
  NextGather(Group& group, std::optional<int> own, c10::Device device,
             std::optional<Duration> timeout);

  [[nodiscard]] bool done() const { return work_.done(); }
  // Blocks until all ranks have said it.
  [[nodiscard]] Answer answer();

 private:
  at::Tensor said_;
  Work work_;
};

}  // namespace lockstep::sharded
