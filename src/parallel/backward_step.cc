#include "parallel/backward_step.h"

#include "base/check.h"
#include "base/log.h"
#include "base/scope_exit.h"
#include "layout/bucket_plan.h"
#include "parallel/reduction_errors.h"

#include <lockstep/parallel/reduction_failed.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <exception>
#include <utility>

namespace lockstep::parallel {

BackwardStep::BackwardStep(Group& group, std::shared_ptr<Reducer> reducer,
                           modules::ModuleWatch watch, std::vector<at::Tensor> buffers,
                           StepOptions options)
    : group_(group),
      reducer_(std::move(reducer)),
      watch_(std::move(watch)),
      options_(std::move(options)),
      ready_(reducer_->parameters().size()) {
  if (!buffers.empty()) buffers_ = std::make_unique<StateBroadcast>(group_, std::move(buffers));
}

std::vector<at::Tensor> BackwardStep::hooked() const {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : reducer_->parameters())
    tensors.push_back(parameter.tensor);
  return tensors;
}

void BackwardStep::check_module() const {
  reducer_->check_parameters();
  watch_.check();
}

void BackwardStep::on_gradient(int i) {
  bool create_graph = at::GradMode::is_enabled();
  Lock lock(mutex_);
  at::NoGradGuard no_grad;
  bool reduces = paused_ == 0;
  begin(reduces, create_graph);
  if (reduces) {
    accept(i);
  } else {
    reducer_->keep(i);
  }
}

// Where the gradient is the first one.
void BackwardStep::begin(bool reduces, bool create_graph) {
  bool begins = step_ == nullptr;
  bool begins_to_reduce = reduces && !reduces_;
  if (begins) reducer_->begin();
  if (begins_to_reduce) {
    reducer_->begin_reduction();
    status_ = StepStatus(ready_.size());
    ready_.assign(ready_.size(), false);
    observed_.clear();
  }
  if (begins) step_ = std::make_shared<Observer>(weak_from_this());
  reduces_ = reduces_ || reduces;
  step_->watch();
  if (begins_to_reduce)
    check(!create_graph,
          "backward(create_graph=true): an average over ranks has no derivative; call it inside "
          "no_sync()");
  if (begins) check_module();
}

void BackwardStep::accept(int i) {
  auto place = static_cast<std::size_t>(i);
  const auto& [name, parameter, aliases] = reducer_->parameters()[place];
  const at::Tensor& gradient = parameter.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided)
    throw_sparse_gradient(name, options_.strategy);
  if (ready_[place]) throw_second_gradient(name);
  ready_[place] = true;
  observed_.push_back(i);
  reducer_->accept(i);
}

void BackwardStep::on_backward_end(bool nested) {
  Lock lock(mutex_);
  at::NoGradGuard no_grad;
  if (step_ && step_->is_over(nested, reduces_ && all_ready())) finish();
}

void BackwardStep::finish() {
  ScopeExit over([this]() LOCKSTEP_REQUIRES(mutex_) { step_.reset(); });
  bool reduces = std::exchange(reduces_, false);
  reducer_->end_backward(reduces);
  if (!reduces) return;
  contribute_absent();
  reducer_->post_rest(status_);
  if (buffers_) buffers_->post(options_.timeout);
  StepStatus all;
  {
    WaitTime::Scope waiting(*options_.waits);
    all = reducer_->wait();
    if (buffers_) buffers_->finish();
  }
  check_status(all);
  reducer_->publish(all);
  if (!std::exchange(order_known_, true)) adopt_order_of_root();
}

void BackwardStep::contribute_absent() {
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    auto number = static_cast<int>(i);
    if (!ready_[i] && !reducer_->contribute_absent(number)) status_.say_missing(number);
  }
}

void BackwardStep::check_status(const StepStatus& all) {
  if (all.failed() > 0) {
    reducer_->discard(/*failed=*/true);
    throw_failed_backward(all.failed(), group_.size());
  }
  if (options_.find_unused_parameters) return;
  std::string missing = describe_missing(all);
  if (missing.empty()) return;
  reducer_->discard(/*failed=*/false);
  throw_missing_gradients(missing, options_.strategy);
}

std::string BackwardStep::describe_missing(const StepStatus& all) const {
  MissingGradients missing(group_.size());
  const auto& parameters = reducer_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto number = static_cast<int>(i);
    missing.add(parameters[i].name, all.missing(number), status_.missing(number) > 0);
  }
  return missing.text();
}

void BackwardStep::adopt_order_of_root() {
  if (group_.size() == 1) return;
  std::vector<int> own = layout::complete_order(observed_, static_cast<int>(ready_.size()));
  at::Tensor order = at::tensor(at::ArrayRef<int>(own), at::kInt)
                         .to(reducer_->parameters().front().tensor.device());
  group_.broadcast(order, 0, {.tag = "order of readiness", .timeout = options_.timeout}).wait();
  order = order.cpu();
  const auto* begin = order.const_data_ptr<std::int32_t>();
  reducer_->adopt_order(std::vector<int>(begin, begin + order.numel()));
}

namespace {

// The group is dead, and its next call says so; the exception that is on its way says more.
void note(const std::exception& error) {
  log::debug("after a backward() that failed: {}", error.what());
}

}  // namespace

void BackwardStep::on_backward_failed() noexcept {
  Lock lock(mutex_);
  if (!std::exchange(step_, nullptr)) return;
  at::NoGradGuard no_grad;
  try {
    if (std::exchange(reduces_, false)) post_failure();
  } catch (const std::exception& error) {
    note(error);
  }
  try {
    reducer_->end_failed_backward();
  } catch (const std::exception& error) {
    note(error);
  }
}

void BackwardStep::post_failure() {
  status_.say_failed();
  reducer_->post_failure(status_);
  if (buffers_) buffers_->post(options_.timeout);
}

void BackwardStep::pause() {
  Lock lock(mutex_);
  ++paused_;
}

void BackwardStep::resume() {
  Lock lock(mutex_);
  --paused_;
}

}  // namespace lockstep::parallel
