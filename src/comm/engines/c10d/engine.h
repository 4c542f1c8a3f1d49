// What the adapter needs of a c10d backend beyond c10d::Backend's own virtuals; one implementation
// an engine.
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

namespace lockstep::c10d_engine {

// The c10d group that carries a call, and the peer of a message as a number of that group.
struct Carrier {
  c10d::Backend& group;
  int peer = -1;
};

class Engine {
 public:
  Engine() = default;
  virtual ~Engine() = default;
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // "gloo".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // The same for every message of one pair in one direction, and for all collectives. May block
  // until the ranks that it concerns have come; close() ends that with an error.
  [[nodiscard]] virtual Carrier carrier_of(const PostedCall& call) = 0;
  // As Runner's.
  [[nodiscard]] virtual std::string objection_to(const at::Tensor& tensor);
  // Where tensors must be: those that are elsewhere are copied there and back. Nothing: it takes
  // them where they are.
  [[nodiscard]] virtual std::optional<at::Device> device() { return std::nullopt; }
  // Whether it has _allgather_base and _reduce_scatter_base, which spare it copies.
  [[nodiscard]] virtual bool works_on_wholes() const { return false; }
  // What the next collective's messages are marked with: those with different marks never meet.
  virtual void mark_next(std::uint32_t mark) = 0;
  // Returns when an operation that was started is complete, or throws why it is not. What this
  // thread then gives to its current stream comes after the operation.
  virtual void finish(c10d::Work& work);
  // Ends every operation that is under way, here and on the peers. Any thread, also beside an
  // operation, but none begins meanwhile or later; never throws. `are_running` says whether
  // operations of this rank still are.
  virtual void close(const std::function<bool()>& are_running) noexcept = 0;
  // A group of other ranks of the same machines. Blocks until all have come.
  [[nodiscard]] virtual std::shared_ptr<Engine> make_group(const std::string& name, int rank,
                                                           int size, Duration timeout) = 0;
};

}  // namespace lockstep::c10d_engine
