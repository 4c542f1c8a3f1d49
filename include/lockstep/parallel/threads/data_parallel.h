// DataParallel: one process trains a model on several devices, a thread for each. Every device has
// a replica of the model and computes a part of the mini-batch; the gradient is that of the whole.
//
//   Net model;
//   lockstep::DataParallel dp(model, lockstep::cpu_devices(2));   // or cuda_devices(4), ...
//   torch::optim::SGD sgd(dp.parameters(), 0.01);     // the handle's: those of the first device
//   ...
//   dp.zero_grad();
//   auto loss = dp.backward([](Net& net, const at::Tensor& images, const at::Tensor& digits) {
//     return torch::nll_loss(net->forward(images), digits);
//   }, batch.data, batch.target);
//   sgd.step();
//
// How: replicas are made once. Each backward() and forward() first gives all replicas the values
// that the first device's parameters have now, and its training flags, so that whatever has
// changed them (an optimizer, load_state_dict(), the program) is seen. Inputs are cut into rows,
// the devices compute, and gradients are reduced to the first device, where the user's model and
// optimizer are.
//
// The gradient is the mean over all rows of the batch: each device's counts by its rows
// (DeviceLoss). Where all have equally many it is the sum in the group's fixed order, divided once:
// bit for bit what DistributedDataParallel on `shm` gives for the same rows, as long as each has as
// many threads as a rank there. A parameter that had no part on some devices counts as zeros there;
// one that had none on any keeps its .grad. Gradients accumulate until zero_grad(), and after every
// backward() .grad is that of the whole batch, also inside no_sync(), which changes nothing here.
//
// Random numbers: with several devices each call takes one number from LibTorch's default generator
// of the CPU, and operations on CPU device i draw from a generator seeded by that number and i: a
// run that seeds the default generator repeats. One device draws from the default generator itself.
//
// Errors: InvalidArgument before anything was computed. DeviceFailed for what a device's thread has
// thrown, also the user's own exceptions. Then gradients are what they were before the call, and
// the object can be used again.
//
// Threads: one thread a time per object. The functions given to backward() and forward() run in the
// devices' threads, on all at once: what they share they must not write. Memory: parameters and
// gradients once for each device. When the object goes, the model is an ordinary one.
//
// When to prefer DistributedDataParallel, a process for each device: docs/data_parallel.md.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/parallel/handle.h>
#include <lockstep/parallel/threads/devices.h>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace torch::nn {
class Module;
}

namespace lockstep {

// A device's thread has thrown. The text begins with the device's name; the exception itself is
// nested in this one (std::rethrow_if_nested()).
class DeviceFailed : public Error {
  using Error::Error;
};

struct ReplicaOptions {
  // Makes a model of the same structure, whatever its values are; called once for each device but
  // the first. Absent: the model's own clone(), which modules have that derive from
  // torch::nn::Cloneable. What is neither parameter nor buffer stays as it is made here.
  std::function<std::shared_ptr<torch::nn::Module>()> make_replica = {};
  // The first device's buffers (running means and the like) replace all others' at the beginning of
  // each backward() and forward(). When false, each device has its own after construction.
  bool broadcast_buffers = true;
};

// What a loss function returns: a tensor alone is the mean over the rows it was given.
struct DeviceLoss {
  DeviceLoss(at::Tensor mean_loss, std::optional<double> of_weight = std::nullopt)
      : loss(std::move(mean_loss)), weight(of_weight) {}

  at::Tensor loss;  // one element, a mean
  // Over how many items, where these are not the rows: tokens that are not padding, say. The
  // gradient is then the mean over all devices' items. 0: this device has none and does not count.
  std::optional<double> weight;
};

// What DataParallel is without the model's type.
class [[nodiscard]] DataParallelBase : public Handle {
 public:
  [[nodiscard]] const std::vector<ComputeDevice>& devices() const;

 protected:
  using Loss = std::function<DeviceLoss(int device, std::span<const at::Tensor> rows)>;
  using Forward = std::function<at::Tensor(int device, std::span<const at::Tensor> rows)>;

