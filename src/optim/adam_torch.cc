#include "optim/adam_torch.h"

#include "optim/torch_gradient.h"

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <vector>

namespace lockstep::optim {
namespace {

// What one call of the kernel takes: tensors of one dtype, device and age.
struct Batch {
  std::vector<at::Tensor> parameters, gradients, averages, squares, greatest_squares, steps;
  std::int64_t age = 0;

  [[nodiscard]] bool takes(const at::Tensor& parameter, std::int64_t its_age) const {
    return parameters.front().scalar_type() == parameter.scalar_type() &&
           parameters.front().device() == parameter.device() && age == its_age;
  }
};

void add(const Slot& slot, const GroupStep& step, std::vector<Batch>& batches) {
  at::Tensor parameter = updated_tensor(slot);
  auto batch = std::find_if(batches.begin(), batches.end(), [&](const Batch& candidate) {
    return candidate.takes(parameter, slot.age);
  });
  if (batch == batches.end()) {
    batch = batches.emplace(batches.end());
    batch->age = slot.age;
  }
  batch->parameters.push_back(parameter);
  batch->gradients.push_back(treated_gradient(slot, step.treatment));
  batch->averages.push_back(*slot.kept[0].values);
  batch->squares.push_back(*slot.kept[1].values);
  if (slot.kept[2].values != nullptr) batch->greatest_squares.push_back(*slot.kept[2].values);
  // The kernel only reads the step.
  auto options = at::TensorOptions(at::kFloat).device(parameter.device());
  batch->steps.push_back(batch->steps.empty()
                             ? at::scalar_tensor(static_cast<double>(slot.age), options)
                             : batch->steps.front());
}

void run(const Batch& batch, const AdamRule& rule, bool maximize) {
  auto call = [&](auto kernel) {
    kernel(batch.parameters, batch.gradients, batch.averages, batch.squares, batch.greatest_squares,
           batch.steps, rule.lr, rule.beta1, rule.beta2, rule.weight_decay, rule.eps, rule.amsgrad,
           maximize);
  };
  if (rule.decoupled)
    call([](auto&&... arguments) { at::_fused_adamw_(arguments...); });
  else
    call([](auto&&... arguments) { at::_fused_adam_(arguments...); });
}

}  // namespace

void update_by_torch(std::vector<Slot>& slots, const AdamRule& rule, const GroupStep& step) {
  std::vector<Batch> batches;
  for (const Slot& slot : slots)
    if (!slot.is_for_kernel()) add(slot, step, batches);
  for (const Batch& batch : batches) run(batch, rule, step.update.maximize);
  for (const Slot& slot : slots)
    if (!slot.is_for_kernel()) publish_master(slot);
}

}  // namespace lockstep::optim
