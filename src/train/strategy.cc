#include "train/strategy.h"

#include "base/check.h"
#include "base/counted.h"
#include "base/visible.h"
#include "train/axes.h"
#include "train/elastic_options.h"

#include <lockstep/mesh/mesh.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

namespace lockstep::train {
namespace {

// Their sizes without -1.
std::vector<MeshAxis> axes_of(const Options& options, int ranks) {
  try {
    std::vector<MeshAxis> axes = parse_axes(options.mesh);
    constexpr std::array known{stages_axis, copies_axis,  shards_axis,
                               tensor_axis, context_axis, experts_axis};
    for (const MeshAxis& axis : axes)
      check_input(std::ranges::count(known, axis.name) > 0, "unknown axis '{}'; known: {}",
                  axis.name, listed(known, ", "));
    if (options.elastic) axes = axes_of_round(std::move(axes), ranks);
    return MeshLayout(std::move(axes), ranks).axes();
  } catch (const Error& error) {
    auto place = options.places.find("mesh");
    throw BadInput(formatted(
        "--mesh {}: {}{}", visible(options.mesh), error.what(),
        place == options.places.end() ? "" : formatted(" (mesh is set in {})", place->second)));
  }
}

bool is_among(const std::vector<MeshAxis>& axes, std::string_view name) {
  return std::ranges::find(axes, name, &MeshAxis::name) != axes.end();
}

int size_of(const std::vector<MeshAxis>& axes, std::string_view name) {
  auto found = std::ranges::find(axes, name, &MeshAxis::name);
  return found == axes.end() ? 1 : found->size;
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
              "--strategy ps: {} of {} would be servers, and no worker is left: give --workers",
              servers, counted(ranks, "rank"));
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
    division.context = size_of(division.axes, context_axis);
    division.experts = size_of(division.axes, experts_axis);
    check_input(is_divided || division.shards == 1,
                "--mesh {}: fsdp needs --shard optimizer, gradients or full; --shard none makes "
                "copies (dp) only",
                options.mesh);
    check_input(!is_divided || is_among(division.axes, shards_axis),
                "--mesh {}: expected an axis fsdp, over which --shard {} divides the model",
                options.mesh, options.shard);
  }
  check_input(!options.reduce_in_step || (division.copies == 1 && !division.is_model_parallel()),
              "--reduce-in-step needs all ranks on the axis fsdp, found --mesh {}", options.mesh);
  return division;
}

namespace {

void check_context(const Options& options, const Task& task, const Division& division) {
  if (!is_among(division.axes, context_axis)) return;
  const std::int64_t heads = task.sequence_heads();
  check_input(heads > 0,
              "--mesh {}: the task {} has no sequences to cut over cp (Task::sequence_heads())",
              options.mesh, task.name());
  const int ranks = division.context * division.tensor;
  check_input(options.context_method == "ring" || heads % ranks == 0,
              "--context-method ulysses on --mesh {}: expected heads of keys that {} ranks divide, "
              "found {}; ring takes any",
              options.mesh, ranks, heads);
}

// A plan may name a pattern that the model has not: then parallelize() says it.
void check_heads(const Options& options, const Task& task, const Division& division) {
  if (division.tensor == 1) return;
  for (const auto& [pattern, style] : task.tensor_plan())
    check_input(style.head_count() % division.tensor == 0,
                "--mesh {}: expected a number of heads that {} ranks of tp divide, found {} ({})",
                options.mesh, division.tensor, style.head_count(), pattern);
}

void check_experts(const Options& options, const Task& task, const Division& division) {
  const std::int64_t experts = task.experts();
  const bool has_axis = is_among(division.axes, experts_axis);
  check_input(!has_axis || experts > 0,
              "--mesh {}: the task {} has no experts for ep (Task::experts())", options.mesh,
              task.name());
  check_input(!has_axis || experts % division.experts == 0,
              "--mesh {}: expected experts that {} ranks divide, found {}", options.mesh,
              division.experts, experts);
}

}  // namespace

std::vector<MeshAxis> mesh_axes(const Division& division, const Task& task) {
  std::vector<MeshAxis> axes = division.axes;
  const bool are_together = is_among(axes, tensor_axis) || is_among(axes, context_axis);
  if (task.experts() > 0 && are_together && !is_among(axes, experts_axis))
    axes.push_back({std::string(experts_axis), 1});
  return axes;
}

void check_axes(const Options& options, const Task& task, const Division& division) {
  const auto needs = [&](bool given, const char* option, std::string_view axis) {
    check_input(!given || is_among(division.axes, axis), "{} needs an axis {} in --mesh, found {}",
                option, axis, options.mesh.empty() ? "no --mesh" : "--mesh " + options.mesh);
  };
  needs(options.pipeline != Options().pipeline, "--pipeline", stages_axis);
  needs(options.sequence_parallel, "--sequence-parallel", tensor_axis);
  needs(options.context_method != Options().context_method, "--context-method", context_axis);
  check_input(!is_among(division.axes, tensor_axis) || !task.tensor_plan().empty(),
              "--mesh {}: the task {} has no plan for tensor parallelism (Task::tensor_plan()): "
              "expected --mesh without tp",
              options.mesh, task.name());
  check_heads(options, task, division);
  check_input(!options.elastic || !division.is_model_parallel() || task.experts() == 0,
              "--elastic: the task {} has experts, whose copies count tokens together: expected "
              "--mesh without tp, found --mesh {}",
              task.name(), options.mesh);
  check_context(options, task, division);
  check_experts(options, task, division);
  for (const auto& [is_given, name] : {std::pair(options.hook != "none", "--hook"),
                                       std::pair(options.sync_batch_norm, "--sync-batch-norm"),
                                       std::pair(options.uneven, "--uneven")})
    check_input(!is_given || !division.is_model_parallel(),
                "{}: expected ranks that have the whole model, without pp, tp, cp and ep, found "
                "--mesh {}",
                name, options.mesh);
  check_input(options.checkpoint_every == 0 || !task.units().empty(),
              "--checkpoint-every {}: the task {} names no blocks (Task::units())",
              options.checkpoint_every, task.name());
  check_input(options.checkpoint_every == 0 || options.strategy == "ddp",
              "--checkpoint-every {} needs --strategy ddp, found --strategy {}",
              options.checkpoint_every, options.strategy);
}

}  // namespace lockstep::train
