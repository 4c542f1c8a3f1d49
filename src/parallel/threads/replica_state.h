// The state of a DataParallel.
#pragma once

#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"
#include "parallel/threads/device_team.h"
#include "parallel/threads/replica_step.h"
#include "parallel/threads/replicas.h"
#include "parallel/whole_module_state.h"

#include <lockstep/parallel/threads/data_parallel.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace lockstep::threads {

class ReplicaState final : public parallel::WholeModuleState {
 public:
  ReplicaState(std::shared_ptr<torch::nn::Module> model, std::vector<ComputeDevice> devices,
               const ReplicaOptions& options);

  using Loss = std::function<DeviceLoss(int device, std::span<const at::Tensor> rows)>;
  using Forward = std::function<at::Tensor(int device, std::span<const at::Tensor> rows)>;
  at::Tensor backward(const Loss& loss, const std::vector<at::Tensor>& inputs);
  at::Tensor forward(const Forward& forward, const std::vector<at::Tensor>& inputs);
  [[nodiscard]] const std::vector<ComputeDevice>& devices() const { return team_.devices(); }
  [[nodiscard]] const std::vector<std::shared_ptr<torch::nn::Module>>& modules() const {
    return modules_;
  }

  void detach() override { hooks_.reset(); }
  void zero_grad(bool set_to_none) override;
  [[nodiscard]] HandleMemory memory() const override;

 private:
  [[nodiscard]] ReplicaStep& step(int i) { return *steps_[static_cast<std::size_t>(i)]; }
  // Checks the model, and copies its training flags to the replicas.
  void prepare();
  void join_groups();
  // Runs task(i, rows) in the threads of the devices that have rows, after all devices have taken
  // the first one's values.
  void compute(const std::vector<at::Tensor>& inputs,
               const std::function<void(int, std::span<const at::Tensor>)>& task);
  void reduce();
  // Runs task(i) in all threads; throws DeviceFailed if one of them has thrown.
  void run(const std::function<void(int)>& task);
  // Puts the sums into .grad, added to the previous gradients in `before`.
  void publish(const std::vector<at::Tensor>& before);
  // Called when a graph of a device has reached a parameter of the model itself.
  void on_gradient(int parameter) const;

  std::shared_ptr<torch::nn::Module> model_;
  DeviceTeam team_;
  std::vector<Replica> replicas_;
  std::vector<std::shared_ptr<torch::nn::Module>> modules_;
  std::vector<NamedParameter> parameters_;
  std::vector<std::string> names_;  // of parameters and buffers, in Replica's order
  modules::ModuleWatch watch_;
  std::vector<std::unique_ptr<ReplicaStep>> steps_;  // by device
  std::unique_ptr<parallel::GradientHooks> hooks_;
};

}  // namespace lockstep::threads
