// A c10d::Backend on the simulated accelerator with the stream rules of NCCL's backend: a call runs
// on a stream of its communicator, which waits for the caller's current stream; Work::wait() makes
// the current stream wait for the call and does not block the host. Each direction of a pair of
// ranks has a communicator. Host tensors are copied to the device and back, which blocks.
#pragma once

#include <lockstep/comm/c10d.h>

#include <c10/core/Device.h>

namespace lockstep::test::accelerator {

// A rule that a backend breaks on purpose, for tests of the checker.
enum class Omission {
  none,
  wait_for_caller,  // a call does not wait for the caller's current stream
  wait_for_call,    // Work::wait() does not make the current stream wait
};

// Makes backends for one rank, whose tensors are on `device`. All ranks are threads of this
// process.
[[nodiscard]] MakeC10dBackend make_backends(c10::Device device, Omission omission = Omission::none);

// How many communicators `device` has a part in. NCCL makes one when a group is made, and one at
// the first message of each direction: no step may do that.
[[nodiscard]] int communicators_of(c10::Device device);

}  // namespace lockstep::test::accelerator
