#include "sys/file_descriptor.h"

#include <lockstep/base/error.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include <fcntl.h>

namespace lockstep::sys {

FileDescriptor with_high_number(const FileDescriptor& descriptor) {
  for (int least : {100, 20, 3}) {
    FileDescriptor copy(::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, least));
    if (copy) return copy;
  }
  throw SystemError("copying a descriptor for a rank", errno);
}

RaisedOpenFilesLimit::RaisedOpenFilesLimit() {
  if (::getrlimit(RLIMIT_NOFILE, &before_) != 0)
    throw SystemError("reading the limit of open files", errno);
  const rlimit raised{before_.rlim_max, before_.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
}

RaisedOpenFilesLimit::~RaisedOpenFilesLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

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
