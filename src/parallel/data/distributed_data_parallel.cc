#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "dispatch/lazy_storage.h"
#include "module/rank_check.h"
#include "parallel/backward_step.h"
#include "parallel/data/bucket_reducer.h"
#include "parallel/gradient_hooks.h"
#include "parallel/state_broadcast.h"

#include <lockstep/base/check.h>
#include <lockstep/dispatch/deferral.h>
#include <lockstep/module/state_dict.h>
#include <lockstep/optim/clipping.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <lockstep/base/format.h>

#include <utility>

namespace lockstep {
namespace {

using data_parallel::BucketReducer;
using parallel::BackwardStep;
using parallel::GradientHooks;

// What all ranks must agree on.
std::vector<std::string> describe(const modules::ModuleTensors& tensors,
                                  const DataParallelOptions& options) {
  std::vector<std::string> lines = {
      formatted("option bucket_bytes = {}", options.bucket_bytes),
      formatted("option first_bucket_bytes = {}", options.first_bucket_bytes),
      formatted("option find_unused_parameters = {}", options.find_unused_parameters),
      formatted("option broadcast_buffers = {}", options.broadcast_buffers)};
  for (const std::string& pattern : options.ignored)
    lines.push_back(formatted("option ignored {}", pattern));
  for (std::string& line : modules::lines_of(tensors)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

class DataParallelState {
 public:
  DataParallelState(std::shared_ptr<torch::nn::Module> module, Group group,
                    const DataParallelOptions& options);

  void detach() {
    hooks.reset();
    reducer->release();
  }

  std::shared_ptr<torch::nn::Module> module;
  Group group;
  std::vector<NamedParameter> parameters;
  std::shared_ptr<parallel::WaitTime> waits = std::make_shared<parallel::WaitTime>();
  std::shared_ptr<BucketReducer> reducer;
  std::shared_ptr<BackwardStep> step;
  std::unique_ptr<GradientHooks> hooks;
};

DataParallelState::DataParallelState(std::shared_ptr<torch::nn::Module> the_module, Group the_group,
                                     const DataParallelOptions& options)
    : module(std::move(the_module)), group(std::move(the_group)) {
  check(options.bucket_bytes >= 1 && options.first_bucket_bytes >= 1,
        "DistributedDataParallel: bucket sizes must be positive, found {} and {} bytes",
        options.bucket_bytes, options.first_bucket_bytes);
  CallOptions call{.tag = "DistributedDataParallel", .timeout = options.timeout};
  modules::ModuleTensors tensors = modules::tensors_of(*module, options.ignored);
  modules::check_same_lines(group, describe(tensors, options), call);
  modules::check_ordinary(tensors, "DistributedDataParallel");
  parameters = tensors.parameters;
  std::vector<NamedParameter> trainable;
  std::vector<at::Tensor> state;
  for (const NamedParameter& parameter : parameters) {
    check(!dispatch::is_lazy(parameter.tensor) || dispatch::is_deferred(parameter.tensor),
          "DistributedDataParallel: {} is sharded; the handle of fully_shard() averages its "
          "gradients already",
          parameter.name);
    state.push_back(parameter.tensor);
    if (parameter.tensor.requires_grad()) trainable.push_back(parameter);
  }
  std::vector<at::Tensor> buffers = tensors.buffer_tensors();
  state.insert(state.end(), buffers.begin(), buffers.end());
  parallel::broadcast_now(group, state, options.bucket_bytes, call);
  if (!options.broadcast_buffers) buffers.clear();
  reducer = std::make_shared<BucketReducer>(group, std::move(trainable), options);
  step = std::make_shared<BackwardStep>(
      group, reducer,
      modules::ModuleWatch(*module, options.ignored, "DistributedDataParallel was made"),
      std::move(buffers),
      parallel::StepOptions{.strategy = "DistributedDataParallel",
                            .find_unused_parameters = options.find_unused_parameters,
                            .timeout = options.timeout,
                            .waits = waits});
  hooks = std::make_unique<GradientHooks>(step->hooked(),
                                          [step = step.get()](int i) { step->on_gradient(i); });
}

NoSync::NoSync(std::shared_ptr<DataParallelState> state) : state_(std::move(state)) {
  state_->step->pause();
}

NoSync::~NoSync() {
  if (state_) state_->step->resume();
}

DistributedDataParallel::DistributedDataParallel(torch::nn::Module& module, Group group,
                                                 Options options)
    : DistributedDataParallel(std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(), &module),
                              std::move(group), options) {}

DistributedDataParallel::DistributedDataParallel(std::shared_ptr<torch::nn::Module> module,
                                                 Group group, Options options) {
  check(module != nullptr, "DistributedDataParallel: the module is null");
  state_ = std::make_shared<DataParallelState>(std::move(module), std::move(group), options);
}

DistributedDataParallel::~DistributedDataParallel() {
  if (state_) state_->detach();
}

std::vector<at::Tensor> DistributedDataParallel::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : state_->parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

std::vector<NamedParameter> DistributedDataParallel::named_parameters() const {
  return state_->parameters;
}

void DistributedDataParallel::zero_grad(bool set_to_none) {
  state_->step->check_module();
  for (const NamedParameter& parameter : state_->parameters) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) continue;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient = gradient.detach();
      gradient.zero_();
    }
  }
}

double DistributedDataParallel::clip_grad_norm(double max_norm, double norm_type) {
  return optim::clip_grad_norm(parameters(), max_norm, norm_type);
}

std::map<std::string, at::Tensor> DistributedDataParallel::state_dict() const {
  return lockstep::state_dict(*state_->module);
}

void DistributedDataParallel::load_state_dict(const std::map<std::string, at::Tensor>& tensors) {
  lockstep::load_state_dict(*state_->module, tensors);
}

double DistributedDataParallel::seconds_waited() const { return state_->waits->seconds(); }

NoSync DistributedDataParallel::no_sync() { return NoSync(state_); }

const Group& DistributedDataParallel::group() const { return state_->group; }

}  // namespace lockstep
