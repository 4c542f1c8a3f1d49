// RunStrategy: what of a run differs by --strategy and --shard; the loop (run.h) is the same for
// all.
#pragma once

#include "train/schedule.h"
#include "train/strategy.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/task.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

// Collective methods are called by all ranks of the run in the same order.
class RunStrategy {
 public:
  virtual ~RunStrategy() = default;

  // Collective, once, before all others: the handle on the task's model, and its optimizer.
  virtual void attach(std::shared_ptr<torch::nn::Module> module, const ScheduleOptions& schedule,
                      std::int64_t steps_per_epoch) = 0;
  [[nodiscard]] virtual Handle& handle() = 0;
  // Null where other processes update: then save() alone can save.
  [[nodiscard]] virtual torch::optim::Optimizer* optimizer() { return nullptr; }

  // The ranks that have rows of their own, of which this is one, or computes with one: known from
  // the beginning.
  [[nodiscard]] virtual const Group& learners() const = 0;
  // Which random numbers this rank draws: others than ranks that compute other things.
  [[nodiscard]] virtual int draws() const { return learners().rank(); }
  // Whether backward() is given this rank's whole batch, and cuts it itself.
  [[nodiscard]] virtual bool takes_whole_batches() const { return false; }
  // Task::measure() of a model that ranks compute together.
  [[nodiscard]] virtual Totals measure(const Batch& batch) = 0;

  // Forward and backward of a micro-batch. Returns its loss times `share`, by which it counts.
  [[nodiscard]] virtual double backward(const Batch& part, double share,
                                        optim::GradScaler& scaler) = 0;
  // The update that the gradients make.
  virtual void update(double lr, const optim::GradientTransform& transform,
                      optim::GradScaler& scaler) = 0;

  // Whether no rank can be a step ahead of another one in any case.
  [[nodiscard]] virtual bool waits_each_step() const { return true; }
  // Collective, when all ranks have made equally many steps: they have equal values then, until the
  // next one.
  virtual void meet() {}

  // Collective: checkpoint::save() and load() of all processes that take part.
  virtual void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
                    const checkpoint::SaveOptions& options) = 0;
  virtual void load(const std::filesystem::path& folder) = 0;
  // How many these are: TrainingState::ranks.
  [[nodiscard]] virtual int processes() const = 0;

  // Of parameters, gradients and optimizer state on this rank.
  [[nodiscard]] virtual std::int64_t bytes_held() = 0;
  // More of the run's last line.
  [[nodiscard]] virtual std::vector<std::pair<std::string, std::string>> results() { return {}; }
};

// Every rank updates what it has: DistributedDataParallel, fully_shard(), and with --strategy dp
// the threads of one rank. The task outlives it.
[[nodiscard]] std::unique_ptr<RunStrategy> make_local_strategy(const Options& options, Task& task,
                                                               const Group& world);

}  // namespace lockstep::train
