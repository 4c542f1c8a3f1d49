// How many files a process may have open.
#pragma once

#include <sys/resource.h>

namespace lockstep::sys {

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
