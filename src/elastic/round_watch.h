// RoundWatch: a thread that learns from the store that the round has ended. Where a worker was lost
// it ends the group, so that nobody waits for the deadline of a collective; where the end is an
// orderly one, the loop is told at its next commit.
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
  // `ended` as Rounds::ended(), in a copy that the thread uses. Errors of the store are passed
  // over: training needs none.
  explicit RoundWatch(std::function<std::optional<std::string>()> ended);
  ~RoundWatch();
  RoundWatch(const RoundWatch&) = delete;
  RoundWatch& operator=(const RoundWatch&) = delete;

  // The group that is to be ended.
  void watch(const Group& group);
  // What ends the groups that ranks of it train with, given the reason: a rank whose peers there
  // are alive may wait for them while they wait for the one that was lost. Of the watch's thread.
  void watch(std::function<void(std::string_view)> abort);
  // The sentence of the round's end; empty while it goes on.
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
