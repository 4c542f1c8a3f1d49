// What an engine must write whose operations block (blocking_backend.h runs them on task queues).
#pragma once

#include <lockstep/base/deadline.h>
#include <lockstep/comm/backend.h>

#include "comm/backend/posted_call.h"

#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace lockstep {

// What run() throws when it finds that another rank made a different call; what that was, the watch
// knows.
class CallDiffers : public std::runtime_error {
 public:
  explicit CallDiffers(int rank) : std::runtime_error("a peer's call differs"), rank_(rank) {}
  [[nodiscard]] int rank() const { return rank_; }

 private:
  int rank_;
};

// The objection of an engine that takes the host's memory only.
[[nodiscard]] std::string not_on_host(const at::Tensor& tensor);

class BlockingEngine {
 public:
  BlockingEngine() = default;
  virtual ~BlockingEngine() = default;
  BlockingEngine(const BlockingEngine&) = delete;
  BlockingEngine& operator=(const BlockingEngine&) = delete;

  // "gloo", "hierarchical".
  [[nodiscard]] virtual std::string_view name() const = 0;
  // What keeps it from working with the memory that this tensor is in, to follow its name in a
  // message; empty: nothing. Called in the order of the posts.
  [[nodiscard]] virtual std::string objection_to(const at::Tensor& tensor) {
    return not_on_host(tensor);
  }
  // Carries out a call and returns when this rank's part is complete. Throws when it cannot:
  // CallDiffers, a Mismatch that says all, or anything else, of which the group is to find out. The
  // collectives come one after the other from one thread; so do the messages of one pair in one
  // direction, from another.
  virtual void run(const PostedCall& call) = 0;
  // Ends every run that is under way, here and on the peers. Any thread, also beside a run; never
  // throws. `reason` is for those that learn of it by this.
  virtual void close(std::string_view reason) noexcept = 0;
  // As Backend's.
  [[nodiscard]] virtual at::Tensor empty_shared(at::IntArrayRef sizes,
                                                const at::TensorOptions& options) = 0;
  // For a group `name` of some ranks of this one, in which this rank is number `rank`. Blocks until
  // all of them have come.
  [[nodiscard]] virtual std::shared_ptr<BlockingEngine> subset(std::span<const int> ranks,
                                                               const std::string& name, int rank,
                                                               Duration timeout) = 0;
  // The same where another engine does all of such a group: its backend, else null.
  [[nodiscard]] virtual std::shared_ptr<Backend> backend_of(std::span<const int> /*ranks*/,
                                                            const std::string& /*name*/) {
    return nullptr;
  }
};

}  // namespace lockstep
