// Gloo writes to sockets in a way that raises SIGPIPE where the peer has closed, and the signal's
// default is to end the process. It goes to the thread that wrote.
#pragma once

#include <csignal>
#include <ctime>

namespace lockstep::c10d_engine {

// While it lives, this thread, and the threads that it starts, get an error from the write and no
// signal. The process's own choice for SIGPIPE stays as it is.
class BrokenPipesAreErrors {
 public:
  BrokenPipesAreErrors() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~BrokenPipesAreErrors() {
    if (sigismember(&before_, SIGPIPE) != 0) return;
    const timespec at_once{};
    while (sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipesAreErrors(const BrokenPipesAreErrors&) = delete;
  BrokenPipesAreErrors& operator=(const BrokenPipesAreErrors&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace lockstep::c10d_engine
