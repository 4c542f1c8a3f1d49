// Checks of options against each other, the task and the number of ranks, beyond Setting::needs.
#include "base/check.h"
#include "base/counted.h"
#include "base/text.h"
#include "base/visible.h"
#include "sys/topology.h"
#include "train/configuration.h"
#include "train/option_table.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep::train {
namespace {

// Their sizes without -1.
std::vector<MeshAxis> axes_of(const Options& options, int ranks) {
  try {
    std::vector<MeshAxis> axes = options.mesh;
    constexpr std::array known{stages_axis, copies_axis,  shards_axis,
                               tensor_axis, context_axis, experts_axis};
    for (const MeshAxis& axis : axes)
      check_input(std::ranges::count(known, axis.name) > 0, "unknown axis '{}'; known: {}",
                  axis.name, listed(known, ", "));
    if (options.elastic) axes = axes_of_round(std::move(axes), ranks);
    return MeshLayout(std::move(axes), ranks).axes();
  } catch (const Error& error) {
    throw BadInput(formatted("--mesh {}: {}{}", visible(mesh_text(options.mesh)),
                             visible(error.what(), 1000), place_of(options, "mesh")));
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
  if (options.strategy != StrategyKind::dp) return;
  check_input(options.devices > 0, "--strategy dp needs --devices, the threads that compute");
  check_input(ranks == 1,
              "--strategy dp: all devices are threads of one process, found {} ranks; processes "
              "are --strategy ddp",
              ranks);
}

void check_servers(const Options& options, int ranks) {
  if (options.strategy != StrategyKind::ps) return;
  const int servers = server_count(options);
  check_input(options.workers == 0 || servers + options.workers == ranks,
              "--servers {} and --workers {} are {} ranks, found {}", servers, options.workers,
              servers + options.workers, ranks);
  check_input(servers < ranks,
              "--strategy ps: {} of {} would be servers, and no worker is left: give --workers",
              servers, counted(ranks, "rank"));
  check_input(
      options.clip == 0 || servers == 1 || consistency_of(options) != ps::Consistency::synchronous,
      "--clip {} needs --servers 1 where one update is made of all workers' gradients: of "
      "{} servers none has the norm of the whole",
      options.clip, servers);
}

void check_context(const Options& options, const Task& task, const Division& division) {
  if (!is_among(division.axes, context_axis)) return;
  const std::int64_t heads = task.parallel_plan().heads;
  check_input(heads > 0,
              "--mesh {}: the task {} has no sequences to cut over cp (Task::parallel_plan())",
              mesh_text(options.mesh), task.name());
  const int ranks = division.context * division.tensor;
  check_input(options.context_method == ContextMethod::ring || heads % ranks == 0,
              "--context-method ulysses on --mesh {}: expected heads of keys that {} ranks divide, "
              "found {}; ring takes any",
              mesh_text(options.mesh), ranks, heads);
}

// A plan may name a pattern that the model has not: then parallelize() says it.
void check_heads(const Options& options, const Task& task, const Division& division) {
  if (division.tensor == 1) return;
  for (const auto& [pattern, style] : task.parallel_plan().tensor)
    check_input(style.head_count() % division.tensor == 0,
                "--mesh {}: expected a number of heads that {} ranks of tp divide, found {} ({})",
                mesh_text(options.mesh), division.tensor, style.head_count(), pattern);
}

void check_experts(const Options& options, const Task& task, const Division& division) {
  const std::int64_t experts = task.parallel_plan().experts;
  const bool has_axis = is_among(division.axes, experts_axis);
  check_input(!has_axis || experts > 0,
              "--mesh {}: the task {} has no experts for ep (Task::parallel_plan())",
              mesh_text(options.mesh), task.name());
  check_input(!has_axis || experts % division.experts == 0,
              "--mesh {}: expected experts that {} ranks divide, found {}", mesh_text(options.mesh),
              division.experts, experts);
}

void check_axes(const Options& options, const Task& task, const Division& division) {
  const std::string mesh = mesh_text(options.mesh);
  check_experts(options, task, division);
  check_input(!is_among(division.axes, tensor_axis) || !task.parallel_plan().tensor.empty(),
              "--mesh {}: the task {} has no plan for tensor parallelism (Task::parallel_plan()): "
              "expected --mesh without tp",
              mesh, task.name());
  check_heads(options, task, division);
  check_context(options, task, division);
  for (const auto& [is_given, name] : {std::pair(options.hook.is_given(), "--hook"),
                                       std::pair(options.sync_batch_norm, "--sync-batch-norm"),
                                       std::pair(options.uneven, "--uneven")})
    check_input(!is_given || !division.is_model_parallel(),
                "{}: expected ranks that have the whole model, without pp, tp, cp and ep, found "
                "--mesh {}",
                name, mesh);
  check_input(options.checkpoint_every == 0 || !task.parallel_plan().blocks.empty(),
              "--checkpoint-every {}: the task {} names no blocks (Task::parallel_plan())",
              options.checkpoint_every, task.name());
}

bool follows_the_ranks(const MeshAxis& axis) {
  return axis.name == copies_axis || axis.name == shards_axis;
}

// The product of the axes that keep their sizes; 0 if the size of one is not known.
int fixed_ranks(const std::vector<MeshAxis>& axes) {
  int product = 1;
  for (const MeshAxis& axis : axes)
    if (!follows_the_ranks(axis)) product *= std::max(axis.size, 0);
  return product;
}

int largest_divisor(int number, int most) {
  int divisor = std::clamp(most, 1, number);
  while (number % divisor != 0) --divisor;
  return divisor;
}

void check_elastic_mesh(const std::vector<MeshAxis>& mesh) {
  for (const MeshAxis& axis : mesh) {
    check_input(follows_the_ranks(axis) || axis.name == tensor_axis,
                "--elastic works with the axes dp, fsdp and tp of --mesh, found --mesh {}: train "
                "without --elastic, and go on by --resume when a rank was lost",
                visible(mesh_text(mesh)));
    check_input(
        axis.name != tensor_axis || axis.size > 0,
        "--elastic: the number of ranks changes, and tp keeps its size: expected one, found "
        "--mesh {}",
        visible(mesh_text(mesh)));
  }
}

void check_elastic(const Options& options) {
  if (!options.elastic) return;
  check_elastic_mesh(options.mesh);
  const std::int64_t slots = slots_of(options);
  check_input(options.batch >= slots,
              "--batch {} has fewer rows than --slots {}: each slot needs at least one",
              options.batch, slots);
  check_input(options.batch % slots == 0,
              "--batch {} must be divisible by --slots {}; try --batch {} or {}", options.batch,
              slots, options.batch / slots * slots, (options.batch / slots + 1) * slots);
}

void check_diloco(const DiLoCoOptions& diloco) {
  const std::int64_t steps = diloco.inner_steps;
  if (steps == 0) return;
  check_input(diloco.fragments <= steps,
              "--diloco-fragments {}: expected no more than the {} steps of --diloco",
              diloco.fragments, steps);
  check_input(diloco.overlap_steps < steps,
              "--diloco-overlap {}: expected less than the {} steps of --diloco",
              diloco.overlap_steps, steps);
  check_input(diloco.outer_lr > 0, "--outer-lr {}: expected more than 0", diloco.outer_lr);
  check_input(diloco.outer_momentum < 1, "--outer-momentum {}: expected less than 1",
              diloco.outer_momentum);
  check_input(diloco.mixing < 1, "--diloco-mixing {}: expected less than 1", diloco.mixing);
}

// A program may set what no word of --hook stands for.
void check_hook(const HookOptions& hook) {
  const c10::ScalarType dtype = hook.dtype.value_or(at::kHalf);
  check_input(dtype == at::kHalf || dtype == at::kBFloat16,
              "--hook: expected Options::hook.dtype BFloat16 or Half, found {}",
              c10::toString(dtype));
  check_input(hook.power_sgd.rank >= 0,
              "--hook: expected Options::hook.power_sgd.rank of at least 0, found {}",
              hook.power_sgd.rank);
}

void check_batch(const Options& options, std::int64_t learners) {
  const std::int64_t parts = options.accumulate * learners;
  if (options.batch % parts == 0) return;
  const std::int64_t below = options.batch / parts * parts, above = below + parts;
  throw BadInput(
      formatted("--batch {} must be divisible by {} ({} x {}); try --batch {}", options.batch,
                parts, counted(learners, options.strategy == StrategyKind::ps ? "worker" : "rank"),
                counted(options.accumulate, "micro-batch", "es"),
                below > 0 ? formatted("{} or {}", below, above) : formatted("{}", above)));
}

void check_start_options(const Options& options) {
  check_input(!options.out.empty(), "--out is missing: name a folder for the run");
  const bool goes_on = options.resume || options.resume_auto || !options.resume_from.empty();
  check_input(!options.overwrite || !goes_on, "give --resume or --overwrite, not both");
  check_input(options.grace >= Duration::zero(), "--grace {}: expected at least 0s",
              format_duration(options.grace));
}

}  // namespace

std::string place_of(const Options& options, const std::string& name) {
  const auto place = options.places.find(name);
  if (place == options.places.end()) return {};
  return formatted(" ({} is set in {})", name, place->second);
}

int server_count(const Options& options) {
  if (options.strategy != StrategyKind::ps) return 0;
  return options.servers > 0 ? options.servers : 1;
}

int usual_ranks(const Options& options) {
  const bool is_known = options.strategy == StrategyKind::ps && options.workers > 0;
  return is_known ? server_count(options) + options.workers : 1;
}

ps::Consistency consistency_of(const Options& options) {
  if (options.consistency) return *options.consistency;
  return options.staleness > 0 ? ps::Consistency::stale_synchronous : ps::Consistency::synchronous;
}

ShardKind shard_of(const Options& options) {
  if (options.shard != ShardKind::automatic) return options.shard;
  return is_among(options.mesh, shards_axis) ? ShardKind::full : ShardKind::none;
}

std::optional<ShardLevel> level_of(const Options& options) {
  switch (shard_of(options)) {
    case ShardKind::optimizer:
      return ShardLevel::optimizer;
    case ShardKind::gradients:
      return ShardLevel::gradients;
    case ShardKind::full:
      return ShardLevel::full;
    default:
      return std::nullopt;
  }
}

Division division_of(const Options& options, int ranks) {
  const bool is_divided = level_of(options).has_value();
  Division division{.axes = {}, .copies = is_divided ? 1 : ranks, .shards = is_divided ? ranks : 1};
  if (!options.mesh.empty()) {
    division.axes = axes_of(options, ranks);
    division.copies = size_of(division.axes, copies_axis);
    division.shards = size_of(division.axes, shards_axis);
    division.stages = size_of(division.axes, stages_axis);
    division.tensor = size_of(division.axes, tensor_axis);
    division.context = size_of(division.axes, context_axis);
    division.experts = size_of(division.axes, experts_axis);
    check_input(!is_divided || is_among(division.axes, shards_axis),
                "--mesh {}: expected an axis fsdp, over which --shard {} divides the model, or "
                "--shard none",
                mesh_text(options.mesh), word_of(shard_of(options)));
    check_input(is_divided || division.shards == 1,
                "--mesh {}: expected --shard auto, optimizer, gradients or full for {} ranks of "
                "fsdp, found --shard none{}",
                mesh_text(options.mesh), division.shards, place_of(options, "shard"));
  }
  check_input(
      !options.sharding.reduce_in_step || (division.copies == 1 && !division.is_model_parallel()),
      "--reduce-in-step needs all ranks on the axis fsdp, found --mesh {}",
      mesh_text(options.mesh));
  return division;
}

void check_mixtures(const Options& options, const Task& task, int ranks) {
  const bool is_whole = !division_of(options, ranks).is_model_parallel() && !level_of(options);
  check_input(!options.elastic || is_whole,
              "--elastic: the task {} has experts, and ranks that compute or keep a model together "
              "would count the tokens of all of them: expected neither --shard nor --mesh tp",
              task.name());
  if (has_own_copies(options)) return;
  for (const auto& [is_given, name] :
       {std::pair(options.hook.is_given(), "--hook"), std::pair(options.uneven, "--uneven")})
    check_input(!is_given || ranks == 1,
                "{}: the task {} has experts, which count the tokens of all ranks: expected one "
                "rank, found {}",
                name, task.name(), ranks);
}

std::shared_ptr<CommunicationHook> hook_of_options(const Options& options) {
  if (!options.hook.is_given()) return nullptr;
  std::shared_ptr<CommunicationHook> hook = average_hook();
  if (options.hook.power_sgd.rank > 0) hook = power_sgd(options.hook.power_sgd);
  if (options.hook.dtype == at::kBFloat16) return bf16_compression(std::move(hook));
  if (options.hook.dtype == at::kHalf) return fp16_compression(std::move(hook));
  return hook;
}

std::int64_t slots_of(const Options& options) {
  constexpr std::int64_t most = 8;
  if (options.slots > 0) return options.slots;
  std::int64_t slots = std::min(most, options.batch);
  while (slots > 1 && options.batch % slots != 0) --slots;
  return slots;
}

int ranks_of_a_model(const Options& options) {
  return options.mesh.empty() ? 1 : std::max(1, fixed_ranks(options.mesh));
}

std::vector<MeshAxis> axes_of_round(std::vector<MeshAxis> axes, int ranks) {
  const int fixed = fixed_ranks(axes);
  if (fixed == 0 || ranks % fixed != 0) return axes;
  const int copies = ranks / fixed;
  const auto dp = std::ranges::find(axes, copies_axis, &MeshAxis::name);
  const auto fsdp = std::ranges::find(axes, shards_axis, &MeshAxis::name);
  if (dp == axes.end() && fsdp == axes.end()) {
    axes.insert(axes.begin(), {std::string(copies_axis), copies});
  } else if (fsdp == axes.end()) {
    dp->size = copies;
  } else if (dp == axes.end()) {
    fsdp->size = copies;
  } else if (fsdp->size > 0) {
    fsdp->size = largest_divisor(copies, fsdp->size);
    dp->size = copies / fsdp->size;
  } else {
    dp->size = largest_divisor(copies, dp->size);
    fsdp->size = copies / dp->size;
  }
  return axes;
}

Options elastic_options(Options options) {
  options.slots = slots_of(options);
  if (options.threads == 0)
    options.threads =
        static_cast<int>(std::max<std::int64_t>(1, sys::usable_cores() / options.slots));
  return options;
}

void check_run(const Configuration& configuration, int ranks) {
  const Options& options = configuration.options;
  const Task& task = configuration.task();
  check_hook(options.hook);
  configuration.settings().check_needs();
  check_devices(options, ranks);
  check_servers(options, ranks);
  check_elastic(options);
  const bool is_ddp = options.strategy == StrategyKind::ddp;
  const Division division = is_ddp ? division_of(options, ranks) : Division{.copies = ranks};
  const int learners =  // that have rows of their own
      is_ddp ? division.learners() : ranks - server_count(options);
  if (!options.elastic) check_batch(options, learners);
  check_input((options.steps > 0) != (options.epochs > 0),
              "give --steps or --epochs: found {} and {}", options.steps, options.epochs);
  check_input(options.min_lr <= options.lr, "--min-lr {} is above --lr {}", options.min_lr,
              options.lr);
  check_input(!options.uneven || !options.sync_batch_norm || options.accumulate == 1,
              "--uneven with --sync-batch-norm needs --accumulate 1, found {}: ranks with fewer "
              "rows would make fewer micro-batches",
              options.accumulate);
  check_diloco(options.diloco);
  task.check();
  check_axes(options, task, division);
  if (task.parallel_plan().experts > 0) check_mixtures(options, task, ranks);
  check_start_options(options);
  const std::filesystem::path trace(options.trace);
  check_input(trace.empty() || std::filesystem::is_directory(
                                   trace.has_parent_path() ? trace.parent_path() : "."),
              "--trace {}: expected a file in a folder that is there", visible(options.trace));
}

}  // namespace lockstep::train
