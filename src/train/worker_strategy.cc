#include "train/worker_strategy.h"

#include "base/check.h"
#include "parallel/server/group_meeting.h"
#include "parallel/whole_parameters.h"
#include "train/micro_batches.h"
#include "train/option_table.h"
#include "train/served_run.h"

#include <lockstep/comm/together.h>
#include <lockstep/module/named_parameters.h>
#include <lockstep/optim/clipping.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/record_function.h>

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

// What an optimizer updates of a module that this rank has all of.
std::vector<NamedPart> trained_parts(const torch::nn::Module& module) {
  std::vector<NamedPart> parts;
  for (const auto& [name, tensor, aliases] : unique_parameters(module))
    if (tensor.requires_grad())
      parts.push_back({name, tensor, aliases, layout::whole_slice(tensor.sizes())});
  return parts;
}

}  // namespace

std::shared_ptr<parallel::WholeModuleState> parts_state(Group group, std::vector<NamedPart> trained,
                                                        std::vector<NamedPart> all) {
  return std::make_shared<parallel::WholeModuleState>(
      std::move(group), std::move(trained), [all = std::move(all)] { return all; },
      HandleState::Holds::parts);
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
    : RunStrategy({.learners = workers,
                   .processes = all.size(),
                   .waits_each_step = consistency_of(options) == ps::Consistency::synchronous,
                   .random_stream = workers.rank()}),
      options_(options),
      task_(task),
      all_(std::move(all)),
      workers_(std::move(workers)) {}

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
  whole_ = HandleState::handle_of(state_);
  handle_ = &whole_;
  rest_ = HandleState::handle_of(parts_state(all_, {}, other_parts(all, trained)));
  nothing_ = optimizer_of_nothing();
}

double WorkerStrategy::backward(const StepRows& rows, optim::GradScaler&) {
  return accumulate(whole_, rows.batch, options_.accumulate, [&](const Batch& part, double share) {
    at::Tensor loss = [&] {
      RECORD_USER_SCOPE("forward");
      return task_.loss(part);
    }();
    RECORD_USER_SCOPE("backward");
    (share == 1 ? loss : loss * share).backward();
    return loss.item<double>() * share;
  });
}

void WorkerStrategy::update(double, const optim::GradientTransform& transform, optim::GradScaler&) {
  // Where a gradient makes an update of its own, it is clipped here; of a mean by the server.
  if (transform.clip_norm && !facts_.waits_each_step) whole_.clip_grad_norm(*transform.clip_norm);
  parallel::WaitTime::Scope waiting(state_->waits());
  worker_->step();
}

void WorkerStrategy::meet(bool) {
  // All have pushed; nobody pushes more before all have pulled.
  if (!facts_.waits_each_step) worker_->pull();
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
                          checkpoint::SaveOptions options, checkpoint::AsyncSaver*) {
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
