// The options of the strategies in strategies.h, and their checks.
#include "train/strategies.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "sys/topology.h"
#include "train/option_table.h"

#include <algorithm>
#include <string>
#include <utility>

namespace lockstep::train {
namespace {

constexpr std::string_view by_power_sgd = "powersgd:";

std::string hook_text(const HookOptions& hook) {
  std::vector<std::string> parts;
  if (hook.dtype) parts.emplace_back(*hook.dtype == at::kHalf ? "fp16" : "bf16");
  if (hook.power_sgd.rank > 0)
    parts.push_back(formatted("{}{}", by_power_sgd, hook.power_sgd.rank));
  return parts.empty() ? "none" : join(parts, "+");
}

WrittenValue hook_as_text(HookOptions& hook) {
  return {.text = [&hook] { return hook_text(hook); },
          .set =
              [&hook](std::string_view text) {
                const HookOptions found = parse_hook(text);
                hook.dtype = found.dtype;
                hook.power_sgd.rank = found.power_sgd.rank;
              }};
}

void declare_diloco(Settings& settings, DiLoCoOptions& diloco) {
  settings.add({.name = "diloco",
                .help = "of ddp: an outer update every N steps, of how far the ranks have come; "
                        "0: none",
                .needs = {"strategy ddp", "shard none", "no mesh"}},
               diloco.inner_steps);
  settings.add(
      {.name = "diloco-int8", .help = "of --diloco: send 8 bits a parameter", .needs = {"diloco"}},
      in_words<PseudoGradients>(
          {{"false", PseudoGradients::float32}, {"true", PseudoGradients::int8}},
          diloco.pseudo_gradients));
  settings.add({.name = "diloco-fragments",
                .help = "of --diloco: parts of the model that are sent at different steps",
                .least = 1,
                .most = 1e6,
                .needs = {"diloco"}},
               diloco.fragments);
  settings.add({.name = "diloco-overlap",
                .help = "of --diloco: steps for which a fragment is on its way",
                .needs = {"diloco"}},
               diloco.overlap_steps);
  settings.add({.name = "diloco-mixing",
                .help = "of --diloco: how much of its own values a rank keeps when a fragment "
                        "arrives, below 1",
                .most = 1,
                .needs = {"diloco"}},
               diloco.mixing);
  settings.add({.name = "outer-lr",
                .help = "of --diloco: of the outer SGD",
                .most = 1e6,
                .needs = {"diloco"}},
               diloco.outer_lr);
  settings.add({.name = "outer-momentum",
                .help = "of --diloco: Nesterov's, below 1",
                .most = 1,
                .needs = {"diloco"}},
               diloco.outer_momentum);
}

void check_devices(const Options& options, int ranks) {
  if (options.strategy != StrategyKind::threads) return;
  check_input(options.devices > 0, "--strategy threads needs --devices, the threads that compute");
  check_input(
      ranks == 1,
      "--strategy threads: all devices are threads of one process, found {} ranks; processes "
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
      "--clip {} needs --servers 1 if one update uses the gradients of all workers: with {} "
      "servers, none has the norm of the whole gradient",
      options.clip, servers);
}

bool follows_the_ranks(const MeshAxis& axis) {
  return axis.name == copies_axis || axis.name == shards_axis;
}

// Returns the product of the axes that keep their sizes, or 0 if a size is unknown.
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
                escaped(mesh_text(mesh)));
    check_input(
        axis.name != tensor_axis || axis.size > 0,
        "--elastic: tp needs a fixed size, because the number of ranks changes, found --mesh {}",
        escaped(mesh_text(mesh)));
  }
}

