// DataParallel: one process trains a model on several devices, with one thread per device. Every
// device has a replica of the model and computes a part of the mini-batch; the gradient is that of
// the whole batch.
//
//   Net model;
//   lockstep::DataParallel dp(model, lockstep::cpu_devices(2));   // or accelerator_devices(4), ...
//   torch::optim::SGD sgd(dp.parameters(), 0.01);     // the handle's: those of the first device
//   ...
//   dp.zero_grad();
//   auto loss = dp.backward([](Net& net, const at::Tensor& images, const at::Tensor& digits) {
//     return torch::nll_loss(net->forward(images), digits);
//   }, batch.data, batch.target);
//   sgd.step();
//
// How: replicas are made once. Each backward() and forward() first copies the current values of the
// first device's parameters, and its training flags, to all replicas, so that every change (by an
// optimizer, load_state_dict(), the program) is seen. Inputs are split by rows, the devices
// compute, and gradients are reduced to the first device, where the user's model and optimizer are.
//
// The gradient is the mean over all rows of the batch: each device is weighted by its rows
// (DeviceLoss). If all devices have the same number of rows, it is the sum in the group's fixed
// order, divided once: bit-identical to DistributedDataParallel on `shm` for the same rows, if each
// device has as many threads as a rank there. A parameter that was unused on some devices counts as
// zeros there; one that was unused on all devices keeps its .grad. Gradients accumulate until
// zero_grad(), and after every backward() .grad is that of the whole batch, also inside no_sync(),
// which has no effect here.
//
// Random numbers: with several devices, each call draws one number from LibTorch's default CPU
// generator, and operations on device i draw from a generator seeded by that number and i: a run
// that seeds the default generator is reproducible. On an accelerator, this is the device's default
// generator. A single device draws from the default generator as it is.
//
// Errors: InvalidArgument before anything is computed; DeviceFailed for exceptions in a device's
// thread, including the user's own. After an error, gradients are those from before the call, and
// the object stays usable.
//
// Threads: one thread at a time per object. The functions passed to backward() and forward() run
// concurrently in the devices' threads: they must not write shared data. Memory: parameters and
// gradients once per device. After the object is destroyed, the model is an ordinary one.
//
// When to prefer DistributedDataParallel with one process per device: docs/data_parallel.md.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/parallel/handle.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)

namespace lockstep {

// The devices that one process computes on with DataParallel.
//
//   lockstep::DataParallel dp(model, lockstep::cpu_devices(2));     // two groups of cores
//   lockstep::DataParallel dp(model, lockstep::accelerator_devices(4));    // cuda:0 to cuda:3
//
// A CPU device is a group of threads: one that computes, and those that LibTorch uses within an
// operation, all on separate cores. LibTorch has one CPU and does not number it, so CPU devices are
// identified by their position in the list.
struct ComputeDevice {
  c10::Device device = c10::Device(c10::kCPU);
  // CPU only: the cores that its threads run on; empty: chosen by the system.
  std::vector<int> cores = {};
  // CPU only: threads per operation. Some kernels (backward of LayerNorm and of convolutions) round
  // differently with another number.
  int threads = 1;
};

// Returns `count` groups of the cores that this process may use, equal up to one core, with one
// thread per core, but in total no more than at::get_num_threads(). If there are more groups than
// cores, each group gets one unpinned thread. Throws InvalidArgument for a count below 1.
[[nodiscard]] std::vector<ComputeDevice> cpu_devices(int count);

// Returns the first devices of this process's accelerator: cuda:0, cuda:1, ... Throws
// InvalidArgument if it sees fewer.
[[nodiscard]] std::vector<ComputeDevice> accelerator_devices(int count);

// Returns accelerator_devices() if there are as many, else cpu_devices().
[[nodiscard]] std::vector<ComputeDevice> default_devices(int count);

// Returns the name of device number `number` for messages: "device 1 (cpu, cores 2-3)", "device 0
// (cuda:0)".
[[nodiscard]] std::string describe(const ComputeDevice& device, int number);

// Throws InvalidArgument in one line if there is no device, a device needs a number and has none,
// occurs twice or has no thread, or a core belongs to two devices or is not available to this
// process.
void check_devices(std::span<const ComputeDevice> devices);

}  // namespace lockstep

namespace torch::nn {
class Module;
}

