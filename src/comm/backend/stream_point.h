// The order of a device's work. A device does what it is given later, in the order of a stream,
// so a call that another thread carries out must come after what its own thread had given to the
// device. For every device of LibTorch that has streams; the host's memory needs none of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace lockstep {

// What this thread's current stream of one device had been given when the point was made.
class StreamPoint {
 public:
  explicit StreamPoint(c10::Device device);

  // What the calling thread gives to `stream` from now on comes after the point. Any thread.
  void precede(const c10::Stream& stream) const { event_.block(stream); }
  // The same for its current stream of the point's device.
  void precede_current() const;
  // Blocks the calling thread until the device has come to the point.
  void wait() const { event_.synchronize(); }

 private:
  c10::Device device_;
  c10::Event event_;
};

// The point where this thread is on the tensor's device; null for the host's memory.
[[nodiscard]] std::shared_ptr<const StreamPoint> stream_point(const at::Tensor& tensor);

}  // namespace lockstep