void check_elastic(const Options& options) {
  if (!options.elastic) return;
  check_elastic_mesh(options.mesh);
  const std::int64_t slots = slots_of(options);
  check_input(
      options.batch >= slots,
      "--batch {} has fewer rows than --elastic-micro-batches {}: each slot needs at least one",
      options.batch, slots);
  check_input(options.batch % slots == 0,
              "--batch {} must be divisible by --elastic-micro-batches {}; try --batch {} or {}",
              options.batch, slots, options.batch / slots * slots,
              (options.batch / slots + 1) * slots);
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

// Checks values that a program can set but --hook cannot express.
void check_hook(const HookOptions& hook) {
  const c10::ScalarType dtype = hook.dtype.value_or(at::kHalf);
  check_input(dtype == at::kHalf || dtype == at::kBFloat16,
              "--hook: expected Options::hook.dtype BFloat16 or Half, found {}",
              c10::toString(dtype));
  check_input(hook.power_sgd.rank >= 0,
              "--hook: expected Options::hook.power_sgd.rank of at least 0, found {}",
              hook.power_sgd.rank);
}

}  // namespace

void declare_strategy(Settings& settings, Options& o) {
  settings.begin_group("Strategy");
  constexpr double most = 4096;
  settings.add({.name = "strategy",
                .help = "ddp (every rank computes and updates; --shard divides the model), threads "
                        "(devices of one process) or ps (parameter servers)",
                .needs = {"shard none", "no mesh"}},
               o.strategy);
  settings.add({.name = "devices",
                .help = "of threads: GPUs or groups of cores, each with a copy of the model",
                .most = most,
                .needs = {"strategy threads"}},
               o.devices);
  settings.add({.name = "servers",
                .help = "of ps: ranks that keep the parameters; 0: one",
                .most = most,
                .needs = {"strategy ps"}},
               o.servers);
  settings.add({.name = "workers",
                .help = "of ps: ranks that compute gradients; 0: all others of --ranks",
                .most = most,
                .needs = {"strategy ps"}},
               o.workers);
  settings.add({.name = "consistency",
                .help = "of ps: synchronous (one update of the mean), stale-synchronous (an update "
                        "of each gradient, see --staleness) or asynchronous; auto: by --staleness",
                .needs = {"strategy ps"}},
               in_words<std::optional<ps::Consistency>>(
                   {{"auto", std::nullopt},
                    {"synchronous", ps::Consistency::synchronous},
                    {"stale-synchronous", ps::Consistency::stale_synchronous},
                    {"asynchronous", ps::Consistency::asynchronous}},
                   o.consistency));
  settings.add({.name = "staleness",
                .help = "of ps: steps that a worker may be ahead of the slowest",
                .most = 1e9,
                .needs = {"strategy ps", "consistency auto|stale-synchronous"}},
               o.staleness);
}

void declare_communication(Settings& settings, Options& o) {
  settings.begin_group("Communication of gradients");
  settings.add({.name = "hook",
                .help = "of ddp: how gradients travel: none (as they are), bf16, fp16, "
                        "powersgd:RANK, bf16+powersgd:RANK, fp16+powersgd:RANK",
                .value_name = "HOOK",
                .needs = {"no local-sgd", "no diloco", "strategy ddp", "shard none"}},
               hook_as_text(o.hook));
  settings.add({.name = "hook-start",
                .help = "of --hook powersgd: steps that are averaged exactly first",
                .needs = {"hook powersgd:RANK"}},
               o.hook.power_sgd.start_step);
  settings.add({.name = "local-sgd",
                .help = "of ddp: average the ranks' models every N steps instead of gradients in "
                        "each; 0: gradients",
                .needs = {"no diloco", "strategy ddp", "shard none", "no mesh"}},
               o.local_sgd.period);
  settings.add({.name = "local-sgd-start",
                .help = "of --local-sgd: steps in which gradients are averaged first",
                .needs = {"local-sgd"}},
               o.post_local_sgd.start_step);
  declare_diloco(settings, o.diloco);
  const std::vector<std::string> in_every_step{"no local-sgd", "no diloco", "strategy ddp",
                                               "shard none"};
  settings.add({.name = "sync-batch-norm",
                .help = "of ddp: batch normalisation by the rows of all ranks",
                .needs = in_every_step},
               o.sync_batch_norm);
  settings.add({.name = "uneven",
                .help = "of ddp: use each training sample once per epoch; ranks may get different "
                        "numbers of rows",
                .needs = in_every_step},
               o.uneven);
}

