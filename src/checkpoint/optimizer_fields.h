// Converts an optimizer's state of one parameter to tensors by name, and back: the only code that
// knows LibTorch's state types. Not collective.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>

namespace lockstep::checkpoint {

// `step` has int64 and no dims; the other fields have as many elements as the parameter.
using StateFields = std::map<std::string, at::Tensor>;

// The options of the group of each of an optimizer's parameters, by TensorImpl.
class GroupOptions {
 public:
  // Throws InvalidArgument, which names the optimizer, if it is unknown or not element-wise.
  explicit GroupOptions(const torch::optim::Optimizer& optimizer);

  // Returns null if the optimizer does not have the parameter.
  [[nodiscard]] const torch::optim::OptimizerOptions* find(const at::Tensor& parameter) const;
  [[nodiscard]] std::size_t size() const { return options_.size(); }

 private:
  std::unordered_map<const void*, const torch::optim::OptimizerOptions*> options_;
};

// For lockstep::optim's optimizers, returns the plain form: float32, or the parameter's dtype. For
// LibTorch's, returns the state as it is: they continue with their 16-bit state. Shares memory with
// the state if it has this form already.
[[nodiscard]] StateFields fields_of(const torch::optim::Optimizer& optimizer,
                                    const torch::optim::OptimizerParamState& state);

// A field's description in the checkpoint, before its values are read.
struct FieldShape {
  at::ScalarType dtype{};
  at::IntArrayRef sizes;
};

// Throws BadInput, which names the first field of the parameter that is missing, invalid under
// these options, or of another shape or dtype. A parameter without fields was never updated; this
// is an error if its optimizer has a state from the beginning. `sizes`: of the whole parameter.
void check_fields(const std::string& parameter, const at::Tensor& tensor, at::IntArrayRef sizes,
                  const std::map<std::string, FieldShape>& fields,
                  const torch::optim::OptimizerOptions& options);
// Checks the value of `step`; throws BadInput if it is negative.
void check_step(const std::string& parameter, const at::Tensor& step);

// Makes a state that takes the tensors, which must have passed check_fields().
[[nodiscard]] std::unique_ptr<torch::optim::OptimizerParamState> make_state(
    const torch::optim::OptimizerOptions& options, StateFields fields);

}  // namespace lockstep::checkpoint
