// poll() with an action per descriptor. Made anew for every wait, so that the watched descriptors
// are easy to see.
#pragma once

#include <lockstep/base/deadline.h>

#include <poll.h>

#include <functional>
#include <utility>
#include <vector>

namespace lockstep::launch {

class Poller {
 public:
  // Negative descriptors are ignored.
  void watch(int descriptor, short events, std::function<void()> action) {
    if (descriptor < 0) return;
    entries_.push_back({descriptor, events, 0});
    actions_.push_back(std::move(action));
  }

  // Blocks until a descriptor is ready or the deadline passes, then runs the actions of the ready
  // descriptors in the order of watch().
  void wait(Deadline deadline) {
    if (::poll(entries_.data(), entries_.size(), deadline.poll_milliseconds()) <= 0) return;
    for (std::size_t i = 0; i < entries_.size(); ++i)
      if (entries_[i].revents != 0) actions_[i]();
  }

 private:
  std::vector<pollfd> entries_;
  std::vector<std::function<void()>> actions_;
};

}  // namespace lockstep::launch
