// WriteWatch: do the ranks of data parallelism still have the same parameters?
//
// They do as long as all ranks write the same values. An operation of forward() that writes a
// parameter by what its batch says, as an embedding with max_norm does, lets the ranks drift apart.
// At the end of a reduced backward() these are compared:
//
//   parameters that a rank has written since the handle's zero_grad()
//   all parameters, in steps whose number is a power of two: forward() may have come before
//   zero_grad(), or the program may have called the optimizer's
//
// A write by hand, the same on all ranks, is no difference.
//
// Not thread-safe: BackwardStep holds its mutex.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/module/named_parameters.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace lockstep::parallel {

// Of all bits and their places: equal for equal values, on any machine.
[[nodiscard]] std::int64_t fingerprint_of_bits(const at::Tensor& values);

class WriteWatch {
 public:
  // Parameters that every rank has, in the same order. `call`: the strategy's tag and deadline.
  WriteWatch(std::vector<NamedParameter> parameters, CallOptions call)
      : parameters_(std::move(parameters)), call_(std::move(call)) {
    begin();
  }

  // Of zero_grad(): what is written from now on is written by forward() or backward().
  void begin();
  // Local. Whether a parameter has been written since begin(); false after end().
  [[nodiscard]] bool has_written() const;
  // The end of a reduced backward(): an optimizer may write now.
  void end() { versions_.clear(); }

  // Collective, once a step. `some_wrote`: has_written() of some rank. Mismatch, on all ranks,
  // names the first parameter that has other values on a rank than on rank 0, beyond rounding.
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
