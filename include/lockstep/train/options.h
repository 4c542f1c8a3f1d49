// Options of a run that hold for every task. All but the last two are options of the command line
// and of TOML files (src/train/option_table.cc): `weight_decay` is `--weight-decay`. Structs and
// enums are those of the library where it has them. A task has settings of its own
// (Task::declare()).
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/layout/mesh_layout.h>
#include <lockstep/optim/schedule.h>
#include <lockstep/parallel/data/diloco.h>
#include <lockstep/parallel/data/local_sgd.h>
#include <lockstep/parallel/data/power_sgd.h>
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

// Learning rates, by the makers of lockstep/optim/schedule.h.
enum class ScheduleKind { constant, step, cosine, wsd, one_cycle };

enum class StrategyKind {
  ddp,  // each rank is a process that computes gradients and updates; see Options::mesh
  dp,   // the devices of one process compute, and it updates
  ps    // workers compute, and parameter servers update
};

// How much of the model the ranks of the axis fsdp divide (ShardLevel).
enum class ShardKind {
  automatic,  // full if Options::mesh has that axis, none otherwise
  none,       // every rank has the whole model; no axis fsdp of several ranks
  optimizer,
  gradients,
  full
};

// The effect on the run of a checkpoint, best model or line of metrics that cannot be written. The
// files of the end must be written in any case.
enum class OnSaveError { stop, go_on };

// How gradients are sent instead of being averaged as they are. Default: no hook.
struct HookOptions {
  std::optional<c10::ScalarType> dtype = std::nullopt;       // in bfloat16 or float16
  PowerSgdOptions power_sgd = {.rank = 0, .start_step = 0};  // rank 0: not by PowerSGD

  [[nodiscard]] bool is_given() const { return dtype || power_sgd.rank > 0; }
};

struct Options {
  // Where things are.
  std::string out;  // the run's folder
  // Go on from the newest checkpoint in `out`; BadInput if there is none.
  bool resume = false;
  bool resume_auto = false;  // go on if there is a checkpoint in `out`, else begin
  // Begin, and remove what runs have left in `out`: checkpoints, models, metrics.jsonl,
  // config.toml, result.txt, LATEST, flight records, abandoned-... A restart of the job that began
  // the run goes on instead.
  bool overwrite = false;
  std::string resume_from;        // "step-00000100": from that one instead; empty: the newest
  bool allow_other_data = false;  // on a resume, what is learned from may have changed

  // How long, and what one step takes. Exactly one of steps and epochs is positive.
  std::int64_t steps = 1000;
  std::int64_t epochs = 0;
  std::int64_t batch = 32;  // rows of one step over all ranks and micro-batches
  int accumulate = 1;       // micro-batches per rank and step; gradients are sent with the last
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
  std::int64_t warmup = 0;              // steps from 0 to lr
  double min_lr = 0;                    // cosine and wsd end here
  std::int64_t decay = 0;               // wsd: steps of its fall; 0: a fifth of the run
  optim::Step step = {.step_size = 0};  // step; 0: one epoch

  // Looking, stopping, saving; in steps. 0: at the end (and at each epoch's end when the run counts
  // epochs).
  std::int64_t eval_every = 0;
  std::int64_t save_every = 0;
  std::int64_t keep = 2;    // newest checkpoints that stay; 0: all
  bool async_save = false;  // checkpoints are written while training goes on
  OnSaveError on_save_error = OnSaveError::stop;
  // Evaluations without a better validation loss before the run stops; 0: never.
  std::int64_t patience = 0;
  std::int64_t log_every = 10;
  std::int64_t eval_batches = 0;  // largest part of the validation data in an evaluation; 0: all
  // Of tasks that make samples: how long one is at the end, 0: none; and during training every so
  // many steps, 0: never.
  std::int64_t sample = 0;
  std::int64_t sample_every = 0;

  // A file for what happens in some steps (a Chrome trace); of several ranks one each,
  // "trace.rank0.json". Empty: none.
  std::string trace;
  std::int64_t trace_steps = 10;  // that are recorded, after the first two

  StrategyKind strategy = StrategyKind::ddp;
  int devices = 0;  // dp: groups of cores, each with a copy of the model
  int servers = 0;  // ps: ranks that keep the parameters, the last ones; 0: one
  int workers = 0;  // ps: the other ranks; 0: as many as there are
  // ps; absent: stale_synchronous if a staleness is given, else synchronous.
  std::optional<ps::Consistency> consistency = std::nullopt;
  int staleness = 0;  // ps: steps that a worker may be ahead of the slowest

  // ddp: fewer bytes, or less often. At most one of hook, local_sgd and diloco.
  HookOptions hook = {};
  LocalSgdOptions local_sgd = {.period = 0};  // 0: gradients are averaged in every step
  PostLocalSgdOptions post_local_sgd = {};    // steps in which gradients are averaged first
  DiLoCoOptions diloco = {.inner_steps = 0};  // 0: there are no outer updates
  // ddp: batch normalisation by the rows of all ranks (SyncBatchNorm).
  bool sync_batch_norm = false;
  // ddp: each training sample once an epoch, though some ranks then have fewer rows in an epoch's
  // last steps, or none (Join); else ranks are made even as data::Sampler does.
  bool uneven = false;

  // Axes pp (stages), dp (copies), fsdp (shards of each copy), tp (ranks that compute each layer
  // together), cp (ranks that cut each sequence) and ep (ranks that own experts). Empty: all ranks
  // on one axis, fsdp if `shard` divides the model and dp otherwise.
  std::vector<MeshAxis> mesh = {};
  ShardKind shard = ShardKind::automatic;
  // How they divide it. `level` and `units` are ignored: they are `shard` and the plan's blocks.
  // Parameters are float32 where they are updated and saved.
  ShardOptions sharding = {};
  bool deferred = false;           // no rank ever has all of a new model in memory
  std::string pipeline = "1f1b";   // pp: a name of plan::schedule_names()
  bool sequence_parallel = false;  // tp: activations between layers are cut too
  ContextMethod context_method = ContextMethod::ring;  // cp
  int checkpoint_every = 0;  // activations of every nth block are computed again; 0: none

  // Ranks that may be lost, and join: the state is committed in memory each step, and the results
  // are the same bits at any number of ranks (docs/elastic.md).
  bool elastic = false;
  std::int64_t slots = 0;  // micro-batches of a step, over all ranks; 0: up to 8 that divide batch

  // Processes.
  int ranks = 0;  // processes to start; 0: as the launcher says, else 1
  // With `ranks`: from a request to stop until processes that have not ended are killed.
  Duration grace = std::chrono::seconds(30);
  int threads = 0;  // per rank; 0: its share of the cores

  // For messages; no options. The command line fills them in.
  std::string command;  // what began this run, as a shell reads it, without --resume
  // Where options were set, by name: "out/config.toml line 2"; not here: on the command line.
  std::map<std::string, std::string> places;
};

}  // namespace lockstep::train

#pragma GCC visibility pop
