// Owners of resources of the system: file descriptors and mapped memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <lockstep/base/deadline.h>

namespace lockstep::sys {

// Closed exactly once; movable but not copyable.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int number) : number_(number) {}
  FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    if (this != &other) reset(std::exchange(other.number_, -1));
    return *this;
  }
  ~FileDescriptor() { reset(); }

  [[nodiscard]] int get() const { return number_; }
  [[nodiscard]] explicit operator bool() const { return number_ >= 0; }
  [[nodiscard]] int release() { return std::exchange(number_, -1); }
  void reset(int number = -1) {
    if (number_ >= 0) ::close(number_);
    number_ = number;
  }

 private:
  int number_ = -1;
};

// A descriptor that forked children close when they begin: a lock, a socket whose end peers must
// notice, a listener. Otherwise a living child would keep these after this process has closed them
// or has ended. The child's copy of the object is empty. A child that is forked at the moment when
// another thread opens or closes the descriptor may keep it open.
class PrivateDescriptor {
 public:
  PrivateDescriptor() = default;
  explicit PrivateDescriptor(FileDescriptor descriptor);
  explicit PrivateDescriptor(int number) : PrivateDescriptor(FileDescriptor(number)) {}
  PrivateDescriptor(PrivateDescriptor&& other) noexcept
      : place_(std::exchange(other.place_, nullptr)) {}
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept {
    if (this == &other) return *this;
    reset();
    place_ = std::exchange(other.place_, nullptr);
    return *this;
  }
  ~PrivateDescriptor() { reset(); }

  // Negative if the object is empty.
  [[nodiscard]] int get() const { return place_ != nullptr ? place_->load() : -1; }
  [[nodiscard]] explicit operator bool() const { return get() >= 0; }
  void reset() noexcept;

 private:
  std::atomic<int>* place_ = nullptr;  // in the list of descriptors that children close
};

// Memory that is unmapped exactly once.
struct Unmap {
  std::size_t bytes = 0;
  void operator()(std::byte* memory) const { ::munmap(memory, bytes); }
};
using MappedMemory = std::unique_ptr<std::byte, Unmap>;

// Descriptors with high numbers, which shells and scripts do not use, for children to inherit.

// Returns a close-on-exec copy of `descriptor` whose number is at least 100. If the limit of open
// files is too low, tries at least 20, then 3. Throws SystemError if every descriptor is taken.
[[nodiscard]] FileDescriptor with_high_number(const FileDescriptor& descriptor);

// The limit of open files of this process.

// Raises the limit of open files to the hard limit during the object's lifetime. Give
// limit_before() to processes started meanwhile, because programs that use select() fail with
// descriptors beyond 1024.
class RaisedOpenFilesLimit {
 public:
  RaisedOpenFilesLimit();
  ~RaisedOpenFilesLimit();
  RaisedOpenFilesLimit(const RaisedOpenFilesLimit&) = delete;
  RaisedOpenFilesLimit& operator=(const RaisedOpenFilesLimit&) = delete;

  [[nodiscard]] rlimit limit_before() const { return before_; }
  [[nodiscard]] rlim_t most() const { return before_.rlim_max; }

 private:
  rlimit before_{};
};

// Blocks until an entry has events, as poll() does. Returns false if the deadline passed before. If
// poll() fails (more entries than a lowered limit of open files, out of memory), polls each entry
// separately every few milliseconds.
bool wait_for_events(std::span<pollfd> entries, Deadline deadline = Deadline::never());

}  // namespace lockstep::sys
