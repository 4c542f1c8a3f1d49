#include "sys/task_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::sys {

TaskQueue::TaskQueue() : thread_("task queue", [state = state_] { run(*state); }) {}

TaskQueue::~TaskQueue() {
  if (thread_.joinable()) end(Deadline::never().left());
}

void TaskQueue::push(std::function<void()> task) {
  {
    std::lock_guard lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  state_->changed.notify_all();
}

bool TaskQueue::end(Duration limit) {
  const auto deadline = Deadline::after(limit);
  std::unique_lock lock(state_->mutex);
  state_->ending = true;
  state_->changed.notify_all();
  while (!state_->ended && !deadline.passed())
    state_->changed.wait_for(lock, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  const bool over = state_->ended;
  lock.unlock();
  if (over) {
    thread_.join();
  } else {
    thread_.detach();
  }
  return over;
}

void TaskQueue::run(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.ending || !state.tasks.empty(); });
    if (state.tasks.empty()) break;
    auto task = std::move(state.tasks.front());
    state.tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // free its tensors before the next wait
    lock.lock();
  }
  state.ended = true;
  state.changed.notify_all();
}

}  // namespace lockstep::sys
