// What an optimizer keeps of one parameter, as tensors by name, and back: the one place that knows
// LibTorch's types of states. Local.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

namespace lockstep::checkpoint {

// `step` has int64 and no dims; the others have as many elements as the parameter.
using StateFields = std::map<std::string, at::Tensor>;

// The options of the group that each of an optimizer's parameters is in, by TensorImpl.
class GroupOptions {
 public:
  // InvalidArgument names an optimizer that does not treat elements apart, or that is not known.
  explicit GroupOptions(const torch::optim::Optimizer& optimizer);

  // Null when the optimizer does not have the parameter.
  [[nodiscard]] const torch::optim::OptimizerOptions* find(const at::Tensor& parameter) const;
  [[nodiscard]] std::size_t size() const { return options_.size(); }

 private:
  std::unordered_map<const void*, const torch::optim::OptimizerOptions*> options_;
};

// Of lockstep::optim's optimizers in the plain form: float32, or the parameter's dtype. Of
// LibTorch's as they are: what these keep in 16 bits they go on with. Shares memory with the state
// where that has this form already.
[[nodiscard]] StateFields fields_of(const torch::optim::Optimizer& optimizer,
                                    const torch::optim::OptimizerParamState& state);

// What the checkpoint says of a field, before its values are read.
struct FieldShape {
  at::ScalarType dtype{};
  at::IntArrayRef sizes;
};

// BadInput names the first of a parameter's fields that is missing, not kept under these options,
// or of another shape or dtype. A parameter without any is one that was never updated, unless its
// optimizer has a state from the beginning. `sizes`: of the whole parameter.
void check_fields(const std::string& parameter, const at::Tensor& tensor, at::IntArrayRef sizes,
                  const std::map<std::string, FieldShape>& fields,
                  const torch::optim::OptimizerOptions& options);
// The value of `step`; BadInput when it is negative.
void check_step(const std::string& parameter, const at::Tensor& step);

// The state takes the tensors. What check_fields() has found good.
[[nodiscard]] std::unique_ptr<torch::optim::OptimizerParamState> make_state(
    const torch::optim::OptimizerOptions& options, StateFields fields);

}  // namespace lockstep::checkpoint
