// Tests on every backend how groups die, their last error, and that new groups can be made.
#include <lockstep/base/error.h>

#include "support/messages.h"
#include "support/torch/backend_test.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <csignal>
#include <functional>
#include <string>
#include <thread>

using namespace lockstep;
using namespace std::chrono_literals;
using test::BackendKind;

namespace {

using test::expect_words;
using test::message_of;

struct Disagreement {
  std::string name;
  std::function<Work(Group&)> by_rank_0;
  std::function<Work(Group&)> by_others;
  std::vector<std::string> words;
};

using Counts = std::vector<std::int64_t>;

Work exchange(Group& group, const Counts& sent, const Counts& expected) {
  auto sum = [](const Counts& counts) { return counts.at(0) + counts.at(1); };
  return group.all_to_all(at::empty({sum(expected)}), at::ones({sum(sent)}), expected, sent);
}

std::vector<Disagreement> disagreements() {
  auto ones = [](std::int64_t count, at::ScalarType dtype = at::kFloat) {
    return at::ones({count}, dtype);
  };
  return {
      {"operation",
       [=](Group& g) { return g.all_reduce(ones(4)); },
       [=](Group& g) { return g.broadcast(ones(4)); },
       {"all_reduce", "broadcast"}},
      {"length",
       [=](Group& g) { return g.all_reduce(ones(4)); },
       [=](Group& g) { return g.all_reduce(ones(5)); },
       {"4", "5"}},
      {"dtype",
       [=](Group& g) { return g.all_reduce(ones(4)); },
       [=](Group& g) { return g.all_reduce(ones(4, at::kInt)); },
       {}},
      {"root",
       [=](Group& g) { return g.broadcast(ones(4), 0); },
       [=](Group& g) { return g.broadcast(ones(4), 1); },
       {"root 0", "root 1"}},
      {"reduce op",
       [=](Group& g) { return g.all_reduce(ones(4)); },
       [=](Group& g) { return g.all_reduce(ones(4), Op::max); },
       {"sum", "max"}},
      {"tag",
       [=](Group& g) { return g.all_reduce(ones(4), Op::sum, {.tag = "bucket 1"}); },
       [=](Group& g) { return g.all_reduce(ones(4), Op::sum, {.tag = "bucket 2"}); },
       {"bucket 1", "bucket 2"}},
      {"counts",
       [=](Group& g) {
         return g.all_gather(at::empty({5}), ones(2), std::vector<std::int64_t>{2, 3});
       },
       [=](Group& g) {
         return g.all_gather(at::empty({5}), ones(4), std::vector<std::int64_t>{1, 4});
       },
       {"2", "1"}},
      {"what is exchanged",
       [=](Group& g) {
         return exchange(g, {2, 7}, {2, 3});
       },
       [=](Group& g) {
         return exchange(g, {3, 5}, {6, 5});
       },
       {"all_to_all", "7", "6"}},
      {"order",
       [=](Group& g) {
         g.all_reduce(ones(4), Op::sum, {.tag = "a"}).drop();
         return g.all_reduce(ones(4), Op::sum, {.tag = "b"});
       },
       [=](Group& g) {
         g.all_reduce(ones(4), Op::sum, {.tag = "b"}).drop();
         return g.all_reduce(ones(4), Op::sum, {.tag = "a"});
       },
       {}},
      {"size of a message",
       [=](Group& g) { return g.send(ones(4), 1); },
       [=](Group& g) { return g.recv(at::empty({5}), 0); },
       {}},
      {"dtype of a message",
       [=](Group& g) { return g.send(ones(4), 1); },
       [=](Group& g) { return g.recv(at::empty({4}, at::kInt), 0); },
       {}},
      {"tag of a message",
       [=](Group& g) { return g.send(ones(4), 1, {.tag = "x"}); },
       [=](Group& g) { return g.recv(at::empty({4}), 0, {.tag = "y"}); },
       {"x", "y"}},
  };
}

class Mismatches : public testing::TestWithParam<BackendKind> {};

TEST_P(Mismatches, NameBothCallsAndKillTheGroupOnBothRanks) {
  auto all = disagreements();
  test::run_group(GetParam(), 2, [&](Group world) {
    for (const auto& disagreement : all) {
      SCOPED_TRACE(disagreement.name);
      auto group = world.split(0);
      auto text = message_of<Mismatch>([&] {
        (group.is_root() ? disagreement.by_rank_0 : disagreement.by_others)(group).wait();
      });
      expect_words(text, disagreement.words);
      expect_words(text, {"errors_test.cc", " " + group.name()});
      EXPECT_THROW(group.barrier().wait(), Mismatch);
      EXPECT_THROW(group.barrier().wait(), Mismatch);
      world.barrier().wait();
    }
  });
}

// Rank 3 waits for rank 1 only; rank 1 does not wait for rank 3 and continues elsewhere.
TEST_P(Mismatches, AreToldToWhoeverWaits) {
  test::run_group(GetParam(), 4, [&](Group world) {
    for (int round = 0; round < 5; ++round) {
      auto group = world.split(0);
      const auto begin = Clock::now();
      auto text = message_of<Mismatch>([&] {
        auto tensor = at::ones({4});
        group.broadcast(tensor, group.rank() == 3 ? 1 : 0).wait();
        while (Clock::now() - begin < 5s) group.barrier().wait();
      });
      EXPECT_LT(Clock::now() - begin, 2s) << "round " << round;
      expect_words(text, {"broadcast #1 (root 0, ", "broadcast #1 (root 1, "});
      world.barrier().wait();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Mismatches, testing::ValuesIn(test::backends()),
                         [](const auto& info) { return std::string(test::name_of(info.param)); });

class Endings : public test::BackendTest {};

TEST_P(Endings, ADeadlineSaysWhoIsMissing) {
  run([](Group world) {
    auto group = world.split(0);
    auto tensor = at::ones({3});
    group.barrier().wait();
    if (group.is_root(1)) {
      world.barrier().wait();
      EXPECT_THROW(group.all_reduce(tensor).wait(), Timeout);
      return;
    }
    auto text = message_of<Timeout>(
        [&] { group.all_reduce(tensor, Op::sum, {.tag = "bucket 2", .timeout = 150ms}).wait(); });
    expect_words(text, {"rank 1 never called", "all_reduce", "bucket 2", "12 B", "wait"});
    EXPECT_THROW(group.barrier().wait(), Timeout);
    world.barrier().wait();
  });
}

TEST_P(Endings, AbortEndsWhatOthersWaitFor) {
  run([](Group world) {
    auto group = world.split(0);
    auto tensor = at::ones({300});
    if (group.is_root(1)) {
      std::this_thread::sleep_for(50ms);
      group.abort("the loss is not a number");
      EXPECT_THROW(group.barrier().wait(), Aborted);
    } else {
      auto text = message_of<Aborted>([&] { group.all_reduce(tensor).wait(); });
      expect_words(text, {"rank 1", "the loss is not a number"});
    }
    auto fresh = world.split(0);
    fresh.all_reduce(tensor.zero_()).wait();
    EXPECT_EQ(tensor.sum().item<float>(), 0);
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, Endings, test::every_backend({2, 3}), test::backend_test_name);

// Ranks of nested subgroups have other numbers than in the world: world ranks 3 and 1 are 0 and 1
// here.
class WorldRanks : public testing::TestWithParam<BackendKind> {
 protected:
  using Body = std::function<void(Group& part)>;
  // Runs `body` on ranks 3 and 1 of four; the other ranks only take part in the splits.
  static void run(const Body& body) {
    test::run_group(GetParam(), 4, [&](Group world) {
      const Group odd = world.split(world.rank() % 2);
      Group part = odd.split(0, -odd.rank());
      if (world.rank() % 2 == 1) body(part);
      world.barrier().wait();
    });
  }
};

TEST_P(WorldRanks, StandInADeadline) {
  run([](Group& part) {
    const auto never = [&] { part.all_reduce(at::ones({3}), Op::sum, {.timeout = 150ms}).wait(); };
    if (part.is_root()) return;
    const auto text = message_of<Timeout>(never);
    expect_words(text, {"rank 0 (rank 3 of the world) never called all_reduce #1 (12 B, ",
                        "that rank 1 waits in"});
  });
}

TEST_P(WorldRanks, StandInADeadlineOfMessages) {
  run([](Group& part) {
    if (part.is_root()) return;
    const auto text =
        message_of<Timeout>([&] { part.recv(at::ones({3}), 0, {.timeout = 150ms}).wait(); });
    expect_words(text, {"rank 0 (rank 3 of the world) never called send for recv #1 from rank 0 "
                        "(rank 3 of the world, 12 B, ",
                        "that rank 1 waits in"});
  });
}

TEST_P(WorldRanks, StandInAMismatch) {
  run([](Group& part) {
    const auto text = message_of<Mismatch>([&] {
      auto tensor = at::ones({3});
      (part.is_root() ? part.broadcast(tensor, 0) : part.all_reduce(tensor)).wait();
      part.barrier().wait();
    });
    expect_words(text, {"rank 0 (rank 3 of the world) called broadcast #1 (root 0 (rank 3 of the "
                        "world), 3 x float32, ",
                        "where rank 1 called all_reduce #1 ("});
  });
}

TEST_P(WorldRanks, StandInTheEndOfAGroup) {
  run([](Group& part) {
    if (part.is_root()) return part.abort("the loss is not a number");
    const auto text = message_of<Aborted>([&] { part.barrier().wait(); });
    expect_words(text, {"rank 0 (rank 3 of the world) ended the group: the loss is not a number"});
  });
}

TEST_P(WorldRanks, StandWhereARankHasLeft) {
  run([](Group& part) {
    part.barrier().wait();
    if (part.is_root()) {
      part = Group();
      return;
    }
    const auto text = message_of<PeerLost>([&] { part.barrier().wait(); });
    expect_words(text, {"rank 0 (rank 3 of the world) of 2 was lost: it left in order"});
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, WorldRanks, testing::ValuesIn(test::backends()),
                         [](const auto& info) { return std::string(test::name_of(info.param)); });

class Killed : public testing::TestWithParam<BackendKind> {};

TEST_P(Killed, ARankThatIsKilledIsLost) {
  test::RankRendezvous place(GetParam(), 3);
  test::RankProcesses ranks(3, [&](int rank) {
    auto group = place.join(rank);
    auto tensor = at::ones({1000});
    group.all_reduce(tensor).wait();
    if (rank == 1) {
      place.store()->set("ready", "");
      std::this_thread::sleep_for(1h);
    }
    auto begin = Clock::now();
    auto text =
        message_of<PeerLost>([&] { group.all_reduce(tensor, Op::sum, {.tag = "after"}).wait(); });
    expect_words(text, {"rank 1", "all_reduce"});
    EXPECT_LT(Clock::now() - begin, 3s);
    EXPECT_THROW(group.barrier().wait(), PeerLost);
    place.store()->set("noticed/" + std::to_string(rank),
                       std::to_string(Clock::now().time_since_epoch().count()));
  });
  static_cast<void>(place.store()->get("ready", Deadline::after(20s)));
  std::this_thread::sleep_for(50ms);
  auto killed = Clock::now();
  ranks.kill(1, SIGKILL);
  for (int rank : {0, 2}) {
    auto result = ranks.wait(rank, 20s);
    EXPECT_TRUE(result.ok()) << "rank " << rank << ": " << result;
    auto noticed = Duration(
        std::stoll(place.store()->get("noticed/" + std::to_string(rank), Deadline::after(1s))));
    EXPECT_LT(noticed - killed.time_since_epoch(), GetParam() == BackendKind::shm ? 1s : 3s);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Killed, testing::ValuesIn([] {
                           auto backends = test::backends();
                           backends.erase(backends.begin());  // threads cannot be killed
                           return backends;
                         }()),
                         [](const auto& info) { return std::string(test::name_of(info.param)); });

}  // namespace
