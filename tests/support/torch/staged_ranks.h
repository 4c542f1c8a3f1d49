// Ranks for tests of device tensors on a backend that moves host memory.
#pragma once

#include <lockstep/comm/group.h>

#include <functional>

namespace lockstep::test {

// Runs `rank` in `size` threads, each with a group of BackendKind::local whose tensors are staged.
// An exception of a rank fails the test.
void run_staged(int size, const std::function<void(Group)>& rank);

}  // namespace lockstep::test
