// System calls that an old kernel, a container or a file system refuses, for tests of what happens
// then.
#pragma once

#include <string>
#include <vector>

namespace lockstep::test {

struct DeniedCall {
  const char* name;                        // "memfd_create"
  int number;                              // SYS_memfd_create
  int error;                               // ENOSYS
  [[nodiscard]] std::string text() const;  // "memfd_create: ENOSYS"
};

// From now on this thread, and the threads and programs that it starts, get the error from each
// such call. There is no way back: in a forked process only. False where the system has no seccomp
// filters.
[[nodiscard]] bool deny(const DeniedCall& call);

// Each of the calls with each of the errors.
[[nodiscard]] std::vector<DeniedCall> denied_calls(const std::vector<DeniedCall>& calls,
                                                   const std::vector<int>& errors);

}  // namespace lockstep::test
