#include "parallel/sharded/gradient_flow.h"

#include "parallel/reduction_errors.h"

#include <lockstep/base/check.h>
#include <lockstep/base/log.h>
#include <lockstep/base/scope_exit.h>
#include <lockstep/base/text.h>
#include <lockstep/parallel/reduction_failed.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace lockstep::sharded {
namespace {

// Reductions under way at levels gradients and full: each has a whole unit's gradients.
constexpr std::size_t most_in_flight = 2;

}  // namespace

GradientFlow::GradientFlow(Groups groups, Residency& residency, std::shared_ptr<BufferPool> pool,
                           std::vector<at::Tensor> buffers,
                           std::shared_ptr<const modules::ModuleWatch> watch,
                           const ShardOptions& options)
    : groups_(std::move(groups)),
      residency_(residency),
      options_(options),
      watch_(std::move(watch)) {
  if (options.reduce_in_step) {
    deferred_ = std::make_shared<DeferredGradients>();
    residency.before_gathers([deferred = deferred_] { deferred->settle(); });
  }
  int count = static_cast<int>(residency.units().size());
  for (int u = 0; u < count; ++u) {
    gradients_.push_back(nullptr);
    if (!unit(u).trains()) continue;
    gradients_.back() =
        std::make_unique<UnitGradients>(unit(u), groups_.reduce, groups_.replicas, pool, deferred_,
                                        [&residency] { residency.undo_last_write(); });
    for (int i = 0; i < static_cast<int>(unit(u).parameters().size()); ++i)
      places_.push_back({u, i});
    order_.push_back(u);
  }
  // What is used first is expected to be complete last, and so is what no module of its own has.
  std::ranges::reverse(order_);
  std::ranges::stable_partition(order_, [&](int u) { return !unit(u).name().starts_with("rest"); });
  if (options.broadcast_buffers && !buffers.empty())
    buffers_ = std::make_unique<parallel::StateBroadcast>(groups_.whole, std::move(buffers));
}

std::vector<at::Tensor> GradientFlow::hooked() const {
  std::vector<at::Tensor> tensors;
  for (const auto& [u, number] : places_)
    tensors.push_back(unit(u).parameters()[static_cast<std::size_t>(number)].tensor);
  return tensors;
}

const std::string& GradientFlow::name(int i) const {
  const auto& [u, number] = places_[static_cast<std::size_t>(i)];
  return unit(u).parameters()[static_cast<std::size_t>(number)].name;
}

void GradientFlow::check_parameters() const {
  for (const auto& one : residency_.units()) {
    const std::string* stranger = one->first_stranger();
    check(stranger == nullptr,
          "{} is no longer the sharded parameter: module->to(), module->load() or set_data() has "
          "replaced it; make the handle after that, and load by load_state_dict()",
          stranger == nullptr ? std::string() : *stranger);
  }
  watch_->check();
}

void GradientFlow::on_gradient(int i) {
  bool create_graph = at::GradMode::is_enabled();
  std::lock_guard lock(mutex_);
  at::NoGradGuard no_grad;
  bool is_first = step_ == nullptr;
  if (is_first) begin();
  step_->watch();
  if (is_first) check_step(create_graph);
  if (reduces_) {
    accept(i);
  } else {
    const auto& [u, number] = places_[static_cast<std::size_t>(i)];
    gradients_[static_cast<std::size_t>(u)]->keep(number);
  }
}

void GradientFlow::check_step(bool create_graph) const {
  check(!reduces_ || !create_graph,
        "backward(create_graph=true): an average over ranks has no derivative; call it inside "
        "no_sync()");
  check_parameters();
}

void GradientFlow::begin() {
  reduces_ = paused_ == 0;
  close_rows();
  discard_all();
  wait_for_status();
  ready_.assign(places_.size(), false);
  missing_.assign(places_.size() + 1, 0);
  awaited_.assign(gradients_.size(), 0);
  for (const auto& [u, number] : places_) ++awaited_[static_cast<std::size_t>(u)];
  complete_.clear();
  posted_ = 0;
  step_ = std::make_shared<Step>(weak_from_this());
}

// Nothing was gathered since the last backward(), so peers may still read this rank's row.
void GradientFlow::close_rows() {
  if (!deferred_ || !deferred_->are_open()) return;
  deferred_->settle();
  groups_.reduce.barrier({.tag = "gradients are written again", .timeout = options_.timeout})
      .wait();
}

