// Signals that ask a run to end. The training loop checks for them between two steps; evaluations
// and samples check between two of their parts.
#pragma once

#include <lockstep/base/error.h>

#include <array>
#include <csignal>

#pragma GCC visibility push(default)

namespace lockstep::train {

// Records the first of SIGINT, SIGTERM, SIGHUP (the terminal is gone) and SIGPIPE (the reader of
// standard output is gone) during its lifetime. A second SIGINT, or a SIGTERM more than a second
// after the first one, ends the process as usual; a repeated SIGHUP or SIGPIPE, which needs no user
// action, is ignored. A signal that was ignored before stays ignored. At most one object may exist
// per process. The destructor restores the previous handlers.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // Returns the recorded signal, or 0.
  [[nodiscard]] int signal() const;

 private:
  std::array<struct sigaction, 4> before_{};
};

// Thrown on all ranks together if a signal has interrupted an evaluation or a sample.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted by a signal") {}
};

}  // namespace lockstep::train

#pragma GCC visibility pop
