// Guards that keep signals from a thread while they live.
#pragma once

#include <csignal>
#include <ctime>

namespace lockstep::sys {

// While one lives, no signal is delivered to this thread, nor to threads that it starts then: a
// library's own threads leave signals to the program's. But for those that a thread causes itself
// by what it executes, such as SIGSEGV: blocked, they would end the process without the program's
// handler.
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

// Some system calls raise a signal besides their error, and its default is to end the process:
// SIGPIPE from a write to a socket that the peer has closed (EPIPE), SIGXFSZ from what would make a
// file larger than the process may (EFBIG). It goes to the thread that made the call.

// While it lives, this thread, and the threads that it starts, get the error and no such signal.
// The process's own choice for the signal stays as it is.
class [[nodiscard]] ErrorInsteadOfSignal {
 public:
  explicit ErrorInsteadOfSignal(int signal) : signal_(signal) {
    sigemptyset(&set_);
    sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~ErrorInsteadOfSignal() {
    if (sigismember(&before_, signal_) != 0) return;
    const timespec at_once{};
    while (sigtimedwait(&set_, nullptr, &at_once) == signal_) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  ErrorInsteadOfSignal(const ErrorInsteadOfSignal&) = delete;
  ErrorInsteadOfSignal& operator=(const ErrorInsteadOfSignal&) = delete;

 private:
  int signal_;
  sigset_t set_{};
  sigset_t before_{};
};

}  // namespace lockstep::sys
