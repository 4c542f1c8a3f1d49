// The dependencies of an action.
#pragma once

#include <lockstep/plan/schedule.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::plan {

[[nodiscard]] inline bool gives_input_gradient(Compute compute) {
  return compute == Compute::backward || compute == Compute::input;
}

// A result of an action that other actions depend on: the outputs of a forward, or the gradient of
// a stage's inputs, which a B or an I computes. Nothing depends on a W.
struct Result {
  bool is_gradient = false;
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const Result&) const = default;

  // Returns a number that is unique among the results of a schedule.
  [[nodiscard]] std::uint64_t key() const {
    return (static_cast<std::uint64_t>(stage) << 32 | static_cast<std::uint64_t>(micro_batch)) * 2 +
           (is_gradient ? 1 : 0);
  }
};

// Returns the result of an F, B or I. A W has no result.
[[nodiscard]] inline Result result_of(const Action& action) {
  return {gives_input_gradient(action.compute), action.stage, action.micro_batch};
}

// The results that an action depends on; at most two.
class Needs {
 public:
  Needs(const Action& action, int stages) {
    switch (action.compute) {
      case Compute::forward:
        if (action.stage > 0) add({false, action.stage - 1, action.micro_batch});
        break;
      case Compute::backward:
      case Compute::input:
        add({false, action.stage, action.micro_batch});
        if (action.stage + 1 < stages) add({true, action.stage + 1, action.micro_batch});
        break;
      case Compute::weight:
        add({true, action.stage, action.micro_batch});
        break;
    }
  }
  [[nodiscard]] const Result* begin() const { return needs_.data(); }
  [[nodiscard]] const Result* end() const { return needs_.data() + count_; }

 private:
  void add(Result result) { needs_[count_++] = result; }

  std::array<Result, 2> needs_;
  std::size_t count_ = 0;
};

}  // namespace lockstep::plan
