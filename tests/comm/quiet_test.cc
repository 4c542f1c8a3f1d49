// If the peers have already posted, the public call makes no system call and no heap allocation.
#include "support/quiet.h"
#include "support/denied_calls.h"
#include "support/torch/ranks.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include <sched.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

// Call before joining the group: on one core, no process has a helper thread that must be woken.
void stay_on_one_core() {
  cpu_set_t core;
  CPU_ZERO(&core);
  CPU_SET(sched_getcpu(), &core);
  sched_setaffinity(0, sizeof core, &core);
}

template <typename MakeTensor>
void expect_quiet(int size, const MakeTensor& make) {
  if (!can_count_calls()) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  if (!can_deny_calls()) GTEST_SKIP() << no_filters;
  RankRendezvous place(BackendKind::shm, size);
  RankProcesses ranks(size, [&](int rank) {
    stay_on_one_core();
    auto group = place.join(rank);
    auto tensor = make(group);
    for (int i = 0; i < 100; ++i) group.all_reduce(tensor).wait();
    if (rank != 0) {
      group.all_reduce(tensor).drop();
      std::this_thread::sleep_for(20s);  // killed at the end of the test
      return;
    }
    std::this_thread::sleep_for(200ms);
    auto asked = asked_by([&] { group.all_reduce(tensor).wait(); });
    // The thread cannot print any more, so its exit code reports the failure.
    if (asked.system_calls > 0) _exit(100 + asked.first_call % 100);
    _exit(std::min(asked.allocations, 99));
  });
  EXPECT_EQ(ranks.wait(0, 20s).exit_code, 0)
      << "below 100: so many allocations, else 100 + number of the system call";
}

TEST(QuietCall, OfASmallTensor) {
  for (int size : {2, 3}) expect_quiet(size, [](const Group&) { return at::ones({256}); });
}

TEST(QuietCall, OfALargeTensorInSharedMemory) {
  for (int size : {2, 3}) {
    expect_quiet(size, [](const Group& group) {
      auto tensor = group.empty_shared({300'000});
      tensor.fill_(1);
      return tensor;
    });
  }
}

}  // namespace
}  // namespace lockstep::test
