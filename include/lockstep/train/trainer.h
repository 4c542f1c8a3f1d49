// The trainer: one loop for every task.
//
//   MyTask task;                                          // task.h
//   Report report = train(task, {.out = "runs/mine"}, lockstep::init());
//
// program.h gives the same with a command line around it.
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

// How a run ended. Equal on all ranks.
struct Report {
  std::int64_t step = 0;           // updates made in all, those before a resume included
  double seconds = 0;              // of training, those before a resume included
  std::optional<double> val_loss;  // of the last evaluation
  std::optional<double> accuracy;
  int signal = 0;              // the one that ended the run early, or 0
  bool stopped_early = false;  // by patience
  std::string last_line;       // "done: val_loss=1.874 bigram=2.452 steps=2000 seconds=61.2 ..."
  std::string resume_command;  // after a signal: the command with which the run goes on
};

// Collective: every rank calls it with equal options and a task of its own, of equal settings.
// Trains, evaluates and saves as the options say; rank 0 prints progress to standard output and
// writes below options.out:
//
//   config.toml          all settings as they were in the end
//   metrics.jsonl        one object a logged step (docs/training.md)
//   step-00000100/       checkpoints (checkpoint/training_state.h)
//   model.safetensors    the trained model, under the names of Python's state_dict()
//   best.safetensors     the model of the best evaluation; its metadata say which
//
//   run.lock             while the run goes on: another that begins in this folder is refused
//
// An `out` that has a checkpoint or a model is refused and left as it is, unless options.resume,
// resume_auto or overwrite is given, or this process is a restart of the job that began the run (a
// later round of `lockstep run` or torchrun, a requeued job of Slurm), which goes on. A resumed run
// goes on from the newest checkpoint, or from options.resume_from: with the same ranks, threads and
// options bit for bit as if it had never stopped; with another number of ranks, mesh or strategy
// with the same batches and new dropout streams. What changed since the checkpoint is printed.
// Refused are: a damaged checkpoint (the message names the newest older one that is whole), another
// task or model, fewer steps than the checkpoint has made, and other data unless
// options.allow_other_data. Before all this has been found good, nothing in the folder is changed
// but run.lock, and a new folder is not made.
//
// SIGINT, SIGTERM, SIGHUP, or SIGPIPE (standard output was closed) on any rank, from the first step
// on: the step is finished, an evaluation or a sample ends after its present batch or token, all
// ranks agree, a checkpoint is saved, the last lines say how to go on and where the weights are,
// and the call returns. Before the first step these signals have the effect that they had before
// the call.
//
// Seeds LibTorch's default generator. Throws CommonFailure (comm/together.h) on all ranks for what
// any of them found wrong with data, options or files; the group's errors when a rank is lost.
[[nodiscard]] Report train(Task& task, const Options& options, Group world);

// The same on the axes of a mesh, as options.mesh names them: dp, fsdp. InvalidArgument where both
// are given.
[[nodiscard]] Report train(Task& task, const Options& options, const Mesh& mesh);

// An elastic run (options.elastic): makes its groups itself, by the launcher's environment, a new
// one for each round (docs/elastic.md); `begins` is told of each. Goes on in the state that was
// committed last; with the same options, model.safetensors has the same bytes at any number of
// ranks and whatever was lost on the way. Nothing where this process is not wanted any more: it
// ends well. Else as train(), which with options.elastic trains in the one group it is given.
[[nodiscard]] std::optional<Report> train_elastically(
    Task& task, const Options& options,
    const std::function<void(const Group&)>& begins = [](const Group&) {});

}  // namespace lockstep::train

#pragma GCC visibility pop
