// The trainer: one loop for every task.
//
//   MyTask task;                                          // task.h
//   Report report = train(task, {.out = "runs/mine"}, lockstep::init());
//
// program.h adds a command line.
#pragma once

#include <lockstep/comm/group.h>
#include <lockstep/mesh/mesh.h>
#include <lockstep/train/options.h>
#include <lockstep/train/task.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#pragma GCC visibility push(default)

namespace lockstep::train {

// The outcome of a run. Equal on all ranks.
struct Report {
  std::int64_t step = 0;           // all updates, including those before a resume
  double seconds = 0;              // time of training, including that before a resume
  std::optional<double> val_loss;  // from the last evaluation
  std::optional<double> accuracy;
  int signal = 0;              // the signal that ended the run early, or 0
  bool stopped_early = false;  // because of Options::patience
  std::string last_line;       // "done: val_loss=1.874 bigram=2.452 steps=2000 seconds=61.2 ..."
  std::string resume_command;  // after a signal: the command that continues the run
};

// Trains, evaluates and saves as the options say. Collective: every rank passes equal options and
// its own task with equal settings. Rank 0 prints progress to standard output and writes these
// files to options.out:
//
//   config.toml          all settings as they were in the end
//   metrics.jsonl        one object per logged step (docs/reference/run_folder.md)
//   step-00000100/       checkpoints (checkpoint/training_state.h)
//   model.safetensors    the trained model, under the names of Python's state_dict()
//   best.safetensors     the model of the best evaluation; its metadata say which
//
//   run.lock             exists during the run, so that no other run begins in this folder
//
// If `out` has a checkpoint or a model, it is refused and left unchanged, unless options.resume,
// resume_auto or overwrite is given. A restart of the job that began the run (a later round of
// `lockstep run` or torchrun, a requeued Slurm job) is not refused and continues the run. A resumed
// run continues from the newest checkpoint, or from options.resume_from. With the same ranks,
// threads and options, it is bitwise equal to a run without interruption; with another number of
// ranks, mesh or strategy, it has the same batches but new dropout streams. Changes since the
// checkpoint are printed. These are refused: a damaged checkpoint (the message names the newest
// older one that is whole), another task or model, fewer steps than the checkpoint has made, and
// other data unless options.allow_other_data. Until all these checks have passed, only run.lock
// changes in the folder, and a new folder is not created.
//
// From the first step on, SIGINT, SIGTERM, SIGHUP, or SIGPIPE (standard output was closed) on any
// rank ends the run on all ranks: the step is finished, an evaluation or a sample ends after its
// current batch or token, a checkpoint is saved, the last lines say how to continue and where the
// weights are, and the call returns. Before the first step, these signals have the effect that they
// had before the call.
//
// Seeds LibTorch's default generator. If any rank finds an error in data, options or files, all
// ranks throw CollectiveFailure (comm/run_on_all_or_fail.h). If a rank is lost, throws the errors
// of the group.
[[nodiscard]] Report train(Task& task, const Options& options, Group world);

// Overload for a mesh whose axes have the names of options.mesh: dp, fsdp. Throws InvalidArgument
// if options.mesh is also given.
[[nodiscard]] Report train(Task& task, const Options& options, const Mesh& mesh);

// Performs an elastic run (options.elastic). Makes its groups itself from the launcher's
// environment, a new one per round (docs/elastic.md), and calls `begins` with each. Continues from
// the last committed state; with the same options, model.safetensors has the same bytes for any
// number of ranks and regardless of lost ranks. Returns std::nullopt if this process is no longer
// needed and should exit normally. Otherwise as train(); with options.elastic, train() runs in the
// one group that it is given.
[[nodiscard]] std::optional<Report> train_elastically(
    Task& task, const Options& options,
    const std::function<void(const Group&)>& begins = [](const Group&) {});

}  // namespace lockstep::train

#pragma GCC visibility pop
