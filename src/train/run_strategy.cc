#include "train/run_strategy.h"

#include "base/check.h"
#include "train/micro_batches.h"
#include "train/optimizers.h"

#include <lockstep/parallel/threads/data_parallel.h>

#include <torch/optim/optimizer.h>

#include <span>

namespace lockstep::train {
namespace {

class LocalStrategy : public RunStrategy {
 public:
  LocalStrategy(const Options& options, Task& task, Group world)
      : options_(options), task_(task), world_(std::move(world)) {}

  void attach(std::shared_ptr<torch::nn::Module> module, const ScheduleOptions&,
              std::int64_t) override {
    make_handle(std::move(module));
    optimizer_ = make_optimizer(options_, handle().named_parameters(), handle().state_memory());
  }
  Handle& handle() override { return handle_; }
  torch::optim::Optimizer* optimizer() override { return optimizer_.get(); }

  double backward(const Batch& part, double share, optim::GradScaler& scaler) override {
    at::Tensor loss = task_.loss(cast_batch(part, compute_dtype(options_)));
    if (compute_dtype(options_)) loss = loss.to(at::kFloat);  // float16 has no room for its scale
    scaler.scale(share == 1 ? loss : loss * share).backward();
    return loss.item<double>() * share;
  }
  void update(double lr, const optim::GradientTransform& transform,
              optim::GradScaler& scaler) override {
    set_learning_rate(*optimizer_, lr);
    scaler.step(*optimizer_, transform);
    scaler.update();
    if (options_.reduce_in_step)
      handle().zero_grad();  // or an evaluation computes averages for all
  }

  void save(const std::filesystem::path& out, const checkpoint::TrainingState& state,
            const checkpoint::SaveOptions& options) override {
    checkpoint::save(out, handle(), *optimizer_, state, options);
  }
  // The folder was verified when it was chosen.
  void load(const std::filesystem::path& folder) override {
    (void)checkpoint::load(folder, handle(), *optimizer_, {.verify = false});
  }
  int processes() const override { return world_.size(); }
  std::int64_t bytes_held() override { return train::bytes_held(handle(), *optimizer_); }

 protected:
  virtual void make_handle(std::shared_ptr<torch::nn::Module> module) {
    handle_ = train::make_handle(options_, task_, std::move(module), world_);
  }

  const Options& options_;
  Task& task_;
  Group world_;

 private:
  Handle handle_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

// DataParallel of a task's models.
class TaskReplicas : public DataParallelBase {
 public:
  TaskReplicas() = default;
  TaskReplicas(Task& task, std::shared_ptr<torch::nn::Module> module, int devices)
      : TaskReplicas(task, std::move(module), devices, std::make_shared<std::vector<Replica>>(1)) {}

  // The loss of the whole batch, which counts `share`.
  at::Tensor backward(const Batch& batch, double share) {
    std::vector<at::Tensor> inputs{batch.data, batch.target};
    inputs.insert(inputs.end(), batch.more.begin(), batch.more.end());
    return run_backward(
        [&](int device, std::span<const at::Tensor> rows) -> DeviceLoss {
          const Batch own(rows[0], rows[1], {rows.begin() + 2, rows.end()});
          at::Tensor loss = device == 0 ? task_->loss(own)
                                        : (*others_)[static_cast<std::size_t>(device)].loss(own);
          return share == 1 ? loss : loss * share;
        },
        inputs);
  }

 private:
  TaskReplicas(Task& task, std::shared_ptr<torch::nn::Module> module, int devices,
               const std::shared_ptr<std::vector<Replica>>& others)
      : DataParallelBase(std::move(module), cpu_devices(devices),
                         {.make_replica =
                              [&task, others] {
                                others->push_back(task.make_replica());
                                return others->back().module;
                              }}),
        task_(&task),
        others_(others) {}

  Task* task_ = nullptr;
  std::shared_ptr<std::vector<Replica>> others_;  // by device; of the first, the task itself
};

class DeviceStrategy : public LocalStrategy {
 public:
  using LocalStrategy::LocalStrategy;

  Handle& handle() override { return replicas_; }
  double backward(const Batch& part, double share, optim::GradScaler&) override {
    return replicas_.backward(part, share).item<double>();
  }

 private:
  void make_handle(std::shared_ptr<torch::nn::Module> module) override {
    check_input(options_.devices == 1 || task_.make_replica().module != nullptr,
                "--strategy dp: the task {} makes no replicas of its model "
                "(Task::make_replica()): train it with --ranks {}",
                task_.name(), options_.devices);
    replicas_ = TaskReplicas(task_, std::move(module), static_cast<int>(options_.devices));
  }

  TaskReplicas replicas_;
};

}  // namespace

std::unique_ptr<RunStrategy> make_local_strategy(const Options& options, Task& task,
                                                 const Group& world) {
  if (options.strategy == "dp") return std::make_unique<DeviceStrategy>(options, task, world);
  return std::make_unique<LocalStrategy>(options, task, world);
}

}  // namespace lockstep::train
