#include <lockstep/optim/adamw.h>

#include <lockstep/base/check.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>

#include <memory>
#include <utility>
#include <vector>

namespace lockstep::optim {
namespace {

using torch::optim::AdamWOptions;
using torch::optim::AdamWParamState;

// What one call of the kernel takes: parameters of one group, dtype and device.
struct Batch {
  explicit Batch(const at::Tensor& first) : dtype(first.scalar_type()), device(first.device()) {}

  void add(const at::Tensor& parameter, AdamWParamState& state, bool amsgrad);
  void run(const AdamWOptions& options);

  at::ScalarType dtype;
  c10::Device device;
  std::vector<at::Tensor> parameters, gradients, averages, squares, greatest_squares, steps;
  std::vector<std::pair<at::Tensor, at::Tensor>>
      stand_ins;  // a parameter with holes in its memory, and a dense copy
  double last_step = 0;
};

// The kernel walks through the memory of a parameter's tensors side by side: they must be laid out
// alike.
at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& like) {
  bool fits = tensor.strides() == like.strides() && tensor.scalar_type() == like.scalar_type() &&
              tensor.device() == like.device();
  return fits ? tensor : at::empty_like(like).copy_(tensor);
}

void Batch::add(const at::Tensor& parameter, AdamWParamState& state, bool amsgrad) {
  at::Tensor dense = parameter;
  if (!parameter.is_non_overlapping_and_dense()) {
    dense = parameter.contiguous();
    stand_ins.emplace_back(parameter, dense);
  }
  state.step(state.step() + 1);
  state.exp_avg(laid_out_as(state.exp_avg(), dense));
  state.exp_avg_sq(laid_out_as(state.exp_avg_sq(), dense));
  parameters.push_back(dense);
  gradients.push_back(laid_out_as(parameter.grad(), dense));
  averages.push_back(state.exp_avg());
  squares.push_back(state.exp_avg_sq());
  if (amsgrad) {
    state.max_exp_avg_sq(laid_out_as(state.max_exp_avg_sq(), dense));
    greatest_squares.push_back(state.max_exp_avg_sq());
  }
  // The kernel only reads the step, so parameters of one age share a tensor.
  auto step = static_cast<double>(state.step());
  bool same_age = !steps.empty() && last_step == step;
  steps.push_back(same_age ? steps.back()
                           : at::scalar_tensor(step, at::TensorOptions(at::kFloat).device(device)));
  last_step = step;
}

void Batch::run(const AdamWOptions& options) {
  auto [beta1, beta2] = options.betas();
  at::_fused_adamw_(parameters, gradients, averages, squares, greatest_squares, steps, options.lr(),
                    beta1, beta2, options.weight_decay(), options.eps(), options.amsgrad(),
                    /*maximize=*/false);
  for (auto& [parameter, dense] : stand_ins) parameter.copy_(dense);
}

Batch& batch_for(const at::Tensor& parameter, std::vector<Batch>& batches) {
  for (Batch& batch : batches)
    if (batch.dtype == parameter.scalar_type() && batch.device == parameter.device()) return batch;
  return batches.emplace_back(parameter);
}

AdamWParamState& prepare_state(std::unique_ptr<torch::optim::OptimizerParamState>& slot,
                               const at::Tensor& parameter, bool amsgrad) {
  if (!slot) {
    auto fresh = std::make_unique<AdamWParamState>();
    fresh->exp_avg(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    fresh->exp_avg_sq(at::zeros_like(parameter, at::MemoryFormat::Preserve));
    slot = std::move(fresh);
  }
  auto& state = static_cast<AdamWParamState&>(*slot);
  if (amsgrad && !state.max_exp_avg_sq().defined())
    state.max_exp_avg_sq(at::zeros_like(state.exp_avg_sq(), at::MemoryFormat::Preserve));
  return state;
}

void check_gradients(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = 0; i < groups[group].params().size(); ++i) {
      const at::Tensor& gradient = groups[group].params()[i].grad();
      check(!gradient.defined() || gradient.layout() == at::kStrided,
            "AdamW: parameter {} of group {} has a sparse gradient; dense ones are updated here", i,
            group);
    }
  }
}

}  // namespace

at::Tensor AdamW::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  at::NoGradGuard no_grad;
  check_gradients(param_groups_);
  for (auto& group : param_groups_) {
    const auto& options = static_cast<const AdamWOptions&>(group.options());
    std::vector<Batch> batches;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      auto& state =
          prepare_state(state_[parameter.unsafeGetTensorImpl()], parameter, options.amsgrad());
      batch_for(parameter, batches).add(parameter, state, options.amsgrad());
    }
    for (Batch& batch : batches) batch.run(options);
  }
  return loss;
}

}  // namespace lockstep::optim
