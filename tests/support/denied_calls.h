// Makes system calls fail as they do with an old kernel, in a container, or on some filesystems.
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

// Makes each such call of this thread, and of the threads and programs that it starts, fail with
// the error. Cannot be undone: use it in a forked process only. Returns false if can_deny_calls()
// is false.
[[nodiscard]] bool deny(const DeniedCall& call);

// Returns true if the system supports seccomp filters; tested once in a separate process.
[[nodiscard]] bool can_deny_calls();
inline constexpr const char* no_filters = "this system refuses seccomp filters";

class WithDeniedCalls : public testing::Test {
 protected:
  void SetUp() override {
    if (!can_deny_calls()) GTEST_SKIP() << no_filters;
  }
};

// Returns every combination of the calls and the errors.
[[nodiscard]] std::vector<DeniedCall> denied_calls(const std::vector<DeniedCall>& calls,
                                                   const std::vector<int>& errors);

}  // namespace lockstep::test
