// While one lives, no signal is delivered to this thread, nor to threads that it starts then: a
// library's own threads leave signals to the program's.
#pragma once

#include <csignal>

namespace lockstep::sys {

class [[nodiscard]] BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace lockstep::sys
