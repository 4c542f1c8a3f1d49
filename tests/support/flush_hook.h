// Stands before every fsync() of the test program: to fail, to wait, or to see what is flushed.
#pragma once

#include <functional>
#include <string>

namespace lockstep::test {

// While it lives, `hook` is called with the path of each file or folder that this process is about
// to flush, from whichever thread. An error number that it returns is fsync()'s; 0: flush. One at a
// time; forked children have a copy of it.
class FlushHook {
 public:
  explicit FlushHook(std::function<int(const std::string&)> hook);
  ~FlushHook();
  FlushHook(const FlushHook&) = delete;
  FlushHook& operator=(const FlushHook&) = delete;
};

}  // namespace lockstep::test
