// Work: one posted operation. A small value: copies are cheap and refer to the same operation.
#pragma once

#include <lockstep/comm/call_id.h>

#include <cstdint>
#include <memory>
#include <utility>

#pragma GCC visibility push(default)

namespace lockstep {

class GroupState;

class [[nodiscard]] Work {
 public:
  // Work that is already complete: what a group of one rank returns.
  Work() = default;
  // For the group that posted it; `entry` is that of the flight record.
  Work(std::shared_ptr<GroupState> group, CallId id, std::uint64_t entry)
      : group_(std::move(group)), id_(id), entry_(entry) {}

  // Blocks until this rank's outputs are complete and no peer will touch its buffers again, or
  // throws what went wrong (PeerLost, Timeout, Mismatch, Aborted). The deadline runs from the
  // beginning of the wait. A second call returns at once.
  void wait();

  // True when wait() would not block. Never throws.
  [[nodiscard]] bool done() const;

  // Says that nobody will wait for the operation. It keeps its tensors alive until it is complete.
  // Its outputs may be read only after a later wait() of the same group, and the next call on the
  // group throws its error. Destroying a Work has the same effect; drop() says that it is meant.
  void drop() {}

 private:
  std::shared_ptr<GroupState> group_;
  CallId id_;
  std::uint64_t entry_ = 0;
};

}  // namespace lockstep

#pragma GCC visibility pop
