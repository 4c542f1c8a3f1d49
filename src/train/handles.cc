#include "train/strategy.h"

#include "base/check.h"
#include "checkpoint/optimizer_state.h"
#include "parallel/whole_parameters.h"
#include "train/parts_handle.h"

#include <lockstep/mesh/mesh.h>
#include <lockstep/module/module_ref.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/expert_parallel.h>
#include <lockstep/parallel/tensor/tensor_parallel.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::train {
namespace {

ShardOptions shard_options(const Options& options, const Task& task) {
  ShardOptions how = options.sharding;
  how.level = level_of(options).value_or(ShardLevel::full);
  how.units = task.units();
  if (how.compute_dtype && !how.reduce_dtype) how.reduce_dtype = at::kFloat;
  return how;
}

// The axes among `names` that have several ranks, in this order. The axis that shards comes last,
// and is there whenever ranks shard.
std::vector<std::string> names_in(const Mesh& mesh, const Options& options,
                                  std::initializer_list<std::string_view> names) {
  std::vector<std::string> found;
  for (const std::string_view name : names)
    if (mesh.size(name) > 1 || (name == shards_axis && level_of(options))) found.emplace_back(name);
  return found;
}

// All axes of one model, or of one stage of it.
Mesh without_stages(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.name != stages_axis) names.push_back(axis.name);
  return mesh.sub_mesh(names);
}

// Of tensors that a strategy gives; a module of parts lives in its handle.
PartOfRun parts_of(const PartOfRun& part, torch::nn::Module& parts) {
  PartOfRun all = part;
  all.stage = ModuleRef(parts).shared("train");
  return all;
}

TensorPlan plan_for(const Task& task, const PartOfRun& part) {
  return stage_plan(task.tensor_plan(), part.model, *part.stage);
}

// Copies and shards of a model, or of what tensor parallelism gives a rank of it.
Handle outer_handle(const Options& options, const Task& task, const PartOfRun& part,
                    const Mesh& learners,
                    const std::shared_ptr<CommunicationHook>& hook = nullptr) {
  // Gradients of slots are added up by SlotGradients.
  if (!level_of(options) && options.elastic)
    return PartsHandle(parts_state(learners.group(), trained_parts(*part.stage),
                                   parallel::whole_state_parts(*part.stage)));
  if (!level_of(options)) return DistributedDataParallel(part.stage, learners, {.hook = hook});
  ShardOptions how = shard_options(options, task);
  how.units.insert(how.units.end(), part.tied.begin(), part.tied.end());
  how.units = stage_units(how.units, part.model, *part.stage);
  Handle handle = fully_shard(part.stage, learners, how);
  if (part.divided) part.divided(part.stage, handle);
  return handle;
}

}  // namespace

Handle make_handle_on(const Options& options, const Task& task, const PartOfRun& part,
                      const Mesh& mesh, const std::shared_ptr<CommunicationHook>& hook) {
  if (trains_experts(task, mesh)) return make_expert_handle(options, task, part, mesh);
  if (mesh.size(context_axis) > 1) return make_context_handle(options, task, part, mesh);
  const Mesh learners = learners_of(mesh, options);
  if (mesh.size(tensor_axis) == 1) return outer_handle(options, task, part, learners, hook);
  const TensorPlan plan = plan_for(task, part);
  TensorParallelOptions how{.sequence_parallel = options.sequence_parallel};
  if (learners.group().size() > 1 || level_of(options) || options.elastic) {
    how.strategy = [&options, &task, part, learners, hook](torch::nn::Module& parts) {
      return outer_handle(options, task, parts_of(part, parts), learners, hook);
    };
    how.mesh = without_stages(mesh);
  }
  return parallelize_tensors(part.stage, mesh[tensor_axis], plan, how);
}

ExpertParallel make_expert_handle(const Options& options, const Task& task, const PartOfRun& part,
                                  const Mesh& mesh) {
  ExpertParallelOptions how{
      .strategy =
          [&options, &task, part](torch::nn::Module& parts, const Mesh& ranks) {
            return outer_handle(options, task, parts_of(part, parts), ranks);
          },
      .sequence_parallel = options.sequence_parallel,
      .method = options.context_method,
      .is_stage = part.is_stage,
      .tensors = context_tensors_of(mesh, options)};
  if (mesh.size(tensor_axis) > 1) how.plan = plan_for(task, part);
  return expert_parallel(
      part.stage,
      mesh.sub_mesh(names_in(mesh, options,
                             {copies_axis, experts_axis, context_axis, shards_axis, tensor_axis})),
      std::move(how));
}

// The strategy adds gradients up over the ranks of cp, too: one call for all of them.
ContextParallel make_context_handle(const Options& options, const Task& task, const PartOfRun& part,
                                    const Mesh& mesh) {
  ContextParallelOptions how{.method = options.context_method,
                             .sequence_parallel = options.sequence_parallel,
                             .mesh = without_stages(mesh)};
  if (mesh.size(tensor_axis) > 1) how.plan = plan_for(task, part);
  const Mesh ranks =
      mesh.sub_mesh(names_in(mesh, options, {copies_axis, context_axis, shards_axis}));
  how.strategy = [&options, &task, part, ranks](torch::nn::Module& parts) {
    return outer_handle(options, task, parts_of(part, parts), ranks);
  };
  return context_parallel(part.stage, *context_tensors_of(mesh, options), how);
}

std::optional<Mesh> context_tensors_of(const Mesh& mesh, const Options& options) {
  if (mesh.size(context_axis) == 1) return std::nullopt;
  if (options.sequence_parallel)
    return mesh.sub_mesh(names_in(mesh, options, {context_axis, tensor_axis}));
  return mesh.sub_mesh(names_in(mesh, options, {tensor_axis, context_axis}));
}

Mesh learners_of(const Mesh& mesh, const Options& options) {
  std::vector<std::string> names =
      names_in(mesh, options, {copies_axis, experts_axis, shards_axis});
  if (names.empty()) names = {std::string(copies_axis)};
  return mesh.sub_mesh(names);
}

bool trains_experts(const Task& task, const Mesh& mesh) {
  return task.experts() > 0 &&
         mesh.size(experts_axis) * mesh.size(tensor_axis) * mesh.size(context_axis) > 1;
}

Handle make_handle(const Options& options, const Task& task,
                   std::shared_ptr<torch::nn::Module> module, const Group& group,
                   std::shared_ptr<CommunicationHook> hook) {
  const Division division = division_of(options, group.size());
  if (!division.axes.empty())
    return make_handle_on(options, task, {.model = *module, .stage = module},
                          Mesh(group, division.axes), hook);
  if (!level_of(options))
    return DistributedDataParallel(std::move(module), group, {.hook = std::move(hook)});
  return fully_shard(std::move(module), group, shard_options(options, task));
}

// What is offloaded is in files, and the optimizer's state with it.
std::int64_t bytes_held(const Handle& handle, const torch::optim::Optimizer& optimizer) {
  std::int64_t kept = handle.memory().kept();
  if (handle.state_memory()) return kept;
  return kept + checkpoint::optimizer_state_bytes(optimizer, handle);
}

}  // namespace lockstep::train
