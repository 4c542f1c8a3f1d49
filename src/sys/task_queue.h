// A lane: a thread that does one thing after the other, in the order in which they were given to
// it.
#pragma once

#include <lockstep/base/deadline.h>

#include "sys/thread.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace lockstep::lanes {

class Lane {
 public:
  Lane();
  // As end(), however long it takes.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // `action` must not throw.
  void give(std::function<void()> action);

  // Does what is left, then ends the thread. False when it has not ended after `limit`: then it is
  // left to itself, and what its action holds lives as long as it runs.
  bool end(Duration limit);

 private:
  // The thread's, which may outlive the lane.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> actions;
    bool ending = false;
    bool ended = false;
  };
  static void run(State& state);

  std::shared_ptr<State> state_ = std::make_shared<State>();
  sys::Thread thread_;
};

}  // namespace lockstep::lanes
