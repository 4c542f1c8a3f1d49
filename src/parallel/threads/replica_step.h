// One device's part in a step of DataParallel: takes the values of the first device, computes loss
// and backward of its rows, and reduces its gradients. Each function runs in that device's thread.
#pragma once

#include "parallel/bucket.h"
#include "sys/own_process.h"
#include "sys/thread.h"

#include <lockstep/comm/group.h>
#include <lockstep/parallel/threads/data_parallel.h>

#include <ATen/core/Tensor.h>

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace lockstep::threads {

// The models of a DataParallel: the user's own on the first device, replicas on the others.
struct Replica {
  std::shared_ptr<torch::nn::Module> module;
  std::vector<at::Tensor> parameters;  // in the model's order
  std::vector<at::Tensor> buffers;
};

// The first one is the model itself; the others have its current values. Throws InvalidArgument as
// the constructor of DataParallel.
[[nodiscard]] std::vector<Replica> make_replicas(const std::shared_ptr<torch::nn::Module>& model,
                                                 std::span<const ComputeDevice> devices,
                                                 const DataParallelOptions& options);

// Copies the training flag of each module to the replica's.
void follow_training_flags(const torch::nn::Module& model, torch::nn::Module& replica);

// Throws InvalidArgument, which names a tensor of the model whose dtype, sizes or strides differ
// from the replica's, or that is not on `device`.
void check_as_made(const Replica& model, const Replica& replica, c10::Device device,
                   std::span<const std::string> names);

// DeviceTeam: one thread per device of a DataParallel, on its cores and with its share of
// LibTorch's threads.
//
// Used by one thread at a time.
class DeviceTeam {
 public:
  // Throws SystemError if a core is not available.
  explicit DeviceTeam(std::vector<ComputeDevice> devices);

  [[nodiscard]] const std::vector<ComputeDevice>& devices() const { return devices_; }
  [[nodiscard]] int size() const { return static_cast<int>(devices_.size()); }

  // Runs task(i) in the thread of device i, on all devices concurrently, each with the caller's
  // thread-local state (grad mode, autocast, current streams). Blocks until all have ended, and
  // returns their exceptions. Throws InvalidArgument in a forked child, which does not have these
  // threads.
  [[nodiscard]] std::vector<std::exception_ptr> run(const std::function<void(int)>& task);

 private:
  void start_thread(int i);

  std::vector<ComputeDevice> devices_;
  sys::ForkAware process_;
  std::vector<std::unique_ptr<sys::TaskQueue>> queues_;
};

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
