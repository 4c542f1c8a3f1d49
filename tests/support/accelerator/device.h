// The simulated accelerator as a device of LibTorch's: device type PrivateUse1, named "sim". It has
// streams, events, pinned memory, generators, autograd and autocast, and every operation that the
// CPU has: each is queued on the current stream and computed there by the CPU's kernel.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

namespace lockstep::test::accelerator {

// One of device_count devices. The first call registers the device type: once per process, and no
// other test device may be linked into the program.
[[nodiscard]] c10::Device device(int index);
// A stream of the device's pool, in turn.
[[nodiscard]] c10::Stream new_stream(c10::Device device);
[[nodiscard]] c10::Stream current_stream(c10::Device device);

}  // namespace lockstep::test::accelerator
