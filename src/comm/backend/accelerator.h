// The accelerator of this process: the one device type besides the CPU that LibTorch was built for,
// or that an extension has registered. No other file of comm names a device type.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <memory>
#include <optional>
#include <vector>

namespace lockstep {

// Returns std::nullopt if LibTorch was built for the CPU only.
[[nodiscard]] std::optional<c10::DeviceType> accelerator();

// Returns the number of accelerator devices that this process sees; 0 without an accelerator or a
// driver.
[[nodiscard]] int accelerator_count();

// Makes `device` the current device of the calling thread. Does nothing for the CPU.
void make_current(c10::Device device);

// True if copies between the device and pinned host memory need no other buffer.
[[nodiscard]] bool pins_host_memory(c10::DeviceType type);

// Ordering of a device's work. A device executes queued work later, in stream order, so a call that
// another thread performs must be ordered after the work that the posting thread had queued. Works
// for every LibTorch device with streams; host memory needs no ordering.

// Returns the calling thread's current stream of a device.
[[nodiscard]] c10::Stream current_stream(c10::Device device);

// Orders work that is queued on `after` from now on after the work that is on `before` now. The
// host does not wait.
void order(const c10::Stream& before, const c10::Stream& after);

// Keeps the memory of a device tensor from being reused, after it is freed, before the work that is
// on the calling thread's current stream now.
void keep_for_current_stream(const at::Tensor& tensor);

// A position in the calling thread's current stream of a device: after all work that was queued
// when the point was made.
class StreamPoint {
 public:
  explicit StreamPoint(c10::Device device);

  // Orders work that the calling thread queues on `stream` from now on after the point.
  // Thread-safe.
  void precede(const c10::Stream& stream) const { event_.block(stream); }
  // Does the same for the calling thread's current stream of the point's device.
  void precede_current() const;
  // Returns true if the device has reached the point; does not block.
  [[nodiscard]] bool is_reached() const { return event_.query(); }
  // Blocks the calling thread until the device has reached the point.
  void wait() const { event_.synchronize(); }
  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  c10::Device device_;
  c10::Event event_;
};

// StreamUses: the streams that use memory, from its last write until it is given away. Nothing is
// ordered for host memory. Not thread-safe.
class StreamUses {
 public:
  // Call when work on the current stream has written the memory of a device.
  void begin(c10::Device device);
  // Call before each use: orders the current stream after that write.
  void add();
  // Orders the current stream after all uses.
  void end();

 private:
  std::optional<StreamPoint> written_;  // absent for host memory
  std::vector<c10::Stream> streams_;
};

// Returns the current point of this thread on the tensor's device; null for host memory.
[[nodiscard]] std::shared_ptr<const StreamPoint> stream_point(const at::Tensor& tensor);

}  // namespace lockstep
