// RunStrategy: what of a run differs by --strategy and --shard; the loop (run.h) is the same for
// all.
#pragma once

#include "train/optimizer.h"
#include "train/strategy.h"

#include <lockstep/checkpoint/checkpoint.h>
#include <lockstep/optim/grad_scaler.h>
#include <lockstep/optim/gradient_transform.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/train/task.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::train {

// In TrainingState::progress of a checkpoint: RunStrategy::kind() of the run that saved it.
inline constexpr const char* kind_entry = "own_kind";

// Collective methods are called by all ranks of the run in the same order.
class RunStrategy {
 public:
  virtual ~RunStrategy() = default;

  // Collective, once, before all others: the handle on the task's model, and its optimizer.
  virtual void attach(std::shared_ptr<torch::nn::Module> module, RunLength length) = 0;
  [[nodiscard]] virtual Handle& handle() = 0;
  // Null where other processes update: then save() alone can save.
  [[nodiscard]] virtual torch::optim::Optimizer* optimizer() { return nullptr; }

  // The ranks that have rows of their own, of which this is one, or computes with one: known from
  // the beginning.
  [[nodiscard]] virtual const Group& learners() const = 0;
  // Which random numbers this rank draws: others than ranks that compute other things.
  [[nodiscard]] virtual int draws() const { return learners().rank(); }
  // Whether backward() is given this rank's whole batch, and cuts it into micro-batches itself.
  [[nodiscard]] virtual bool cuts_batches() const { return false; }
  // Task::measure() of a model that ranks compute together.
  [[nodiscard]] virtual Totals measure(const Batch& batch) = 0;
  // Task::sample() of such a model.
  [[nodiscard]] virtual std::string sample(std::int64_t length) = 0;

  // Forward and backward of a micro-batch. Returns its loss times `share`, by which it counts.
  [[nodiscard]] virtual double backward(const Batch& part, double share,
                                        optim::GradScaler& scaler) = 0;
  // Collective, in a step in which some ranks have no rows, with --uneven alone: `backward` calls
  // what is above, on ranks that have rows, and the others make the calls that these make.
  virtual void join(const std::function<void()>& backward);
  // Whether every rank is given the rows of all ranks, and they divide the work themselves: then
  // the second function is called once a step, instead of backward(), and returns the loss of all
  // rows.
  [[nodiscard]] virtual bool computes_slots() const { return false; }
  [[nodiscard]] virtual double backward_slots(const Batch& /*batch*/, std::int64_t /*step*/,
                                              optim::GradScaler& /*scaler*/) {
    return 0;
  }
  // The update that the gradients make.
  virtual void update(double lr, const optim::GradientTransform& transform,
                      optim::GradScaler& scaler) = 0;

  // Whether no rank can be a step ahead of another one in any case.
  [[nodiscard]] virtual bool waits_each_step() const { return true; }
  // Collective, when all ranks have made equally many steps. With `shows_model` the module has the
  // one model of all ranks then, to be measured and saved, until begin_step().
  virtual void meet(bool /*shows_model*/) {}
  // Local, before all else of a step: what each rank trains is in the module again.
  virtual void begin_step() {}

  // What a checkpoint keeps of each rank (checkpoint::SaveOptions::own), when the module has the
  // one model. A run of the same kind(), on as many ranks, takes it up; another one begins with
  // the model alone.
  [[nodiscard]] virtual std::map<std::string, at::Tensor> own() { return {}; }
  [[nodiscard]] virtual std::string kind() const { return {}; }
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

// Every rank updates what it has: DistributedDataParallel, fully_shard(), a mesh of axes pp, tp, cp
// and ep, copies of their own with --local-sgd and --diloco, and with --strategy dp the threads of
// one rank. Collective. The task and the options outlive it.
[[nodiscard]] std::unique_ptr<RunStrategy> make_local_strategy(const Options& options, Task& task,
                                                               const Group& world);

}  // namespace lockstep::train
