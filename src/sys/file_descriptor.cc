#include "sys/file_descriptor.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <thread>

#include <fcntl.h>
#include <pthread.h>

namespace lockstep::sys {
namespace {

// Values of a place without an open descriptor.
constexpr int free_place = -1;
constexpr int place_of_parent = -2;  // this process is a forked child, and has closed its copy

// A place in the list of the descriptors that forked children close. The list only grows, and is
// read without a lock, because a process may fork while other threads change it.
struct Place {
  std::atomic<int> number = free_place;
  Place* next = nullptr;
};
constinit std::atomic<Place*> places = nullptr;

// Async-signal-safe.
void close_in_child() {
  for (Place* place = places; place != nullptr; place = place->next) {
    const int number = place->number;
    if (number < 0) continue;
    place->number = place_of_parent;
    ::close(number);
  }
}

std::atomic<int>& place_for(int number) {
  [[maybe_unused]] static const int once = ::pthread_atfork(nullptr, nullptr, close_in_child);
  for (Place* place = places; place != nullptr; place = place->next)
    if (int free = free_place; place->number.compare_exchange_strong(free, number))
      return place->number;
  auto fresh = std::make_unique<Place>();
  fresh->number = number;
  fresh->next = places;
  while (!places.compare_exchange_weak(fresh->next, fresh.get())) {
  }
  return fresh.release()->number;
}

}  // namespace

PrivateDescriptor::PrivateDescriptor(FileDescriptor descriptor) {
  if (!descriptor) return;
  place_ = &place_for(descriptor.get());
  (void)descriptor.release();
}

// Frees the place first: its number could belong to another file as soon as it is closed.
void PrivateDescriptor::reset() noexcept {
  std::atomic<int>* const place = std::exchange(place_, nullptr);
  if (place == nullptr) return;
  if (const int number = place->exchange(free_place); number >= 0) ::close(number);
}

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

bool wait_for_events(std::span<pollfd> entries, Deadline deadline) {
  for (;;) {
    const int ready = ::poll(entries.data(), entries.size(), deadline.poll_milliseconds());
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) {
      if (any_has_events(entries)) return true;
      std::this_thread::sleep_for(std::min<Duration>(between_looks, deadline.left()));
    }
    if (deadline.passed()) return false;
  }
}

}  // namespace lockstep::sys
