// The interface of a backend whose operations block, or that enqueues them on a device.
// BlockingBackend runs the operations on task queues, or polls the enqueued operations there.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/backend.h>

#include "comm/backend/posted_call.h"

#include <ATen/ops/empty.h>

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

// Thrown by run() if another rank made a different call; the call watch knows which call.
class CallDiffers : public std::runtime_error {
 public:
  explicit CallDiffers(int rank) : std::runtime_error("a peer's call differs"), rank_(rank) {}
  [[nodiscard]] int rank() const { return rank_; }

 private:
  int rank_;
};

// Implements objection_to() for a backend that accepts host memory only.
[[nodiscard]] std::string not_on_host(const at::Tensor& tensor);

class BlockingCollectives {
 public:
  BlockingCollectives() = default;
  virtual ~BlockingCollectives() = default;
  BlockingCollectives(const BlockingCollectives&) = delete;
  BlockingCollectives& operator=(const BlockingCollectives&) = delete;

  // "gloo", "hierarchical".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Returns why the backend cannot use the memory of this tensor, as a phrase that follows the
  // backend's name in a message; empty if it can. Called in the order of the posts.
  [[nodiscard]] virtual std::string objection_to(const at::Tensor& tensor) {
    return not_on_host(tensor);
  }
  // Performs a call; returns when this rank's part is complete. Throws on failure: CallDiffers, a
  // Mismatch with a complete message, or any other exception, whose cause the group then
  // determines. One thread runs the collectives one after another; another thread runs the messages
  // of one pair in one direction.
  virtual void run(const PostedCall& call) = 0;
  // Returns true if the backend works on the streams of a device: launch() then enqueues calls, and
  // run() performs the calls for which launch() returns null.
  [[nodiscard]] virtual bool has_streams() const { return false; }
  // Enqueues a call on its device, without waiting for a peer. Called in the posting thread and in
  // the order of the posts. Returns null if the call must run(). If it throws, the group fails with
  // that error.
  [[nodiscard]] virtual std::shared_ptr<Launched> launch(const PostedCall& /*call*/) {
    return nullptr;
  }
  // Throws if the process of a peer has ended. Called periodically while a launched call is
  // incomplete.
  virtual void check_peers() {}
  // Ends every run in progress, here and on the peers. Thread-safe, also during a run; never
  // throws. `reason` is sent to peers that do not know of the failure yet.
  virtual void close(std::string_view reason) noexcept = 0;
  // As Backend::empty_shared().
  [[nodiscard]] virtual at::Tensor empty_shared(at::IntArrayRef sizes,
                                                const at::TensorOptions& options) {
    return at::empty(sizes, options);
  }
  // Makes the backend of the subgroup `name`, in which this rank is number `rank`. Blocks until all
  // of its ranks have joined.
  [[nodiscard]] virtual std::shared_ptr<BlockingCollectives> subset(std::span<const int> ranks,
                                                                    const std::string& name,
                                                                    int rank, Duration timeout) = 0;
  // If it has_streams(), makes a backend of the same ranks that uses no stream of a device, for
  // tensors of the host in the group `name`, and blocks as subset(). Else returns null.
  [[nodiscard]] virtual std::shared_ptr<BlockingCollectives> on_host(const std::string& /*name*/,
                                                                     Duration /*timeout*/) {
    return nullptr;
  }
  // Returns a backend if another backend performs all operations of such a subgroup, else null.
  [[nodiscard]] virtual std::shared_ptr<Backend> backend_of(std::span<const int> /*ranks*/,
                                                            const std::string& /*name*/) {
    return nullptr;
  }
};

}  // namespace lockstep
