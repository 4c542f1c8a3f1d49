// By which strategy the ranks train one model: the loop is the same for all.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/layout/mesh_layout.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/options.h>
#include <lockstep/train/task.h>

#include <c10/core/ScalarType.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace lockstep::train {

// The ranks are `copies` times as many as divide one model between them.
struct Division {
  std::vector<MeshAxis> axes;  // as --mesh has them, sizes known; empty: there is none
  int copies = 1;
  int shards = 1;
};

// With --strategy ps: how many of the ranks keep parameters; with another one 0.
[[nodiscard]] std::int64_t server_count(const Options& options);

// How many ranks --servers and --workers make together; 1 where they do not say.
[[nodiscard]] std::int64_t usual_ranks(const Options& options);

// BadInput where so many ranks, or other options, do not fit --strategy.
void check_strategy(const Options& options, int ranks);

// BadInput for axes that are unknown, do not make `ranks`, or do not fit --shard.
[[nodiscard]] Division division_of(const Options& options, int ranks);

// Which dtype parameters and data are computed with; none: their own.
[[nodiscard]] std::optional<c10::ScalarType> compute_dtype(const Options& options);

// Collective: the handle that the options ask for, on the task's model. `hook` is for
// DistributedDataParallel.
[[nodiscard]] Handle make_handle(const Options& options, const Task& task,
                                 std::shared_ptr<torch::nn::Module> module, const Group& group,
                                 std::shared_ptr<CommunicationHook> hook = nullptr);

// Bytes of parameters, gradients and optimizer state that this rank holds now.
[[nodiscard]] std::int64_t bytes_held(const Handle& handle,
                                      const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::train
