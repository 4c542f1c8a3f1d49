#include "train/strategy.h"

#include "base/check.h"
#include "checkpoint/optimizer_state.h"
#include "parallel/whole_parameters.h"
#include "train/parts_handle.h"

#include <lockstep/mesh/mesh.h>
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
  const std::vector<std::string> patterns = task.units();
  ShardOptions how = options.sharding;
  how.level = level_of(options).value_or(ShardLevel::full);
  how.units = {patterns.begin(), patterns.end()};
  if (how.compute_dtype && !how.reduce_dtype) how.reduce_dtype = at::kFloat;
  return how;
}

bool has_axis(const Mesh& mesh, std::string_view name) {
  return std::ranges::find(mesh.axes(), name, &MeshAxis::name) != mesh.axes().end();
}

// Those of `names` that the mesh has, in this order.
std::optional<Mesh> part_of(const Mesh& mesh, std::initializer_list<std::string_view> names) {
  std::vector<std::string> found;
  for (const std::string_view name : names)
    if (has_axis(mesh, name)) found.emplace_back(name);
  if (found.empty()) return std::nullopt;
  if (std::ranges::equal(found, mesh.axes(), {}, {}, &MeshAxis::name)) return mesh;
  return mesh.sub_mesh(found);
}

// All axes of one model, or of one stage of it.
Mesh without_stages(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const MeshAxis& axis : mesh.axes())
    if (axis.name != stages_axis) names.push_back(axis.name);
  return names.size() == mesh.axes().size() ? mesh : mesh.sub_mesh(names);
}

// Of tensors that a strategy gives; a module of parts lives in its handle.
PartOfRun parts_of(const PartOfRun& part, torch::nn::Module& parts) {
  PartOfRun all = part;
  all.stage = {std::shared_ptr<void>(), &parts};
  return all;
}

TensorPlan plan_for(const Task& task, const PartOfRun& part) {
  return stage_plan(task.tensor_plan(), part.model, *part.stage);
}

// All axes but the last one, fsdp, have copies.
Mesh copies_and_shards(const Mesh& ranks) {
  if (ranks.axes().size() <= 2) return ranks;
  const int shards = ranks.size(shards_axis);
  return Mesh(ranks.group(), {{std::string(copies_axis), ranks.group().size() / shards},
                              {std::string(shards_axis), shards}});
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
  Handle handle = fully_shard(part.stage, copies_and_shards(learners), how);
  if (part.divided) part.divided(part.stage, handle);
  return handle;
}

}  // namespace

Handle make_handle_on(const Options& options, const Task& task, const PartOfRun& part,
                      const Mesh& mesh, const std::shared_ptr<CommunicationHook>& hook) {
  if (has_axis(mesh, experts_axis)) return make_expert_handle(options, task, part, mesh);
  if (has_axis(mesh, context_axis)) return make_context_handle(options, task, part, mesh);
  const std::optional<Mesh> learners = learners_of(mesh);
  if (!has_axis(mesh, tensor_axis)) {
    if (learners) return outer_handle(options, task, part, *learners, hook);
    return DistributedDataParallel(part.stage, Group());
  }
  const TensorPlan plan = plan_for(task, part);
  TensorParallelOptions how{.sequence_parallel = options.sequence_parallel};
  if (learners) {
    how.strategy = [&options, &task, part, learners, hook](torch::nn::Module& parts) {
      return outer_handle(options, task, parts_of(part, parts), *learners, hook);
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
  if (has_axis(mesh, tensor_axis)) how.plan = plan_for(task, part);
  return expert_parallel(
      part.stage,
      *part_of(mesh, {copies_axis, experts_axis, context_axis, shards_axis, tensor_axis}),
      std::move(how));
}

// The strategy adds gradients up over the ranks of cp, too: one call for all of them.
ContextParallel make_context_handle(const Options& options, const Task& task, const PartOfRun& part,
                                    const Mesh& mesh) {
  ContextParallelOptions how{.method = options.context_method,
                             .sequence_parallel = options.sequence_parallel,
                             .mesh = without_stages(mesh)};
  if (has_axis(mesh, tensor_axis)) how.plan = plan_for(task, part);
  const Mesh ranks = *part_of(mesh, {copies_axis, context_axis, shards_axis});
  how.strategy = [&options, &task, part, ranks](torch::nn::Module& parts) {
    return outer_handle(options, task, parts_of(part, parts), ranks);
  };
  return context_parallel(part.stage, *context_tensors_of(mesh, options), how);
}

std::optional<Mesh> context_tensors_of(const Mesh& mesh, const Options& options) {
  if (!has_axis(mesh, context_axis)) return std::nullopt;
  if (options.sequence_parallel) return part_of(mesh, {context_axis, tensor_axis});
  return part_of(mesh, {tensor_axis, context_axis});
}

std::optional<Mesh> learners_of(const Mesh& mesh) {
  return part_of(mesh, {copies_axis, experts_axis, shards_axis});
}

Handle make_handle(const Options& options, const Task& task,
                   std::shared_ptr<torch::nn::Module> module, const Group& group,
                   std::shared_ptr<CommunicationHook> hook) {
  const Division division = division_of(options, group.size());
  if (!division.axes.empty())
    return make_handle_on(options, task, {.model = *module, .stage = module},
                          Mesh(group, mesh_axes(division, task)), hook);
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
