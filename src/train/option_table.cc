#include "train/option_table.h"

#include "base/check.h"
#include "base/text.h"
#include "base/visible.h"

#include <lockstep/plan/schedule.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

using Dtype = std::optional<c10::ScalarType>;

constexpr std::string_view by_power_sgd = "powersgd:";

std::string hook_text(const HookOptions& hook) {
  std::vector<std::string> parts;
  if (hook.dtype) parts.emplace_back(*hook.dtype == at::kHalf ? "fp16" : "bf16");
  if (hook.power_sgd.rank > 0)
    parts.push_back(formatted("{}{}", by_power_sgd, hook.power_sgd.rank));
  return parts.empty() ? "none" : join(parts, "+");
}

WrittenValue shard_in_words(Options& options) {
  const auto names = names_of(ShardKind{});
  WrittenValue value = in_words<ShardKind>({names.begin(), names.end()}, options.shard);
  std::erase(value.words, word_of(ShardKind::automatic));  // no text of it
  value.text = [&options] { return std::string(word_of(shard_of(options))); };
  value.file_text = [&options] {
    const ShardKind meant = shard_of(options);
    return std::string(word_of(meant == ShardKind::none ? meant : options.shard));
  };
  return value;
}

WrittenValue mesh_as_text(std::vector<MeshAxis>& mesh) {
  return {.text = [&mesh] { return mesh_text(mesh); },
          .set =
              [&mesh](std::string_view text) {
                try {
                  mesh = text.empty() ? std::vector<MeshAxis>() : parse_axes(text);
                } catch (const BadInput& error) {
                  throw BadInput(visible(error.what()));
                }
              }};
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

WrittenValue dtype_in_words(Dtype& dtype) {
  WrittenValue value = in_words<Dtype>(
      {{"fp32", std::nullopt}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}, dtype);
  // A program may name the dtype that stands for none.
  value.text = [&dtype, text = value.text] { return dtype == at::kFloat ? "fp32" : text(); };
  return value;
}

WrittenValue time_as_text(Duration& time) {
  return {.text = [&time] { return format_duration(time); },
          .set =
              [&time](std::string_view text) {
                const std::optional<Duration> found = parse_duration(text);
                check_input(found && *found >= Duration::zero(),
                            "expected a time such as 10, 2.5s or 1m, found '{}'", visible(text));
                time = *found;
              }};
}

void declare_places(Settings& settings, Options& o) {
  settings.begin_group("Run folder");
  settings.add({.name = "out",
                .help = "folder of the run: config.toml, metrics.jsonl, checkpoints, "
                        "model.safetensors",
                .synonyms = {"output", "output-dir", "out-dir", "save-dir"}},
               o.out);
  settings.add(
      {.name = "resume",
       .help = "continue from the newest checkpoint in --out; auto: start if there is none",
       .scope = Scope::start},
      o.resume);
  // On the command line this is `--resume auto`.
  settings.add({.name = "resume-auto", .scope = Scope::start}, o.resume_auto);
  settings.add({.name = "overwrite",
                .help = "start, and remove the files of earlier runs in --out",
                .scope = Scope::start},
               o.overwrite);
  settings.add({.name = "resume-from",
                .help = "go on from this checkpoint in --out, such as step-00000100; newer ones "
                        "are set aside",
                .scope = Scope::start},
               o.resume_from);
  settings.add({.name = "allow-other-data",
                .help = "with --resume: go on though the data is not what it was",
                .scope = Scope::start},
               o.allow_other_data);
}

void declare_steps(Settings& settings, Options& o) {
  settings.begin_group("Steps");
  settings.add({.name = "steps",
                .help = "optimizer updates to make",
                .least = 1,
                .changed = [&o] { o.epochs = 0; },
                .synonyms = {"max-steps", "max-iters", "iterations"}},
               o.steps);
  settings.add({.name = "epochs",
                .help = "passes over the training data, instead of --steps",
                .least = 1,
                .changed = [&o] { o.steps = 0; },
                .synonyms = {"num-epochs", "num-train-epochs"}},
               o.epochs);
  settings.add({.name = "batch",
                .help = "rows of one step, over all ranks",
                .least = 1,
                .most = 1 << 24,
                .synonyms = {"batch-size", "global-batch-size"}},
               o.batch);
  settings.add({.name = "accumulate",
                .help = "gradient accumulation: micro-batches per step on each rank",
                .least = 1,
                .most = 1 << 20,
                .synonyms = {"gradient-accumulation-steps", "grad-accum"}},
               o.accumulate);
  settings.add({.name = "seed", .help = "seed of weights, order and dropout"}, o.seed);
}

void declare_optimizer(Settings& settings, Options& o) {
  settings.begin_group("Optimizer");
  constexpr double most_beta = 0.999999;
  settings.add({.name = "optimizer", .help = "adamw or sgd"}, o.optimizer);
  settings.add({.name = "lr", .help = "learning rate", .most = 1e6, .synonyms = {"learning-rate"}},
               o.lr);
  settings.add({.name = "momentum", .help = "of sgd", .most = 1}, o.momentum);
  settings.add({.name = "beta1", .help = "of adamw", .most = most_beta}, o.beta1);
  settings.add({.name = "beta2", .help = "of adamw", .most = most_beta}, o.beta2);
  settings.add({.name = "weight-decay", .help = "on matrices, not on vectors", .most = 1e6},
               o.weight_decay);
  settings.add({.name = "clip",
                .help = "clip gradients to this global norm; 0: no clipping",
                .synonyms = {"grad-clip", "max-grad-norm"}},
               o.clip);
  settings.add({.name = "schedule",
                .help = "constant, step, cosine, wsd or one-cycle",
                .synonyms = {"lr-scheduler", "lr-scheduler-type"}},
               o.schedule);
  settings.add({.name = "warmup",
                .help = "steps in which the learning rate rises from 0",
                .synonyms = {"warmup-steps", "warmup-iters"}},
               o.warmup);
  settings.add({.name = "min-lr", .help = "where cosine and wsd end"}, o.min_lr);
  settings.add({.name = "decay", .help = "steps in which wsd falls; 0: a fifth of the run"},
               o.decay);
  settings.add(
      {.name = "step-size", .help = "steps between two decays of the step schedule; 0: one epoch"},
      o.step.step_size);
  settings.add({.name = "gamma", .help = "factor of one decay", .most = 1}, o.step.gamma);
}

void declare_looks(Settings& settings, Options& o, bool makes_samples) {
  settings.begin_group("Evaluation, checkpoints, logs");
  settings.add({.name = "eval-every",
                .help = "steps between evaluations; 0: each epoch, or only at the end",
                .synonyms = {"eval-interval", "eval-steps"}},
               o.eval_every);
  settings.add({.name = "eval-batches",
                .help = "batches of an evaluation during training; 0: all, as at the end"},
               o.eval_batches);
  settings.add({.name = "save-every",
                .help = "steps between checkpoints; 0: each epoch, or only at the end",
                .synonyms = {"save-steps", "checkpoint-interval"}},
               o.save_every);
  settings.add({.name = "keep", .help = "newest checkpoints to keep; 0: all"}, o.keep);
  settings.add({.name = "async-save",
                .help = "write checkpoints while training goes on; costs memory for a copy of what "
                        "a rank writes",
                .needs = {"strategy ddp|dp"}},
               o.async_save);
  settings.add({.name = "on-save-error",
                .help = "when the disk refuses what is saved during training: stop, or go-on"},
               o.on_save_error);
  settings.add({.name = "patience",
                .help = "evaluations without a better validation loss before stopping; 0: never"},
               o.patience);
  settings.add({.name = "log-every",
                .help = "steps between lines of metrics.jsonl",
                .least = 1,
                .synonyms = {"log-interval", "logging-steps"}},
               o.log_every);
  settings.add({.name = "trace",
                .help = "file for a Chrome trace of some steps (of each rank: trace.rank0.json), "
                        "for chrome://tracing or Perfetto",
                .value_name = "FILE",
                .scope = Scope::start},
               o.trace);
  settings.add({.name = "trace-steps",
                .help = "steps in --trace, after the first two",
                .least = 1,
                .most = 1e6,
                .scope = Scope::start},
               o.trace_steps);
  if (!makes_samples) return;
  settings.add({.name = "sample", .help = "tokens of text to write at the end", .most = 1 << 20},
               o.sample);
  settings.add({.name = "sample-every",
                .help = "steps between samples of --sample (or 200) tokens during training; 0: "
                        "none"},
               o.sample_every);
}

void declare_mesh(Settings& settings, Options& o) {
  settings.begin_group("Mesh of ranks");
  std::vector<Named<std::string>> schedules;
  for (const std::string_view name : plan::schedule_names())
    schedules.push_back({name, std::string(name)});
  settings.add({.name = "shard",
                .help = "what ranks divide between them: none, optimizer, gradients (and "
                        "optimizer) or full; auto: full with --mesh fsdp=N, else none"},
               shard_in_words(o));
  settings.add({.name = "mesh",
                .help = "arrange the ranks on axes, the last one varies fastest: pp (stages), dp "
                        "(copies of the model), fsdp (shards of one, see --shard), tp (parts of "
                        "each layer), cp (parts of each sequence), ep (owners of experts), such as "
                        "pp=2,dp=2,tp=2; -1: what is left. gpt and llama take any of the first "
                        "five together, moe any of the six, other tasks dp and fsdp",
                .value_name = "AXES"},
               mesh_as_text(o.mesh));
  settings.add({.name = "pipeline",
                .help = "of --mesh pp: the schedule of the --accumulate micro-batches",
                .needs = {"mesh pp=N"}},
               in_words(std::move(schedules), o.pipeline));
  settings.add({.name = "sequence-parallel",
                .help = "of --mesh tp, without cp: activations between layers are cut along the "
                        "sequence",
                .needs = {"mesh tp=N"}},
               o.sequence_parallel);
  settings.add({.name = "context-method",
                .help = "of --mesh cp: how attention works on parts of sequences: ring (keys and "
                        "values go round) or ulysses (heads are cut instead)",
                .needs = {"mesh cp=N"}},
               o.context_method);
  settings.add({.name = "checkpoint-every",
                .help = "activations of every nth block are computed again in backward; 0: none",
                .most = 10'000,
                .needs = {"strategy ddp"}},
               o.checkpoint_every);
}

void declare_division(Settings& settings, Options& o) {
  settings.begin_group("Sharding and precision");
  settings.add({.name = "precision",
                .help = "with --shard: compute dtype (parameters stay fp32): fp32, bf16, or fp16 "
                        "with loss scaling",
                .needs = {"shard"}},
               dtype_in_words(o.sharding.compute_dtype));
  settings.add({.name = "reduce-dtype",
                .help = "with --shard: dtype in which gradients are summed over ranks",
                .needs = {"shard"}},
               dtype_in_words(o.sharding.reduce_dtype));
  settings.add({.name = "prefetch",
                .help = "with --shard full: units that are gathered ahead of their use",
                .most = 1000,
                .needs = {"shard full"}},
               o.sharding.prefetch);
  settings.add({.name = "node-shared",
                .help = "with --shard: ranks of one host have the parameters in memory once",
                .needs = {"shard"}},
               in_words<ShardStorage>(
                   {{"false", ShardStorage::private_memory}, {"true", ShardStorage::node_shared}},
                   o.sharding.storage));
  settings.add({.name = "reduce-in-step",
                .help = "with --node-shared: the optimizer sums gradients over the ranks as it "
                        "reads them",
                .needs = {"node-shared"}},
               o.sharding.reduce_in_step);
  settings.add({.name = "offload",
                .help = "with --shard: folder for shards and optimizer state that are not in use",
                .is_path = true,
                .needs = {"shard"}},
               o.sharding.offload);
  settings.add({.name = "deferred",
                .help = "with --shard: a new model gets its memory one unit at a time, while it "
                        "is divided",
                .needs = {"shard"}},
               o.deferred);
}

void declare_strategy(Settings& settings, Options& o) {
  settings.begin_group("Strategy");
  constexpr double most = 4096;
  settings.add({.name = "strategy",
                .help = "ddp (every rank computes and updates; --shard divides the model), dp "
                        "(devices of one process) or ps (parameter servers)",
                .needs = {"shard none", "no mesh"}},
               o.strategy);
  settings.add({.name = "devices",
                .help = "of dp: groups of cores, each with a copy of the model",
                .most = most,
                .needs = {"strategy dp"}},
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

void declare_processes(Settings& settings, Options& o) {
  settings.begin_group("Processes");
  constexpr double most = 4096;
  settings.add({.name = "ranks",
                .help = "processes to start on this machine; 0: as the launcher says, else 1",
                .most = most,
                .synonyms = {"nproc-per-node", "world-size"}},
               o.ranks);
  settings.add({.name = "grace",
                .help = "with --ranks: from a request to stop until ranks that have not ended are "
                        "killed",
                .value_name = "TIME",
                .scope = Scope::start},
               time_as_text(o.grace));
  settings.add(
      {.name = "threads", .help = "threads of a rank; 0: its share of the cores", .most = most},
      o.threads);
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
  settings.add({.name = "slots",
                .help = "with --elastic: micro-batches of a step, which the ranks divide; 0: the "
                        "most up to 8 that divide --batch",
                .most = most_slots,
                .needs = {"elastic"}},
               o.slots);
}

}  // namespace

std::string mesh_text(const std::vector<MeshAxis>& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh) axes.push_back(formatted("{}={}", axis.name, axis.size));
  return join(axes, ",");
}

HookOptions parse_hook(std::string_view text) {
  const auto bad = [&] {
    throw BadInput(
        formatted("expected none, bf16, fp16, powersgd:RANK, bf16+powersgd:RANK or "
                  "fp16+powersgd:RANK, found '{}'",
                  visible(text)));
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

void declare_options(Settings& settings, Options& options, const Task& task) {
  declare_places(settings, options);
  declare_steps(settings, options);
  declare_optimizer(settings, options);
  declare_looks(settings, options, task.makes_samples());
  declare_strategy(settings, options);
  declare_communication(settings, options);
  declare_mesh(settings, options);
  declare_division(settings, options);
  declare_elastic(settings, options);
  declare_processes(settings, options);
}

}  // namespace lockstep::train
