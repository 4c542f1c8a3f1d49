// A Backend for engines whose operations block. It runs them on task queues: one for the
// collectives, which therefore take effect in the order of their posts and go on while their rank
// is busy elsewhere, and one for each direction of each pair of ranks that exchange messages.
//
// Such engines do not compare calls themselves: the call watch does (comm/diagnose), and all ranks
// of a dying group agree on one failure report.
//
// An operation that does not end even when the engine is closed is left behind with its thread, its
// tensors and the engine, so that leaving a dead group never hangs; Life keeps it from using the
// backend when that is gone.
// Once the group has failed the engine is closed or being closed, and open calls stay open.
#pragma once

#include <lockstep/comm/backend.h>
#include <lockstep/store/store.h>

#include "comm/backend/blocking_engine.h"
#include "comm/backend/posted_call.h"
#include "comm/diagnose/call_watch.h"
#include "comm/diagnose/diagnosis.h"
#include "comm/diagnose/open_calls.h"
#include "comm/rendezvous/grace_period.h"
#include "sys/task_queue.h"

#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <shared_mutex>
#include <string>

namespace lockstep {

class BlockingBackend final : public Backend {
 public:
  // The groups of one family share a watch; the first has none yet.
  BlockingBackend(std::shared_ptr<BlockingEngine> engine, std::shared_ptr<Store> store,
                  GroupNames group, int rank, int size, Duration join_timeout,
                  std::shared_ptr<diagnose::CallWatch> watch = nullptr);
  // Waits for what was posted (rendezvous/grace_period.h), and leaves.
  ~BlockingBackend() override;

  [[nodiscard]] std::string_view name() const override { return engine_->name(); }
  void post(const Call& call) override;
  void wait(CallId id) override;
  [[nodiscard]] bool done(CallId id) override { return calls_->done(id); }
  [[nodiscard]] at::Tensor empty_shared(at::IntArrayRef sizes,
                                        const at::TensorOptions& options) override {
    return engine_->empty_shared(sizes, options);
  }
  [[nodiscard]] std::shared_ptr<Backend> subset(std::span<const int> ranks,
                                                std::string_view name) override;
  void abort(std::string_view reason) override;

 private:
  struct Life {
    std::shared_mutex mutex;  // shared: a call uses the backend; alone: it ends
    bool is_over = false;
  };

  // On a queue: carries the call out, and tells the backend unless that is gone.
  static void carry_out(const std::shared_ptr<Life>& life, BlockingBackend* backend,
                        BlockingEngine& engine, const PostedCall& call);
  // Ends the group: agrees with the others on the reason, closes the engine, wakes the waiting.
  void fail(diagnose::FailureKind kind, const CallRecord& call, std::string_view detail);
  // The same, for what the engine threw in `call`.
  void fail_by(const std::exception_ptr& problem, const CallRecord& call);

  const rendezvous::GracePeriod grace_;
  std::shared_ptr<BlockingEngine> engine_;
  std::shared_ptr<Store> store_;
  const GroupNames group_;
  const Duration join_timeout_;
  diagnose::Diagnosis diagnosis_;

  const std::shared_ptr<Life> life_ = std::make_shared<Life>();
  const std::shared_ptr<diagnose::OpenCalls> calls_;  // shared with the watch
  const std::shared_ptr<diagnose::CallWatch> watch_;
  const std::shared_ptr<diagnose::WatchedGroup> watched_;  // what the others learn of its calls
  // Of the thread that posts. Last: their threads use what is above.
  std::map<ChannelKey, std::unique_ptr<sys::TaskQueue>> queues_;
};

}  // namespace lockstep
