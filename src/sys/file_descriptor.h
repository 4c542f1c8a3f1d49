// An owned file descriptor: closed once, moved but never copied.
#pragma once

#include <utility>

#include <sys/resource.h>
#include <unistd.h>

namespace lockstep::sys {

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

// Descriptors that a child inherits under a high number, which shells and scripts do not use for
// their own.

// A copy, closed on exec, with a number from 100 on; where the limit of open files is lower than
// that, with the next best. SystemError when there is no room at all.
[[nodiscard]] FileDescriptor with_high_number(const FileDescriptor& descriptor);

// How many files a process may have open.

// While the object lives, this process may have as many files open as the hard limit allows. What
// it starts meanwhile should get limit_before(): programs that use select() break beyond 1024.
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

}  // namespace lockstep::sys
