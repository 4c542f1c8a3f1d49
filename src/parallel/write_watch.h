// WriteWatch: checks that the ranks of data parallelism still have the same parameters.
//
// Parameters stay equal as long as all ranks write the same values. If an operation of forward()
// writes a parameter depending on the batch, as an embedding with max_norm does, the ranks diverge.
// At the end of a reduced backward(), these are compared:
//
//   parameters that a rank has written since the handle's zero_grad()
//   all parameters, in steps whose number is a power of two: the program may call forward() before
//   zero_grad(), or call the optimizer's zero_grad() instead of the handle's
//
// A manual write that is the same on all ranks is not a difference.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// Returns a fingerprint of all bits and their positions: equal for equal values, on any host.
[[nodiscard]] std::int64_t fingerprint_of_bits(const at::Tensor& values);

// A Mismatch of values that all ranks of the handle have compared. All of them throw it, so the
// groups of the handle stay alive.
class ComparedMismatch : public Mismatch {
  using Mismatch::Mismatch;
};

class WriteWatch {
 public:
  // Pass parameters that every rank has, in the same order. `call`: the strategy's tag and timeout.
  WriteWatch(std::vector<NamedParameter> parameters, CallOptions call)
      : parameters_(std::move(parameters)), call_(std::move(call)) {
    begin();
  }

  // Call in zero_grad(): later writes are attributed to forward() or backward().
  void begin();
  // Not collective. Returns true if a parameter has been written since begin(); false after end().
  [[nodiscard]] bool has_written() const;
  // Call at the end of a reduced backward(): an optimizer may write now.
  void end() { versions_.clear(); }

  // Collective; call once per step. `some_wrote`: has_written() of some rank. Throws Mismatch on
  // all ranks, which names the first parameter whose values on a rank differ from rank 0's by more
  // than rounding.
  void compare(Group& group, bool some_wrote);

 private:
  [[nodiscard]] std::vector<std::size_t> written_on_some_rank(Group& group) const;
  void compare_values(Group& group, std::size_t parameter) const;

  std::vector<NamedParameter> parameters_;
  CallOptions call_;
  std::vector<std::int64_t> versions_;  // by parameter, at begin(); empty after end()
  std::uint64_t steps_ = 0;
};

}  // namespace lockstep::parallel
