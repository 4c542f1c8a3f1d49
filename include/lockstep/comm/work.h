// Work: one posted operation. A small value; copying it is cheap and both copies speak of the same
// operation.
#pragma once

#include <cstdint>
#include <memory>

namespace lockstep {

class Backend;

class [[nodiscard]] Work {
 public:
  // Work that is already complete: what a group of one rank returns.
  Work() = default;
  Work(std::shared_ptr<Backend> backend, std::uint64_t ticket)
      : backend_(std::move(backend)), ticket_(ticket) {}

  // Blocks until this rank's outputs are complete and no peer will touch its buffers again, or
  // throws what went wrong (PeerLost, Timeout, Mismatch, Aborted). The deadline runs from the
  // beginning of the wait. A second call returns at once.
  void wait();

  // True when wait() would not block. Never throws.
  [[nodiscard]] bool done() const;

  // Leaves the operation to itself. It keeps its tensors alive until it is complete, its outputs
  // may be read only after a later wait() of the same group, and its error comes with the next call
  // on the group. The same happens to a Work that is merely destroyed; this method says that it is
  // meant.
  void drop() {}

 private:
  std::shared_ptr<Backend> backend_;
  std::uint64_t ticket_ = 0;
};

}  // namespace lockstep
