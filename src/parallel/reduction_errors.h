// What goes wrong with gradients in the same way under DDP and sharding: its words stand once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::parallel {

[[noreturn]] void throw_sparse_gradient(const std::string& parameter, std::string_view strategy);
[[noreturn]] void throw_second_gradient(const std::string& parameter);
// `ranks`: FailureNotice::finish().
[[noreturn]] void throw_failed_backward(int failed_ranks, int group_size, const std::string& ranks);
// `parameters`: MissingGradients::text().
[[noreturn]] void throw_missing_gradients(const std::string& parameters, std::string_view strategy);

// With static_graph. `what`: "has a gradient, and had none".
[[noreturn]] void throw_changed_graph(const std::string& parameter, std::string_view what);
// A communication hook gave `found` for a bucket where a tensor like `expected` must be.
[[noreturn]] void throw_hook_result(const std::string& hook, const std::string& bucket,
                                    const at::Tensor& expected, const at::Tensor& found);

// Parameters without a gradient, for a message: the first few by name, the others counted.
class MissingGradients {
 public:
  explicit MissingGradients(int group_size) : group_size_(group_size) {}

  // On so many ranks; nothing is missing when that is 0. `here`: on this one too.
  void add(const std::string& parameter, int ranks, bool here);
  // "fc.weight (on 1 of 3 ranks, this one too) and 2 more"; empty when nothing is missing.
  [[nodiscard]] std::string text() const;

 private:
  int group_size_;
  std::size_t missing_ = 0;
  std::vector<std::string> named_;
};

}  // namespace lockstep::parallel
