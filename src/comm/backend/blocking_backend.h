// A Backend whose operations block: it runs them on task queues: one for the
// collectives, which therefore run in the order of their posts and progress while the posting
// thread is busy, and one per direction of each pair of ranks that exchange messages.
//
// A backend that works on the streams of a device launches its calls in the posting thread instead,
// so that they run in the order of the program. Their queue then follows them: it polls until they
// are complete, and ends the group when a peer is lost or a deadline passes. No host waits.
//
// Such backends do not compare calls themselves: the call watch does (comm/diagnose), and all ranks
// of a failed group agree on one failure report.
//
// An operation that does not end even when the backend is closed is abandoned together with its
// thread, its tensors and the backend, so that leaving a failed group never hangs; Life prevents
// the operation from using the destroyed backend. Once the group has failed, the backend is closed
// or is being closed, and open calls stay open.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/backend/blocking_collectives.h"
#include "comm/backend/posted_call.h"
#include "comm/diagnose/call_watch.h"
#include "comm/diagnose/diagnosis.h"
#include "comm/rendezvous/grace_period.h"
#include "sys/thread.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>
#include <span>
#include <string>

namespace lockstep {

class BlockingBackend final : public Backend {
 public:
  // The groups of one family share a watch; pass null for the first group.
  BlockingBackend(std::shared_ptr<BlockingCollectives> collectives, std::shared_ptr<Store> store,
                  GroupNames group, int rank, int size, Duration join_timeout,
                  std::shared_ptr<diagnose::CallWatch> watch = nullptr);
  // Waits for posted operations (rendezvous/grace_period.h), then leaves the group.
  ~BlockingBackend() override;

  [[nodiscard]] std::string_view name() const override { return collectives_->name(); }
  void post(const Call& call) override;
  void wait(CallId id) override;
  [[nodiscard]] bool done(CallId id) override { return calls_->done(id); }
  [[nodiscard]] bool has_streams() const override { return collectives_->has_streams(); }
  [[nodiscard]] bool order(CallId id, std::function<void()> when_complete) override;
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override {
    return collectives_->empty_shared(sizes, options);
  }
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override;
  [[nodiscard]] std::shared_ptr<Backend> on_host(std::string_view name) override;
  void abort(std::string_view reason) override;

 private:
  struct Life {
    std::shared_mutex mutex;  // shared: a call uses the backend; exclusive: the backend ends
    bool is_over = false;
  };

  // Returns the backend of a new group of `ranks`, which `backend` joins.
  [[nodiscard]] std::shared_ptr<Backend> part(std::shared_ptr<BlockingCollectives> collectives,
                                              std::span<const int> ranks, std::string name) const;

  // Runs on a queue: performs the call, or follows it if it was launched. Reports to the backend,
  // unless that has been destroyed.
  static void carry_out(const std::shared_ptr<Life>& life, BlockingBackend* backend,
                        BlockingCollectives& collectives, const PostedCall& call,
                        const std::shared_ptr<Launched>& launched);
  // Returns null if the call must run on its queue.
  [[nodiscard]] std::shared_ptr<Launched> launch(const PostedCall& call);
  // Polls until the call is complete. Throws if it failed, or if the group has ended.
  static void follow(Life& life, BlockingBackend& backend, BlockingCollectives& collectives,
                     const CallRecord& call, CallId id, Launched& launched);
  // Fails the group if a deadline has passed, and logs a wait that takes long, once.
  void look_at_wait(const CallRecord& call, CallId id, bool& is_noticed);
  // Fails the group: agrees with the other ranks on the reason, closes the backend, wakes the
  // waiters.
  void fail(diagnose::FailureKind kind, const CallRecord& call, std::string_view detail);
  // Fails the group with the exception that the backend threw in `call`.
  void fail_by(const std::exception_ptr& problem, const CallRecord& call);

  const rendezvous::GracePeriod grace_;
  std::shared_ptr<BlockingCollectives> collectives_;
  std::shared_ptr<Store> store_;
  const GroupNames group_;
  const Duration join_timeout_;
  diagnose::Diagnosis diagnosis_;

  const std::shared_ptr<Life> life_ = std::make_shared<Life>();
  const std::shared_ptr<diagnose::OpenCalls> calls_;  // shared with the watch
  const std::shared_ptr<diagnose::CallWatch> watch_;
  const std::shared_ptr<diagnose::WatchedGroup> watched_;  // publishes its calls to other ranks
  LaunchedCalls launched_;
  // Used by the posting thread. Last member: the queues' threads use the members above.
  std::map<ChannelKey, std::unique_ptr<sys::TaskQueue>> queues_;
};

}  // namespace lockstep
