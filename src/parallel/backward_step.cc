#include "parallel/backward_step.h"

#include <lockstep/comm/device.h>

#include "base/check.h"
#include "base/format.h"
#include "base/log.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "layout/flat_layout.h"
#include "parallel/handle_state.h"

#include <lockstep/parallel/handle.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
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
      has_streams_(has_streams(group)),
      writes_(options_.equal, {.tag = options_.strategy, .timeout = options_.timeout}),
      ready_(reducer_->parameters().size()) {
  if (!buffers.empty()) buffers_ = std::make_unique<StateBroadcast>(group_, std::move(buffers));
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : reducer_->parameters())
    tensors.push_back(parameter.tensor);
  hooks_ = std::make_unique<GradientHooks>(
      std::move(tensors), [this](int i) { on_gradient(i); },
      [this] {
        Lock lock(mutex_);
        return has_averages_;
      },
      [this] { return paused_ == 0; });
}

void BackwardStep::check_module() const {
  reducer_->check_parameters();
  watch_.check();
}

void BackwardStep::zero_grad() {
  check_module();
  clock_.zero_grad();
  Lock lock(mutex_);
  writes_.begin();
}

void BackwardStep::on_gradient(int i) {
  Lock lock(mutex_);
  try {
    bool create_graph = at::GradMode::is_enabled();
    at::NoGradGuard no_grad;
    bool reduces = paused_ == 0;
    begin(reduces, create_graph);
    if (reduces) {
      accept(i);
    } else {
      reducer_->keep(i);
    }
  } catch (...) {
    notice_.set_text(exception_text(std::current_exception()));
    throw;
  }
}

// If this is the first gradient of the step.
void BackwardStep::begin(bool reduces, bool create_graph) {
  bool begins = step_ == nullptr;
  bool begins_to_reduce = reduces && !reduces_;
  if (begins) {
    clock_.first_gradient();
    notice_.settle();
    reducer_->begin();
  }
  if (begins_to_reduce) start_reduction();
  if (begins) step_ = std::make_shared<Observer>(weak_from_this());
  reduces_ = reduces_ || reduces;
  step_->watch();
  if (begins_to_reduce)
    check(!create_graph,
          "backward(create_graph=true): an average over ranks has no derivative; call it inside "
          "no_sync()");
  if (begins) check_module();
  if (!begins_to_reduce) return;
  for (int i : static_unused_)
    if (!reducer_->contribute_unused(i)) status_.say_missing(i);
}

// Under a Join, ranks without inputs post all buckets after the announced rounds. On streams, the
// other ranks must post them in the same order.
void BackwardStep::start_reduction() {
  reducer_->begin_reduction(/*posts_early=*/!has_streams_ || !has_join());
  status_ = StepStatus(ready_.size());
  ready_.assign(ready_.size(), false);
  observed_.clear();
}

void BackwardStep::check_dense(int i) const {
  const NamedParameter& parameter = reducer_->parameters()[static_cast<std::size_t>(i)];
  const at::Tensor& gradient = parameter.tensor.grad();
  if (gradient.defined() && gradient.layout() != at::kStrided)
    throw_sparse_gradient(parameter.name, options_.strategy);
}

void BackwardStep::accept(int i) {
  auto place = static_cast<std::size_t>(i);
  const auto& [name, parameter, aliases] = reducer_->parameters()[place];
  check_dense(i);
  check(!is_averaged_twice(parameter),
        "{} belongs to two handles, and both would average its gradient: release one of them",
        name);
  if (ready_[place])
    throw ReductionFailed(formatted(
        "{} got a second gradient in one backward(), after the first was on its way: a nested "
        "backward() uses it again, or two threads run backward() at once",
        name));
  if (std::ranges::find(static_unused_, i) != static_unused_.end())
    throw_changed_graph(name, "has a gradient, and had none");
  ready_[place] = true;
  observed_.push_back(i);
  reducer_->accept(i);
}

void BackwardStep::on_backward_end(bool nested) {
  Lock lock(mutex_);
  at::NoGradGuard no_grad;
  if (!step_ || !step_->is_over(nested, reduces_ && all_ready())) return;
  // Otherwise, the other ranks wait for nothing from this rank, or receive its status.
  const bool ends_all = options_.ends_with_failure() || (reduces_ && !exchanges_status());
  try {
    finish();
  } catch (const ComparedMismatch&) {
    throw;  // on all ranks
  } catch (const ReductionFailed& error) {
    if (exchanges_status()) throw;  // on all ranks
    notice_.set_text(error.what());
    abort_handle();
    throw;
  } catch (...) {
    if (!ends_all) throw;
    notice_.set_text(exception_text(std::current_exception()));
    abort_handle();
    throw;
  }
}

