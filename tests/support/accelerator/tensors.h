// Conversions from LibTorch's tensors to the addresses that the machine and its kernels use.
#pragma once

#include "support/accelerator/machine.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/Stream.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::test::accelerator {

constexpr auto device_type = c10::DeviceType::PrivateUse1;

[[nodiscard]] inline bool is_on_accelerator(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == device_type;
}
[[nodiscard]] Actor actor_of(const c10::Stream& stream);
// This thread's current stream of a device.
[[nodiscard]] Actor current_actor(int device);

// CPU tensors, in the kernels' mapping, that alias tensors of the accelerator. Aliases share
// storages and identity as the originals do, because overlap checks and in-place operations depend
// on that.
class Aliases {
 public:
  [[nodiscard]] at::Tensor of(const at::Tensor& tensor);

 private:
  std::map<c10::StorageImpl*, c10::Storage> storages_;
  std::map<c10::TensorImpl*, at::Tensor> tensors_;
};

// Adds the bytes of a tensor: one range, or the contiguous runs of a strided view. If a view has
// more than 4096 runs, adds all bytes from its first to its last. Does nothing for host tensors.
void add_accesses(std::vector<Access>& accesses, const at::Tensor& tensor, AccessKind kind);
// Does the same for a host tensor in pinned memory.
void add_pinned_accesses(std::vector<Access>& accesses, const at::Tensor& tensor, AccessKind kind);

// Returns the value with each tensor replaced by function(tensor), also in lists.
using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;
[[nodiscard]] c10::IValue with_tensors(const c10::IValue& value, const TensorFunction& function);
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

// Launches with the thread state that kernels need, and appends the name of the autograd node to
// the launch's name.
void launch_kernel(Launch launch);

// Thread state for LibTorch's kernels: below autograd, and able to write tensors that were created
// in inference mode.
class KernelScope {
 private:
  c10::InferenceMode mode_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

}  // namespace lockstep::test::accelerator
