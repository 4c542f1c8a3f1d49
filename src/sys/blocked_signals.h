// While one lives, no signal is delivered to this thread, nor to threads that it starts then: a
// library's own threads leave signals to the program's. But for those that a thread causes itself
// by what it executes, such as SIGSEGV: blocked, they would end the process without the program's
// handler.
#pragma once

#include <csignal>

namespace lockstep::sys {

class [[nodiscard]] BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    ::sigfillset(&all);
    for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) ::sigdelset(&all, own);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

}  // namespace lockstep::sys