void BackwardStep::finish() {
  bool reduces = std::exchange(reduces_, false);
  ScopeExit over([this, reduces]() LOCKSTEP_REQUIRES(mutex_) {
    step_.reset();
    clock_.backward_ended(reduces);
  });
  has_averages_ = reduces;
  if (!reduces) return reducer_->end_backward(false);
  check_static_graph();
  JoinRound ranks;
  try {
    ranks = announce();
  } catch (const EarlyTermination&) {
    post_failure(0);
    reducer_->end_failed_backward();
    throw;
  }
  reduce(ranks, /*shadows=*/false);
  if (!options_.static_graph || std::exchange(graph_known_, true)) return;
  for (std::size_t i = 0; i < ready_.size(); ++i)
    if (!ready_[i]) static_unused_.push_back(static_cast<int>(i));
}

// Report the exception to the other ranks.
void BackwardStep::check_static_graph() {
  if (!graph_known_ || all_ready()) return;
  std::size_t changed = 0;
  while (ready_[changed] ||
         std::ranges::find(static_unused_, static_cast<int>(changed)) != static_unused_.end())
    ++changed;
  const std::string& name = reducer_->parameters()[changed].name;
  notice_.set_text(formatted("static_graph: {} has no gradient, and had one", name));
  announce_failure();
  reducer_->end_failed_backward();
  throw_changed_graph(name, "has no gradient, and had one");
}

JoinRound BackwardStep::announce() {
  std::shared_ptr<JoinLink> link;
  const Joinable* self = nullptr;
  {
    Lock lock(join_mutex_);
    link = link_;
    self = self_;
  }
  if (!link) return {.active = group_.size()};
  if (self != nullptr) return link->announce(*self, 0);
  // Ranks without inputs make the same calls as active ranks, with empty batches.
  return {.active = group_.size(), .first_active = link->latest().first_active};
}

// If this rank fails on its own, the others learn it instead of waiting.
void BackwardStep::complete_own(const JoinRound& ranks, bool shadows) {
  try {
    for (std::size_t i = 0; i < ready_.size(); ++i) check_dense(static_cast<int>(i));
    reducer_->end_backward(true);
    contribute_absent(shadows);
  } catch (...) {
    const bool ends_handle = options_.ends_with_failure();
    if (!ends_handle && !shadows && !exchanges_status()) throw;
    notice_.set_text(exception_text(std::current_exception()));
    if (ends_handle) {
      abort_handle();
    } else {
      post_failure(ranks.first_active);
      reducer_->end_failed_backward();
    }
    throw;
  }
}

void BackwardStep::reduce(const JoinRound& ranks, bool shadows) {
  complete_own(ranks, shadows);
  if (!shadows && (writes_.has_written() || reducer_->has_written())) status_.say_written();
  const bool exchanges = shadows || exchanges_status();
  if (!exchanges)
    if (const std::string missing = describe_missing(status_, 0); !missing.empty())
      throw_missing_gradients(missing, options_.strategy);
  reducer_->post_rest(status_, exchanges);
  if (buffers_) buffers_->post(options_.timeout, ranks.first_active);
  StepStatus all;
  {
    WaitTime::Scope waiting(*options_.waits);
    all = reducer_->wait();
    if (buffers_) buffers_->finish();
  }
  check_status(all, ranks.active);
  // The parameters of ranks without inputs stay behind until their Join ends.
  if (ranks.active == group_.size()) check_writes(all, exchanges);
  writes_.end();
  reducer_->forget_writes();
  if (ranks.active < group_.size() && divides_by_active())
    reducer_->scale_averages(static_cast<double>(group_.size()) / ranks.active);
  reducer_->publish(all);
  if (!std::exchange(order_known_, true)) adopt_order_of(ranks.first_active);
}

void BackwardStep::set_join(std::shared_ptr<JoinLink> link, const Joinable* self) {
  check(!link || link->options().divide_by_initial_world_size || reducer_->scales_averages(),
        "Join: averages of {} are divided by the number of all ranks "
        "(divide_by_initial_world_size)",
        options_.strategy);
  Lock lock(join_mutex_);
  link_ = std::move(link);
  self_ = self;
}

bool BackwardStep::exchanges_status() {
  return !has_streams_ || options_.find_unused_parameters || options_.static_graph || has_join();
}

bool BackwardStep::has_join() {
  Lock lock(join_mutex_);
  return link_ != nullptr;
}

bool BackwardStep::divides_by_active() {
  Lock lock(join_mutex_);
  return link_ && !link_->options().divide_by_initial_world_size;
}

void BackwardStep::clear_averages() {
  Lock lock(mutex_);
  at::NoGradGuard no_grad;
  if (std::exchange(has_averages_, false)) reducer_->clear_gradients(/*set_to_none=*/true);
}

void BackwardStep::shadow(const JoinRound& ranks) {
  Lock lock(mutex_);
  at::NoGradGuard no_grad;
  // If only active ranks are counted, leave out the gradients that were accumulated here.
  if (divides_by_active())
    for (const NamedParameter& parameter : reducer_->parameters())
      parameter.tensor.mutable_grad().reset();
  reducer_->begin();
  start_reduction();
  reduce(ranks, /*shadows=*/true);
}

