#include "comm/shm/watcher.h"

#include <lockstep/base/error.h>

#include <cerrno>
#include <cstdint>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

namespace lockstep::shm {

Watcher::Watcher(const Peers& peers, std::function<void(int)> on_end)
    : on_end_(std::move(on_end)), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw SystemError("watching the other ranks' processes", errno);
  thread_ = std::thread([this, &peers] { run(peers); });
}

Watcher::~Watcher() {
  std::uint64_t one = 1;
  while (write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) continue;
  thread_.join();
}

void Watcher::run(const Peers& peers) {
  // Two entries a peer: its process, where it can be seen, and its socket; poll() passes over
  // negative numbers.
  std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}};
  for (int rank = 0; rank < peers.size(); ++rank) {
    entries.push_back({peers.peer(rank).process.get(), POLLIN, 0});
    entries.push_back({peers.peer(rank).socket.get(), POLLRDHUP, 0});
  }
  for (;;) {
    if (poll(entries.data(), entries.size(), -1) < 0) continue;  // a signal
    if (entries[0].revents != 0) return;
    for (int rank = 0; rank < peers.size(); ++rank) {
      pollfd& process = entries[1 + 2 * static_cast<std::size_t>(rank)];
      pollfd& socket = entries[2 + 2 * static_cast<std::size_t>(rank)];
      if (process.revents == 0 && socket.revents == 0) continue;
      process.fd = socket.fd = -1;
      on_end_(rank);
    }
  }
}

}  // namespace lockstep::shm
