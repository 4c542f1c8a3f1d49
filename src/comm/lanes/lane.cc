#include "comm/lanes/lane.h"

#include "comm/c10d/broken_pipes.h"

#include <utility>

namespace lockstep::lanes {

Lane::Lane() : thread_([this] { run(); }) {}

Lane::~Lane() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Lane::give(std::function<void()> action) {
  {
    std::lock_guard lock(mutex_);
    actions_.push_back(std::move(action));
  }
  changed_.notify_one();
}

void Lane::run() {
  const c10d_engine::BrokenPipesAreErrors quiet;
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return ending_ || !actions_.empty(); });
    if (actions_.empty()) return;
    auto action = std::move(actions_.front());
    actions_.pop_front();
    lock.unlock();
    action();
    action = nullptr;  // its tensors go before the next wait
    lock.lock();
  }
}

}  // namespace lockstep::lanes
