// A process that has nothing to do with the ranks and never sleeps: what a busy machine is like.
#pragma once

#include <atomic>
#include <thread>

namespace lockstep::apps {

// Busy from the first to the last moment of its life, on whatever core the system gives it.
class Outsider {
 public:
  Outsider() = default;
  ~Outsider() { stop_.store(true, std::memory_order_relaxed); }
  Outsider(const Outsider&) = delete;
  Outsider& operator=(const Outsider&) = delete;

 private:
  std::atomic<bool> stop_{false};
  std::jthread thread_{[this] {
    while (!stop_.load(std::memory_order_relaxed)) {
    }
  }};
};

}  // namespace lockstep::apps
