// What the trainer is told of a run, whatever is trained. Every field but the last two is an option
// of the command line and of TOML files: `weight_decay` is `--weight-decay`. What a task is told
// belongs to the task (Task::declare()).
#pragma once

#include <cstdint>
#include <map>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::train {

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
  std::int64_t batch = 32;      // rows of one step over all ranks and micro-batches
  std::int64_t accumulate = 1;  // micro-batches a rank and step; gradients are sent with the last
  std::int64_t seed = 1337;

  // The optimizer and its learning rate.
  std::string optimizer = "adamw";  // adamw, sgd
  double lr = 1e-3;
  double momentum = 0;  // sgd
  double beta1 = 0.9;   // adamw
  double beta2 = 0.999;
  double weight_decay = 0;            // on matrices only
  double clip = 0;                    // largest global gradient norm; 0: no clipping
  std::string schedule = "constant";  // constant, step, cosine, wsd, one-cycle
  std::int64_t warmup = 0;            // steps from 0 to lr
  double min_lr = 0;                  // cosine and wsd end here
  std::int64_t decay = 0;             // wsd: steps of its fall; 0: a fifth of the run
  std::int64_t step_size = 0;         // step: steps between decays; 0: one epoch
  double gamma = 0.1;                 // step: factor of one decay

  // Looking, stopping, saving; in steps. 0: at the end (and at each epoch's end when the run counts
  // epochs).
  std::int64_t eval_every = 0;
  std::int64_t save_every = 0;
  std::int64_t keep = 2;    // newest checkpoints that stay; 0: all
  bool async_save = false;  // checkpoints are written while training goes on
  // What a checkpoint, best model or line of metrics that cannot be written does to the run: stop,
  // or go-on, which says it. What the run ends with must be written.
  std::string on_save_error = "stop";
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

  // ddp: every rank, a process, computes gradients and updates (and `shard` says what they divide);
  // dp: the devices of one process compute, and it updates; ps: workers compute, and parameter
  // servers update.
  std::string strategy = "ddp";
  std::int64_t devices = 0;  // dp: groups of cores, each with a copy of the model
  std::int64_t servers = 0;  // ps: ranks that keep the parameters, the last ones; 0: one
  std::int64_t workers = 0;  // ps: the other ranks; 0: as many as there are
  // ps: synchronous, stale-synchronous, asynchronous; auto: stale-synchronous where a staleness is
  // given, else synchronous.
  std::string consistency = "auto";
  std::int64_t staleness = 0;  // ps: steps that a worker may be ahead of the slowest

  // ddp: fewer bytes, or less often. At most one of hook, local_sgd and diloco.
  // What is done with gradients instead of averaging them as they are: none, bf16, fp16,
  // powersgd:RANK, bf16+powersgd:RANK, fp16+powersgd:RANK.
  std::string hook = "none";
  std::int64_t hook_start = 0;  // of powersgd: steps that are averaged exactly first
  // Steps from one average of the ranks' models to the next (LocalSgd); 0: gradients are averaged
  // in every step.
  std::int64_t local_sgd = 0;
  std::int64_t local_sgd_start = 0;  // steps in which gradients are averaged first
  // Steps from one outer update to the next (DiLoCoOptions::inner_steps); 0: there is none.
  std::int64_t diloco = 0;
  bool diloco_int8 = false;
  std::int64_t diloco_fragments = 1;
  std::int64_t diloco_overlap = 0;
  double diloco_mixing = 0;
  double outer_lr = 0.7;
  double outer_momentum = 0.9;
  // ddp: batch normalisation by the rows of all ranks (SyncBatchNorm).
  bool sync_batch_norm = false;
  // ddp: each training sample once an epoch, though some ranks then have fewer rows in an epoch's
  // last steps, or none (Join); else ranks are made even as data::Sampler does.
  bool uneven = false;

  // How the ranks divide the model between them; none: every rank has all of it.
  std::string shard = "none";  // none, optimizer, gradients, full: ShardLevel
  // "pp=2,dp=2,fsdp=2,tp=2": stages, copies, shards of each copy, and ranks that compute each layer
  // together; cp: ranks that cut each sequence; ep: ranks that own experts; -1: what is left;
  // empty: all ranks on one axis.
  std::string mesh;
  std::string pipeline = "1f1b";        // of pp: a schedule's name (plan::make_schedule())
  bool sequence_parallel = false;       // of tp: activations between layers are cut too
  std::string context_method = "ring";  // of cp: how attention works, ring or ulysses
  std::int64_t checkpoint_every = 0;  // activations of every nth block are computed again; 0: none
  bool node_shared = false;           // what ranks of one host share is there once
  bool reduce_in_step = false;        // gradients are summed where the update reads them
  std::string offload;                // a folder for what is not in use; empty: it stays in memory
  bool deferred = false;              // no rank ever has all of a new model in memory
  std::int64_t prefetch = 1;          // units that are gathered ahead of their use

  // Which floating-point numbers. Parameters are float32 where they are updated and saved.
  std::string precision = "fp32";  // what parameters and data are computed with: fp32, bf16, fp16
  std::string reduce_dtype = "fp32";  // what gradients are summed in over ranks

  // Ranks that may be lost, and join: the state is committed in memory each step, and the results
  // are the same bits at any number of ranks (docs/elastic.md).
  bool elastic = false;
  std::int64_t slots = 0;  // micro-batches of a step, over all ranks; 0: up to 8 that divide batch

  // Processes.
  std::int64_t ranks = 0;  // processes to start; 0: as the launcher says, else 1
  // With `ranks`: from a request to stop until processes that have not ended are killed.
  std::string grace = "30s";
  std::int64_t threads = 0;  // a rank; 0: its share of the cores

  // For messages; no options. The command line fills them in.
  std::string command;  // what began this run, as a shell reads it, without --resume
  // Where options were set, by name: "out/config.toml line 2"; not here: on the command line.
  std::map<std::string, std::string> places;
};

}  // namespace lockstep::train

#pragma GCC visibility pop
