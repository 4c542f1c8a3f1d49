// Counts the system calls and the calls of operator new in a piece of code, and can make operator
// new fail.
//
// Use asked_by() only in a forked rank that ends right afterwards (test::RankProcesses), and if
// can_deny_calls() (denied_calls.h) returns true: it aborts without seccomp filters. Neither
// function works with sanitizers, which make their own system calls and have their own allocator.
#pragma once

#include <functional>

namespace lockstep::test {

struct Asked {
  int system_calls = 0;
  int first_call = -1;  // system call number, for messages
  int allocations = 0;
};

// Returns true if asked_by() and refuse_allocation() can be used.
[[nodiscard]] bool can_count_calls();

// Runs `body` in this thread. Afterwards no system call of this thread works any more, except those
// that end the process. Clock readings through the vDSO are not system calls.
[[nodiscard]] Asked asked_by(const std::function<void()>& body);

// Makes the `number`-th call of operator new in this thread (0: the next one) throw std::bad_alloc.
// A negative number disables this.
void refuse_allocation(int number);

}  // namespace lockstep::test
