// The errors that ranks throw when one of them dies, stops, leaves, or makes a different call.
#include "comm/backends/shm/ranks.h"
#include "support/messages.h"
#include "support/shared_files.h"

#include <lockstep/base/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include <sys/mman.h>
#include <unistd.h>

namespace lockstep::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A time that one process records and others read; all processes of a host share the clock.
class SharedMoment {
 public:
  SharedMoment()
      : value_(static_cast<std::atomic<std::int64_t>*>(
            mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}
  ~SharedMoment() { munmap(value_, 4096); }
  void note() { value_->store(Clock::now().time_since_epoch().count()); }
  [[nodiscard]] Clock::duration since() const {
    return Clock::now().time_since_epoch() - Clock::duration(value_->load());
  }

 private:
  std::atomic<std::int64_t>* value_;
};

// Returns the text of the error of type E that `body` must throw.
template <typename E, typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

void all_reduce(GroupMember& group, std::size_t count) {
  auto values = std::make_unique<std::vector<float>>(count, 1);
  auto posting = call(Collective::all_reduce, *values, *values);
  // After an error, peers may still access the input.
  posting.keep_input = shm::KeepAlive(values.release(), [](void* kept) {
    std::unique_ptr<std::vector<float>>(static_cast<std::vector<float>*>(kept)).reset();
  });
  run(group, std::move(posting));
}

TEST(Failure, NamesAKilledRankWhileOthersWait) {
  TemporaryFolder folder;
  SharedMoment killed;
  RankProcesses ranks(
      3, on_endpoint(folder, 3, [&](Endpoint& endpoint) {
        GroupMember& group = endpoint.world();
        all_reduce(group, 1000);
        if (group.rank() == 1) {
          std::this_thread::sleep_for(200ms);  // the others sleep in a futex by now
          killed.note();
          raise(SIGKILL);
        }
        auto text = error_of<PeerLost>([&] { all_reduce(group, 1000); });
        EXPECT_LT(killed.since(), 500ms);
        EXPECT_TRUE(contains(text, "its last call was all_reduce #1 (sum, 1000 x float32, "))
            << text;
        EXPECT_TRUE(contains(text, "ranks 0, 2 wait in all_reduce #2 (3.91 KiB, ")) << text;
        EXPECT_TRUE(contains(text, "rank 1")) << text;
        EXPECT_EQ(error_of<PeerLost>([&] { all_reduce(group, 1); }),
                  text);  // the next call throws the same error
      }));
  EXPECT_TRUE(ranks.wait(0, 20s).ok());
  EXPECT_TRUE(ranks.wait(2, 20s).ok());
}

TEST(Failure, FindsADeathWhileNobodyWaits) {
  TemporaryFolder folder;
  SharedMoment killed;
  RankProcesses ranks(
      2, on_endpoint(folder, 2, [&](Endpoint& endpoint) {
        GroupMember& group = endpoint.world();
        if (group.rank() == 1) killed.note();  // a little early, so that rank 0 finds it noted
        all_reduce(group, 10);
        if (group.rank() == 1) raise(SIGKILL);
        while (!group.has_failed() && killed.since() < 5s) std::this_thread::sleep_for(1ms);
        EXPECT_LT(killed.since(), 500ms);
        std::vector<float> values(3);
        auto posting = call(Collective::all_reduce, values, values);
        EXPECT_TRUE(
            contains(error_of<PeerLost>([&] { (void)post(group, std::move(posting)); }), "rank 1"));
        EXPECT_THROW((void)endpoint.make_group("new", {0, 1}), PeerLost);
        all_reduce(endpoint.make_group("alone", {0}), 10);  // the remaining ranks continue
      }));
  EXPECT_TRUE(ranks.wait(0, 20s).ok());
}

TEST(Failure, NamesARankKilledInTheMiddleOfTheWork) {
  for (int round = 0; round < 5; ++round) {
    TemporaryFolder folder;
    SharedMoment killed;
    RankProcesses ranks(
        3, on_endpoint(folder, 3, [&](Endpoint& endpoint) {
          GroupMember& group = endpoint.world();
          std::thread killer;
          if (group.rank() == 2) {
            killer = std::thread([&] {
              std::this_thread::sleep_for(std::chrono::milliseconds(30 + 7 * round));
              killed.note();
              raise(SIGKILL);
            });
          }
          auto text = error_of<PeerLost>([&] {
            for (;;) all_reduce(group, 200'000);
          });
          EXPECT_LT(killed.since(), 500ms);
          EXPECT_TRUE(contains(text, "rank 2")) << text;
        }));
    EXPECT_TRUE(ranks.wait(0, 20s).ok());
    EXPECT_TRUE(ranks.wait(1, 20s).ok());
  }
}

TEST(Failure, SaysWhoNeverCalled) {
  TemporaryFolder folder;
  RankProcesses ranks(
      4, on_endpoint(folder, 4, [&](Endpoint& endpoint) {
        GroupMember& group = endpoint.world();
        std::vector<float> values(3000, 1);
        auto first = call(Collective::broadcast, values, values);
        first.tag = "weights";
        run(group, std::move(first));
        if (group.rank() == 3) raise(SIGSTOP);
        auto second = call(Collective::all_reduce, values, values);
        second.tag = "bucket 2";
        second.timeout = 500ms;
        auto text = error_of<Timeout>([&] { run(group, std::move(second)); });
        EXPECT_TRUE(contains(text, "rank 3 never called all_reduce #2 (bucket 2, 11.7 KiB, "))
            << text;
        EXPECT_TRUE(contains(text,
                             "that ranks 0-2 wait in; its last call was broadcast #1 (weights, "
                             "root 0, 3000 x float32, "))
            << text;
        EXPECT_TRUE(contains(text, "failure_test.cc:")) << text;
      }));
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(ranks.wait(rank, 20s).ok());
  ranks.kill(3, SIGKILL);
}

TEST(Failure, SaysWhichMessageIsMissing) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    if (group.rank() == 0) {
      std::vector<float> values(10);
      auto posting = call(Collective::recv, values, values, 1);
      posting.timeout = 200ms;
      auto text = error_of<Timeout>([&] { run(group, std::move(posting)); });
      EXPECT_TRUE(contains(text, "rank 1 never called send for recv #1 from rank 1 (40 B, "))
          << text;
      EXPECT_TRUE(contains(text, "that rank 0 waits in; it has made no call yet")) << text;
    }
    while (!group.has_failed()) std::this_thread::sleep_for(1ms);
  });
}

