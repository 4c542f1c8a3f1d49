#include "parallel/threads/replica_step.h"

#include "base/check.h"
#include "base/format.h"
#include "base/scope_exit.h"
#include "base/text.h"
#include "comm/backend/accelerator.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"
#include "parallel/backward_step.h"
#include "sys/topology.h"

#include <lockstep/global/tensor.h>

#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/view_as_real.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <latch>
#include <optional>
#include <set>
#include <utility>

namespace lockstep::threads {
namespace {

Replica replica_of(std::shared_ptr<torch::nn::Module> module,
                   const modules::ModuleTensors& tensors) {
  Replica replica{std::move(module), {}, tensors.buffer_tensors()};
  for (const NamedParameter& parameter : tensors.parameters)
    replica.parameters.push_back(parameter.tensor);
  return replica;
}

void check_tensor(const char* kind, const std::string& name, const at::Tensor& tensor,
                  c10::Device device) {
  check(!dispatch::is_lazy(tensor),
        "DataParallel: {} {} is sharded or deferred: DataParallel needs all of it in memory", kind,
        name);
  check(!is_global(tensor),
        "DataParallel: {} {} is a global tensor, which needs the other ranks: a replica would "
        "compute without them",
        kind, name);
  check(!tensor.is_nested() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
            !tensor.is_meta() && !tensor.is_inference(),
        "DataParallel: {} {} is not a dense tensor, so its values cannot be copied to replicas",
        kind, name);
  check(tensor.device() == device,
        "DataParallel: {} {} is on {}, but the first device is {}: move the model there first",
        kind, name, tensor.device().str(), device.str());
}

void check_model(const modules::ModuleTensors& tensors, c10::Device device) {
  for (const NamedParameter& parameter : tensors.parameters) {
    check_tensor("parameter", parameter.name, parameter.tensor, device);
    modules::check_leaf(parameter.name, parameter.tensor, "DataParallel");
    check(!parallel::is_hooked(parameter.tensor),
          "DataParallel: {} belongs to another handle, which reduces its gradients already",
          parameter.name);
  }
  for (const NamedTensor& buffer : tensors.buffers) {
    check_tensor("buffer", buffer.name, buffer.tensor, device);
    modules::check_buffer(buffer.name, buffer.tensor, "DataParallel");
  }
}

std::shared_ptr<torch::nn::Module> cloned(const torch::nn::Module& model) {
  try {
    return model.clone();
  } catch (const c10::Error& error) {
    throw InvalidArgument(formatted(
        "DataParallel: the model cannot be cloned ({}): give DataParallelOptions::make_replica, a "
        "function that makes one like it, or derive its modules from torch::nn::Cloneable",
        first_line(error.what_without_backtrace())));
  }
}

// Copies values, dtypes, strides and requires_grad to tensors of equal sizes; check_equal() reports
// other differences.
void take_values(const modules::ModuleTensors& model, const modules::ModuleTensors& replica,
                 c10::Device device) {
  at::NoGradGuard no_grad;
  auto copy_of = [&](const at::Tensor& tensor) {
    return tensor.detach().to(tensor.options().device(device), /*non_blocking=*/false,
                              /*copy=*/true);
  };
  for (std::size_t i = 0; i < std::min(model.parameters.size(), replica.parameters.size()); ++i) {
    const at::Tensor& from = model.parameters[i].tensor;
    at::Tensor to = replica.parameters[i].tensor;
    if (to.sizes() != from.sizes()) continue;
    to.set_data(copy_of(from));
    to.set_requires_grad(from.requires_grad());
  }
  for (std::size_t i = 0; i < std::min(model.buffers.size(), replica.buffers.size()); ++i) {
    at::Tensor to = replica.buffers[i].tensor;
    if (to.sizes() == model.buffers[i].tensor.sizes())
      to.set_data(copy_of(model.buffers[i].tensor));
  }
}

void check_equal(const modules::ModuleTensors& model, const modules::ModuleTensors& replica,
                 const std::string& device) {
  std::vector<std::string> expected = modules::lines_of(model), found = modules::lines_of(replica);
  auto [at_model, at_replica] = std::ranges::mismatch(expected, found);
  if (at_model == expected.end() && at_replica == found.end()) return;
  throw InvalidArgument(formatted(
      "DataParallel: the replica for {} is another model: the model has {}; the replica has {}",
      device, at_model == expected.end() ? "nothing more" : *at_model,
      at_replica == found.end() ? "nothing more" : *at_replica));
}

}  // namespace

std::vector<Replica> make_replicas(const std::shared_ptr<torch::nn::Module>& model,
                                   std::span<const ComputeDevice> devices,
                                   const DataParallelOptions& options) {
  modules::ModuleTensors tensors = modules::tensors_of(*model);
  check_model(tensors, devices.front().device);
  std::vector<Replica> replicas{replica_of(model, tensors)};
  for (std::size_t i = 1; i < devices.size(); ++i) {
    auto module = options.make_replica ? options.make_replica() : cloned(*model);
    const std::string name = describe(devices[i], static_cast<int>(i));
    for (const Replica& other : replicas)
      check(module != nullptr && module != other.module,
            "DataParallel: make_replica() must return a new model for {}, found {}", name,
            module == nullptr ? "none" : "one that it had returned before, or the model itself");
    modules::ModuleTensors own = modules::tensors_of(*module);
    take_values(tensors, own, devices[i].device);
    check_equal(tensors, own, name);
    replicas.push_back(replica_of(std::move(module), own));
  }
  return replicas;
}

void follow_training_flags(const torch::nn::Module& model, torch::nn::Module& replica) {
  // train() sets the modules below too, which come later in the list.
  auto wanted = model.modules();
  auto own = replica.modules();
  for (std::size_t i = 0; i < std::min(wanted.size(), own.size()); ++i)
    if (own[i]->is_training() != wanted[i]->is_training()) own[i]->train(wanted[i]->is_training());
}

void check_as_made(const Replica& model, const Replica& replica, c10::Device device,
                   std::span<const std::string> names) {
  auto name = names.begin();
  auto check_one = [&](const at::Tensor& now, const at::Tensor& made) {
    check(
        now.scalar_type() == made.scalar_type() && now.sizes() == made.sizes() &&
            now.strides() == made.strides() && now.device() == device,
        "DataParallel: {} is {} [{}] on {} now, and was {} [{}] on {} when DataParallel was made: "
        "make it after that",
        *name, c10::toString(now.scalar_type()), listed(now.sizes(), ", "), now.device().str(),
        c10::toString(made.scalar_type()), listed(made.sizes(), ", "), device.str());
    ++name;
  };
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    check_one(model.parameters[i], replica.parameters[i]);
  for (std::size_t i = 0; i < model.buffers.size(); ++i)
    check_one(model.buffers[i], replica.buffers[i]);
}

DeviceTeam::DeviceTeam(std::vector<ComputeDevice> devices) : devices_(std::move(devices)) {
  check_devices(devices_);
  for (const ComputeDevice& device : devices_)
    check(device.device.is_cpu() || c10::impl::hasDeviceGuardImpl(device.device.type()),
          "DataParallel: this LibTorch has no {} devices",
          c10::DeviceTypeName(device.device.type()));
  // Threads inherit the number that was set last in any thread, so restore it.
  ScopeExit restore([before = at::get_num_threads()] { at::set_num_threads(before); });
  for (int i = 0; i < size(); ++i) start_thread(i);
}

void DeviceTeam::start_thread(int i) {
  const ComputeDevice& device = devices_[static_cast<std::size_t>(i)];
  auto& queue = *queues_.emplace_back(std::make_unique<sys::TaskQueue>());
  std::latch started(1);
  std::exception_ptr problem;
  queue.push([&] {
    try {
      if (!device.cores.empty()) sys::run_on_cores(device.cores);
      at::set_num_threads(device.threads);
    } catch (...) {
      problem = std::current_exception();
    }
    started.count_down();
  });
  started.wait();
  if (problem) std::rethrow_exception(problem);
}

std::vector<std::exception_ptr> DeviceTeam::run(const std::function<void(int)>& task) {
  check(!process_.is_copy_of_parent(),
        "DataParallel: made before fork(); its threads are not in the forked child");
  std::vector<std::exception_ptr> problems(devices_.size());
  at::ThreadLocalState state;
  std::vector<c10::Stream> streams;  // the caller's, of every device: outputs go to the first one
  for (const ComputeDevice& one : devices_)
    if (!one.device.is_cpu()) streams.push_back(current_stream(one.device));
  std::latch done(size());
  for (int i = 0; i < size(); ++i) {
    auto& problem = problems[static_cast<std::size_t>(i)];
    const c10::Device device = devices_[static_cast<std::size_t>(i)].device;
    queues_[static_cast<std::size_t>(i)]->push([&, i, device] {
      try {
        at::ThreadLocalStateGuard as_caller(state);
        c10::MultiStreamGuard on_streams(streams);
        c10::OptionalDeviceGuard on_device;
        if (!device.is_cpu()) on_device.reset_device(device);
        task(i);
      } catch (...) {
        problem = std::current_exception();
      }
      done.count_down();
    });
  }
  done.wait();
  return problems;
}

namespace {

// Autograd may give two parameters gradients in one memory, those of p.unsqueeze(0) +
// q.unsqueeze(0) for example. They are scaled and reduced in place, so each gets its own memory.
void separate(std::vector<at::Tensor>& gradients) {
  std::set<const c10::StorageImpl*> seen;
  for (at::Tensor& gradient : gradients)
    if (gradient.defined() && !seen.insert(gradient.storage().unsafeGetStorageImpl()).second)
      gradient = gradient.clone();
}

// A rank that cannot take part aborts the group, so that the others do not wait for it.
template <typename Collective>
void or_abort(Group& group, Collective&& collective) {
  try {
    collective();
  } catch (const std::exception& error) {
    group.abort(error.what());
    throw;
  }
}

}  // namespace

ReplicaStep::ReplicaStep(const Replica& replica, std::span<const std::string> names,
                         c10::Device device, bool broadcast_buffers)
    : replica_(replica),
      names_(names),
      device_(device),
      broadcast_buffers_(broadcast_buffers),
      gradients_(replica.parameters.size()) {}

void ReplicaStep::join(Group group) {
  broadcast_.reset();
  group_ = std::move(group);
  std::vector<at::Tensor> state = replica_.parameters;
  if (broadcast_buffers_)
    state.insert(state.end(), replica_.buffers.begin(), replica_.buffers.end());
  broadcast_ = std::make_unique<parallel::StateBroadcast>(group_, std::move(state));
}

void ReplicaStep::take_values() {
  or_abort(group_, [&] {
    broadcast_->post(std::nullopt);
    broadcast_->finish();
  });
}

void ReplicaStep::compute(const std::function<DeviceLoss(std::span<const at::Tensor>)>& loss,
                          std::span<const at::Tensor> rows) {
  at::AutoGradMode with_gradients(true);
  std::vector<at::Tensor> here;
  for (const at::Tensor& input : rows) here.push_back(input.to(device_, /*non_blocking=*/true));
  auto [value, weight] = loss(here);
  check(value.defined() && value.numel() == 1,
        "the loss function must return one element, the mean over its rows; found {}",
        value.defined() ? formatted("sizes [{}]", listed(value.sizes(), ", ")) : "nothing");
  auto divided = std::ranges::find_if(rows, [](const at::Tensor& one) { return one.dim() > 0; });
  weight_ = weight.value_or(static_cast<double>(divided->size(0)));
  check(std::isfinite(weight_) && weight_ >= 0, "the weight of a loss must be 0 or more, found {}",
        weight_);
  loss_dtype_ = value.scalar_type();
  if (weight_ == 0) return;
  value.backward();
  gradients_ = take_gradients();
  for (std::size_t i = 0; i < gradients_.size(); ++i)
    if (gradients_[i].defined() && gradients_[i].layout() != at::kStrided)
      parallel::throw_sparse_gradient(names_[i], "DataParallel");
  separate(gradients_);
  loss_ = value.detach().reshape({1}).to(at::kDouble);
}

std::vector<std::int64_t> ReplicaStep::versions() const {
  std::vector<std::int64_t> versions;
  for (const at::Tensor& parameter : replica_.parameters) versions.push_back(parameter._version());
  return versions;
}

void ReplicaStep::check_not_written(const std::vector<std::int64_t>& before) const {
  const std::vector<std::int64_t> now = versions();
  const auto place = static_cast<std::size_t>(std::ranges::mismatch(now, before).in1 - now.begin());
  if (place == now.size() || group_.size() == 1) return;
  throw InvalidArgument(formatted(
      "parameter {} was written in place, as an embedding with max_norm does in forward(): each "
      "device would have other values, and all but the first one's would be lost; write it after "
      "the optimizer's step() (weight.renorm_(2, 0, max_norm) in place of max_norm)",
      names_[place]));
}

// Returns the gradient's memory in one dimension: contiguous, or with the parameter's dense layout.
at::Tensor ReplicaStep::reducible(std::size_t i) {
  const at::Tensor& parameter = replica_.parameters[i];
  at::Tensor& gradient = gradients_[i];
  const bool dense = parameter.is_non_overlapping_and_dense();
  const auto rows = c10::contiguous_strides(parameter.sizes());
  const at::IntArrayRef strides = dense ? parameter.strides() : at::IntArrayRef(rows);
  if (!gradient.defined()) {
    gradient = at::empty_strided(parameter.sizes(), strides, parameter.options()).zero_();
  } else if (gradient.strides() != strides) {
    gradient = at::empty_strided(parameter.sizes(), strides, parameter.options()).copy_(gradient);
  }
  at::Tensor flat = gradient.as_strided({gradient.numel()}, {1});
  return flat.is_complex() ? at::view_as_real(flat) : flat;
}

void ReplicaStep::reduce(double factor, std::span<const std::size_t> used) {
  at::NoGradGuard no_grad;
  or_abort(group_, [&] {
    std::vector<Work> works;
    if (!loss_.defined()) loss_ = at::zeros({1}, at::TensorOptions(device_).dtype(at::kDouble));
    if (factor != 1) loss_.mul_(factor);
    works.push_back(group_.reduce(loss_, 0, Op::average, {.tag = "loss"}));
    for (std::size_t i : used) {
      if (gradients_[i].defined() && factor != 1) gradients_[i].mul_(factor);
      works.push_back(group_.reduce(reducible(i), 0, Op::average, {.tag = names_[i]}));
    }
    for (Work& work : works) work.wait();
  });
}

void ReplicaStep::clear() {
  gradients_.assign(gradients_.size(), at::Tensor());
  loss_.reset();
  weight_ = 0;
}

std::vector<at::Tensor> ReplicaStep::take_gradients() const {
  std::vector<at::Tensor> taken;
  for (const at::Tensor& parameter : replica_.parameters)
    taken.push_back(std::exchange(parameter.mutable_grad(), at::Tensor()));
  return taken;
}

void ReplicaStep::set_gradients(const std::vector<at::Tensor>& gradients) const {
  for (std::size_t i = 0; i < gradients.size(); ++i)
    replica_.parameters[i].mutable_grad() = gradients[i];
}

}  // namespace lockstep::threads
