// A lane: a thread that does one thing after the other, in the order in which they were given to
// it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace lockstep::lanes {

class Lane {
 public:
  Lane();
  // Does what is left, then ends the thread.
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // `action` must not throw.
  void give(std::function<void()> action);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> actions_;
  bool ending_ = false;
  std::thread thread_;  // last: it uses what is above
};

}  // namespace lockstep::lanes
