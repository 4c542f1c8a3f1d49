// One device's part in a step of DataParallel: takes the values of the first device, computes loss
// and backward of its rows, and reduces its gradients. Each function runs in that device's thread.
#pragma once

#include "parallel/bucket.h"
#include "parallel/threads/replicas.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::threads {

class ReplicaStep {
 public:
  // `names`: of the replica's parameters. The replica must outlive this object.
  ReplicaStep(const Replica& replica, std::span<const std::string> names, c10::Device device,
              bool broadcast_buffers);

  // Joins a group of all devices' threads, in which this device has its number. Call with a new
  // group after every failure, which may leave calls open.
  void join(Group group);

  // Collective. Copies the first device's values to this device.
  void take_values();

  // Computes loss and backward of these rows, on any device, without reduction.
  void compute(const std::function<DeviceLoss(std::span<const at::Tensor>)>& loss,
               std::span<const at::Tensor> rows);
  // The versions of the parameters' values: every write increases them.
  [[nodiscard]] std::vector<std::int64_t> versions() const;
  // Throws InvalidArgument, which names a parameter that has been written since; only one device
  // may write.
  void check_not_written(const std::vector<std::int64_t>& before) const;
  // The number of items of the loss's mean; 0 if this device has no items.
  [[nodiscard]] double weight() const { return weight_; }
  // Returns true if parameter i was used.
  [[nodiscard]] bool has_gradient(std::size_t i) const { return gradients_[i].defined(); }

  // Collective. Averages gradients and loss of all devices, each multiplied by its device's factor,
  // to the first device. `used`: the parameters that were used on some device.
  void reduce(double factor, std::span<const std::size_t> used);

  // The results of compute() and, on the first device, of reduce().
  [[nodiscard]] std::vector<at::Tensor>& gradients() { return gradients_; }
  [[nodiscard]] at::Tensor loss() const { return loss_.reshape({}).to(loss_dtype_); }
  // Drops the results.
  void clear();

  // Removes .grad of every parameter, and restores it.
  [[nodiscard]] std::vector<at::Tensor> take_gradients() const;
  void set_gradients(const std::vector<at::Tensor>& gradients) const;

 private:
  [[nodiscard]] at::Tensor reducible(std::size_t i);

  const Replica& replica_;
  std::span<const std::string> names_;
  c10::Device device_;
  bool broadcast_buffers_;
  Group group_;
  std::unique_ptr<parallel::StateBroadcast> broadcast_;

  std::vector<at::Tensor> gradients_;  // by parameter
  at::Tensor loss_;                    // one element, in float64
  at::ScalarType loss_dtype_ = at::kFloat;
  double weight_ = 0;
};

}  // namespace lockstep::threads
