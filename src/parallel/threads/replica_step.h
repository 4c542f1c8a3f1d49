// One device's part in a step of DataParallel: the values of the first device, loss and backward of
// its rows, and the reduction of its gradients. Each function runs in that device's thread.
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
  // `names`: of the replica's parameters. The replica outlives this object.
  ReplicaStep(const Replica& replica, std::span<const std::string> names, c10::Device device,
              bool broadcast_buffers);

  // A group of all devices' threads, in which this device has its number. Another one after every
  // failure, in which calls may be left open.
  void join(Group group);

  // Collective: the first device's values become this one's.
  void take_values();

  // Loss and backward of these rows, which are somewhere; nothing is reduced yet.
  void compute(const std::function<DeviceLoss(std::span<const at::Tensor>)>& loss,
               std::span<const at::Tensor> rows);
  // Of the parameters' values: every write counts.
  [[nodiscard]] std::vector<std::int64_t> versions() const;
  // InvalidArgument names a parameter that has been written since; one device may write.
  void check_not_written(const std::vector<std::int64_t>& before) const;
  // Over how many items the loss is a mean; 0 when this device has none.
  [[nodiscard]] double weight() const { return weight_; }
  // Whether parameter i has had a part.
  [[nodiscard]] bool has_gradient(std::size_t i) const { return gradients_[i].defined(); }

  // Collective: on the first device gradients and loss become the averages of all, each multiplied
  // by its device's factor. `used`: the parameters that have had a part on some device.
  void reduce(double factor, std::span<const std::size_t> used);

  // What compute() has computed, and reduce() has averaged.
  [[nodiscard]] std::vector<at::Tensor>& gradients() { return gradients_; }
  [[nodiscard]] at::Tensor loss() const { return loss_.reshape({}).to(loss_dtype_); }
  // Forgets it.
  void clear();

  // Takes .grad of every parameter away, and gives it back.
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
