#include <lockstep/parallel/sharded/fully_shard.h>

#include "parallel/sharded/sharded_state.h"

#include <lockstep/base/check.h>
#include <lockstep/optim/clipping.h>

#include <ATen/ops/full.h>
#include <torch/nn/module.h>

#include <utility>

namespace lockstep {
namespace {

std::shared_ptr<torch::nn::Module> unowned(torch::nn::Module& module) {
  return {std::shared_ptr<void>(), &module};
}

// Each kind of call has a group of its own: its order is then the same on all ranks whatever the
// other kinds do meanwhile.
sharded::Groups groups_on(const Group& shards) {
  return {shards, shards.split(0), shards.split(0), Group()};
}

sharded::Groups groups_on(const Mesh& mesh) {
  const std::vector<MeshAxis>& axes = mesh.axes();
  check(axes.size() <= 2,
        "fully_shard: needs a mesh of one axis, or of two (copies, shards); found {}",
        mesh.layout().describe());
  if (axes.size() == 1) return groups_on(mesh.group());
  Group shards = mesh[axes[1].name];
  return {mesh.group(), shards.split(0), shards.split(0), mesh[axes[0].name].split(0)};
}

template <typename Ranks>
ShardedModule made(std::shared_ptr<torch::nn::Module> module, const Ranks& ranks,
                   const ShardOptions& options) {
  check(module != nullptr, "fully_shard: the module is null");
  return ShardedModule(
      std::make_shared<ShardedState>(std::move(module), groups_on(ranks), options));
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
  state_->flow->pause();
}

ShardedNoSync::~ShardedNoSync() {
  if (state_) state_->flow->resume();
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
  state_->flow->check_parameters();
  auto clear = [&](const at::Tensor& tensor) {
    at::Tensor& gradient = tensor.mutable_grad();
    if (!gradient.defined()) return;
    if (set_to_none) {
      gradient.reset();
    } else {
      gradient = gradient.detach();
      gradient.zero_();
    }
  };
  for (const at::Tensor& slice : parameters()) clear(slice);
  for (const auto& unit : state_->residency->units())
    for (const auto& parameter : unit->parameters()) clear(parameter.tensor);
}

double ShardedModule::clip_grad_norm(double max_norm, double norm_type) {
  check(norm_type > 0, "clip_grad_norm: the norm's order must be positive, found {}", norm_type);
  Group shards = state_->groups.reduce;
  auto combine = [&](double part, bool largest) {
    at::Tensor all = at::full({1}, part, at::kDouble);
    shards.all_reduce(all, largest ? Op::max : Op::sum, {.tag = "clip_grad_norm"}).wait();
    return all.item<double>();
  };
  return optim::clip_gradient_norm(parameters(), max_norm, norm_type, combine);
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

double ShardedModule::seconds_waited() const { return state_->waits->seconds(); }

ShardedNoSync ShardedModule::no_sync() { return ShardedNoSync(state_); }
Unsharded ShardedModule::unsharded() { return Unsharded(state_); }
void ShardedModule::unshard() { state_->unshard(); }
ShardedMemory ShardedModule::memory() const { return state_->memory(); }
void ShardedModule::reset_peak_memory() { state_->reset_peak_memory(); }
const Group& ShardedModule::group() const { return state_->groups.whole; }

std::vector<std::string> ShardedModule::units() const {
  std::vector<std::string> names;
  for (const auto& unit : state_->residency->units()) names.push_back(unit->name());
  return names;
}

}  // namespace lockstep
