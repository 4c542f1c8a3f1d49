// A queue: a thread that does one thing after the other, in the order in which they were given to
// it.
#pragma once

#include <lockstep/base/deadline.h>

#include "sys/thread.h"

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace lockstep::sys {

class TaskQueue {
 public:
  TaskQueue();
  // As end(), however long it takes.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // `task` must not throw.
  void push(std::function<void()> task);

  // Does what is left, then ends the thread. False when it has not ended after `limit`: then it is
  // left to itself, and what its task holds lives as long as it runs.
  bool end(Duration limit);

 private:
  // The thread's, which may outlive the queue.
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::function<void()>> tasks;
    bool ending = false;
    bool ended = false;
  };
  static void run(State& state);

  std::shared_ptr<State> state_ = std::make_shared<State>();
  sys::Thread thread_;
};

}  // namespace lockstep::sys
