#include "sys/wait_for_events.h"

#include <cerrno>
#include <chrono>
#include <thread>

namespace lockstep::sys {

namespace {

constexpr auto between_looks = std::chrono::milliseconds(10);

bool any_has_events(std::span<pollfd> entries) {
  bool any = false;
  for (pollfd& entry : entries) {
    entry.revents = 0;
    any |= ::poll(&entry, 1, 0) > 0;
  }
  return any;
}

}  // namespace

void wait_for_events(std::span<pollfd> entries) {
  for (;;) {
    if (::poll(entries.data(), entries.size(), -1) > 0) return;
    if (errno == EINTR) continue;
    if (any_has_events(entries)) return;
    std::this_thread::sleep_for(between_looks);
  }
}

}  // namespace lockstep::sys
