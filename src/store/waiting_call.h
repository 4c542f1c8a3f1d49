// A call of TcpStore that waits for its reply. Its caller sleeps on it; other threads wake it.
#pragma once

#include "store/wire.h"
#include "sys/futex.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include <lockstep/base/deadline.h>

namespace lockstep::store {

// Shared by its caller and by the thread that wakes it, which may be a moment late: the caller does
// not wait for that. A wake may come for no reason.
class WaitingCall {
 public:
  explicit WaitingCall(std::string message) : request(std::move(message)) {}

  // By the thread that reads, once.
  void answer(Message reply) {
    reply_ = std::move(reply);
    is_answered_.store(true, std::memory_order_release);
  }
  [[nodiscard]] bool is_answered() const { return is_answered_.load(std::memory_order_acquire); }
  // By the caller, once, when it is answered.
  [[nodiscard]] Message take_reply() { return std::move(reply_); }

  // The caller looks at its conditions after wakes() and sleeps only if no wake() came since.
  [[nodiscard]] std::uint32_t wakes() const { return wakes_.load(std::memory_order_acquire); }
  void sleep(std::uint32_t seen_wakes, Deadline deadline) const {
    sys::futex_wait(wakes_, seen_wakes, std::min<Duration>(deadline.left(), std::chrono::hours(1)));
  }
  void wake() {
    wakes_.fetch_add(1, std::memory_order_release);
    sys::futex_wake_all(wakes_);
  }

  // Guarded by the connection's mutex.
  std::string request;   // encoded; after it was sent only where the connection can be made anew
  bool is_sent = false;  // on this connection
  bool reads = false;    // the caller reads for all; changed by it alone

  // Whether it is the caller's turn to send what callers have begun; changes under the connection's
  // mutex.
  std::atomic<bool> sends = false;

 private:
  Message reply_;
  std::atomic<bool> is_answered_ = false;
  std::atomic<std::uint32_t> wakes_ = 0;
};

}  // namespace lockstep::store