void declare_elastic(Settings& settings, Options& o) {
  settings.begin_group("Elastic runs");
  constexpr double most_slots = 1 << 16;
  settings.add({.name = "elastic",
                .help = "go on in place when ranks are lost or join; the results are the same bits "
                        "at any number of ranks",
                .needs = {"strategy ddp", "no precision", "no reduce-dtype", "no accumulate",
                          "no hook", "no local-sgd", "no diloco", "no sync-batch-norm", "no uneven",
                          "no reduce-in-step"}},
               o.elastic);
  settings.add({.name = "elastic-micro-batches",
                .help = "with --elastic: micro-batches of a step, which the ranks divide; 0: the "
                        "most up to 8 that divide --batch",
                .most = most_slots,
                .needs = {"elastic"}},
               o.elastic_micro_batches);
}

void check_strategy(const Options& options, int ranks) {
  check_hook(options.hook);
  check_input(
      options.strategy != StrategyKind::ps || options.sharding.compute_dtype != at::kHalf,
      "--strategy ps with --precision fp16: the servers do not know the scale of gradients: "
      "expected --precision bf16 or fp32");
  check_input(!has_local_updates(options) || options.sharding.compute_dtype != at::kHalf,
              "--local-sgd and --diloco with --precision fp16: each rank would scale its own loss, "
              "and a checkpoint keeps one scale: expected --precision bf16 or fp32");
  check_devices(options, ranks);
  check_servers(options, ranks);
  check_elastic(options);
  check_diloco(options.diloco);
  check_input(!options.uneven || !options.sync_batch_norm || options.accumulate == 1,
              "--uneven with --sync-batch-norm needs --accumulate 1, found {}: ranks with fewer "
              "rows would make fewer micro-batches",
              options.accumulate);
}

HookOptions parse_hook(std::string_view text) {
  const auto bad = [&] {
    throw BadInput(
        formatted("expected none, bf16, fp16, powersgd:RANK, bf16+powersgd:RANK or "
                  "fp16+powersgd:RANK, found '{}'",
                  escaped(text)));
  };
  HookOptions hook;
  if (text == "none") return hook;
  std::string_view rest = text;
  if (rest.starts_with("bf16")) hook.dtype = at::kBFloat16;
  if (rest.starts_with("fp16")) hook.dtype = at::kHalf;
  if (hook.dtype) {
    rest.remove_prefix(4);
    if (rest.empty()) return hook;
    if (!rest.starts_with('+')) bad();
    rest.remove_prefix(1);
  }
  if (!rest.starts_with(by_power_sgd)) bad();
  rest.remove_prefix(by_power_sgd.size());
  const std::optional<std::int64_t> rank = parse_integer(rest);
  if (!rank || *rank < 1) bad();
  hook.power_sgd.rank = *rank;
  return hook;
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

void check_mixtures(const Options& options, const Task& task, const MeshLayout& layout) {
  const bool is_whole = !is_model_parallel(layout) && !level_of(options);
  check_input(!options.elastic || is_whole,
              "--elastic: the task {} has experts, and ranks that compute or keep a model together "
              "would count the tokens of all of them: expected neither --shard nor --mesh tp",
              task.name());
  if (has_local_updates(options)) return;
  for (const auto& [is_given, name] :
       {std::pair(options.hook.is_given(), "--hook"), std::pair(options.uneven, "--uneven")})
    check_input(!is_given || layout.ranks() == 1,
                "{}: the task {} has experts, which count the tokens of all ranks: expected one "
                "rank, found {}",
                name, task.name(), layout.ranks());
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
  if (options.elastic_micro_batches > 0) return options.elastic_micro_batches;
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
  options.elastic_micro_batches = slots_of(options);
  if (options.threads == 0)
    options.threads = static_cast<int>(
        std::max<std::int64_t>(1, sys::usable_cores() / options.elastic_micro_batches));
  return options;
}

}  // namespace lockstep::train
