// Signals that ask a run to end, as a wish that the training loop reads between two steps, and
// evaluations and samples between two of their parts.
#pragma once

#include <lockstep/base/error.h>

#include <array>
#include <csignal>

#pragma GCC visibility push(default)

namespace lockstep::train {

// While an object lives, the first of SIGINT, SIGTERM, SIGHUP (the terminal is gone) and SIGPIPE
// (whatever read standard output is gone) is remembered. A second SIGINT or SIGTERM ends the
// process as usual; more of the other two come by themselves and change nothing. A signal that was
// ignored before stays ignored. At most one object a process at a time. The destructor brings back
// the handlers that were there.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The signal that came, or 0.
  [[nodiscard]] int signal() const;

 private:
  std::array<struct sigaction, 4> before_{};
};

// Thrown on all ranks together by an evaluation or a sample that a signal has interrupted.
class Interrupted : public Error {
 public:
  Interrupted() : Error("interrupted by a signal") {}
};

}  // namespace lockstep::train

#pragma GCC visibility pop
