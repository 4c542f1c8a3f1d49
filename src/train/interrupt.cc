#include "train/interrupt.h"

#include <atomic>

namespace lockstep::train {
namespace {

// A signal handler has no context argument, so this must be global.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free);

constexpr std::array<int, 4> watched{SIGINT, SIGTERM, SIGHUP, SIGPIPE};

void remember(int signal) {
  int none = 0;
  received.compare_exchange_strong(none, signal);
}

// A terminal that closes may send SIGHUP twice, and each write to a closed pipe sends SIGPIPE.
bool may_come_again(int signal) { return signal == SIGHUP || signal == SIGPIPE; }

}  // namespace

Interrupt::Interrupt() {
  received = 0;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
    if (!may_come_again(watched[i])) action.sa_flags |= static_cast<int>(SA_RESETHAND);
    sigaction(watched[i], &action, &before_[i]);
    // Ignored signals stay ignored: a shell ignores SIGINT for background jobs, and nohup ignores
    // SIGHUP.
    if (before_[i].sa_handler == SIG_IGN) sigaction(watched[i], &before_[i], nullptr);
  }
}

Interrupt::~Interrupt() {
  for (std::size_t i = 0; i < watched.size(); ++i) sigaction(watched[i], &before_[i], nullptr);
}

int Interrupt::signal() const { return received; }

}  // namespace lockstep::train
