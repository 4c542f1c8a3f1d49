// A queue: a thread that runs tasks one after the other, in the order in which they were pushed.
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
  // Same as end() without a time limit.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // `task` must not throw.
  void push(std::function<void()> task);

  // Runs the remaining tasks, then ends the thread. Returns false if the thread has not ended
  // within `limit`: it is then detached, and the objects that its task holds live until it ends.
  bool end(Duration limit);

 private:
  // Owned by the thread as well, because it may outlive the queue.
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
