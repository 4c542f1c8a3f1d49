// Options of a run that are the same for every task. All but the last two are also options of the
// command line and of TOML files (src/train/option_table.cc): `weight_decay` is `--weight-decay`.
// Structs and enums of the library are reused where they exist. A task adds its own settings in
// Task::declare().
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/layout/mesh_layout.h>
#include <lockstep/optim/schedule.h>
#include <lockstep/parallel/data/communication_hook.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/server/server.h>
#include <lockstep/parallel/sharded/fully_shard.h>
#include <lockstep/parallel/tensor/plan.h>

#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep::train {

enum class OptimizerKind { adamw, sgd };

// Learning rate schedules, made by the functions of lockstep/optim/schedule.h.
enum class ScheduleKind { constant, step, cosine, wsd, one_cycle };

enum class StrategyKind {
  ddp,  // each rank is a process that computes gradients and updates the model; see Options::mesh
  threads,  // the devices of one process compute gradients, and the process updates the model
  ps        // workers compute gradients, and parameter servers update the model
};

// How much of the model is sharded over the ranks of axis fsdp (ShardLevel).
enum class ShardKind {
  automatic,  // full if Options::mesh has axis fsdp, otherwise none
  none,       // every rank has the whole model; axis fsdp has at most one rank
  optimizer,
  gradients,
  full
};

// The reaction to a failure to write a checkpoint, a best model or a line of metrics: stop the run
// or go on. A failure to write the final files is always an error.
enum class OnSaveError { stop, go_on };

// How gradients are compressed for sending. Default: no hook.
struct HookOptions {
  std::optional<c10::ScalarType> dtype = std::nullopt;       // bfloat16 or float16
  PowerSgdOptions power_sgd = {.rank = 0, .start_step = 0};  // rank 0: no PowerSGD

  [[nodiscard]] bool is_given() const { return dtype || power_sgd.rank > 0; }
};

struct Options {
  // Files and folders.
  std::string out;  // the run folder
  // Continue from the newest checkpoint in `out`; throws BadInput if `out` has no checkpoint.
  bool resume = false;
  bool resume_auto = false;  // continue if there is a checkpoint in `out`, otherwise begin
  // Begin anew, and remove the files of earlier runs in `out`: checkpoints, models, metrics.jsonl,
  // config.toml, result.txt, LATEST, flight records, abandoned-... A restart of the job that began
  // the run continues it instead.
  bool overwrite = false;
  std::string resume_from;  // checkpoint to resume from, such as "step-00000100"; empty: the newest
  bool allow_other_data = false;  // allow other training data on a resume

  // Length of the run and size of a step. Exactly one of steps and epochs is positive.
  std::int64_t steps = 1000;
  std::int64_t epochs = 0;
  std::int64_t batch = 32;  // rows per step over all ranks and micro-batches
  int accumulate = 1;  // micro-batches per rank and step; gradients are reduced with the last one
  std::int64_t seed = 1337;

  // The optimizer and its learning rate.
  OptimizerKind optimizer = OptimizerKind::adamw;
  double lr = 1e-3;
  double momentum = 0;  // sgd
  double beta1 = 0.9;   // adamw
  double beta2 = 0.999;
  double weight_decay = 0;  // on matrices only
  double clip = 0;          // largest global gradient norm; 0: no clipping
  ScheduleKind schedule = ScheduleKind::constant;
  std::int64_t warmup = 0;              // steps in which the rate rises from 0 to lr
  double min_lr = 0;                    // final rate of cosine and wsd
  std::int64_t decay = 0;               // wsd: steps of its decay; 0: a fifth of the run
  optim::Step step = {.step_size = 0};  // step schedule; 0: one epoch

  // Evaluation, early stopping and checkpoints, with intervals in steps. 0: at the end, and also at
  // the end of each epoch if the run counts epochs.
  std::int64_t eval_every = 0;
  std::int64_t save_every = 0;
  std::int64_t keep_checkpoints = 2;  // number of newest checkpoints to keep; 0: all
  bool async_save = false;            // write checkpoints while training continues
  OnSaveError on_save_error = OnSaveError::stop;
  // Stop after this many evaluations without a better validation loss; 0: never.
  std::int64_t patience = 0;
  std::int64_t log_every = 10;
  std::int64_t eval_batches = 0;  // maximum of validation batches per evaluation; 0: all
  // For tasks that generate samples: length of the sample at the end (0: none), and interval in
  // steps of samples during training (0: never).
  std::int64_t sample = 0;
  std::int64_t sample_every = 0;

