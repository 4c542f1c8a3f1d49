// What an action waits for.
#pragma once

#include <lockstep/plan/schedule.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::plan {

[[nodiscard]] inline bool gives_input_gradient(Compute compute) {
  return compute == Compute::backward || compute == Compute::input;
}

// Something that an action makes and others wait for: outputs of a forward, or the gradient of a
// stage's inputs, whichever of B and I makes it. A W makes nothing that anything waits for.
struct Result {
  bool is_gradient = false;
  int stage = 0;
  int micro_batch = 0;
  bool operator==(const Result&) const = default;

  // Different for different results of one schedule.
  [[nodiscard]] std::uint64_t key() const {
    return (static_cast<std::uint64_t>(stage) << 32 | static_cast<std::uint64_t>(micro_batch)) * 2 +
           (is_gradient ? 1 : 0);
  }
};

// What an action makes. A W makes nothing.
[[nodiscard]] inline Result result_of(const Action& action) {
  return {gives_input_gradient(action.compute), action.stage, action.micro_batch};
}

// At most two.
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
