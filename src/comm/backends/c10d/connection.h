// The functions that the adapter needs in addition to c10d::Backend's virtual functions; one
// implementation per backend.
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/store/store.h>

#include "comm/backend/posted_call.h"

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace c10d {
class Backend;
class Work;
}  // namespace c10d

namespace lockstep::c10d_backend {

// The c10d group for a call; for a message, also the peer's rank in that group.
struct CallRoute {
  c10d::Backend& group;
  int peer = -1;
};

class C10dConnection {
 public:
  C10dConnection() = default;
  virtual ~C10dConnection() = default;
  C10dConnection(const C10dConnection&) = delete;
  C10dConnection& operator=(const C10dConnection&) = delete;

  // "gloo".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // Returns the same route for every message of one pair in one direction, and for all
  // collectives. May block until the ranks involved have joined; close() ends the wait with an
  // error.
  [[nodiscard]] virtual CallRoute route_of(const PostedCall& call) = 0;
  // As BlockingCollectives::objection_to(). Accepts host memory and memory of device().
  [[nodiscard]] virtual std::string objection_to(const at::Tensor& tensor);
  // Returns the device that tensors must be on: other tensors are copied to it and back.
  // std::nullopt: the backend accepts tensors on any device.
  [[nodiscard]] virtual std::optional<at::Device> device() { return std::nullopt; }
  // Returns true if operations are enqueued on streams of device(), and neither the operations nor
  // c10d::Work::synchronize() block the host.
  [[nodiscard]] virtual bool has_streams() const { return false; }
  // Returns false if route_of() could block.
  [[nodiscard]] virtual bool is_connected(const PostedCall& /*call*/) { return true; }
  // As BlockingCollectives::check_peers().
  virtual void check_peers() {}
  // Returns true if the backend has _allgather_base and _reduce_scatter_base, which avoid copies.
  [[nodiscard]] virtual bool works_on_wholes() const { return false; }
  // Sets the mark of the next collective's messages: messages with different marks never match.
  virtual void mark_next(std::uint32_t mark) = 0;
  // Blocks until the operation completes; throws its error if it failed. Work that this thread then
  // queues on its current stream is ordered after the operation.
  virtual void finish(c10d::Work& work);
  // Ends every operation in progress, here and on the peers. Thread-safe, also during an operation,
  // but no operation may begin during or after it; never throws. `are_running` returns true if
  // operations of this rank are still running.
  virtual void close(const std::function<bool()>& are_running) noexcept = 0;
  // Makes a group of other ranks of the same hosts. Blocks until all ranks have joined.
  [[nodiscard]] virtual std::shared_ptr<C10dConnection> make_group(const std::string& name,
                                                                   int rank, int size,
                                                                   Duration timeout) = 0;
};

}  // namespace lockstep::c10d_backend
