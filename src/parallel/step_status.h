// StepStatus: what ranks say of a step beside its gradients.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::parallel {

// On one rank 0 or 1; added up over the ranks, how many of them said so.
class StepStatus {
 public:
  StepStatus() = default;
  explicit StepStatus(std::size_t parameters) : numbers_(parameters + 2) {}

  // This backward() gave no gradient for parameter i.
  void say_missing(int i) { numbers_[static_cast<std::size_t>(i)] = 1; }
  // A parameter was written in forward() (write_watch.h).
  void say_written() { numbers_[numbers_.size() - 2] = 1; }
  // An exception ended it.
  void say_failed() { numbers_.back() = 1; }

  [[nodiscard]] int missing(int i) const { return numbers_[static_cast<std::size_t>(i)]; }
  [[nodiscard]] int written() const { return numbers_[numbers_.size() - 2]; }
  [[nodiscard]] int failed() const { return numbers_.back(); }

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(numbers_.size()); }
  // All of it, int32, one dimension: the memory of this object.
  [[nodiscard]] at::Tensor tensor() {
    return at::from_blob(numbers_.data(), {size()}, at::TensorOptions(at::kInt));
  }

 private:
  std::vector<std::int32_t> numbers_;
};

}  // namespace lockstep::parallel