  // File for a Chrome trace of some steps. With several ranks, one file per rank:
  // "trace.rank0.json". Empty: no trace.
  std::string trace;
  std::int64_t trace_steps = 10;  // number of steps to record, after the first two

  StrategyKind strategy = StrategyKind::ddp;
  int devices = 0;  // threads: number of devices (groups of cores), each with a copy of the model
  int servers = 0;  // ps: number of server ranks, the last ones; 0: one
  int workers = 0;  // ps: number of worker ranks; 0: all that are not servers
  // ps; if absent: stale_synchronous if a staleness is given, otherwise synchronous.
  std::optional<ps::Consistency> consistency = std::nullopt;
  int staleness = 0;  // ps: steps that a worker may be ahead of the slowest worker

  // ddp: options that send fewer bytes, or send less often. At most one of hook, local_sgd and
  // diloco.
  HookOptions hook = {};
  LocalSgdOptions local_sgd = {.period = 0};  // 0: gradients are averaged in every step
  PostLocalSgdOptions post_local_sgd = {};  // number of first steps in which gradients are averaged
  DiLoCoOptions diloco = {.inner_steps = 0};  // 0: no outer updates
  // ddp: normalise batches over the rows of all ranks (SyncBatchNorm).
  bool sync_batch_norm = false;
  // ddp: use each training sample exactly once per epoch. Some ranks may then have fewer rows in
  // the last steps of an epoch, or none (Join). If false, data::Sampler evens out the ranks.
  bool uneven = false;

  // Mesh axes: pp (stages), dp (copies), fsdp (shards of each copy), tp (ranks that compute each
  // layer together), cp (ranks that split each sequence) and ep (ranks that own experts). Empty:
  // all ranks on one axis, which is fsdp if `shard` shards the model, and dp otherwise.
  std::vector<MeshAxis> mesh = {};
  ShardKind shard = ShardKind::automatic;
  // How fsdp shards the model. `level` and `units` are ignored: `shard` and the plan's blocks set
  // them. Parameters are updated and saved in float32.
  ShardOptions sharding = {};
  bool deferred_init = false;      // no rank ever has the whole new model in memory
  std::string pipeline = "1f1b";   // pp: a name of plan::schedule_names()
  bool sequence_parallel = false;  // tp: activations between layers are sharded too
  ContextMethod context_method = ContextMethod::ring;  // cp
  int activation_checkpoint_every =
      0;  // recompute activations of every nth block in backward(); 0: none
  bool activation_offload = false;  // keep them in pinned host memory instead; needs a device

  // Allow ranks to be lost and to join: the state is committed in memory at each step, and results
  // are bitwise the same for any number of ranks (docs/elastic.md).
  bool elastic = false;
  // Micro-batches per step over all ranks; 0: the largest number up to 8 that divides batch.
  std::int64_t elastic_micro_batches = 0;

  // The device of the model, the batches and the loss: "cpu", "cuda" or "cuda:1"; a type without a
  // number is the current device of the thread that trains. Empty: lockstep::device(), which init()
  // chose; but the strategy ps always computes on the CPU.
  std::string device;

  // Peak floating-point operations per second of one device in the dtype of the computation, in
  // units of 10^12, for `mfu` in metrics.jsonl. 0: unknown.
  double peak_tflops = 0;

  // Processes.
  int ranks = 0;  // processes to start; 0: as the launcher says, otherwise 1
  // With `ranks`: time from a request to stop until remaining processes are killed.
  Duration grace = std::chrono::seconds(30);
  int threads = 0;  // per rank; 0: its share of the cores

  // Only for messages, not options. The command line sets them.
  std::string command;  // command that began this run, in shell syntax, without --resume
  // Where each option was set, by name: "out/config.toml line 2". Options that were set on the
  // command line are not listed.
  std::map<std::string, std::string> places;
};

}  // namespace lockstep::train

#pragma GCC visibility pop
