// Intercepts every fsync() of the test program, to make it fail, delay it, or record what is
// flushed.
#pragma once

#include <functional>
#include <string>

namespace lockstep::test {

// Calls `hook` with the path of each file or folder that this process is about to flush, from any
// thread, during the object's lifetime. If the hook returns an error number, fsync() fails with it;
// if it returns 0, fsync() continues. Only one hook at a time; forked children inherit it.
class FlushHook {
 public:
  explicit FlushHook(std::function<int(const std::string&)> hook);
  ~FlushHook();
  FlushHook(const FlushHook&) = delete;
  FlushHook& operator=(const FlushHook&) = delete;
};

}  // namespace lockstep::test
