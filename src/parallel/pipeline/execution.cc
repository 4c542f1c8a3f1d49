#include "parallel/pipeline/execution.h"

#include "base/check.h"
#include "global/global_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <utility>

namespace lockstep::pipeline {
namespace {

using plan::Action, plan::Compute, plan::Result;

double now_in_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Returns the inputs that a stage gets from the previous stage on the same rank: leaves of its own
// graph.
Tensors as_leaves(const Tensors& tensors) {
  Tensors leaves;
  for (const at::Tensor& tensor : tensors)
    leaves.push_back(tensor.detach().set_requires_grad(tensor.requires_grad()));
  return leaves;
}

Tensors only_with_gradient(const Tensors& tensors) {
  Tensors some;
  for (const at::Tensor& tensor : tensors)
    if (tensor.requires_grad()) some.push_back(tensor);
  return some;
}

}  // namespace

void Execution::run(const std::vector<Action>& actions, std::optional<Action>& now) {
  for (const Action& action : actions) {
    now = action;
    mailbox_.begin(action);
    switch (action.compute) {
      case Compute::forward:
        forward(action);
        break;
      case Compute::backward:
      case Compute::input:
        backward(action);
        break;
      case Compute::weight:
        weight(action);
    }
  }
  now.reset();
  mailbox_.finish();
}

template <typename Body>
auto Execution::timed(const Action& action, Body body) {
  const double start = now_in_seconds();
  if (began_ < 0) began_ = start;
  auto result = body();
  ended_ = now_in_seconds();
  Spent& spent = spent_[{action.stage, static_cast<char>(action.compute)}];
  spent.seconds += ended_ - start;
  ++spent.times;
  return result;
}

void Execution::forward(const Action& action) {
  const auto [compute, stage, micro_batch] = action;
  StageRun& run = parts_.stages.at(stage);
  const Tensors inputs =
      stage == 0 ? batch_.inputs_of(micro_batch) : take({false, stage - 1, micro_batch}, stage - 1);
  at::AutoGradMode mode(kind_ == StepKind::train);
  const Tensors outputs = timed(action, [&] {
    Tensors made = run.forward(inputs);
    // The loss may be computed on global tensors.
    if (!is_last(stage) || kind_ == StepKind::forward)
      for (at::Tensor& one : made) one = global::plain(one);
    const Tensors roots =
        is_last(action.stage) ? end_forward(action, made) : only_with_gradient(made);
    if (kind_ == StepKind::train) run.keep(action.micro_batch, inputs, roots);
    return made;
  });
  if (!is_last(stage)) pass(plan::result_of(action), outputs);
}

// Computes the loss from the last stage's outputs.
Tensors Execution::end_forward(const Action& action, const Tensors& outputs) {
  if (kind_ == StepKind::forward) {
    outputs_[action.micro_batch] = outputs;
    return {};
  }
  const at::Tensor loss =
      plain_loss(parts_.loss(outputs, batch_.targets_of(action.micro_batch)), kind_);
  const at::Tensor part = loss.detach().reshape({}) * batch_.share_of(action.micro_batch);
  loss_ = loss_.defined() ? loss_ + part : part;
  if (kind_ != StepKind::train) return {};
  losses_[action.micro_batch] = loss.detach();
  return {loss};
}

Tensors Execution::root_gradients(const Action& action) {
  if (!is_last(action.stage)) {
    const Result result{true, action.stage + 1, action.micro_batch};
    return take(result, action.stage + 1);
  }
  const at::Tensor loss = std::move(losses_.extract(action.micro_batch).mapped());
  return {at::full(loss.sizes(), batch_.share_of(action.micro_batch), loss.options())};
}

void Execution::backward(const Action& action) {
  const Tensors gradients = root_gradients(action);
  StageRun& run = parts_.stages.at(action.stage);
  const bool is_whole = action.compute == Compute::backward;
  parts_.before_backward(action);
  Tensors of_inputs = timed(action, [&] {
    return is_whole ? run.backward(action.micro_batch, gradients)
                    : run.input(action.micro_batch, gradients);
  });
  if (action.stage > 0) pass(plan::result_of(action), std::move(of_inputs));
}

void Execution::weight(const Action& action) {
  parts_.before_backward(action);
  timed(action, [&] {
    parts_.stages.at(action.stage).weight(action.micro_batch);
    return 0;
  });
}

void Execution::pass(const Result& result, Tensors tensors) {
  const int next = result.is_gradient ? result.stage - 1 : result.stage + 1;
  if (!parts_.stages.contains(next)) return mailbox_.send(result, tensors);
  here_[result.key()] = result.is_gradient ? std::move(tensors) : as_leaves(tensors);
}

Tensors Execution::take(const Result& result, int stage) {
  if (!parts_.stages.contains(stage)) return mailbox_.receive(result);
  return std::move(here_.extract(result.key()).mapped());
}

Tensors Execution::outputs() const {
  std::vector<Tensors> all;
  for (const auto& [micro_batch, tensors] : outputs_) all.push_back(tensors);
  return joined(all);
}

Pipeline::Measured Execution::measured(const std::vector<int>& stages) const {
  Pipeline::Measured measured;
  for (const int stage : stages) {
    const auto average = [&](Compute compute) {
      const auto found = spent_.find({stage, static_cast<char>(compute)});
      if (found == spent_.end()) return 0.0;
      return found->second.seconds / found->second.times;
    };
    measured.stages.push_back({.forward = average(Compute::forward),
                               .backward = average(Compute::backward),
                               .input = average(Compute::input),
                               .weight = average(Compute::weight)});
  }
  for (const auto& [what, spent] : spent_) measured.busy += spent.seconds;
  measured.seconds = began_ < 0 ? 0 : ended_ - began_;
  return measured;
}

}  // namespace lockstep::pipeline
