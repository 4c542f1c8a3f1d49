#include "train/run_strategy.h"

#include "base/check.h"
#include "train/elastic_strategy.h"
#include "train/local_strategy.h"
#include "train/mesh_strategy.h"
#include "train/own_copies_strategy.h"

#include <lockstep/parallel/threads/data_parallel.h>

#include <span>

namespace lockstep::train {
namespace {

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
    replicas_ = TaskReplicas(task_, std::move(module), options_.devices);
  }

  TaskReplicas replicas_;
};

}  // namespace

void RunStrategy::join(const std::function<void()>& backward) { backward(); }

std::unique_ptr<RunStrategy> make_local_strategy(const Options& options, Task& task,
                                                 const Group& world) {
  if (options.elastic) return std::make_unique<ElasticStrategy>(options, task, world);
  if (options.strategy == StrategyKind::dp)
    return std::make_unique<DeviceStrategy>(options, task, world);
  if (has_own_copies(options)) return std::make_unique<OwnCopiesStrategy>(options, task, world);
  if (division_of(options, world.size()).is_model_parallel())
    return make_mesh_strategy(options, task, world);
  return std::make_unique<LocalStrategy>(options, task, world);
}

}  // namespace lockstep::train
