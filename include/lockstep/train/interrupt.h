// SIGINT and SIGTERM as a wish that the training loop reads between two steps.
#pragma once

#include <csignal>

namespace lockstep::train {

// While an object lives, the first SIGINT or SIGTERM is only remembered; a second one ends the
// process as usual. A signal that was ignored before stays ignored. At most one object a process at
// a time. The destructor brings back the handlers that were there.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // The signal that came, or 0.
  [[nodiscard]] int signal() const;

 private:
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
};

}  // namespace lockstep::train
