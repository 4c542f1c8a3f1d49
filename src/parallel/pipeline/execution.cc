#include "parallel/pipeline/execution.h"

#include "base/check.h"
#include "global/global_tensor.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <utility>

namespace lockstep::pipeline {
namespace {

using plan::Action, plan::Compute;

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
    p2p_.begin(action);
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
  p2p_.finish();
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
  const Tensors inputs = stage == 0 ? batch_.inputs_of(micro_batch)
                                    : take({Compute::forward, stage - 1, micro_batch}, stage - 1);
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
  if (!is_last(action.stage))
    return take({Compute::input, action.stage + 1, action.micro_batch}, action.stage + 1);
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

void Execution::pass(const Action& result, Tensors tensors) {
  const int next = result.compute == Compute::input ? result.stage - 1 : result.stage + 1;
  if (!parts_.stages.contains(next)) return p2p_.send(result, tensors);
  here_[plan::key_of(result)] =
      result.compute == Compute::input ? std::move(tensors) : as_leaves(tensors);
}

Tensors Execution::take(const Action& result, int stage) {
  if (!parts_.stages.contains(stage)) return p2p_.receive(result);
  return std::move(here_.extract(plan::key_of(result)).mapped());
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

std::optional<int> P2PExchange::destination_of(const Action& result) const {
  const int next = result.compute == Compute::input ? result.stage - 1 : result.stage + 1;
  if (next < 0 || next >= static_cast<int>(ranks_.size())) return std::nullopt;
  return rank_of(next);
}

void P2PExchange::begin(const Action& own) {
  for (; order_[next_] != own; ++next_) {
    const Action& other = order_[next_];
    if (other.compute == Compute::weight) continue;
    const Action result = plan::result_of(other);
    if (destination_of(result) == group_.rank()) post_receive(result);
  }
  ++next_;
}

void P2PExchange::send(const Action& result, const Tensors& tensors) {
  const auto destination = destination_of(result);
  if (!destination || destination == group_.rank()) return;
  drop_arrived();
  const std::string tag = plan::text_of(result);
  if (result.compute == Compute::forward) {
    const Specs specs = specs_of(tensors);
    const auto [known, is_new] = book_.emplace(place_of(result), specs);
    check(specs == known->second,
          "{}: expected the outputs of earlier micro-batches of {} rows, {}, found {}", tag,
          known->first.second, describe(known->second), describe(specs));
    if (is_new)
      sent_.push_back(group_.send(message_of(specs, tag), *destination, call("sizes of " + tag)));
  }
  for (const at::Tensor& tensor : tensors)
    sent_.push_back(group_.send(tensor.detach(), *destination, call(tag)));
}

Tensors P2PExchange::receive(const Action& result) {
  Expected expected = std::move(expected_.extract(plan::key_of(result)).mapped());
  for (Work& work : expected.works) work.wait();
  drop_arrived();
  return std::move(expected.tensors);
}

void P2PExchange::post_receive(const Action& result) {
  const int source = rank_of(result.stage);
  const std::string tag = plan::text_of(result);
  Expected& expected = expected_[plan::key_of(result)];
  for (const TensorMeta& spec : specs_for(result, source)) {
    if (result.compute == Compute::input && !spec.requires_grad) continue;
    const auto options = at::TensorOptions(spec.dtype).device(device_);
    at::Tensor tensor = group_.empty_shared(spec.sizes, options);
    expected.works.push_back(group_.recv(tensor, source, call(tag)));
    if (result.compute == Compute::forward && spec.requires_grad) tensor.set_requires_grad(true);
    expected.tensors.push_back(std::move(tensor));
  }
}

SpecCache::key_type P2PExchange::place_of(const Action& result) const {
  return {result.compute == Compute::input ? result.stage - 1 : result.stage,
          batch_.rows_of(result.micro_batch).length()};
}

const Specs& P2PExchange::specs_for(const Action& result, int source) {
  const SpecCache::key_type place = place_of(result);
  const auto known = book_.find(place);
  if (known != book_.end()) return known->second;
  const std::string tag = plan::text_of(result);
  at::Tensor message = at::empty({spec_numbers}, at::kLong);
  group_.recv(message, source, call("sizes of " + tag)).wait();
  return book_[place] = specs_in(message, tag);
}

void P2PExchange::drop_arrived() {
  std::erase_if(sent_, [](Work& work) {
    if (!work.done()) return false;
    work.wait();
    return true;
  });
}

void P2PExchange::finish() {
  for (Work& work : sent_) work.wait();
  sent_.clear();
}

}  // namespace lockstep::pipeline
