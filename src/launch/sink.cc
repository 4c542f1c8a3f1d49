#include "launch/sink.h"

#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::launch {

namespace {
constexpr std::size_t page = 4096;
}

Sink::Sink(int descriptor) : descriptor_(descriptor) {
  struct stat place = {};
  if (::fstat(descriptor, &place) != 0) lost_ = errno;
  regular_file_ = S_ISREG(place.st_mode);
}

void Sink::write(std::string_view bytes) {
  if (lost_ != 0) return;
  queue_.append(bytes);
  flush();
}

void Sink::flush() {
  while (lost_ == 0 && pending() > 0) {
    const std::size_t written = write_some();
    if (written == 0) break;
    sent_ += written;
  }
  if (lost_ != 0 || pending() == 0) {
    queue_.clear();
    sent_ = 0;
  } else if (sent_ > queue_.size() / 2) {
    queue_.erase(0, sent_);
    sent_ = 0;
  }
}

bool Sink::same_place(const Sink& other) const {
  struct stat mine = {}, theirs = {};
  return ::fstat(descriptor_, &mine) == 0 && ::fstat(other.descriptor_, &theirs) == 0 &&
         mine.st_dev == theirs.st_dev && mine.st_ino == theirs.st_ino;
}

std::size_t Sink::write_some() {
  pollfd room{descriptor_, POLLOUT, 0};
  if (!regular_file_ && ::poll(&room, 1, 0) <= 0) return 0;
  const std::size_t size = regular_file_ ? pending() : std::min(pending(), page);
  const ssize_t written = ::write(descriptor_, queue_.data() + sent_, size);
  if (written >= 0) return static_cast<std::size_t>(written);
  if (errno != EAGAIN && errno != EINTR) lost_ = errno;
  return 0;
}

}  // namespace lockstep::launch
