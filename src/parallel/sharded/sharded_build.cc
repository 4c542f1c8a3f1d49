#include <lockstep/parallel/sharded/sharded_build.h>

#include "base/check.h"
#include "parallel/sharded/groups.h"
#include "parallel/sharded/sharded_state.h"

#include <c10/core/InferenceMode.h>
#include <torch/nn/module.h>

#include <utility>

namespace lockstep {

ShardedBuild::ShardedBuild(const Group& group, const ShardOptions& options)
    : state_(std::make_shared<ShardedState>(sharded::groups_on(group), options)) {}

ShardedBuild::ShardedBuild(const Mesh& mesh, const ShardOptions& options)
    : state_(std::make_shared<ShardedState>(sharded::groups_on(mesh), options)) {}

ShardedBuild::~ShardedBuild() {
  if (state_) state_->detach();
}

void ShardedBuild::divide(const torch::nn::Module& part) {
  check(state_ != nullptr, "ShardedBuild: divide() after finish()");
  c10::InferenceMode off(false);
  state_->divide(part);
}

ShardedModule ShardedBuild::finish(std::shared_ptr<torch::nn::Module> module) {
  check(module != nullptr, "ShardedBuild: the module is null");
  check(state_ != nullptr, "ShardedBuild: finish() comes once");
  c10::InferenceMode off(false);
  state_->complete(std::move(module));
  return ShardedModule(std::exchange(state_, nullptr));
}

}  // namespace lockstep
