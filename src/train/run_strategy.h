// RunStrategy: the part of a run that differs by --strategy; the loop (run.h) is the same for all.
#pragma once

#include "train/optimizer.h"

#include <lockstep/checkpoint/async_saver.h>
#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/task.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

// In TrainingState::progress of a checkpoint: RunFacts::kind of the run that saved it.
inline constexpr const char* kind_entry = "own_kind";

struct RunFacts {
  // The ranks that have rows of their own, of which this is one, or computes with one.
  Group learners;
  int processes = 1;  // that take part: TrainingState::ranks
  // Whether no rank can be a step ahead of another one in any case.
  bool waits_each_step = true;
  // Whether each rank is given the rows of all ranks, and backward() returns the loss of all rows.
  bool takes_all_rows = false;
  // A run of the same kind, on as many ranks, takes up what a checkpoint keeps of each rank;
  // another one begins with the model alone. Empty: ranks keep nothing.
  std::string kind = {};
  // Since attach():
  // Ranks that draw the same random numbers have the same stream, all others another one.
  int random_stream = 0;
  // Whether ranks pass through the model equally often, because they compute or keep it together.
  bool in_step = false;
};

// A step's rows on this rank.
struct StepRows {
  const Batch& batch;
  const std::vector<std::int64_t>& of_all;  // numbers of all ranks where they differ, else empty
  std::int64_t step = 0;
};

// Collective functions are called by all ranks of the run in the same order.
class RunStrategy {
 public:
  explicit RunStrategy(RunFacts facts) : facts_(std::move(facts)) {}
  RunStrategy(const RunStrategy&) = delete;
  RunStrategy& operator=(const RunStrategy&) = delete;
  virtual ~RunStrategy() = default;

  [[nodiscard]] const RunFacts& facts() const { return facts_; }
  // Since attach(). The optimizer is null where other processes update.
  [[nodiscard]] Handle& handle() { return *handle_; }
  [[nodiscard]] torch::optim::Optimizer* optimizer() { return optimizer_; }
  // Of parameters, gradients and optimizer state on this rank.
  [[nodiscard]] std::int64_t bytes_held() const;

  // Collective, once, before all others: the handle on the task's model, and its optimizer.
  virtual void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) = 0;
  // Forward and backward of all micro-batches. Returns the mean loss of this rank's rows.
  [[nodiscard]] virtual double backward(const StepRows& rows, optim::GradScaler& scaler) = 0;
  // The update that the gradients make.
  virtual void update(double lr, const optim::GradientTransform& transform,
                      optim::GradScaler& scaler) = 0;
  // Collective, when all ranks have made equally many steps. With `shows_model` the module has the
  // one model of all ranks then, to be measured and saved, until backward().
  virtual void meet(bool /*shows_model*/) {}

  // Task::measure() and Task::sample() of the model as ranks have it.
  [[nodiscard]] virtual Totals measure(const Batch& batch) = 0;
  [[nodiscard]] virtual std::string sample(std::int64_t length) = 0;

  // Collective, when the module has the one model: checkpoint::save() and load() of all processes
  // that take part, with what each rank keeps of its own. With a saver the writing goes on beside
  // the training.
  virtual void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                    checkpoint::SaveOptions options, checkpoint::AsyncSaver* saver) = 0;
  virtual void load(const std::filesystem::path& folder) = 0;

  // More of the run's last line.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> results() { return {}; }

 protected:
  RunFacts facts_;
  Handle* handle_ = nullptr;
  torch::optim::Optimizer* optimizer_ = nullptr;
};

// Every rank updates what it has: parallelize() on the run's mesh, copies of their own with
// --local-sgd and --diloco, and with --strategy dp the threads of one rank. Collective. The task
// and the options outlive it.
[[nodiscard]] std::unique_ptr<RunStrategy> make_local_strategy(const Options& options, Task& task,
                                                               const Group& world);

}  // namespace lockstep::train
