// The simulated accelerator as a device of LibTorch: device type PrivateUse1, named "sim". It has
// streams, events, pinned memory, generators, autograd and autocast, and every operation of the
// CPU: an operation is queued on the current stream and computed by the CPU's kernel.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace lockstep::test::accelerator {

// Returns one of device_count devices. The first call registers the device type. The program must
// not contain another test device.
[[nodiscard]] c10::Device device(int index);
// Returns the next stream of the device's pool (round robin).
[[nodiscard]] c10::Stream new_stream(c10::Device device);
[[nodiscard]] c10::Stream current_stream(c10::Device device);

}  // namespace lockstep::test::accelerator