  DataParallelBase() = default;
  DataParallelBase(std::shared_ptr<torch::nn::Module> model, std::vector<ComputeDevice> devices,
                   const ReplicaOptions& options);
  [[nodiscard]] const std::vector<std::shared_ptr<torch::nn::Module>>& replicas() const;
  [[nodiscard]] at::Tensor run_backward(const Loss& loss, const std::vector<at::Tensor>& inputs);
  [[nodiscard]] at::Tensor run_forward(const Forward& forward,
                                       const std::vector<at::Tensor>& inputs);
};

namespace threads {

// What TORCH_MODULE makes, and what functions are given of it.
template <typename Model>
struct ModelType {
  using Module = typename Model::ContainedType;
  static Model made_of(std::shared_ptr<Module> module) { return Model(std::move(module)); }
  static std::shared_ptr<Module> module_of(const Model& model) { return model.ptr(); }
  static Model& argument(Model& model) { return model; }
};

template <typename Impl>
struct ModelType<std::shared_ptr<Impl>> {
  using Module = Impl;
  static std::shared_ptr<Impl> made_of(std::shared_ptr<Impl> module) { return module; }
  static std::shared_ptr<Impl> module_of(const std::shared_ptr<Impl>& model) { return model; }
  static Impl& argument(const std::shared_ptr<Impl>& model) { return *model; }
};

[[noreturn]] void refuse_replica_type(int device);

}  // namespace threads

// Model: what TORCH_MODULE makes (functions get a Net&), or a std::shared_ptr<NetImpl> (they get a
// NetImpl&).
template <typename Model>
class [[nodiscard]] DataParallel : public DataParallelBase {
  using Type = threads::ModelType<Model>;

 public:
  // Attached to no model.
  DataParallel() = default;

  // The model's tensors are on the first device and stay its own. InvalidArgument, in one line: as
  // check_devices(); tensors on another device than the first; a model that cannot be cloned when
  // nothing makes replicas; a replica whose parameters or buffers differ from the model's; sharded
  // parameters, or those of another handle.
  DataParallel(Model model, std::vector<ComputeDevice> devices, const ReplicaOptions& options = {})
      : DataParallelBase(Type::module_of(model), std::move(devices), options) {
    typed_.push_back(std::move(model));
    for (std::size_t i = 1; i < replicas().size(); ++i) {
      auto module = std::dynamic_pointer_cast<typename Type::Module>(replicas()[i]);
      if (!module) threads::refuse_replica_type(static_cast<int>(i));
      typed_.push_back(Type::made_of(std::move(module)));
    }
  }

  // One forward and backward of the mini-batch. Blocks. Inputs have equally many rows (dim 0), of
  // which each device gets a part, the first ones one more where they are uneven; a device without
  // rows computes nothing. A tensor without dims goes to every device whole. `loss(model, rows...)`
  // returns a tensor or a DeviceLoss. Returns the loss of the whole batch, without gradient.
  template <typename Function, std::same_as<at::Tensor>... Inputs>
    requires(sizeof...(Inputs) > 0)
  at::Tensor backward(Function&& loss, const Inputs&... inputs) {
    return run_backward(
        [&](int device, std::span<const at::Tensor> rows) -> DeviceLoss {
          return call(loss, device, rows, std::index_sequence_for<Inputs...>());
        },
        {inputs...});
  }

  // The same without gradients, for evaluation: `forward(model, rows...)` returns a tensor with as
  // many rows as it was given, and all of them together come back, on the first device.
  template <typename Function, std::same_as<at::Tensor>... Inputs>
    requires(sizeof...(Inputs) > 0)
  at::Tensor forward(Function&& forward, const Inputs&... inputs) {
    return run_forward(
        [&](int device, std::span<const at::Tensor> rows) -> at::Tensor {
          return call(forward, device, rows, std::index_sequence_for<Inputs...>());
        },
        {inputs...});
  }

 private:
  template <typename Function, std::size_t... Places>
  decltype(auto) call(Function& function, int device, std::span<const at::Tensor> rows,
                      std::index_sequence<Places...>) {
    return function(Type::argument(typed_[static_cast<std::size_t>(device)]), rows[Places]...);
  }

  std::vector<Model> typed_;
};

}  // namespace lockstep

#pragma GCC visibility pop
