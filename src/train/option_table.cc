#include "train/option_table.h"

#include "base/check.h"
#include "base/escaped.h"
#include "base/text.h"
#include "train/strategies.h"

#include <lockstep/plan/schedule.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {
namespace {

using Dtype = std::optional<c10::ScalarType>;

WrittenValue shard_in_words(Options& options) {
  const auto names = names_of(ShardKind{});
  WrittenValue value = in_words<ShardKind>({names.begin(), names.end()}, options.shard);
  std::erase(value.words, word_of(ShardKind::automatic));  // has no text
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
                  throw BadInput(escaped(error.what()));
                }
              }};
}

WrittenValue dtype_in_words(Dtype& dtype) {
  WrittenValue value = in_words<Dtype>(
      {{"fp32", std::nullopt}, {"bf16", at::kBFloat16}, {"fp16", at::kHalf}}, dtype);
  // A program may set float32 itself instead of std::nullopt.
  value.text = [&dtype, text = value.text] { return dtype == at::kFloat ? "fp32" : text(); };
  return value;
}

WrittenValue time_as_text(Duration& time) {
  return {.text = [&time] { return format_duration(time); },
          .set =
              [&time](std::string_view text) {
                const std::optional<Duration> found = parse_duration(text);
                check_input(found && *found >= Duration::zero(),
                            "expected a time such as 10, 2.5s or 1m, found '{}'", escaped(text));
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
  // The command line writes this as `--resume auto`.
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
                .most = 1e9,
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
  settings.add({.name = "keep-checkpoints", .help = "newest checkpoints to keep; 0: all"},
               o.keep_checkpoints);
  settings.add({.name = "async-save",
                .help = "write checkpoints while training goes on; costs memory for a copy of what "
                        "a rank writes",
                .needs = {"strategy ddp|threads"}},
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
                        "for chrome://tracing or Perfetto; nvtx: NVTX ranges for Nsight instead",
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
  settings.add({.name = "activation-checkpoint-every",
                .help = "activations of every nth block are computed again in backward; 0: none",
                .most = 10'000,
                .needs = {"strategy ddp"}},
               o.activation_checkpoint_every);
  settings.add(
      {.name = "activation-offload",
       .help = "these activations are kept in pinned host memory instead of computed again",
       .needs = {"activation-checkpoint-every"}},
      o.activation_offload);
}

void declare_division(Settings& settings, Options& o) {
  settings.begin_group("Sharding and precision");
  settings.add({.name = "precision",
                .help = "compute dtype (parameters stay fp32): fp32, bf16, or fp16 with loss "
                        "scaling; without --shard, by autocast"},
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
  settings.add({.name = "deferred-init",
                .help = "with --shard: a new model gets its memory one unit at a time, while it "
                        "is divided",
                .needs = {"shard"}},
               o.deferred_init);
}

void declare_processes(Settings& settings, Options& o) {
  settings.begin_group("Processes");
  constexpr double most = 4096;
  settings.add({.name = "device",
                .help = "where a rank computes: cpu, cuda (a GPU per rank) or cuda:N; empty: a GPU "
                        "if the rank sees one",
                .value_name = "DEVICE"},
               o.device);
  settings.add({.name = "peak-tflops",
                .help = "10^12 operations per second that a device can make in the compute dtype, "
                        "for mfu in metrics.jsonl; 0: no mfu",
                .most = 1e9},
               o.peak_tflops);
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

MeshLayout layout_of_mesh(const Options& options, int ranks) {
  try {
    std::vector<MeshAxis> axes = options.mesh;
    constexpr std::array known{stages_axis, copies_axis,  shards_axis,
                               tensor_axis, context_axis, experts_axis};
    for (const MeshAxis& axis : axes)
      check_input(std::ranges::count(known, axis.name) > 0, "unknown axis '{}'; known: {}",
                  axis.name, listed(known, ", "));
    if (options.elastic) axes = axes_of_round(std::move(axes), ranks);
    return {std::move(axes), ranks};
  } catch (const Error& error) {
    throw BadInput(formatted("--mesh {}: {}{}", escaped(mesh_text(options.mesh)),
                             escaped(error.what(), 1000), place_of(options, "mesh")));
  }
}

}  // namespace

std::string place_of(const Options& options, const std::string& name) {
  const auto place = options.places.find(name);
  if (place == options.places.end()) return {};
  return formatted(" ({} is set in {})", name, place->second);
}

ShardKind shard_of(const Options& options) {
  if (options.shard != ShardKind::automatic) return options.shard;
  const bool has_axis = std::ranges::count(options.mesh, shards_axis, &MeshAxis::name) > 0;
  return has_axis ? ShardKind::full : ShardKind::none;
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

MeshLayout layout_of(const Options& options, int ranks) {
  const bool is_divided = level_of(options).has_value();
  if (options.mesh.empty())
    return {{{std::string(is_divided ? shards_axis : copies_axis), ranks}}, ranks};
  MeshLayout layout = layout_of_mesh(options, ranks);
  const std::string mesh = mesh_text(options.mesh);
  check_input(!is_divided || layout.find(shards_axis),
              "--mesh {}: expected an axis fsdp, over which --shard {} divides the model, or "
              "--shard none",
              mesh, word_of(shard_of(options)));
  check_input(is_divided || layout.size(shards_axis) == 1,
              "--mesh {}: expected --shard auto, optimizer, gradients or full for {} ranks of "
              "fsdp, found --shard none{}",
              mesh, layout.size(shards_axis), place_of(options, "shard"));
  check_input(!options.sharding.reduce_in_step || layout.size(shards_axis) == ranks,
              "--reduce-in-step needs all ranks on the axis fsdp, found --mesh {}", mesh);
  if (is_divided || !layout.find(shards_axis)) return layout;
  // parallelize() shards the model if it finds the axis, even with one rank.
  std::vector<MeshAxis> others = layout.axes();
  std::erase_if(others, [](const MeshAxis& axis) { return axis.name == shards_axis; });
  if (others.empty()) others = {{std::string(copies_axis), 1}};
  return {std::move(others), ranks};
}

std::string mesh_text(const std::vector<MeshAxis>& mesh) {
  std::vector<std::string> axes;
  for (const MeshAxis& axis : mesh) axes.push_back(formatted("{}={}", axis.name, axis.size));
  return join(axes, ",");
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
