#include "train/strategy.h"

#include "base/check.h"
#include "base/visible.h"
#include "checkpoint/optimizer_state.h"

#include <lockstep/mesh/mesh.h>
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/parallelize.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace lockstep::train {
namespace {

constexpr std::string_view stages_axis = "pp";
constexpr std::string_view copies_axis = "dp";
constexpr std::string_view shards_axis = "fsdp";
constexpr std::string_view tensor_axis = "tp";

std::optional<c10::ScalarType> dtype_of(const std::string& word) {
  if (word == "bf16") return at::kBFloat16;
  if (word == "fp16") return at::kHalf;
  return std::nullopt;
}

ShardLevel level_of(const std::string& word) {
  if (word == "optimizer") return ShardLevel::optimizer;
  return word == "gradients" ? ShardLevel::gradients : ShardLevel::full;
}

ShardOptions shard_options(const Options& options, const Task& task) {
  std::vector<std::string> patterns = task.units();
  auto compute = compute_dtype(options);
  auto reduce = dtype_of(options.reduce_dtype);
  if (compute && !reduce) reduce = at::kFloat;
  return {.units = {patterns.begin(), patterns.end()},
          .level = level_of(options.shard),
          .storage = options.node_shared ? ShardStorage::node_shared : ShardStorage::private_memory,
          .compute_dtype = compute,
          .reduce_dtype = reduce,
          .reduce_in_step = options.reduce_in_step,
          .prefetch = static_cast<int>(options.prefetch),
          .offload = options.offload};
}

// Their sizes without -1.
std::vector<MeshAxis> axes_of(const Options& options, int ranks) {
  try {
    std::vector<MeshAxis> axes = parse_axes(options.mesh);
    constexpr std::array known{stages_axis, copies_axis, shards_axis, tensor_axis};
    for (const MeshAxis& axis : axes)
      check_input(std::ranges::count(known, axis.name) > 0, "unknown axis '{}'; known: {}",
                  axis.name, listed(known, ", "));
    return MeshLayout(std::move(axes), ranks).axes();
  } catch (const Error& error) {
    auto place = options.places.find("mesh");
    throw BadInput(formatted(
        "--mesh {}: {}{}", visible(options.mesh), error.what(),
        place == options.places.end() ? "" : formatted(" (mesh is set in {})", place->second)));
  }
}

int size_of(const std::vector<MeshAxis>& axes, std::string_view name) {
  auto found = std::ranges::find(axes, name, &MeshAxis::name);
  return found == axes.end() ? 1 : found->size;
}

bool has_axis(const Mesh& mesh, std::string_view name) {
  return std::ranges::count(mesh.axes(), name, &MeshAxis::name) > 0;
}

void check_devices(const Options& options, int ranks) {
  check_input(options.strategy == "dp" || options.devices == 0,
              "--devices {} needs --strategy dp, found --strategy {}", options.devices,
              options.strategy);
  if (options.strategy != "dp") return;
  check_input(options.devices > 0, "--strategy dp needs --devices, the threads that compute");
  check_input(ranks == 1,
              "--strategy dp: all devices are threads of one process, found {} ranks; processes "
              "are --strategy ddp",
              ranks);
}

void check_servers(const Options& options, int ranks) {
  const Options unset;
  for (const auto& [name, given, standard] :
       {std::tuple("--servers", options.servers, unset.servers),
        std::tuple("--workers", options.workers, unset.workers),
        std::tuple("--staleness", options.staleness, unset.staleness)})
    check_input(options.strategy == "ps" || given == standard,
                "{} {} needs --strategy ps, found --strategy {}", name, given, options.strategy);
  check_input(options.strategy == "ps" || options.consistency == unset.consistency,
              "--consistency {} needs --strategy ps, found --strategy {}", options.consistency,
              options.strategy);
  if (options.strategy != "ps") return;
  check_input(!options.async_save,
              "--async-save: with --strategy ps the servers save: expected one of the two");
  const std::int64_t servers = server_count(options);
  check_input(options.workers == 0 || servers + options.workers == ranks,
              "--servers {} and --workers {} are {} ranks, found {}", servers, options.workers,
              servers + options.workers, ranks);
  check_input(servers < ranks,
              "--strategy ps: {} of {} ranks are servers, and no worker is left: give --workers",
              servers, ranks);
  check_input(options.staleness == 0 || options.consistency == "auto" ||
                  options.consistency == "stale-synchronous",
              "--staleness {} needs --consistency stale-synchronous, found {}", options.staleness,
              options.consistency);
  const bool is_mean = options.consistency == "synchronous" ||
                       (options.consistency == "auto" && options.staleness == 0);
  check_input(options.clip == 0 || !is_mean || servers == 1,
              "--clip {} needs --servers 1 where one update is made of all workers' gradients: of "
              "{} servers none has the norm of the whole",
              options.clip, servers);
}

}  // namespace

std::int64_t server_count(const Options& options) {
  if (options.strategy != "ps") return 0;
  return options.servers > 0 ? options.servers : 1;
}

std::int64_t usual_ranks(const Options& options) {
  return options.strategy == "ps" && options.workers > 0 ? server_count(options) + options.workers
                                                         : 1;
}

void check_strategy(const Options& options, int ranks) {
  check_devices(options, ranks);
  check_servers(options, ranks);
  check_input(options.strategy == "ddp" || (options.shard == "none" && options.mesh.empty()),
              "--strategy {} makes whole copies of the model: expected --shard none and no --mesh, "
              "found --shard {}{}",
              options.strategy, options.shard,
              options.mesh.empty() ? "" : " and --mesh " + options.mesh);
}

Division division_of(const Options& options, int ranks) {
  bool is_divided = options.shard != "none";
  Division division{.axes = {}, .copies = is_divided ? 1 : ranks, .shards = is_divided ? ranks : 1};
  if (!options.mesh.empty()) {
    division.axes = axes_of(options, ranks);
    division.copies = size_of(division.axes, copies_axis);
    division.shards = size_of(division.axes, shards_axis);
    division.stages = size_of(division.axes, stages_axis);
    division.tensor = size_of(division.axes, tensor_axis);
    check_input(is_divided || division.shards == 1,
                "--mesh {}: fsdp needs --shard optimizer, gradients or full; --shard none makes "
                "copies (dp) only",
                options.mesh);
    check_input(!is_divided || std::ranges::count(division.axes, shards_axis, &MeshAxis::name) > 0,
                "--mesh {}: expected an axis fsdp, over which --shard {} divides the model",
                options.mesh, options.shard);
  }
  check_input(!options.reduce_in_step || (division.copies == 1 && !division.is_model_parallel()),
              "--reduce-in-step needs all ranks on the axis fsdp, found --mesh {}", options.mesh);
  return division;
}

std::optional<c10::ScalarType> compute_dtype(const Options& options) {
  return dtype_of(options.precision);
}

void check_axes(const Options& options, const Task& task, const Division& division) {
  const auto needs = [&](bool given, const char* option, std::string_view axis) {
    check_input(!given || size_of(division.axes, axis) > 1 ||
                    std::ranges::count(division.axes, axis, &MeshAxis::name) > 0,
                "{} needs an axis {} in --mesh, found {}", option, axis,
                options.mesh.empty() ? "no --mesh" : "--mesh " + options.mesh);
  };
  needs(options.pipeline != Options().pipeline, "--pipeline", stages_axis);
  needs(options.sequence_parallel, "--sequence-parallel", tensor_axis);
  for (const auto& [is_given, name] : {std::pair(options.hook != "none", "--hook"),
                                       std::pair(options.sync_batch_norm, "--sync-batch-norm"),
                                       std::pair(options.uneven, "--uneven")})
    check_input(!is_given || !division.is_model_parallel(),
                "{}: expected ranks that have the whole model, without pp and tp, found --mesh {}",
                name, options.mesh);
  check_input(options.checkpoint_every == 0 || !task.units().empty(),
              "--checkpoint-every {}: the task {} names no blocks (Task::units())",
              options.checkpoint_every, task.name());
  check_input(options.checkpoint_every == 0 || options.strategy == "ddp",
              "--checkpoint-every {} needs --strategy ddp, found --strategy {}",
              options.checkpoint_every, options.strategy);
  check_input(division.stages == 1 || (options.sample == 0 && options.sample_every == 0),
              "--sample: no rank of a pipeline has the whole model: expected --mesh without pp, "
              "found --mesh {}",
              options.mesh);
}

std::optional<Mesh> learners_of(const Mesh& mesh) {
  std::vector<std::string> names;
  for (const std::string_view name : {copies_axis, shards_axis})
    if (has_axis(mesh, name)) names.emplace_back(name);
  if (names.empty()) return std::nullopt;
  if (names.size() == mesh.axes().size() && mesh.axes().front().name == names.front()) return mesh;
  return mesh.sub_mesh(names);
}

namespace {

// Copies and shards of a model, or of what tensor parallelism gives a rank of it.
Handle outer_handle(const Options& options, const Task& task, const torch::nn::Module& model,
                    std::shared_ptr<torch::nn::Module> part, const Mesh& learners,
                    const std::vector<std::string>& tied,
                    const std::shared_ptr<CommunicationHook>& hook) {
  if (options.shard == "none")
    return DistributedDataParallel(std::move(part), learners, {.hook = hook});
  ShardOptions how = shard_options(options, task);
  how.units.insert(how.units.end(), tied.begin(), tied.end());
  how.units = stage_units(how.units, model, *part);
  return fully_shard(std::move(part), learners, how);
}

}  // namespace

Handle make_handle_on(const Options& options, const Task& task, const torch::nn::Module& model,
                      std::shared_ptr<torch::nn::Module> stage, const Mesh& mesh,
                      const std::vector<std::string>& tied,
                      const std::shared_ptr<CommunicationHook>& hook) {
  const std::optional<Mesh> learners = learners_of(mesh);
  if (!has_axis(mesh, tensor_axis)) {
    if (learners)
      return outer_handle(options, task, model, std::move(stage), *learners, tied, hook);
    return DistributedDataParallel(std::move(stage), Group());
  }
  const TensorPlan plan = task.tensor_plan();
  check_input(!plan.empty(),
              "--mesh {}: the task {} has no plan for tensor parallelism (Task::tensor_plan())",
              options.mesh, task.name());
  TensorParallelOptions how{.sequence_parallel = options.sequence_parallel};
  if (learners) {
    // The module of parts lives in the handle.
    how.strategy = [&options, &task, &model, learners, tied, hook](torch::nn::Module& parts) {
      std::shared_ptr<torch::nn::Module> unowned(std::shared_ptr<void>(), &parts);
      return outer_handle(options, task, model, std::move(unowned), *learners, tied, hook);
    };
    std::vector<std::string> names;
    for (const MeshAxis& axis : mesh.axes())
      if (axis.name != stages_axis) names.push_back(axis.name);
    how.mesh = names.size() == mesh.axes().size() ? mesh : mesh.sub_mesh(names);
  }
  torch::nn::Module& part = *stage;
  return parallelize(std::move(stage), mesh[tensor_axis], stage_plan(plan, model, part), how);
}

Handle make_handle(const Options& options, const Task& task,
                   std::shared_ptr<torch::nn::Module> module, const Group& group,
                   std::shared_ptr<CommunicationHook> hook) {
  const Division division = division_of(options, group.size());
  if (!division.axes.empty()) {
    const torch::nn::Module& model = *module;
    return make_handle_on(options, task, model, std::move(module), Mesh(group, division.axes), {},
                          hook);
  }
  if (options.shard == "none")
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
