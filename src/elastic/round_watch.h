// RoundWatch: a thread that reads from the store that the round has ended. If a worker was lost, it
// aborts the group, so that no rank waits for the deadline of a collective. If the round ends in
// order, the loop sees it at its next commit.
#pragma once

#include "base/mutex.h"
#include "elastic/rounds.h"
#include "sys/thread.h"

#include <lockstep/comm/group.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

class RoundWatch {
 public:
  // `ended` calls Rounds::ended() on a copy of Rounds that only this thread uses. Errors of the
  // store are ignored, because training does not need it.
  explicit RoundWatch(std::function<std::optional<std::string>()> ended);
  ~RoundWatch();
  RoundWatch(const RoundWatch&) = delete;
  RoundWatch& operator=(const RoundWatch&) = delete;

  // Sets the group to abort.
  void watch(const Group& group);
  // Sets a function that aborts the strategy's own groups with a reason: their ranks may wait for
  // live peers, while these wait for the lost rank. The watch's thread calls it.
  void watch(std::function<void(std::string_view)> abort);
  // Returns the reason why the round ended; empty while it continues.
  [[nodiscard]] std::string end() const;
  [[nodiscard]] bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

 private:
  void look_until_stopped();

  const std::function<std::optional<std::string>()> ended_;
  mutable Mutex mutex_;
  std::condition_variable changed_;
  bool is_stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Group> group_ LOCKSTEP_GUARDED_BY(mutex_);
  std::function<void(std::string_view)> abort_ LOCKSTEP_GUARDED_BY(mutex_);
  std::string end_ LOCKSTEP_GUARDED_BY(mutex_);
  std::atomic<bool> has_ended_{false};
  sys::Thread thread_;
};

}  // namespace lockstep
