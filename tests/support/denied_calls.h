// System calls that an old kernel, a container or a file system refuses, for tests of what happens
// then.
#pragma once

#include <gtest/gtest.h>

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
// such call. There is no way back: in a forked process only. False where can_deny_calls() is.
[[nodiscard]] bool deny(const DeniedCall& call);

// Whether the system has seccomp filters, tried once in a process of its own.
[[nodiscard]] bool can_deny_calls();
inline constexpr const char* no_filters = "this system refuses seccomp filters";

class WithDeniedCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_deny_calls()) GTEST_SKIP() << no_filters;
  }
};

// Each of the calls with each of the errors.
[[nodiscard]] std::vector<DeniedCall> denied_calls(const std::vector<DeniedCall>& calls,
                                                   const std::vector<int>& errors);

}  // namespace lockstep::test
