#include <lockstep/parallel/sharded/deferred.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "base/check.h"
#include "parallel/bucket.h"
#include "parallel/sharded/sharded_state.h"
#include "parallel/sharded/unit.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <utility>

namespace lockstep {

ShardedModule fully_shard(const ModuleRef& module, const Ranks& ranks,
                          const ShardOptions& options) {
  std::shared_ptr<torch::nn::Module> whole = module.shared("fully_shard");
  c10::InferenceMode off(false);
  auto state = std::make_shared<ShardedState>(sharded::groups_on(ranks), options);
  state->complete(std::move(whole));
  return ShardedModule(std::move(state));
}

Unsharded::Unsharded(std::shared_ptr<ShardedState> state) : state_(std::move(state)) {
  state_->unsharder->hold_all();
}

Unsharded::~Unsharded() {
  if (state_) state_->unsharder->release_all();
}

ShardedModule::ShardedModule(std::shared_ptr<ShardedState> state) : Handle(std::move(state)) {}

std::shared_ptr<ShardedState> ShardedModule::sharded() const {
  auto sharded = std::dynamic_pointer_cast<ShardedState>(state());
  check(sharded != nullptr,
        "ShardedModule: expected a handle of fully_shard(), found one of another strategy");
  return sharded;
}

Unsharded ShardedModule::unsharded() {
  sharded()->step->check_module();
  return Unsharded(sharded());
}

void ShardedModule::unshard() { sharded()->unshard(); }
void ShardedModule::reset_peak_memory() { sharded()->reset_peak_memory(); }
void ShardedModule::free_buffers() { sharded()->reducer->free_buffers(); }

std::vector<std::string> ShardedModule::units() const {
  std::vector<std::string> names;
  for (const auto& unit : sharded()->unsharder->units()) names.push_back(unit->name());
  return names;
}

void move_to(torch::nn::Module& module, c10::Device device) {
  const c10::InferenceMode off(false);
  std::vector<at::Tensor> tensors = module.parameters();
  for (const at::Tensor& buffer : module.buffers()) tensors.push_back(buffer);
  dispatch::move_to(tensors, device);
}

void make_values(torch::nn::Module& module) {
  c10::InferenceMode off(false);
  for (const at::Tensor& parameter : module.parameters()) parallel::make_ordinary(parameter);
  for (const at::Tensor& buffer : module.buffers()) parallel::make_ordinary(buffer);
}

}  // namespace lockstep
