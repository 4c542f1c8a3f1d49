// By which strategy the ranks train one model: the loop is the same for all.
#pragma once

#include "train/option_table.h"

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/train/options.h>
#include <lockstep/train/task.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::train {

// Collective: the handle that the options ask for, on the task's model; not with several stages.
// `hook` is for DistributedDataParallel.
[[nodiscard]] Handle make_handle(const Options& options, const Task& task,
                                 std::shared_ptr<torch::nn::Module> module, const Group& group,
                                 std::shared_ptr<CommunicationHook> hook = nullptr);

// The same for a model whose ranks are those of a mesh of all axes of --mesh, or for a stage of
// `model`. `tied`: modules of several stages, which are units of their own.
struct PartOfRun {
  const torch::nn::Module& model;
  std::shared_ptr<torch::nn::Module> stage;  // or the model
  bool is_stage = false;
  std::vector<std::string> tied = {};
  // Told of what --shard divides over copies and shards of the model, and its handle: with tensor
  // parallelism a module of the parts that a rank has, which lives in the whole handle.
  std::function<void(const std::shared_ptr<torch::nn::Module>& module, const Handle& handle)>
      divided = {};
};
[[nodiscard]] Handle make_handle_on(const Options& options, const Task& task, const PartOfRun& part,
                                    const Mesh& mesh,
                                    const std::shared_ptr<CommunicationHook>& hook = nullptr);
// The same on several ranks of cp, or where trains_experts(): these cut batches.
[[nodiscard]] ContextParallel make_context_handle(const Options& options, const Task& task,
                                                  const PartOfRun& part, const Mesh& mesh);
[[nodiscard]] ExpertParallel make_expert_handle(const Options& options, const Task& task,
                                                const PartOfRun& part, const Mesh& mesh);
// The axes tp and cp of it, of whose ranks its tensors are; absent with one rank of cp.
[[nodiscard]] std::optional<Mesh> context_tensors_of(const Mesh& mesh, const Options& options);
// The ranks that have rows of their own: its axes dp, ep and fsdp, in this order.
[[nodiscard]] Mesh learners_of(const Mesh& mesh, const Options& options);
// Whether ranks compute the layers of a model with experts together, so that these count the tokens
// of all ranks.
[[nodiscard]] bool trains_experts(const Task& task, const Mesh& mesh);

// Bytes of parameters, gradients and optimizer state that this rank holds now.
[[nodiscard]] std::int64_t bytes_held(const Handle& handle,
                                      const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::train
