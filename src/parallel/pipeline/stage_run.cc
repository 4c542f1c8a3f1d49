#include "parallel/pipeline/stage_run.h"

#include "base/check.h"
#include "dispatch/recompute/recomputation.h"
#include "global/global_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

namespace lockstep::pipeline {
namespace {

Tensors zeros_where_none(const Tensors& gradients, const Tensors& inputs) {
  at::NoGradGuard no_grad;
  Tensors all;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    all.push_back(gradients[i].defined() ? global::plain(gradients[i])
                                         : at::zeros_like(inputs[i].detach()));
  return all;
}

// Copies gradients whose memory is shared: a weight's gradient may be in the same memory and change
// while a message is in flight.
Tensors unshared(Tensors gradients) {
  for (at::Tensor& one : gradients)
    if (one.storage().use_count() > 1) one = one.clone();
  return gradients;
}

}  // namespace

bool StageRun::trains() const {
  return std::ranges::any_of(parameters_,
                             [](const at::Tensor& one) { return one.requires_grad(); });
}

Tensors StageRun::forward(const Tensors& inputs) const {
  Tensors outputs = stage_.forward(inputs);
  check(!outputs.empty(), "stage {}: expected tensors from its forward, found none", stage_.name);
  dispatch::leave_block(outputs);
  for (const at::Tensor& output : outputs)
    check(output.defined() && output.layout() == at::kStrided,
          "stage {}: expected dense tensors from its forward, found {}", stage_.name,
          output.defined() ? "one that is sparse" : "an undefined one");
  return outputs;
}

void StageRun::keep(int micro_batch, const Tensors& inputs, const Tensors& roots) {
  Kept& kept = kept_[micro_batch];
  std::ranges::copy_if(inputs, std::back_inserter(kept.inputs),
                       [](const at::Tensor& input) { return input.requires_grad(); });
  for (const at::Tensor& root : roots)
    kept.roots.push_back(torch::autograd::impl::gradient_edge(root));
}

Tensors StageRun::backward(int micro_batch, const Tensors& gradients) {
  Kept kept = std::move(kept_.extract(micro_batch).mapped());
  if (!kept.roots.empty()) pipeline::backward(kept.roots, gradients);
  Tensors of_inputs;
  for (const at::Tensor& input : kept.inputs) of_inputs.push_back(input.grad());
  return unshared(zeros_where_none(of_inputs, kept.inputs));
}

Tensors StageRun::input(int micro_batch, const Tensors& gradients) {
  Kept& kept = kept_.at(micro_batch);
  Tensors of_inputs = kept.split.input_gradients(kept.roots, gradients, kept.inputs);
  // W keeps some of these tensors, and may make one of them a weight's gradient, to which the next
  // W adds.
  Tensors result;
  for (const at::Tensor& one : zeros_where_none(of_inputs, kept.inputs))
    result.push_back(one.clone());
  kept.inputs.clear();
  kept.roots.clear();
  return result;
}

void StageRun::weight(int micro_batch) {
  kept_.extract(micro_batch).mapped().split.weight_gradients();
}

}  // namespace lockstep::pipeline
