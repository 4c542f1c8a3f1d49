// Posting is sufficient on the backends that join processes: the other ranks get their results
// whatever a rank does after its post.
#include <lockstep/base/error.h>
#include <lockstep/store/store.h>

#include "support/messages.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <vector>

using namespace lockstep;
using namespace std::chrono_literals;
using test::BackendKind;

namespace {

class PostingIsEnough : public testing::TestWithParam<BackendKind> {
 protected:
  using Body = std::function<void(Group, Store&)>;
  static constexpr int ranks = 3;

  void SetUp() override {
    if (test::is_under_mpirun()) GTEST_SKIP() << "forks its ranks";
  }

  void run(const Body& body) {
    test::RankRendezvous place(GetParam(), ranks);
    test::expect_ranks(ranks, [&](int rank) {
      auto store = place.store();
      body(place.join(rank), *store);
    });
  }
  static Deadline soon() { return Deadline::after(15s); }
};

float sum_of_ranks(int size) { return static_cast<float>(size * (size + 1)) / 2; }

TEST_P(PostingIsEnough, WhenTheRankThenBlocksInTheStore) {
  run([](Group group, Store& store) {
    auto tensor = at::full({50'000}, group.rank() + 1.0f);
    auto work = group.all_reduce(tensor);
    if (group.rank() == 1) {
      // Continues only after the other ranks have returned from wait().
      for (int other : {0, 2})
        static_cast<void>(store.get("done/" + std::to_string(other), soon()));
    }
    work.wait();
    store.set("done/" + std::to_string(group.rank()), "");
    EXPECT_EQ(tensor[49'999].item<float>(), sum_of_ranks(group.size()));
  });
}

TEST_P(PostingIsEnough, WhenTheRankThenComputes) {
  constexpr auto computes = 800ms;
  run([&](Group group, Store&) {
    auto tensor = at::full({200'000}, group.rank() + 1.0f);
    group.barrier().wait();
    const auto begin = Clock::now();
    auto work = group.all_reduce(tensor);
    if (group.rank() == 1) {
      for (std::atomic<int> turns = 0; Clock::now() - begin < computes;) ++turns;
      EXPECT_TRUE(work.done());
    }
    work.wait();
    if (group.rank() != 1) EXPECT_LT(Clock::now() - begin, computes / 2);
    EXPECT_EQ(tensor[7].item<float>(), sum_of_ranks(group.size()));
  });
}

TEST_P(PostingIsEnough, WhenTheWorkIsDropped) {
  run([](Group group, Store& store) {
    if (group.rank() == 1) {
      group.all_reduce(at::full({50'000}, 2.0f)).drop();  // the tensor is the backend's alone now
      for (int other : {0, 2})
        static_cast<void>(store.get("done/" + std::to_string(other), soon()));
      return;
    }
    auto tensor = at::full({50'000}, group.rank() + 1.0f);
    group.all_reduce(tensor).wait();
    EXPECT_EQ(tensor[9].item<float>(), sum_of_ranks(group.size()));
    store.set("done/" + std::to_string(group.rank()), "");
  });
}

// As many as group.h allows on shm before a recv().
TEST_P(PostingIsEnough, ForSixteenMessagesInBothDirections) {
  run([](Group group, Store&) {
    if (group.rank() == 2) return;
    constexpr int count = 16;
    std::vector<at::Tensor> got;
    std::vector<Work> works;
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < count; ++i)
        works.push_back(group.send(at::full({8}, round * count + i), 1 - group.rank()));
      for (int i = 0; i < count; ++i) {
        got.push_back(at::empty({8}, at::kLong));
        works.push_back(group.recv(got.back(), 1 - group.rank()));
      }
      for (Work& work : works) work.wait();
      works.clear();
    }
    for (std::size_t i = 0; i < got.size(); ++i)
      EXPECT_EQ(got[i][7].item<std::int64_t>(), static_cast<std::int64_t>(i));
  });
}

TEST_P(PostingIsEnough, WhenTwoGroupsAreWaitedForInOppositeOrders) {
  run([](Group group, Store&) {
    auto other = group.split(0, -group.rank());
    for (int round = 0; round < 10; ++round) {
      auto first = at::full({30'000}, group.rank() + 1.0f);
      auto second = at::full({3}, group.rank() + 1.0f);
      auto a = group.all_reduce(first);
      auto b = other.all_reduce(second);
      if (group.rank() == round % 3) b.wait();
      a.wait();
      b.wait();
      EXPECT_EQ(first[29'999].item<float>(), sum_of_ranks(group.size()));
      EXPECT_EQ(second[2].item<float>(), sum_of_ranks(group.size()));
    }
  });
}

TEST_P(PostingIsEnough, InOverlappingGroupsPostedInAnyOrder) {
  run([](Group group, Store&) {
    const std::vector<std::vector<int>> lists{{0, 1}, {1, 2}, {2, 0}};
    std::vector<std::pair<Group, at::Tensor>> mine;
    for (const auto& list : lists) {
      if (auto part = group.subset(list)) mine.emplace_back(*part, at::ones({2000}));
    }
    ASSERT_EQ(mine.size(), 2U);
    for (int round = 0; round < 10; ++round) {
      std::vector<Work> works;
      // If posting were not sufficient, these waits would deadlock in a ring: each rank starts with
      // another group.
      for (std::size_t turn = 0; turn < 2; ++turn) {
        auto& [part, tensor] = mine[(turn + static_cast<std::size_t>(group.rank())) % 2];
        works.push_back(part.all_reduce(tensor));
      }
      for (auto work = works.rbegin(); work != works.rend(); ++work) work->wait();
    }
    for (const auto& [part, tensor] : mine) EXPECT_EQ(tensor[0].item<float>(), 1024.0f);
  });
}

TEST_P(PostingIsEnough, ABufferMayBeOverwrittenRightAfterItsWait) {
  run([](Group group, Store&) {
    auto tensor = at::ones({20'000});
    for (int round = 0; round < 60; ++round) {
      const int root = round % group.size();
      tensor.fill_(static_cast<float>(group.rank() == root ? round : -1));
      group.broadcast(tensor, root).wait();
      EXPECT_TRUE(tensor.eq(static_cast<float>(round)).all().item<bool>()) << "round " << round;
    }
    group.barrier().wait();
  });
}

TEST_P(PostingIsEnough, ARankThatHasPostedMayLeave) {
  run([](Group group, Store& store) {
    auto tensor = at::full({50'000}, group.rank() + 1.0f);
    auto work = group.all_reduce(tensor);
    if (group.rank() == 1) return;  // its handles are destroyed, which is allowed
    work.wait();
    EXPECT_EQ(tensor[3].item<float>(), sum_of_ranks(group.size()));
    store.set("done/" + std::to_string(group.rank()), "");
    for (int other : {0, 2}) static_cast<void>(store.get("done/" + std::to_string(other), soon()));
    const auto text = test::message_of<PeerLost>([&] { group.barrier({.timeout = 10s}).wait(); });
    test::expect_words(text, {"rank 1 of 3 was lost: it left in order without taking part in "
                              "barrier #"});
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, PostingIsEnough, testing::ValuesIn([] {
                           auto backends = test::backends();
                           std::erase(backends, BackendKind::local);  // one process has one store
                           return backends;
                         }()),
                         [](const auto& info) { return std::string(test::name_of(info.param)); });

}  // namespace
