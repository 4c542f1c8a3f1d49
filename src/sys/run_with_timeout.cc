#include "sys/run_with_timeout.h"

#include "sys/thread.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

namespace lockstep::sys {

bool run_with_timeout(std::function<void()> action, Duration limit) {
  struct Shared {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
  };
  auto shared = std::make_shared<Shared>();
  sys::Thread("with timeout", [shared, action = std::move(action)] {
    action();
    std::lock_guard lock(shared->mutex);
    shared->over = true;
    shared->changed.notify_all();
  }).detach();
  std::unique_lock lock(shared->mutex);
  return shared->changed.wait_for(lock, limit, [&] { return shared->over; });
}

}  // namespace lockstep::sys
