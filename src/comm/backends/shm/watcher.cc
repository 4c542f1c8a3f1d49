#include "comm/backends/shm/watcher.h"

#include <lockstep/base/error.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

namespace lockstep::shm {

namespace {

void read_nudges(int socket) {
  std::array<std::byte, 64> nudges;
  while (recv(socket, nudges.data(), nudges.size(), MSG_DONTWAIT) > 0) continue;
}

}  // namespace

Watcher::Watcher(const PeerMappings& peers, std::function<void(int)> on_end,
                 std::function<void(int)> on_nudge)
    : on_end_(std::move(on_end)), on_nudge_(std::move(on_nudge)), stop_(eventfd(0, EFD_CLOEXEC)) {
  if (!stop_) throw SystemError("watching the other ranks' processes", errno);
  thread_ = sys::Thread("shm watcher", [this, &peers] { run(peers); });
}

Watcher::~Watcher() {
  std::uint64_t one = 1;
  while (::write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) continue;
  thread_.join();
}

void Watcher::run(const PeerMappings& peers) {
  // Two entries per peer: its process, if visible, and its socket; poll() ignores negative
  // descriptors.
  std::vector<pollfd> entries{{stop_.get(), POLLIN, 0}};
  for (int rank = 0; rank < peers.size(); ++rank) {
    entries.push_back({peers.peer(rank).process.get(), POLLIN, 0});
    entries.push_back({peers.peer(rank).socket.get(), POLLRDHUP | POLLIN, 0});
  }
  for (;;) {
    sys::wait_for_events(entries);
    if (entries[0].revents != 0) return;
    for (int rank = 0; rank < peers.size(); ++rank) {
      pollfd& process = entries[1 + 2 * static_cast<std::size_t>(rank)];
      pollfd& socket = entries[2 + 2 * static_cast<std::size_t>(rank)];
      if (process.revents != 0 || (socket.revents & ~POLLIN) != 0) {
        process.fd = socket.fd = -1;
        on_end_(rank);
      } else if (socket.revents != 0) {
        read_nudges(socket.fd);
        on_nudge_(rank);
      }
    }
  }
}

void nudge(const Peer& peer) {
  std::byte any{};
  (void)send(peer.socket.get(), &any, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace lockstep::shm
