// Some system calls raise a signal besides their error, and its default is to end the process:
// SIGPIPE from a write to a socket that the peer has closed (EPIPE), SIGXFSZ from what would make a
// file larger than the process may (EFBIG). It goes to the thread that made the call.
#pragma once

#include <csignal>
#include <ctime>

namespace lockstep::sys {

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
