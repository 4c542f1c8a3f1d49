#include <lockstep/parallel/sharded/fully_shard.h>

#include "parallel/sharded/groups.h"
#include "parallel/sharded/sharded_state.h"

#include <lockstep/base/check.h>
#include <lockstep/optim/clipping.h>

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <utility>

namespace lockstep {
namespace {

std::shared_ptr<torch::nn::Module> unowned(torch::nn::Module& module) {
  return {std::shared_ptr<void>(), &module};
}

template <typename Ranks>
ShardedModule made(std::shared_ptr<torch::nn::Module> module, const Ranks& ranks,
                   const ShardOptions& options) {
  check(module != nullptr, "fully_shard: the module is null");
  c10::InferenceMode off(false);
  auto state = std::make_shared<ShardedState>(sharded::groups_on(ranks), options);
  state->complete(std::move(module));
  return ShardedModule(std::move(state));
}

}  // namespace

ShardedModule fully_shard(torch::nn::Module& module, Group group, ShardOptions options) {
  return made(unowned(module), group, options);
}

ShardedModule fully_shard(std::shared_ptr<torch::nn::Module> module, Group group,
                          ShardOptions options) {
  return made(std::move(module), group, options);
}

ShardedModule fully_shard(torch::nn::Module& module, const Mesh& mesh, ShardOptions options) {
  return made(unowned(module), mesh, options);
}

ShardedModule fully_shard(std::shared_ptr<torch::nn::Module> module, const Mesh& mesh,
                          ShardOptions options) {
  return made(std::move(module), mesh, options);
}

ShardedNoSync::ShardedNoSync(std::shared_ptr<ShardedState> state) : state_(std::move(state)) {
  state_->step->pause();
}

ShardedNoSync::~ShardedNoSync() {
  if (state_) state_->step->resume();
}

Unsharded::Unsharded(std::shared_ptr<ShardedState> state) : state_(std::move(state)) {
  state_->residency->hold_all();
}

Unsharded::~Unsharded() {
  if (state_) state_->residency->release_all();
}

ShardedModule::~ShardedModule() {
  if (state_) state_->detach();
}

std::vector<at::Tensor> ShardedModule::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const ShardedParameter& parameter : named_parameters()) tensors.push_back(parameter.tensor);
  return tensors;
}

std::vector<ShardedParameter> ShardedModule::named_parameters() const {
  return state_->named_parameters();
}

void ShardedModule::zero_grad(bool set_to_none) {
  state_->step->check_module();
  state_->reducer->clear_gradients(set_to_none);
}

double ShardedModule::clip_grad_norm(double max_norm, double norm_type) {
  check(norm_type > 0, "clip_grad_norm: the norm's order must be positive, found {}", norm_type);
  check_gradients("clip_grad_norm");
  return optim::clip_grad_norm(parameters(), max_norm, norm_type);
}

void ShardedModule::clip_grad_value(double largest) {
  check(largest >= 0, "clip_grad_value: the largest value must be at least 0, found {}", largest);
  check_gradients("clip_grad_value");
  optim::clip_grad_value(parameters(), largest);
}

void ShardedModule::check_gradients(std::string_view operation) const {
  check(state_->reducer->has_gradients(),
        "{}: there are no gradients: no backward() outside no_sync() since the last zero_grad()",
        operation);
}

std::map<std::string, at::Tensor> ShardedModule::state_dict() const { return state_->state_dict(); }

void ShardedModule::load_state_dict(const std::map<std::string, at::Tensor>& tensors) {
  state_->load_state_dict(tensors);
}

std::vector<at::Tensor> ShardedModule::gather_parts(const std::vector<at::Tensor>& parts) const {
  return state_->gather_parts(parts);
}

at::Tensor ShardedModule::part_of(std::size_t i, const at::Tensor& whole) const {
  return state_->part_of(i, whole);
}

std::shared_ptr<optim::StateMemory> ShardedModule::state_memory() const {
  return state_->offload && state_->offload->is_in_files() ? state_->offload : nullptr;
}

double ShardedModule::seconds_waited() const { return state_->waits->seconds(); }

ShardedNoSync ShardedModule::no_sync() { return ShardedNoSync(state_); }
Unsharded ShardedModule::unsharded() {
  state_->step->check_module();
  return Unsharded(state_);
}
void ShardedModule::unshard() { state_->unshard(); }
ShardedMemory ShardedModule::memory() const { return state_->memory(); }
void ShardedModule::free_buffers() { state_->reducer->free_buffers(); }
void ShardedModule::reset_peak_memory() { state_->reset_peak_memory(); }
const Group& ShardedModule::group() const { return state_->groups.whole; }

std::vector<std::string> ShardedModule::units() const {
  std::vector<std::string> names;
  for (const auto& unit : state_->residency->units()) names.push_back(unit->name());
  return names;
}

}  // namespace lockstep