void BackwardStep::leave() {
  Lock lock(mutex_);
  at::NoGradGuard no_grad;
  reducer_->begin();
  start_reduction();
  post_failure(0);
  reducer_->end_failed_backward();
}

// A rank without inputs does not count when parameters are missing on active ranks.
void BackwardStep::contribute_absent(bool shadows) {
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    auto number = static_cast<int>(i);
    bool is_there = ready_[i] ||
                    (!shadows && std::ranges::find(static_unused_, number) != static_unused_.end());
    if (is_there) continue;
    bool contributes = reducer_->contribute_absent(number);
    if (!contributes || (shadows && !options_.find_unused_parameters)) status_.say_missing(number);
  }
}

void BackwardStep::check_status(const StepStatus& all, int active) {
  if (all.failed() > 0) {
    post_notice(/*failed=*/false);
    const std::string ranks = notice_.finish(group_);
    reducer_->discard();
    throw ReductionFailed(formatted(
        "backward() ended with an exception on {} of {} ranks: {}; gradients are undefined on all",
        all.failed(), group_.size(), ranks));
  }
  if (options_.find_unused_parameters) return;
  std::string missing = describe_missing(all, active);
  if (missing.empty()) return;
  reducer_->discard();
  throw_missing_gradients(missing, options_.strategy);
}

// Without a status exchange, no rank knows whether another rank has written, so all ranks compare
// at intervals.
void BackwardStep::check_writes(const StepStatus& all, bool exchanges) {
  const bool some_wrote = exchanges && all.written() > 0;
  try {
    writes_.compare(group_, some_wrote);
    if (some_wrote && group_.size() > 1)
      reducer_->compare_writes(group_, {.tag = options_.strategy, .timeout = options_.timeout});
  } catch (...) {
    reducer_->discard();
    throw;
  }
}

// Ranks without inputs report that all gradients are missing.
std::string BackwardStep::describe_missing(const StepStatus& all, int active) const {
  constexpr std::size_t most_named = 8;
  const int joined = active == 0 ? 0 : group_.size() - active;
  std::size_t missing = 0;
  std::vector<std::string> named;
  const auto& parameters = reducer_->parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto number = static_cast<int>(i);
    const int ranks = all.missing(number) - joined;
    if (ranks == 0 || ++missing > most_named) continue;
    named.push_back(parameters[i].name);
    if (active > 0)
      named.back() += formatted(" (on {} of {} ranks{})", ranks, active,
                                status_.missing(number) > 0 ? ", this one too" : "");
  }
  std::string text = join(named);
  if (missing > named.size()) text += formatted(" and {} more", missing - named.size());
  return text;
}

void BackwardStep::adopt_order_of(int root) {
  if (group_.size() == 1) return;
  std::vector<int> own = layout::complete_order(observed_, static_cast<int>(ready_.size()));
  at::Tensor order = at::tensor(at::ArrayRef<int>(own), at::kInt)
                         .to(reducer_->parameters().front().tensor.device());
  group_.broadcast(order, root, {.tag = "order of readiness", .timeout = options_.timeout})
      .synchronize();
  order = order.cpu();
  const auto* begin = order.const_data_ptr<std::int32_t>();
  reducer_->adopt_order(std::vector<int>(begin, begin + order.numel()));
}

void BackwardStep::on_backward_failed() noexcept {
  // The next call on the dead group reports the failure; the exception in flight has a more
  // specific text.
  const auto note = [](const std::exception& error) {
    log::debug("after a backward() that failed: {}", error.what());
  };
  Lock lock(mutex_);
  if (!std::exchange(step_, nullptr)) return;
  clock_.backward_ended(false);
  at::NoGradGuard no_grad;
  const bool reduces = std::exchange(reduces_, false);
  try {
    if (options_.ends_with_failure() || (reduces && !exchanges_status())) {
      abort_handle();
    } else if (reduces) {
      announce_failure();
    }
  } catch (const std::exception& error) {
    note(error);
  }
  try {
    reducer_->end_failed_backward();
  } catch (const std::exception& error) {
    note(error);
  }
}

void BackwardStep::abort_handle() {
  const std::string text = notice_.take_text();
  options_.abort(formatted("{}: an exception ended backward(){}{}", options_.strategy,
                           text.empty() ? "" : ": ", text));
}

// Active ranks also announce the end of their backward().
void BackwardStep::announce_failure() {
  int root = 0;
  try {
    root = announce().first_active;
  } catch (const EarlyTermination&) {  // what they throw
  }
  post_failure(root);
}

void BackwardStep::post_failure(int buffers_root) {
  status_.say_failed();
  reducer_->post_failure(status_);
  if (buffers_) buffers_->post(options_.timeout, buffers_root);
  post_notice(/*failed=*/true);
}

void BackwardStep::post_notice(bool failed) {
  notice_.post(group_, failed, {.tag = "failed backward()", .timeout = options_.timeout});
}

}  // namespace lockstep::parallel
