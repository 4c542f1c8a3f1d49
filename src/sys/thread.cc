#include "sys/thread.h"

#include "sys/signals.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <string>
#include <system_error>
#include <utility>

#include <pthread.h>

namespace lockstep::sys {

Thread::Thread(const char* name, std::function<void()> body) {
  BlockedSignals blocked;
  try {
    thread_ = std::thread([name, body = std::move(body)] {
      (void)::pthread_setname_np(::pthread_self(), name);
      body();
    });
  } catch (const std::system_error& refused) {
    throw SystemError(std::string("starting the thread ") + name, refused.code().value());
  }
}

Thread::~Thread() {
  if (process_.is_copy_of_parent()) leave_undestroyed(std::move(thread_));
}

void Thread::join() {
  if (!process_.is_copy_of_parent()) thread_.join();
}

void Thread::detach() {
  if (!process_.is_copy_of_parent()) thread_.detach();
}

void run_without_signals(const std::function<void()>& action) {
  std::packaged_task<void()> task(std::cref(action));
  Thread("lockstep", [&] { task(); }).join();
  task.get_future().get();
}

bool run_with_timeout(std::function<void()> action, Duration limit) {
  auto over = std::make_shared<std::promise<void>>();
  auto is_over = over->get_future();
  Thread("with timeout", [over, action = std::move(action)] {
    action();
    over->set_value();
  }).detach();
  return is_over.wait_for(limit) == std::future_status::ready;
}

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
