#include "train/strategies.h"

#include "base/check.h"

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

  // Runs forward and backward of the whole batch, with its loss weighted by `share`. The forward
  // passes run under autocast to `dtype`, if it is given.
  at::Tensor backward(const Batch& batch, double share, std::optional<c10::ScalarType> dtype) {
    std::vector<at::Tensor> inputs{batch.data, batch.target};
    inputs.insert(inputs.end(), batch.more.begin(), batch.more.end());
    return run_backward(
        [&](int device, std::span<const at::Tensor> rows) -> DeviceLoss {
          const Batch own(rows[0], rows[1], {rows.begin() + 2, rows.end()});
          const Autocast scope(c10::kCPU, dtype);
          at::Tensor loss = device == 0 ? task_->loss(own)
                                        : (*others_)[static_cast<std::size_t>(device)].loss(own);
          if (dtype) loss = loss.to(at::kFloat);
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
  // One per device; the first device uses the task itself.
  std::shared_ptr<std::vector<Replica>> others_;
};

// --strategy dp: the devices are threads of one rank.
class DeviceStrategy : public TrainedModel {
 public:
  using TrainedModel::TrainedModel;

 private:
  at::Tensor backward_part(const Batch& part, double share, optim::GradScaler& scaler) override {
    const double scale = scaler.enabled() ? scaler.current_scale() : 1;
    const at::Tensor loss =
        replicas_.backward(part, share * scale, autocast_dtype(options_)).detach().to(at::kDouble);
    return scale == 1 ? loss : loss / scale;
  }

  Handle& make_handle(const std::shared_ptr<torch::nn::Module>& module) override {
    check_input(options_.devices == 1 || task_.make_replica().module != nullptr,
                "--strategy dp: the task {} makes no replicas of its model "
                "(Task::make_replica()): train it with --ranks {}",
                task_.name(), options_.devices);
    replicas_ = TaskReplicas(task_, module, options_.devices);
    return replicas_;
  }

  TaskReplicas replicas_;
};

}  // namespace

std::unique_ptr<TrainedModel> make_trained_model(const Configuration& configuration,
                                                 const Group& world) {
  const Options& options = configuration.options;
  if (options.elastic) return make_elastic(configuration, world);
  if (has_own_copies(options)) return make_own_copies(configuration, world);
  if (options.strategy == StrategyKind::dp)
    return std::make_unique<DeviceStrategy>(configuration, world);
  return std::make_unique<TrainedModel>(configuration, world);
}

}  // namespace lockstep::train