void GradientFlow::accept(int i) {
  const auto& [u, number] = places_[static_cast<std::size_t>(i)];
  const at::Tensor& parameter = unit(u).parameters()[static_cast<std::size_t>(number)].tensor;
  if (parameter.grad().layout() != at::kStrided)
    parallel::throw_sparse_gradient(name(i), "fully_shard()");
  if (ready_[static_cast<std::size_t>(i)]) parallel::throw_second_gradient(name(i));
  ready_[static_cast<std::size_t>(i)] = true;
  gradients_[static_cast<std::size_t>(u)]->accept(number);
  if (--awaited_[static_cast<std::size_t>(u)] > 0) return;
  complete_.push_back(u);
  residency_.unit_done(u);
  post_ready();
  if (options_.level == ShardLevel::optimizer || options_.reduce_in_step) return;
  while (in_flight_.size() > most_in_flight) publish_oldest();
}

void GradientFlow::post_ready() {
  while (posted_ < order_.size() && awaited_[static_cast<std::size_t>(order_[posted_])] == 0) {
    int u = order_[posted_++];
    gradients_[static_cast<std::size_t>(u)]->post();
    in_flight_.push_back(u);
  }
}

// Of a unit all of whose parameters had a gradient here.
void GradientFlow::publish_oldest() {
  UnitGradients& gradients = *gradients_[static_cast<std::size_t>(in_flight_.front())];
  gradients.forward();
  gradients.publish();
  in_flight_.pop_front();
}

void GradientFlow::discard_all() {
  for (const auto& gradients : gradients_)
    if (gradients) gradients->discard();
  in_flight_.clear();
}

void GradientFlow::on_backward_end(bool nested) {
  std::lock_guard lock(mutex_);
  at::NoGradGuard no_grad;
  bool all_ready = reduces_ && std::ranges::find(ready_, false) == ready_.end();
  if (step_ && step_->is_over(nested, all_ready)) finish();
}

void GradientFlow::finish() {
  ScopeExit over([this] { step_.reset(); });
  bool order_was_known = residency_.end_iteration();
  if (!reduces_) {
    for (const auto& gradients : gradients_)
      if (gradients) gradients->end_keeping();
    return;
  }
  contribute_absent();
  post_ready();
  post_status();
  wait_for_status();
  residency_.all_have_read();
  check_status(order_was_known);
  publish_all();
  if (buffers_) {
    buffers_->post(options_.timeout);
    buffers_->finish();
  }
  if (!std::exchange(order_known_, true)) adopt_order_of_root();
}

// A parameter without a gradient in this backward() may have one of an earlier one, inside
// no_sync().
void GradientFlow::contribute_absent() {
  for (int i = 0; i < static_cast<int>(places_.size()); ++i) {
    if (ready_[static_cast<std::size_t>(i)]) continue;
    const auto& [u, number] = places_[static_cast<std::size_t>(i)];
    UnitGradients& gradients = *gradients_[static_cast<std::size_t>(u)];
    const at::Tensor& parameter = unit(u).parameters()[static_cast<std::size_t>(number)].tensor;
    if (has_gradient(parameter)) {
      gradients.accept(number);
    } else {
      gradients.skip(number);
      missing_[static_cast<std::size_t>(i)] = 1;
    }
    if (--awaited_[static_cast<std::size_t>(u)] == 0) complete_.push_back(u);
  }
}

void GradientFlow::post_status() {
  if (groups_.whole.size() == 1) return;
  status_ = at::tensor(at::ArrayRef<std::int32_t>(missing_), at::kInt)
                .to(unit(order_.front()).slices().front().device());
  status_work_ = groups_.whole.all_reduce(status_, Op::sum,
                                          {.tag = "end of backward", .timeout = options_.timeout});
}

void GradientFlow::wait_for_status() {
  if (!status_.defined()) return;
  at::Tensor status = std::exchange(status_, at::Tensor());
  {
    parallel::WaitTime::Scope waiting(*unit(order_.front()).settings().waits);
    std::exchange(status_work_, Work()).wait();
  }
  at::from_blob(missing_.data(), {static_cast<std::int64_t>(missing_.size())}, at::kInt)
      .copy_(status);
}

