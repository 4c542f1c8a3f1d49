#include "train/interrupt.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <ctime>

namespace lockstep::train {
namespace {

// A signal handler has no context argument, so this must be global.
std::atomic<int> received{0};
static_assert(std::atomic<int>::is_always_lock_free &&
              std::atomic<std::int64_t>::is_always_lock_free);

constexpr std::array<int, 4> watched{SIGINT, SIGTERM, SIGHUP, SIGPIPE};
std::array<std::atomic<std::int64_t>, watched.size()> first_times;  // ns; 0: has not come

std::int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1'000'000'000 + time.tv_nsec;
}

// A terminal that closes may send SIGHUP twice, and each write to a closed pipe sends SIGPIPE.
// killall, systemd and Slurm send SIGTERM to all processes of a run, and the launcher forwards its
// own one to the ranks.
bool may_come_again(int signal, std::int64_t since_first) {
  constexpr std::int64_t second = 1'000'000'000;
  return signal == SIGHUP || signal == SIGPIPE || (signal == SIGTERM && since_first < second);
}

void remember(int signal) {
  int none = 0;
  received.compare_exchange_strong(none, signal);
  const auto place = std::ranges::find(watched, signal) - watched.begin();
  std::int64_t first = 0;
  const std::int64_t time = now();
  if (first_times[static_cast<std::size_t>(place)].compare_exchange_strong(first, time)) return;
  if (may_come_again(signal, time - first)) return;
  std::signal(signal, SIG_DFL);
  std::raise(signal);  // has its effect when this function returns
}

}  // namespace

Interrupt::Interrupt() {
  received = 0;
  for (auto& time : first_times) time = 0;
  for (std::size_t i = 0; i < watched.size(); ++i) {
    struct sigaction action {};
    action.sa_handler = remember;
    action.sa_flags = SA_RESTART;
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
