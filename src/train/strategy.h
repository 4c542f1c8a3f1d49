// By which strategy the ranks train one model: the loop is the same for all.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/mesh_layout.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/tensor/context_parallel.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/train/options.h>
#include <lockstep/train/task.h>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::train {

// The product of all sizes is the number of ranks.
struct Division {
  std::vector<MeshAxis> axes;  // as --mesh has them, sizes known; empty: there is none
  int copies = 1;              // dp
  int shards = 1;              // fsdp
  int stages = 1;              // pp
  int tensor = 1;              // tp
  int context = 1;             // cp
  int experts = 1;             // ep

  // Whether one model is computed by several ranks together.
  [[nodiscard]] bool is_model_parallel() const { return stages * tensor * context * experts > 1; }
  // Ranks, or sets of ranks, that have rows of their own.
  [[nodiscard]] int learners() const { return copies * experts * shards; }
};

// With --strategy ps: how many of the ranks keep parameters; with another one 0.
[[nodiscard]] std::int64_t server_count(const Options& options);

// How many ranks --servers and --workers make together; 1 where they do not say.
[[nodiscard]] std::int64_t usual_ranks(const Options& options);

// BadInput where so many ranks, or other options, do not fit --strategy.
void check_strategy(const Options& options, int ranks);

// BadInput for axes that are unknown, do not make `ranks`, or do not fit --shard.
[[nodiscard]] Division division_of(const Options& options, int ranks);

// The axes of a run's mesh: those of --mesh, and ep=1 where ranks compute the layers of a model
// with experts together, so that these count all ranks' tokens.
[[nodiscard]] std::vector<MeshAxis> mesh_axes(const Division& division, const Task& task);

// BadInput for options of axes that are not there, or that the task cannot have.
void check_axes(const Options& options, const Task& task, const Division& division);

// Which dtype parameters and data are computed with; none: their own.
[[nodiscard]] std::optional<c10::ScalarType> compute_dtype(const Options& options);

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
// The same on a mesh with an axis cp, or with ep: these cut batches.
[[nodiscard]] ContextParallel make_context_handle(const Options& options, const Task& task,
                                                  const PartOfRun& part, const Mesh& mesh);
[[nodiscard]] ExpertParallel make_expert_handle(const Options& options, const Task& task,
                                                const PartOfRun& part, const Mesh& mesh);
// The axes tp and cp of it, of whose ranks its tensors are; absent without cp.
[[nodiscard]] std::optional<Mesh> context_tensors_of(const Mesh& mesh, const Options& options);
// The axes dp, ep and fsdp of it, in this order; absent where it has none of them.
[[nodiscard]] std::optional<Mesh> learners_of(const Mesh& mesh);

// Bytes of parameters, gradients and optimizer state that this rank holds now.
[[nodiscard]] std::int64_t bytes_held(const Handle& handle,
                                      const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::train
