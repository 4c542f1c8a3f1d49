// Counts what a piece of code asks of the system: calls of the kernel, blocks from operator new.
//
// Only for a forked rank that ends right afterwards (test::RankProcesses), and not under
// sanitizers, which make calls of their own.
#pragma once

#include <functional>

namespace lockstep::test {

struct Asked {
  int system_calls = 0;
  int first_call = -1;  // its number, for a message
  int allocations = 0;
};

// True where asked_by() can be used.
[[nodiscard]] bool can_count_calls();

// Runs `body` in this thread. From here on the thread gets no system call through any more, except
// those that end the process; clock readings that need no system call are none.
[[nodiscard]] Asked asked_by(const std::function<void()>& body);

}  // namespace lockstep::test