void GradientFlow::check_status(bool order_was_known) {
  if (int failed = missing_.back(); failed > 0) {
    if (!order_was_known || groups_.replicas.size() > 1) residency_.join_failure();
    forward_all();
    discard_all();
    parallel::throw_failed_backward(failed, groups_.whole.size());
  }
  if (options_.find_unused_parameters) return;
  std::string missing = describe_missing();
  if (missing.empty()) return;
  forward_all();
  discard_all();
  throw ReductionFailed(formatted(
      "backward() gave no gradient for {}: they had no part in the loss; use them, freeze them "
      "before fully_shard() is called, or set find_unused_parameters",
      missing));
}

std::string GradientFlow::describe_missing() const {
  parallel::MissingGradients missing(groups_.whole.size());
  for (int i = 0; i < static_cast<int>(places_.size()); ++i) {
    auto place = static_cast<std::size_t>(i);
    missing.add(name(i), missing_[place], !ready_[place]);
  }
  return missing.text();
}

std::vector<bool> GradientFlow::unused_in(int u) const {
  std::vector<bool> unused;
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (places_[i].unit == u) unused.push_back(missing_[i] == groups_.whole.size());
  return unused;
}

// Some ranks have done so for units that were complete there before the end of backward().
void GradientFlow::forward_all() {
  for (int u : in_flight_) gradients_[static_cast<std::size_t>(u)]->forward();
}

void GradientFlow::publish_all() {
  forward_all();
  while (!in_flight_.empty()) {
    int u = in_flight_.front();
    gradients_[static_cast<std::size_t>(u)]->publish(unused_in(u));
    in_flight_.pop_front();
  }
}

void GradientFlow::adopt_order_of_root() {
  if (groups_.whole.size() == 1 || order_.empty()) return;
  at::Tensor order = at::tensor(at::ArrayRef<int>(complete_), at::kInt)
                         .to(unit(order_.front()).slices().front().device());
  groups_.whole.broadcast(order, 0, {.tag = "order of readiness", .timeout = options_.timeout})
      .wait();
  order = order.cpu();
  order_.assign(order.const_data_ptr<std::int32_t>(),
                order.const_data_ptr<std::int32_t>() + order.numel());
}

// Posts what the other ranks' backward() waits for.
void GradientFlow::tell_failure() {
  at::Tensor scratch;
  for (int u : in_flight_) gradients_[static_cast<std::size_t>(u)]->forward_anything();
  while (posted_ < order_.size())
    gradients_[static_cast<std::size_t>(order_[posted_++])]->post_anything(scratch);
  missing_.back() = 1;
  post_status();
  residency_.all_have_read(status_work_);
}

void GradientFlow::on_backward_failed() noexcept {
  std::lock_guard lock(mutex_);
  if (!std::exchange(step_, nullptr)) return;
  at::NoGradGuard no_grad;
  auto attempt = [](const auto& action) {
    try {
      action();
    } catch (const std::exception& error) {
      // The exception that is on its way says more.
      log::debug("after a backward() that failed: {}", error.what());
    }
  };
  if (reduces_) attempt([this] { tell_failure(); });
  attempt([this] { residency_.end_failed_iteration(groups_.replicas.size() == 1); });
}

void GradientFlow::end() {
  std::lock_guard lock(mutex_);
  gradients_.clear();
}

void GradientFlow::clear_gradients(bool set_to_none) {
  std::lock_guard lock(mutex_);
  for (const auto& gradients : gradients_)
    if (gradients) gradients->clear(set_to_none);
}

bool GradientFlow::has_gradients() {
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(residency_.units(), [](const auto& unit) {
    return std::ranges::any_of(unit->slices(), has_gradient);
  });
}

void GradientFlow::free_buffers() {
  std::lock_guard lock(mutex_);
  for (const auto& gradients : gradients_)
    if (gradients) gradients->free_buffers();
}

std::int64_t GradientFlow::kept_bytes() {
  std::lock_guard lock(mutex_);
  std::int64_t bytes = 0;
  for (const auto& gradients : gradients_)
    if (gradients) bytes += gradients->kept_bytes();
  return bytes;
}

void GradientFlow::pause() {
  std::lock_guard lock(mutex_);
  ++paused_;
}

void GradientFlow::resume() {
  std::lock_guard lock(mutex_);
  --paused_;
}

}  // namespace lockstep::sharded
