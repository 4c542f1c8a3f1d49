// The kinds of devices for which Lockstep replaces kernels of LibTorch.
#pragma once

#include <c10/core/DispatchKeySet.h>

namespace lockstep::dispatch {

// XPU, HPU and PrivateUse1 are devices of other vendors (lockstep/comm/c10d.h).
constexpr c10::BackendComponent devices[] = {
    c10::BackendComponent::CPUBit, c10::BackendComponent::CUDABit, c10::BackendComponent::XPUBit,
    c10::BackendComponent::HPUBit, c10::BackendComponent::PrivateUse1Bit};

// Returns the dispatch key of autograd for tensors of a device.
constexpr c10::DispatchKey autograd_key(c10::BackendComponent device) {
  return c10::toRuntimePerBackendFunctionalityKey(c10::DispatchKey::AutogradFunctionality, device);
}

}  // namespace lockstep::dispatch
