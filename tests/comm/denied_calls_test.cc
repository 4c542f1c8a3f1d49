// An old kernel or a container may refuse a system call. Ranks then work without it, or each
// reports soon, in one line, which call was refused.
#include <lockstep/base/error.h>
#include <lockstep/store/file_store.h>

#include "comm/api/group_state.h"
#include "comm/init/backends.h"
#include "support/denied_calls.h"
#include "support/messages.h"
#include "support/processes.h"
#include "support/sanitizers.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <sys/syscall.h>

using namespace lockstep;
using namespace std::chrono_literals;
using test::DeniedCall;

namespace {

void exchange_something(Group& group) {
  auto large = at::ones({100'000});
  group.all_reduce(large).wait();
  EXPECT_EQ(large[99'999].item<float>(), 2);
  auto shared = group.empty_shared({3});
  shared.fill_(1);
  group.all_reduce(shared).wait();
  auto message = at::ones({70'000});
  if (group.is_root()) group.send(message, 1).wait();
  if (!group.is_root()) group.recv(message.zero_(), 0).wait();
  EXPECT_EQ(message.sum().item<float>(), 70'000);
  auto part = group.split(0, -group.rank());
  part.barrier().wait();
  group.barrier().wait();
}

// Runs two ranks that are both refused the call.
void expect_a_way_or_a_line(const std::string& backend, const DeniedCall& call) {
  SCOPED_TRACE(backend + ", " + call.text());
  const test::TemporaryFolder folder;
  test::expect_ranks(2, [&](int rank) {
    ASSERT_TRUE(test::deny(call));
    const auto begin = Clock::now();
    try {
      const BackendOptions options{
          .timeout = 10s, .join_timeout = 5s, .arena_bytes = 64 << 20, .hosts = {"a", "a"}};
      auto store = std::make_shared<FileStore>(folder.path());
      auto world = recorded_world(make_backend(backend, store, rank, 2, options), 10s);
      exchange_something(world);
    } catch (const std::exception& error) {
      const std::string text = error.what();
      EXPECT_FALSE(text.empty());
      EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    }
    EXPECT_LT(Clock::now() - begin, 20s);
  });
}

// A sanitizer cannot start a thread without sched_getaffinity().
bool is_of_the_sanitizer(const DeniedCall& call) {
  return call.number == SYS_sched_getaffinity &&
         (test::under_address_sanitizer || test::under_thread_sanitizer);
}

void expect_a_way_or_a_line(const std::string& backend, const std::vector<DeniedCall>& calls,
                            const std::vector<int>& errors) {
  for (const auto& call : test::denied_calls(calls, errors))
    if (!is_of_the_sanitizer(call)) expect_a_way_or_a_line(backend, call);
}

// These calls only save copies and time.
const std::vector<DeniedCall> dispensable{{"pidfd_open", SYS_pidfd_open, 0},
                                          {"pidfd_send_signal", SYS_pidfd_send_signal, 0},
                                          {"fallocate", SYS_fallocate, 0},
                                          {"madvise", SYS_madvise, 0},
                                          {"sched_setaffinity", SYS_sched_setaffinity, 0},
                                          {"sched_getaffinity", SYS_sched_getaffinity, 0},
                                          {"statx", SYS_statx, 0},
                                          {"membarrier", SYS_membarrier, 0},
                                          {"mlock", SYS_mlock, 0},
                                          {"getrandom", SYS_getrandom, 0},
                                          {"prctl", SYS_prctl, 0}};
// These calls have no substitute.
const std::vector<DeniedCall> needed{
    {"memfd_create", SYS_memfd_create, 0}, {"eventfd2", SYS_eventfd2, 0},
    {"ftruncate", SYS_ftruncate, 0},       {"socket", SYS_socket, 0},
    {"sendmsg", SYS_sendmsg, 0},           {"clone3", SYS_clone3, 0}};

class DeniedCalls : public test::WithDeniedCalls {};

TEST_F(DeniedCalls, RanksOfOneHostWithoutWhatKernelsAndContainersRefuse) {
  expect_a_way_or_a_line("shm", dispensable, {ENOSYS, EPERM, EINVAL});
}

TEST_F(DeniedCalls, RanksOfOneHostWithoutWhatIsShort) {
  expect_a_way_or_a_line("shm", dispensable, {ENOMEM, EMFILE});
}

TEST_F(DeniedCalls, RanksOfOneHostSayWhatTheyLack) {
  expect_a_way_or_a_line("shm", needed, {ENOSYS, EPERM, ENOMEM, EMFILE});
}

TEST_F(DeniedCalls, RanksOverSocketsDoWithoutOrSaySo) {
  const auto names = backend_names();
  if (std::ranges::find(names, "gloo") == names.end()) GTEST_SKIP() << "no Gloo in this build";
  expect_a_way_or_a_line("gloo",
                         {{"pidfd_open", SYS_pidfd_open, 0},
                          {"eventfd2", SYS_eventfd2, 0},
                          {"clone3", SYS_clone3, 0},
                          {"sched_getaffinity", SYS_sched_getaffinity, 0}},
                         {ENOSYS, EPERM, EAGAIN});
}

}  // namespace
