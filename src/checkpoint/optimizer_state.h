// The state of an optimizer as named tensors that a file can hold.
//
// The state of a parameter named `fc.weight` becomes `optimizer.fc.weight.<field>`, with the
// fields' names as in torch.optim: step (int64, no dims), exp_avg, exp_avg_sq and max_exp_avg_sq
// for Adam and AdamW; momentum_buffer for SGD; step, square_avg, momentum_buffer and grad_avg for
// RMSprop; step and sum for Adagrad. checkpoint.h saves and loads the state in parts; the functions
// here are for programs that have all of it in one process. 16-bit parameters that lockstep::optim
// updates also have a master_parameter, and states that it keeps in fewer bits are written as
// float32, without loss. Hyperparameters are not part of the state: they come from the run's
// options.
#pragma once

#include <lockstep/checkpoint/safetensors.h>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}
namespace lockstep {
class Handle;
}

namespace lockstep::checkpoint {

// The optimizer's parameters with the names of their states; each tensor once.
using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

// Returns "optimizer.fc.weight.exp_avg"; without `field`, the prefix of all fields of the
// parameter.
[[nodiscard]] std::string optimizer_key(const std::string& parameter,
                                        const std::string& field = "");

// Returns true for a number of steps that an optimizer can have made, which a double holds exactly.
[[nodiscard]] inline bool is_step_count(double step) {
  return step >= 0 && step <= 0x1p53 && step == std::floor(step);
}

// Calls take(field, value) for each entry of `map` (by name) that is a field of the parameter.
template <class Map, class Take>
void for_each_field(const Map& map, const std::string& parameter, Take take) {
  const std::string prefix = optimizer_key(parameter);
  for (auto item = map.lower_bound(prefix); item != map.end() && item->first.starts_with(prefix);
       ++item) {
    const std::string field = item->first.substr(prefix.size());
    const bool is_of_another = field.find('.') != std::string::npos;  // "fc" has a module "fc.sub"
    if (!is_of_another) take(field, item->second);
  }
}

// The tensors share memory with the optimizer's state if it is float32. A parameter that was never
// updated has no state. Throws InvalidArgument for an unsupported optimizer.
[[nodiscard]] NamedTensors optimizer_state(const torch::optim::Optimizer& optimizer,
                                           const NamedParameters& parameters);

// Replaces the optimizer's state with a result of optimizer_state(). Checks everything first:
// throws BadInput, which names the first tensor that is unknown, missing, or of another shape or
// dtype (a state has the dtype of its parameter, or float32). Nothing is changed in that case.
void load_optimizer_state(torch::optim::Optimizer& optimizer, const NamedParameters& parameters,
                          const NamedTensors& state);

// Not collective. Returns the bytes of this state for a handle's parameters on this rank.
[[nodiscard]] std::int64_t optimizer_state_bytes(const torch::optim::Optimizer& optimizer,
                                                 const Handle& handle);

// Converts an optimizer's state of one parameter to tensors by name, and back: the only code that
// knows LibTorch's state types. Not collective.

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
