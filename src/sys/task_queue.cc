#include "sys/task_queue.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace lockstep::lanes {

Lane::Lane() : thread_("lane", [state = state_] { run(*state); }) {}

Lane::~Lane() {
  if (thread_.joinable()) end(Deadline::never().left());
}

void Lane::give(std::function<void()> action) {
  {
    std::lock_guard lock(state_->mutex);
    state_->actions.push_back(std::move(action));
  }
  state_->changed.notify_all();
}

bool Lane::end(Duration limit) {
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

void Lane::run(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.changed.wait(lock, [&] { return state.ending || !state.actions.empty(); });
    if (state.actions.empty()) break;
    auto action = std::move(state.actions.front());
    state.actions.pop_front();
    lock.unlock();
    action();
    action = nullptr;  // its tensors go before the next wait
    lock.lock();
  }
  state.ended = true;
  state.changed.notify_all();
}

}  // namespace lockstep::lanes
