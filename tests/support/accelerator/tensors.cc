#include "support/accelerator/tensors.h"

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace lockstep::test::accelerator {
namespace {

constexpr std::int64_t most_runs = 4096;

// The contiguous runs of a strided tensor, in elements.
struct Runs {
  explicit Runs(const at::Tensor& tensor) {
    for (std::int64_t i = 0; i < tensor.dim(); ++i)  // without expanded dims
      if (tensor.size(i) > 1 && tensor.stride(i) != 0)
        dims.emplace_back(tensor.stride(i), tensor.size(i));
    std::ranges::sort(dims);
    std::size_t inner = 0;
    while (inner < dims.size() && dims[inner].first == length) length *= dims[inner++].second;
    dims.erase(dims.begin(), dims.begin() + static_cast<std::ptrdiff_t>(inner));
    hull = length;
    for (const auto& [stride, size] : dims) {
      count *= size;
      hull += stride * (size - 1);
    }
  }
  [[nodiscard]] std::int64_t begin_of(std::int64_t run) const {
    std::int64_t begin = 0;
    for (const auto& [stride, size] : dims) {
      begin += run % size * stride;
      run /= size;
    }
    return begin;
  }

  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride and size of the outer dims
  std::int64_t length = 1;                                  // of a run
  std::int64_t count = 1;
  std::int64_t hull = 1;  // from the first element to the last
};

// Adds the bytes of a tensor whose first byte is at `begin`.
void add_bytes(std::vector<Access>& accesses, const at::Tensor& tensor, std::size_t begin,
               AccessKind kind) {
  const std::size_t item = tensor.itemsize();
  const Runs runs(tensor);
  auto add = [&](std::int64_t first, std::int64_t elements) {
    accesses.push_back({begin + first * item, begin + (first + elements) * item, kind});
  };
  if (runs.count > most_runs) return add(0, runs.hull);
  for (std::int64_t run = 0; run < runs.count; ++run) add(runs.begin_of(run), runs.length);
}

}  // namespace

Actor actor_of(const c10::Stream& stream) {
  return actor_of(stream.device_index(), static_cast<int>(stream.id()));
}

Actor current_actor(int device) {
  const c10::impl::VirtualGuardImpl guard(device_type);
  return actor_of(guard.getStream({device_type, static_cast<c10::DeviceIndex>(device)}));
}

at::Tensor Aliases::of(const at::Tensor& tensor) {
  at::Tensor& alias = tensors_[tensor.unsafeGetTensorImpl()];
  if (alias.defined()) return alias;
  const c10::Storage& own = tensor.storage();
  c10::Storage& storage = storages_[own.unsafeGetStorageImpl()];
  if (!storage) {
    void* address = Machine::get().memory().kernel_address(own.data());
    storage = c10::Storage(c10::Storage::use_byte_size_t(), own.nbytes(),
                           c10::DataPtr(address, c10::Device(c10::kCPU)), nullptr, false);
  }
  alias = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  alias.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  if (tensor.is_complex()) alias._set_conj(tensor.is_conj());
  alias._set_neg(tensor.is_neg());
  return alias;
}

void add_accesses(std::vector<Access>& accesses, const at::Tensor& tensor, AccessKind kind) {
  if (!is_on_accelerator(tensor) || tensor.numel() == 0) return;
  add_bytes(accesses, tensor, Machine::get().memory().offset_of(tensor.data_ptr()), kind);
}

void add_pinned_accesses(std::vector<Access>& accesses, const at::Tensor& tensor, AccessKind kind) {
  if (tensor.numel() == 0) return;
  const std::size_t offset = Machine::get().memory().pinned_offset_of(tensor.data_ptr());
  add_bytes(accesses, tensor, first_pinned_offset + offset, kind);
}

c10::IValue with_tensors(const c10::IValue& value, const TensorFunction& function) {
  auto replaced = [&](const at::Tensor& tensor) {
    return tensor.defined() ? function(tensor) : tensor;
  };
  if (value.isTensor()) return replaced(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(replaced(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      list.push_back(tensor ? std::optional<at::Tensor>(replaced(*tensor)) : std::nullopt);
    return list;
  }
  return value;
}

void for_each_tensor(const c10::IValue& value,
                     const std::function<void(const at::Tensor&)>& visit) {
  (void)with_tensors(value, [&](const at::Tensor& tensor) {
    visit(tensor);
    return tensor;
  });
}

void launch_kernel(Launch launch) {
  if (const auto node = torch::autograd::get_current_node()) launch.name += " in " + node->name();
  launch.run = [run = std::move(launch.run)] {
    const KernelScope scope;
    run();
  };
  Machine::get().launch(std::move(launch));
}

}  // namespace lockstep::test::accelerator
