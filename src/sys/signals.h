// Guards that block signals for a thread during their lifetime.
#pragma once

#include <csignal>
#include <ctime>

namespace lockstep::sys {

// Blocks signals for this thread, and for threads that it starts, so that the library's own threads
// leave signals to the program. Signals that a thread's own instructions raise, such as SIGSEGV,
// are not blocked: otherwise they would end the process without calling the program's handler.
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

// Some system calls raise a signal in addition to their error, which by default ends the process:
// SIGPIPE when writing to a socket that the peer has closed (EPIPE), SIGXFSZ when a file would
// exceed the size limit (EFBIG). The signal goes to the calling thread.

// Makes this thread, and the threads that it starts, get the error but not the signal. Does not
// change the process's action for the signal.
class [[nodiscard]] ScopedSignalBlock {
 public:
  explicit ScopedSignalBlock(int signal) : signal_(signal) {
    sigemptyset(&set_);
    sigaddset(&set_, signal);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  ~ScopedSignalBlock() {
    if (sigismember(&before_, signal_) != 0) return;
    const timespec at_once{};
    while (sigtimedwait(&set_, nullptr, &at_once) == signal_) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  ScopedSignalBlock(const ScopedSignalBlock&) = delete;
  ScopedSignalBlock& operator=(const ScopedSignalBlock&) = delete;

 private:
  int signal_;
  sigset_t set_{};
  sigset_t before_{};
};

}  // namespace lockstep::sys
