#include "train/worker_strategy.h"

#include "base/check.h"
#include "parallel/server/group_meeting.h"
#include "parallel/whole_parameters.h"
#include "train/served_run.h"

#include <lockstep/comm/together.h>
#include <lockstep/optim/clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <exception>

namespace lockstep::train {
namespace {

// Of the module's tensors those that the servers have not.
std::vector<NamedPart> other_parts(const std::vector<NamedPart>& all,
                                   const std::vector<NamedPart>& trained) {
  std::vector<NamedPart> parts;
  for (const NamedPart& part : all)
    if (std::ranges::find(trained, part.name, &NamedPart::name) == trained.end())
      parts.push_back(part);
  return parts;
}

}  // namespace

std::unique_ptr<torch::optim::Optimizer> optimizer_of_nothing() {
  return std::make_unique<torch::optim::SGD>(std::vector<at::Tensor>(),
                                             torch::optim::SGDOptions(1));
}

RunLength share_steps(Group& all, const RunLength& own) {
  at::Tensor numbers = at::tensor({own.steps, own.steps_per_epoch}, at::kLong);
  all.broadcast(numbers, 0, {.tag = "steps"}).wait();
  const auto* values = numbers.const_data_ptr<std::int64_t>();
  return {values[0], values[1]};
}

void share_failure(Group& all, const std::string& failure) {
  const std::string common = broadcast_text(all, failure);
  if (!common.empty()) throw CommonFailure(common, 0);
}

WorkerStrategy::WorkerStrategy(const Options& options, Task& task, Group all, Group workers)
    : options_(options), task_(task), all_(std::move(all)), workers_(std::move(workers)) {}

std::unique_ptr<StoreServer> WorkerStrategy::leave() {
  worker_.reset();
  return std::move(store_server_);
}

void WorkerStrategy::attach(std::shared_ptr<torch::nn::Module> module, RunLength length) {
  module_ = std::move(module);
  is_attached_ = true;
  share_failure(all_, "");
  (void)share_steps(all_, length);
  ps::GroupMeeting met = ps::meet_in_group(all_, all_.size() - workers_.size());
  store_server_ = std::move(met.store_server);
  worker_.emplace(module_, met.place.meeting, met.place.number);
  const std::vector<NamedPart> trained = trained_parts(*module_);
  const std::vector<NamedPart> all = parallel::whole_state_parts(*module_);
  state_ = parts_state(workers_, trained, all);
  handle_ = PartsHandle(state_);
  rest_ = PartsHandle(parts_state(all_, {}, other_parts(all, trained)));
  nothing_ = optimizer_of_nothing();
}

double WorkerStrategy::backward(const Batch& part, double share, optim::GradScaler&) {
  at::Tensor loss = [&] {
    RECORD_USER_SCOPE("forward");
    return task_.loss(part);
  }();
  RECORD_USER_SCOPE("backward");
  (share == 1 ? loss : loss * share).backward();
  return loss.item<double>() * share;
}

void WorkerStrategy::update(double, const optim::GradientTransform& transform, optim::GradScaler&) {
  // Where a gradient makes an update of its own, it is clipped here; of a mean by the server.
  if (transform.clip_norm && !waits_each_step()) handle_.clip_grad_norm(*transform.clip_norm);
  parallel::WaitTime::Scope waiting(state_->waits());
  worker_->step();
}

bool WorkerStrategy::waits_each_step() const {
  return consistency_of(options_) == ps::Consistency::synchronous;
}

void WorkerStrategy::meet(bool) {
  // All have pushed; nobody pushes more before all have pulled.
  if (!waits_each_step()) worker_->pull();
  at::NoGradGuard no_grad;
  for (const NamedPart& part : state_->state_parts())
    if (part.kind == PartKind::buffer && part.tensor.numel() > 0) {
      at::Tensor values = part.tensor.contiguous();
      workers_.broadcast(values, 0, {.tag = "buffers"}).wait();
      if (!values.is_same(part.tensor)) part.tensor.copy_(values);
    }
  workers_.barrier().wait();
}

void WorkerStrategy::with_servers(const std::string& request, const std::function<void()>& both) {
  if (!workers_.is_root()) return both();
  std::exception_ptr failure;  // the servers have it, too, and answer all the same
  worker_->request(request, [&] {
    try {
      both();
    } catch (const CommonFailure&) {
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

void WorkerStrategy::save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                          const checkpoint::SaveOptions& options) {
  with_servers(std::string(save_request) + out.string(),
               [&] { checkpoint::save(out, rest_, *nothing_, state, options); });
}

void WorkerStrategy::load(const std::filesystem::path& folder) {
  std::map<std::string, at::Tensor> of_other_kinds;
  with_servers(std::string(load_request) + folder.string(), [&] {
    (void)checkpoint::load(folder, rest_, *nothing_, {.verify = false, .own = &of_other_kinds});
  });
  workers_.barrier().wait();  // until the servers have answered worker 0
  worker_->pull();
}

std::vector<std::pair<std::string, std::string>> WorkerStrategy::results() {
  const ps::Traffic traffic = worker_->traffic();
  return {{"pushed_bytes", formatted("{}", traffic.pushed)},
          {"pulled_bytes", formatted("{}", traffic.pulled)}};
}

}  // namespace lockstep::train
