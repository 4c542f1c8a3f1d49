#include <lockstep/train/interrupt.h>

#include <atomic>

namespace lockstep::train {
namespace {

// A handler gets no argument of ours, so what it sets must be reachable from everywhere.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

void remember(int signal) { received = signal; }

}  // namespace

Interrupt::Interrupt() {
  received = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART | SA_RESETHAND;
  sigaction(SIGINT, &action, &old_interrupt_);
  sigaction(SIGTERM, &action, &old_terminate_);
  // What was ignored stays so: a shell ignores SIGINT for what it puts into the background.
  if (old_interrupt_.sa_handler == SIG_IGN) sigaction(SIGINT, &old_interrupt_, nullptr);
  if (old_terminate_.sa_handler == SIG_IGN) sigaction(SIGTERM, &old_terminate_, nullptr);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
}

int Interrupt::signal() const { return received; }

}  // namespace lockstep::train
