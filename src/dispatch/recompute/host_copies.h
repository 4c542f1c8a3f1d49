// HostCopies: copies between a device and pinned host memory, on a stream beside the computation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <vector>

namespace lockstep::dispatch {

// Queues copies that run after all work that the calling thread had queued when the object was
// made. Device memory of the copies stays until wait(), which the destructor calls. Not
// thread-safe.
class HostCopies {
 public:
  // `stream`: for the copies; its device is that of the tensors.
  explicit HostCopies(const c10::Stream& stream);
  ~HostCopies() { wait(); }
  HostCopies(const HostCopies&) = delete;
  HostCopies& operator=(const HostCopies&) = delete;

  // Returns the copy of a device tensor in pinned host memory, or the copy of such a tensor on the
  // device. Neither waits for the copy. The copy of a host tensor may be used after wait().
  [[nodiscard]] at::Tensor to_host(const at::Tensor& device);
  [[nodiscard]] at::Tensor to_device(const at::Tensor& host);

  // Orders the calling thread's current stream, and the one at the object's construction, after the
  // copies. The host does not wait.
  void wait();

 private:
  const c10::Stream stream_;
  const c10::Stream origin_;
  std::vector<at::Tensor> memory_;  // on the device
};

}  // namespace lockstep::dispatch
