// The backend "local": ranks are threads of one process.
#pragma once

#include <lockstep/comm/backend.h>

#include "base/mutex.h"
#include "comm/backend/posted_call.h"
#include "comm/diagnose/report.h"
#include "comm/rendezvous/grace_period.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::local {

// The state that the ranks (threads) of one local group share. One mutex, one condition variable;
// the last rank to post an operation performs it. To learn what a backend must do, read this one
// first: it is the simplest.
//
// Invariants, all under mutex_:
// - pending_ holds exactly the operations that some rank has posted and that are not performed yet;
// - once failure_ is set, no operation is performed and no tensor is kept.
class World {
 public:
  World(int size, GroupNames names);

  // Implement Backend's methods for `rank`. wait() throws the errors that post() finds.
  void post(int rank, const Call& call);
  void wait(int rank, CallId id);
  [[nodiscard]] bool done(CallId id);
  void abort(int rank, std::string_view reason);

  // Joins the subgroup of `ranks`, of which `rank` is one; the first caller makes the subgroup.
  [[nodiscard]] std::shared_ptr<World> child(int rank, std::span<const int> ranks,
                                             std::string_view name);
  // Returns a tensor that all ranks share: the n-th calls of all ranks share the n-th tensor. The
  // first caller makes it, and each rank gets its own tensor object over that memory.
  [[nodiscard]] at::Tensor node_shared(int rank, const std::function<at::Tensor()>& make);
  // Declares that this rank posts nothing more.
  void leave(int rank, bool by_exception);

 private:
  using PendingOperation = std::map<int, PostedCall>;  // by rank
  struct Member {
    std::optional<CallRecord> last_call;
    std::uint64_t node_shared = 0;
    bool left = false;
    bool by_exception = false;
  };
  struct NodeShared {
    at::Tensor tensor;
    int taken = 0;
  };
  struct Child {
    std::shared_ptr<World> world;
    std::vector<int> ranks;
    std::vector<bool> taken;
  };

  [[nodiscard]] std::vector<int> participants(CallId id) const;
  // Each of these checks may fail the group.
  void check_agreement(const PendingOperation& pending, int rank) LOCKSTEP_REQUIRES(mutex_);
  void check_presence(CallId id, const PendingOperation& pending) LOCKSTEP_REQUIRES(mutex_);
  // Called by the last rank that posted the operation.
  void complete(int rank, CallId id, PendingOperation& pending) LOCKSTEP_REQUIRES(mutex_);
  void fail(diagnose::FailureKind kind, const std::string& text) LOCKSTEP_REQUIRES(mutex_);
  [[nodiscard]] diagnose::PeerStatus status_of(int rank, CallId id,
                                               const PendingOperation& pending) const
      LOCKSTEP_REQUIRES(mutex_);

  const int size_;
  const GroupNames names_;
  Mutex mutex_;
  std::condition_variable changed_;
  std::map<CallId, PendingOperation> pending_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Member> members_ LOCKSTEP_GUARDED_BY(mutex_);
  // Subgroups that not all ranks have joined yet; shared tensors that not all ranks have fetched
  // yet.
  std::map<std::string, Child, std::less<>> children_ LOCKSTEP_GUARDED_BY(mutex_);
  std::map<std::uint64_t, NodeShared> node_shared_ LOCKSTEP_GUARDED_BY(mutex_);
  diagnose::Failure failure_ LOCKSTEP_GUARDED_BY(mutex_);
};

class LocalBackend final : public Backend {
 public:
  // Takes place `rank` of the world; the destructor leaves it.
  LocalBackend(std::shared_ptr<World> world, int rank, int size);
  ~LocalBackend() override;

  [[nodiscard]] std::string_view name() const override { return "local"; }
  void post(const Call& call) override { world_->post(rank(), call); }
  void wait(CallId id) override { world_->wait(rank(), id); }
  [[nodiscard]] bool done(CallId id) override { return world_->done(id); }
  [[nodiscard]] at::Tensor empty_node_shared(at::IntArrayRef sizes,
                                             const at::TensorOptions& options,
                                             const Agree& agree) override;
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override;
  void abort(std::string_view reason) override { world_->abort(rank(), reason); }

 private:
  const rendezvous::GracePeriod grace_;
  std::shared_ptr<World> world_;
};

}  // namespace lockstep::local
