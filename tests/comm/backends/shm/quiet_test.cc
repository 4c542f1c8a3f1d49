// An operation whose peers have all posted makes no system call and allocates no memory.
#include "support/quiet.h"
#include "comm/backends/shm/ranks.h"
#include "support/denied_calls.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;

// Makes rank 0's call after all other ranks have posted.
template <typename Memory>
void expect_quiet(Endpoint& endpoint, std::size_t count) {
  GroupMember& group = endpoint.world();
  Memory values(endpoint, count);
  auto posting = [&] { return call(Collective::all_reduce, values, values); };
  for (int i = 0; i < 100; ++i) run(group, posting());
  if (group.rank() != 0) {
    auto last = posting();
    (void)post(group, std::move(last));
    std::this_thread::sleep_for(20s);  // ended with the test
    return;
  }
  std::this_thread::sleep_for(200ms);
  auto asked = asked_by([&] { run(group, posting()); });
  bool quiet = asked.system_calls == 0 && asked.allocations == 0;
  // The thread cannot print any more, so its exit code reports the failure.
  _exit(quiet ? 0 : asked.system_calls > 0 ? 100 + asked.first_call % 100 : 2);
}

struct OrdinaryArray : std::vector<float> {
  OrdinaryArray(Endpoint&, std::size_t count) : std::vector<float>(count) {}
};

class Quiet : public testing::TestWithParam<int> {};

TEST_P(Quiet, AllReduceInTheArena) {
  if (!can_count_calls()) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  if (!can_deny_calls()) GTEST_SKIP() << no_filters;
  for (std::size_t count : {256, 100'000}) {
    TemporaryFolder folder;
    auto body = on_endpoint(folder, GetParam(), [=](Endpoint& endpoint) {
      expect_quiet<ArenaArray<float>>(endpoint, count);
    });
    RankProcesses ranks(GetParam(), on_one_core(body));
    EXPECT_EQ(ranks.wait(0, 20s).exit_code, 0) << count << " elements";
  }
}

TEST_P(Quiet, SmallAllReduceOfPrivateMemory) {
  if (!can_count_calls()) GTEST_SKIP() << "a sanitizer makes system calls of its own";
  if (!can_deny_calls()) GTEST_SKIP() << no_filters;
  TemporaryFolder folder;
  auto body = on_endpoint(folder, GetParam(),
                          [](Endpoint& endpoint) { expect_quiet<OrdinaryArray>(endpoint, 200); });
  RankProcesses ranks(GetParam(), on_one_core(body));
  EXPECT_EQ(ranks.wait(0, 20s).exit_code, 0);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Quiet, testing::Values(2, 3));

}  // namespace
}  // namespace lockstep::test
