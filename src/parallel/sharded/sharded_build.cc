#include <lockstep/parallel/sharded/sharded_build.h>

#include "base/check.h"
#include "parallel/sharded/groups.h"
#include "parallel/sharded/sharded_state.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <utility>

namespace lockstep {

ShardedBuild::ShardedBuild(const Ranks& ranks, const ShardOptions& options)
    : state_(std::make_shared<ShardedState>(sharded::groups_on(ranks), options)) {}

ShardedBuild::~ShardedBuild() {
  if (state_) state_->detach();
}

void ShardedBuild::divide(const torch::nn::Module& part) {
  check(state_ != nullptr, "ShardedBuild: divide() after finish()");
  c10::InferenceMode off(false);
  state_->divide(part);
}

ShardedModule ShardedBuild::finish(const ModuleRef& module) {
  std::shared_ptr<torch::nn::Module> whole = module.shared("ShardedBuild");
  check(state_ != nullptr, "ShardedBuild: finish() comes once");
  c10::InferenceMode off(false);
  state_->complete(std::move(whole));
  return ShardedModule(std::exchange(state_, nullptr));
}

}  // namespace lockstep
