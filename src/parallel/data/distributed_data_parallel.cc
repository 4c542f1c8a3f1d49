#include <lockstep/parallel/data/distributed_data_parallel.h>

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "parallel/backward_hooks.h"
#include "parallel/backward_step.h"
#include "parallel/bucket.h"
#include "parallel/data/bucket_reducer.h"
#include "parallel/data/checks.h"
#include "parallel/step_joinable.h"
#include "parallel/whole_module_state.h"

#include <lockstep/dispatch/deferral.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep {
namespace {

using data_parallel::BucketReducer;
using parallel::BackwardStep;
using parallel::GradientHooks;

// Returns the properties that must be equal on all ranks.
std::vector<std::string> describe(const modules::ModuleTensors& tensors,
                                  const DataParallelOptions& options) {
  std::vector<std::string> lines = data_parallel::lines_of(options);
  for (std::string& line : modules::lines_of(tensors)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

class DataParallelState final : public parallel::WholeModuleState {
 public:
  DataParallelState(std::shared_ptr<torch::nn::Module> module, Group group,
                    std::optional<Mesh> mesh, const DataParallelOptions& options);

  void detach() override;
  void zero_grad(bool set_to_none) override;
  void set_requires_gradient_sync(bool on) override { on ? step_->resume() : step_->pause(); }

  void check_one_model() const override;
  void end_load(bool complete) override;

  [[nodiscard]] StepTiming timing() const override { return step_->clock().total(); }
  [[nodiscard]] Joinable& joinable() override { return *joinable_; }
  [[nodiscard]] std::optional<Mesh> mesh() const override { return mesh_; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::optional<Mesh> mesh_;
  std::shared_ptr<CommunicationHook> hook_;
  std::vector<NamedParameter> parameters_;
  std::shared_ptr<BucketReducer> reducer_;
  std::shared_ptr<BackwardStep> step_;
  std::unique_ptr<parallel::StepJoinable> joinable_;
  std::unique_ptr<GradientHooks> hooks_;
};

DataParallelState::DataParallelState(std::shared_ptr<torch::nn::Module> module, Group group,
                                     std::optional<Mesh> mesh, const DataParallelOptions& options)
    : WholeModuleState(*module, std::move(group), options.ignored),
      module_(std::move(module)),
      mesh_(std::move(mesh)),
      hook_(options.hook) {
  data_parallel::check_options(options);
  if (mesh_) aborts(*mesh_);
  CallOptions call{.tag = "DistributedDataParallel", .timeout = options.timeout};
  modules::ModuleTensors tensors = modules::tensors_of(*module_, options.ignored);
  modules::check_same_lines(group_, describe(tensors, options), call);
  modules::check_ordinary(tensors, "DistributedDataParallel");
  parameters_ = tensors.parameters;
  std::vector<NamedParameter> trainable;
  std::vector<at::Tensor> state;
  for (const NamedParameter& parameter : parameters_) {
    // Shards of tensor parallelism are in such storages, too, but always present.
    check(dispatch::owner_of(*parameter.tensor.unsafeGetTensorImpl()) == nullptr ||
              dispatch::is_deferred(parameter.tensor),
          "DistributedDataParallel: {} is sharded; the handle of fully_shard() averages its "
          "gradients already",
          parameter.name);
    state.push_back(parameter.tensor);
    if (parameter.tensor.requires_grad()) trainable.push_back(parameter);
  }
  if (options.hook) options.hook->attach(trainable);
  std::vector<at::Tensor> buffers = tensors.buffer_tensors();
  state.insert(state.end(), buffers.begin(), buffers.end());
  parallel::broadcast_now(group_, state, options.bucket_bytes, call);
  if (!options.broadcast_buffers) buffers.clear();
  reducer_ = std::make_shared<BucketReducer>(group_, std::move(trainable), options, waits_);
  step_ = std::make_shared<BackwardStep>(
      group_, reducer_,
      modules::ModuleWatch(*module_, options.ignored, "DistributedDataParallel was made"),
      std::move(buffers),
      parallel::StepOptions{
          .strategy = "DistributedDataParallel",
          .find_unused_parameters = options.find_unused_parameters || options.static_graph,
          .static_graph = options.static_graph,
          .equal =
              hook_ && !hook_->averages_over_all() ? std::vector<NamedParameter>() : parameters_,
          .timeout = options.timeout,
          .waits = waits_});
  joinable_ = std::make_unique<parallel::StepJoinable>("DistributedDataParallel", group_, *step_);
  hooks_ = std::make_unique<GradientHooks>(
      step_->hooked(), [step = step_.get()](int i) { step->on_gradient(i); },
      [step = step_.get()] { return step->has_averages(); });
}

void DataParallelState::detach() {
  hooks_.reset();
  reducer_->release();
}

void DataParallelState::zero_grad(bool set_to_none) {
  step_->zero_grad();
  WholeModuleState::zero_grad(set_to_none);
}

void DataParallelState::check_one_model() const {
  check(!hook_ || !hook_->models_may_differ(),
        "DistributedDataParallel: the ranks' models may differ, since hook {} does not average "
        "gradients over all of them: save after a ModelAverager that was made with the hook has "
        "averaged over all ranks (average_now())",
        hook_ ? hook_->describe() : "");
}

void DataParallelState::end_load(bool complete) {
  if (complete && hook_) hook_->models_are_equal(group_);
}

DistributedDataParallel::DistributedDataParallel(const ModuleRef& module, const Ranks& ranks,
                                                 const Options& options)
    : Handle(std::make_shared<DataParallelState>(module.shared("DistributedDataParallel"),
                                                 ranks.group(), ranks.mesh(), options)) {}

}  // namespace lockstep
