// A parameter in one step(), the same for all optimizers: what is updated, by what gradient, and
// what is remembered of it.
#pragma once

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "optim/formats_kernel.h"

#include <lockstep/optim/update_options.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/flat_hash_map.h>
#include <torch/optim/optimizer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace lockstep::optim {

// The change of each element of a gradient before an update uses it:
// g becomes clamp(g * factor, -limit, limit). Scaling and clamping in any order end in this form.
struct ElementTransform {
  double factor = 1;
  double limit = std::numeric_limits<double>::infinity();

  [[nodiscard]] bool is_none() const;
  void scale(double by);
  void clamp(double to);
};

// One tensor of a parameter's state, in place. `values` null: the entry is not in use.
struct StateTensor {
  at::Tensor* values = nullptr;
  at::Tensor* scales =
      nullptr;  // null: always float32 (or the parameter's dtype outside the kernel)
  Codes codes = Codes::with_sign;
};

struct UpdateEntry {
  at::Tensor parameter;  // the user's
  at::Tensor local;      // what this rank has of a global parameter; any other itself
  at::Tensor dense;      // the same without holes in its memory; else a copy to be copied back
  at::Tensor gradient;   // laid out as `dense`
  // Of the gradient's values; null: its memory.
  std::shared_ptr<const dispatch::ValueSource> source;
  at::Tensor* master = nullptr;
  std::array<StateTensor, 3> state;
  std::int64_t age = 0;    // the number of this update of it, from 1
  bool first = false;      // nothing was kept of it before
  std::int64_t place = 0;  // elements of the group before it
  std::size_t number = 0;  // in the group

  [[nodiscard]] bool has_16_bits() const;
  // Whether our kernels update it; LibTorch's do otherwise.
  [[nodiscard]] bool is_for_kernel() const;
};

// What all entries of a group share.
struct GroupStep {
  UpdateOptions update;
  ElementTransform transform;
  std::int64_t group = 0;
  const char* optimizer = "";           // for messages
  std::int64_t* bytes_moved = nullptr;  // counts up; null: nobody asks
};

// The parameters of a group that have a gradient, with dense memory. InvalidArgument, before
// anything is changed, for a gradient or dtype or state format that cannot be.
[[nodiscard]] std::vector<UpdateEntry> make_entries(const std::vector<at::Tensor>& parameters,
                                                    const GroupStep& step);

// After the update: stand-ins go back into parameters with holes in their memory, and every
// parameter's version counts up.
void copy_back(std::vector<UpdateEntry>& entries);

// The tensor itself where it already has the strides, dtype and device of `like`.
[[nodiscard]] at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& like,
                                     at::ScalarType dtype);

// As LibTorch's fused kernels want a entry.

// What is updated: the parameter itself, or its master.
[[nodiscard]] at::Tensor updated_tensor(const UpdateEntry& entry);
// The transformed gradient in its dtype. Maximizing is left to the kernel.
[[nodiscard]] at::Tensor transformed_gradient(const UpdateEntry& entry,
                                              const ElementTransform& transform);
// Rounds a master into its parameter.
void publish_master(const UpdateEntry& entry);

// What all optimizers do alike around their updates.

// Undefined without a closure.
[[nodiscard]] inline at::Tensor loss_of(const torch::optim::Optimizer::LossClosure& closure) {
  if (!closure) return {};
  at::AutoGradMode with_gradients(true);
  return closure();
}

[[nodiscard]] inline std::vector<at::Tensor> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : groups)
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

// InvalidArgument where a product would be lost in its own dtype, as PyTorch refuses it.
inline void check_can_scale(std::span<const at::Tensor> parameters, double factor) {
  for (std::size_t i = 0; factor < 1 && i < parameters.size(); ++i)
    check(!parameters[i].grad().defined() || parameters[i].grad().scalar_type() != at::kHalf,
          "unscaling: the gradient of parameter {} is float16, in which a small one would be lost; "
          "let scaler.step() of an optimizer of lockstep::optim unscale it, in float32, or keep "
          "parameters in float32",
          i);
}

// In place; nothing is written when the factor is 1.
inline void multiply_gradients(std::span<const at::Tensor> parameters, double factor) {
  if (factor == 1) return;
  at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters)
    if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
}

using StateMap = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

// The state of `parameter`, made where there is none, and made ours where it is torch::optim's.
template <class State, class TorchState>
State& own_state(StateMap& states, const at::Tensor& parameter) {
  std::unique_ptr<torch::optim::OptimizerParamState>& place =
      states[parameter.unsafeGetTensorImpl()];
  if (!place) place = std::make_unique<State>();
  if (auto* own = dynamic_cast<State*>(place.get())) return *own;
  auto* plain = dynamic_cast<TorchState*>(place.get());
  check(plain != nullptr, "optimizer: the state of a parameter is another optimizer's");
  auto own = std::make_unique<State>(*plain);
  State& state = *own;
  place = std::move(own);
  return state;
}

}  // namespace lockstep::optim
