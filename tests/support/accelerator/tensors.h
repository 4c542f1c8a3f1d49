// Tensors of the simulated accelerator as the machine and its kernels see them.
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

// CPU tensors in the kernels' mapping for tensors of the accelerator. Tensors that share a storage,
// or are one tensor, do so here as well, which checks for overlap and in-place operations need.
class Aliases {
 public:
  [[nodiscard]] at::Tensor of(const at::Tensor& tensor);

 private:
  std::map<c10::StorageImpl*, c10::Storage> storages_;
  std::map<c10::TensorImpl*, at::Tensor> tensors_;
};

// Adds the bytes of a tensor: one range, or the contiguous runs of a strided view. A view of more
// than 4096 runs counts with all bytes from its first to its last. Nothing for a tensor of a host.
void add_accesses(std::vector<Access>& accesses, const at::Tensor& tensor, AccessKind kind);

// The value with each tensor replaced, also in lists.
using TensorFunction = std::function<at::Tensor(const at::Tensor&)>;
[[nodiscard]] c10::IValue with_tensors(const c10::IValue& value, const TensorFunction& function);
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

// Launches with the thread state that kernels need; the name gets that of the autograd node.
void launch_kernel(Launch launch);

// Thread state for kernels of LibTorch: below autograd, and allowed to write tensors that were made
// in inference mode.
class KernelScope {
 private:
  c10::InferenceMode mode_;
  at::AutoDispatchBelowADInplaceOrView below_;
};

}  // namespace lockstep::test::accelerator
