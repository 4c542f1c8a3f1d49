// Counts what a piece of code asks of the system: calls of the kernel, blocks from operator new.
// Has operator new refuse a block.
//
// asked_by() is only for a forked rank that ends right afterwards (test::RankProcesses). Neither is
// for sanitizers, which make calls of their own and have an allocator of their own.
#pragma once

#include <functional>

namespace lockstep::test {

struct Asked {
  int system_calls = 0;
  int first_call = -1;  // its number, for a message
  int allocations = 0;
};

// True where these can be used.
[[nodiscard]] bool can_count_calls();

// Runs `body` in this thread. From here on the thread gets no system call through any more, except
// those that end the process; clock readings that need no system call are none.
[[nodiscard]] Asked asked_by(const std::function<void()>& body);

// The `number`-th block (0: the next one) that this thread asks of operator new is refused by
// std::bad_alloc. Negative: none is.
void refuse_allocation(int number);

}  // namespace lockstep::test
