#include "parallel/server/worker_keys.h"

#include "base/check.h"
#include "dispatch/lazy_storage.h"
#include "parallel/backward_hooks.h"

#include <lockstep/layout/name_pattern.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/any.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <utility>

namespace lockstep::ps {
namespace {

void check_sendable(const char* kind, const std::string& name, const at::Tensor& tensor) {
  check(!dispatch::is_lazy(tensor), "parameter server: {} {} is sharded or deferred", kind, name);
  check(!tensor.is_nested() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
            !tensor.is_meta() && !tensor.is_inference(),
        "parameter server: {} {} is not a dense tensor, so it cannot be sent", kind, name);
}

Key key_of(const std::string& name, const at::Tensor& tensor) {
  return {.name = name,
          .dtype = static_cast<int>(tensor.scalar_type()),
          .element_bytes = static_cast<std::int64_t>(tensor.element_size()),
          .sizes = tensor.sizes().vec()};
}

Key trained_key(const NamedParameter& parameter, const std::vector<std::string>& by_rows) {
  Key key = key_of(parameter.name, parameter.tensor);
  key.by_rows = modules::is_ignored(parameter, by_rows);
  check(!key.by_rows || (!key.sizes.empty() && parameter.tensor.numel() > 0),
        "parameter server: {} has no rows that could be pulled separately", key.name);
  return key;
}

// A tensor's elements, row-major, as bytes of the host.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).contiguous().view({-1}).view(at::kByte);
}

}  // namespace

WorkerKeys::WorkerKeys(const torch::nn::Module& module, const std::vector<std::string>& by_rows) {
  modules::ModuleTensors tensors = modules::tensors_of(module);
  std::vector<std::string> names;
  for (const NamedParameter& parameter : tensors.parameters) {
    check_sendable("parameter", parameter.name, parameter.tensor);
    check(!parallel::is_hooked(parameter.tensor),
          "parameter server: {} belongs to another handle, which reduces its gradients already",
          parameter.name);
    if (!parameter.tensor.requires_grad()) {
      add_constant(parameter.name, parameter.tensor);
      continue;
    }
    for (std::string& name : modules::names_of(parameter)) names.push_back(std::move(name));
    TrainedParameter& one = trained_.emplace_back();
    one.tensor = parameter.tensor;
    one.key = trained_key(parameter, by_rows);
    if (one.key.by_rows) one.pulled = at::zeros({one.key.rows()}, at::kBool);
  }
  layout::check_patterns("pattern of parameters by rows", by_rows, names);
  for (const NamedTensor& buffer : tensors.buffers) {
    check_sendable("buffer", buffer.name, buffer.tensor);
    add_constant(buffer.name, buffer.tensor);
  }
}

void WorkerKeys::add_constant(const std::string& name, const at::Tensor& tensor) {
  constants_.push_back(tensor);
  constant_keys_.push_back(key_of(name, tensor));
}

std::vector<Key> WorkerKeys::keys() const {
  std::vector<Key> keys;
  for (const TrainedParameter& one : trained_) keys.push_back(one.key);
  return keys;
}

void WorkerKeys::check_unchanged() const {
  for (const auto& [tensor, key, pulled] : trained_)
    check(tensor.sizes() == at::IntArrayRef(key.sizes) &&
              static_cast<int>(tensor.scalar_type()) == key.dtype && tensor.requires_grad(),
          "parameter server: {} has changed since the worker was made, when it was {} [{}]{}",
          key.name, c10::toString(tensor.scalar_type()), listed(tensor.sizes(), ", "),
          tensor.requires_grad() ? "" : " without gradient");
}

std::int64_t WorkerKeys::bytes_of_constants() const {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : constants_)
    bytes += tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
  return bytes;
}

at::Tensor WorkerKeys::constants() const {
  std::vector<at::Tensor> all{at::empty({0}, at::kByte)};
  for (const at::Tensor& tensor : constants_)
    if (tensor.numel() > 0) all.push_back(bytes_of(tensor));
  return at::cat(all);
}

void WorkerKeys::set_constants(const at::Tensor& message) const {
  check_input(message.numel() == bytes_of_constants(),
              "parameter server: worker 0 has {} bytes of buffers and frozen parameters, and this "
              "worker {}",
              message.numel(), bytes_of_constants());
  at::NoGradGuard no_grad;
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : constants_) {
    const std::int64_t bytes = tensor.numel() * static_cast<std::int64_t>(tensor.element_size());
    if (bytes == 0) continue;
    tensor.detach().copy_(
        message.narrow(0, offset, bytes).clone().view(tensor.scalar_type()).view(tensor.sizes()));
    offset += bytes;
  }
}

GradientRows rows_with_gradient(const at::Tensor& gradient) {
  if (gradient.is_sparse()) {
    at::Tensor summed = gradient.detach().coalesce();
    return {summed.indices().select(0, 0).to(at::kCPU).contiguous(),
            summed.values().to(at::kCPU).contiguous()};
  }
  at::Tensor dense = gradient.detach();
  at::Tensor rows = at::nonzero((dense != 0).reshape({dense.size(0), -1}).any(1)).flatten();
  return {rows.to(at::kCPU), dense.index_select(0, rows).to(at::kCPU).contiguous()};
}

}  // namespace lockstep::ps