TEST(Failure, SaysThatTheMissingRankWaitsForAMessageItself) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    std::vector<float> values(10);
    auto posting = call(Collective::recv, values, values, 1 - group.rank());
    posting.timeout = 200ms;
    auto text = error_of<Timeout>([&] { run(group, std::move(posting)); });
    EXPECT_TRUE(contains(text, " never called send for recv #1")) << text;
    EXPECT_TRUE(contains(text, " waits in; it has called recv #1 from rank ")) << text;
    EXPECT_TRUE(contains(text, "), which its peer has not matched")) << text;
  });
}

using Change = std::function<void(Posting&)>;

void expect_mismatch(const Change& change, const std::string& left, const std::string& right) {
  for (int late : {0, 1}) {
    run_as_rank_threads(3, [&](Endpoint& endpoint) {
      GroupMember& group = endpoint.world();
      all_reduce(group, 10);
      std::vector<float> values(24, 1);
      auto posting = call(Collective::all_reduce, values, values);
      if (group.rank() == 1) change(posting);
      if (group.rank() == late) std::this_thread::sleep_for(20ms);
      auto text = error_of<Mismatch>([&] { run(group, std::move(posting)); });
      EXPECT_TRUE(contains(text, left)) << text;
      EXPECT_TRUE(contains(text, right)) << text;
      EXPECT_TRUE(contains(text, "rank 1 called ")) << text;
    });
  }
}

TEST(Failure, ShowsBothCallsOfAMismatch) {
  const std::string expected = "all_reduce #2 (sum, 24 x float32, ";
  expect_mismatch([](auto& p) { p.op = Op::max; }, expected, "all_reduce #2 (max, 24 x float32, ");
  expect_mismatch([](auto& p) { p.dtype = DType::int32; }, expected,
                  "all_reduce #2 (sum, 24 x int32, ");
  expect_mismatch([](auto& p) { p.input.bytes = p.output.bytes = 80; }, expected,
                  "all_reduce #2 (sum, 20 x float32, ");
  expect_mismatch([](auto& p) { p.tag = "bucket 7"; }, expected,
                  "all_reduce #2 (bucket 7, sum, 24 x float32, ");
  expect_mismatch(
      [](auto& p) {
        p.collective = Collective::broadcast;
        p.root = 2;
      },
      expected, "broadcast #2 (root 2, 24 x float32, ");
  expect_mismatch([](auto& p) { p.collective = Collective::barrier; }, expected, "barrier #2 (");
}

