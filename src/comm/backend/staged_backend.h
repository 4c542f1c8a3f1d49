// Device tensors on a backend that works on host memory: post() copies inputs to pinned host
// memory, and wait() copies outputs back. So several ranks can share one GPU, which NCCL refuses.
#pragma once

#include <lockstep/comm/backend.h>

#include "base/mutex.h"
#include "comm/backend/accelerator.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>

namespace lockstep {

// post() waits for the current stream, because the backend reads the tensor on the host. It waits
// for peers in one case only: the tensor partly overlaps the output of an earlier operation whose
// wait() has not been called. wait() copies outputs back on the current stream of its thread, in
// the order of their posts, so kernels launched after wait() see the outputs. Tensors on the host
// go straight through to the backend.
class StagedBackend final : public Backend {
 public:
  explicit StagedBackend(std::shared_ptr<Backend> backend);

  [[nodiscard]] std::string_view name() const override { return backend_->name(); }
  void post(const Call& call) override;
  void wait(CallId id) override;
  [[nodiscard]] bool done(CallId id) override { return backend_->done(id); }
  // Device tensors get ordinary device memory.
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override;
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options,
                                             const Agree& agree) override {
    return backend_->empty_node_shared(sizes, options, agree);
  }
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override;
  void abort(std::string_view reason) override { backend_->abort(reason); }

 private:
  // An output that has not been copied back yet. Outputs that share memory share one host copy.
  struct Output {
    CallId id;
    at::Tensor device;
    at::Tensor host;
    std::shared_ptr<const StreamPoint> after;  // the stream's position at the post
  };
  // A range of bytes in a storage.
  struct Region {
    const void* storage = nullptr;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  [[nodiscard]] static Region region_of(const at::Tensor& tensor);
  // Returns the host copy of an earlier output that contains `tensor`, or an undefined tensor.
  [[nodiscard]] at::Tensor inside_output(const at::Tensor& tensor) const LOCKSTEP_REQUIRES(mutex_);
  // Waits for earlier outputs that partly overlap `tensor`.
  void settle(const at::Tensor& tensor) LOCKSTEP_REQUIRES(mutex_);
  void bring_back(std::list<Output>::iterator output) LOCKSTEP_REQUIRES(mutex_);

  std::shared_ptr<Backend> backend_;
  Mutex mutex_;
  std::list<Output> outputs_ LOCKSTEP_GUARDED_BY(mutex_);  // in the order of their posts
  // The end of the last copy back to each device. The next copy, and a later wait() on another
  // stream, come after it.
  std::map<c10::DeviceIndex, StreamPoint> brought_back_ LOCKSTEP_GUARDED_BY(mutex_);
};

// Returns `backend`, which accepts only host tensors, wrapped with staging if LibTorch has an
// accelerator.
[[nodiscard]] std::shared_ptr<Backend> staged(std::shared_ptr<Backend> backend);

}  // namespace lockstep