namespace lockstep {

// Thrown if a device's thread has thrown. The text begins with the device's name; the original
// exception is nested in this one (std::rethrow_if_nested()).
class DeviceFailed : public Error {
  using Error::Error;
};

struct DataParallelOptions {
  // Makes a model of the same structure, with any values; called once per device except the first.
  // Empty: the model's own clone(), for modules that derive from torch::nn::Cloneable. State that
  // is neither parameter nor buffer stays as it is made here.
  std::function<std::shared_ptr<torch::nn::Module>()> make_replica = {};
  // If true, each backward() and forward() begins by copying the first device's buffers (running
  // means and the like) to all others. If false, each device keeps its own buffers after
  // construction. If true and the model has gained a buffer since construction, they throw
  // InvalidArgument, which names the buffer.
  bool broadcast_buffers = true;
};

// The return value of a loss function. If the function returns only a tensor, it is the mean over
// the device's rows.
struct DeviceLoss {
  DeviceLoss(at::Tensor mean_loss, std::optional<double> of_weight = std::nullopt)
      : loss(std::move(mean_loss)), weight(of_weight) {}

  at::Tensor loss;  // one element, a mean
  // The number of items of the mean, if they are not the rows: for example, tokens that are not
  // padding. The gradient is then the mean over all devices' items. 0: this device has no items and
  // does not count.
  std::optional<double> weight;
};

// DataParallel without the model's type.
class [[nodiscard]] DataParallelBase : public Handle {
 public:
  [[nodiscard]] const std::vector<ComputeDevice>& devices() const;

 protected:
  using Loss = std::function<DeviceLoss(int device, std::span<const at::Tensor> rows)>;
  using Forward = std::function<at::Tensor(int device, std::span<const at::Tensor> rows)>;

  DataParallelBase() = default;
  DataParallelBase(std::shared_ptr<torch::nn::Module> model, std::vector<ComputeDevice> devices,
                   const DataParallelOptions& options);
  [[nodiscard]] const std::vector<std::shared_ptr<torch::nn::Module>>& replicas() const;
  [[nodiscard]] at::Tensor run_backward(const Loss& loss, const std::vector<at::Tensor>& inputs);
  [[nodiscard]] at::Tensor run_forward(const Forward& forward,
                                       const std::vector<at::Tensor>& inputs);
};

namespace threads {

// The types of a TORCH_MODULE holder and of the argument that functions receive.
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

// Model: a TORCH_MODULE holder (functions get a Net&), or a std::shared_ptr<NetImpl> (functions get
// a NetImpl&).
template <typename Model>
class [[nodiscard]] DataParallel : public DataParallelBase {
  using Type = threads::ModelType<Model>;

 public:
  // Attached to no model.
  DataParallel() = default;

  // The model's tensors are on the first device and stay the model's own. Throws InvalidArgument,
  // in one line: as check_devices(); if tensors are on another device than the first; if a model
  // cannot be cloned and there is no make_replica; if a replica's parameters or buffers differ from
  // the model's; for sharded parameters, or those of another handle; for a buffer that requires
  // grad.
  DataParallel(Model model, std::vector<ComputeDevice> devices,
               const DataParallelOptions& options = {})
      : DataParallelBase(Type::module_of(model), std::move(devices), options) {
    typed_.push_back(std::move(model));
    for (std::size_t i = 1; i < replicas().size(); ++i) {
      auto module = std::dynamic_pointer_cast<typename Type::Module>(replicas()[i]);
      if (!module) threads::refuse_replica_type(static_cast<int>(i));
      typed_.push_back(Type::made_of(std::move(module)));
    }
  }

  // Runs one forward and backward of the mini-batch. Blocks. Inputs have the same number of rows
  // (dim 0), which are divided over the devices; if they cannot be divided evenly, the first
  // devices get one more. A device without rows computes nothing. A tensor without dims is passed
  // whole to every device. `loss(model, rows...)` returns a tensor or a DeviceLoss. Returns the
  // loss of the whole batch, without gradient.
  template <typename Function, std::same_as<at::Tensor>... Inputs>
    requires(sizeof...(Inputs) > 0)
  at::Tensor backward(Function&& loss, const Inputs&... inputs) {
    return run_backward(
        [&](int device, std::span<const at::Tensor> rows) -> DeviceLoss {
          return call(loss, device, rows, std::index_sequence_for<Inputs...>());
        },
        {inputs...});
  }

  // Runs `forward(model, rows...)` without gradients, for evaluation. The function must return a
  // tensor with as many rows as its input. Returns the rows of all devices in one tensor on the
  // first device.
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