TEST(Failure, ShowsAMismatchOfUnevenCounts) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    std::vector<float> out(4);
    std::vector<float> in(4);
    std::vector<std::int64_t> sends{1, 3};
    std::vector<std::int64_t> expects{group.rank() == 0 ? 1 : 3, group.rank() == 0 ? 2 : 3};
    in.resize(static_cast<std::size_t>(expects[0] + expects[1]));
    auto posting = call(Collective::all_to_all, out, in);
    posting.input_counts = sends;
    posting.output_counts = expects;
    auto text = error_of<Mismatch>([&] { run(group, std::move(posting)); });
    EXPECT_TRUE(contains(text,
                         "rank 0 called all_to_all #1 (float32, uneven: 3 to rank 1, 2 from "
                         "it, failure_test.cc:"))
        << text;
    EXPECT_TRUE(contains(text,
                         "where rank 1 called all_to_all #1 (float32, uneven: 1 to rank 0, 3 "
                         "from it, failure_test.cc:"))
        << text;
  });
}

TEST(Failure, ShowsTheFirstPartThatRanksCountDifferently) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    std::vector<std::int64_t> counts{2, group.rank() == 0 ? 3 : 4};
    std::vector<float> in(static_cast<std::size_t>(counts[group.rank()]));
    std::vector<float> out(static_cast<std::size_t>(2 + counts[1]));
    auto posting = call(Collective::all_gather, in, out);
    posting.output_counts = counts;
    auto text = error_of<Mismatch>([&] { run(group, std::move(posting)); });
    EXPECT_TRUE(contains(text, "rank 0 called all_gather #1 (5 x float32, uneven: 3 of rank 1, "))
        << text;
    EXPECT_TRUE(contains(text, "rank 1 called all_gather #1 (6 x float32, uneven: 4 of rank 1, "))
        << text;
  });
}

TEST(Failure, IsNoneWhenARankLeavesInOrder) {
  TemporaryFolder folder;
  expect_ranks(
      3, on_endpoint(folder, 3, [&](Endpoint& endpoint) {
        GroupMember& group = endpoint.world();
        GroupMember& pair = group.rank() != 1 ? endpoint.make_group("pair", {0, 2}) : group;
        constexpr std::size_t count = 300'000;
        static std::vector<float> values(count);  // lives until peers are done with it
        static std::vector<float> gathered(3 * count);
        std::ranges::fill(values, static_cast<float>(group.rank()));
        auto last = call(Collective::all_gather, values, gathered);
        auto ticket = post(group, std::move(last));
        if (group.rank() == 1) return;  // posting is enough
        group.wait(ticket);
        EXPECT_EQ(gathered[count], 1);
        EXPECT_EQ(gathered.back(), 2);
        std::this_thread::sleep_for(100ms);
        EXPECT_FALSE(group.has_failed());
        all_reduce(pair, 100);
        auto text = error_of<PeerLost>([&] { all_reduce(group, 10); });
        EXPECT_TRUE(contains(
            text, "rank 1 of 3 was lost: it left in order without taking part in all_reduce #2"))
            << text;
        all_reduce(pair, 100);  // another group does not need it
      }));
}

TEST(Failure, SaysWhoseCallANewGroupWaitsFor) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    if (endpoint.world().rank() == 0) {
      run(endpoint.world(), barrier_call());
      return;
    }
    run(endpoint.world(), barrier_call());
    auto text = error_of<PeerLost>([&] { (void)endpoint.make_group("late", {0, 1}); });
    EXPECT_EQ(text, "making group late: its first member, rank 0 of the world, left");
  });
}

TEST(Failure, EndsWaitsWhenAGroupIsAborted) {
  run_as_rank_threads(2, [](Endpoint& endpoint) {
    GroupMember& group = endpoint.world();
    if (group.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      group.fail(shm::FailureKind::aborted, "rank 1 ended the group: enough");
      return;
    }
    EXPECT_EQ(error_of<Aborted>([&] { all_reduce(group, 10); }), "rank 1 ended the group: enough");
  });
}

TEST(Failure, LeavesNothingBehind) {
  auto before = shared_files();
  TemporaryFolder folder;
  RankProcesses ranks(2, on_endpoint(folder, 2, [&](Endpoint& endpoint) {
                        all_reduce(endpoint.world(), 100'000);
                        raise(SIGKILL);
                      }));
  ranks.wait(20s);
  EXPECT_EQ(shared_files(), before);
}

}  // namespace
}  // namespace lockstep::test
