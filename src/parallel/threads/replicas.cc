#include "parallel/threads/replicas.h"

#include "base/check.h"
#include "base/format.h"
#include "base/text.h"
#include "dispatch/lazy_storage.h"
#include "module/checks.h"
#include "module/tensors.h"
#include "parallel/backward_hooks.h"

#include <lockstep/global/tensor.h>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
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
  for (const NamedTensor& buffer : tensors.buffers)
    check_tensor("buffer", buffer.name, buffer.tensor, device);
}

std::shared_ptr<torch::nn::Module> cloned(const torch::nn::Module& model) {
  try {
    return model.clone();
  } catch (const c10::Error& error) {
    throw InvalidArgument(formatted(
        "DataParallel: the model cannot be cloned ({}): give ReplicaOptions::make_replica, a "
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
                                   const ReplicaOptions& options) {
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

}  // namespace lockstep::threads
