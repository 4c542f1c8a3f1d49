// Tests which device each rank gets and which backend its group gets, on hosts with many GPUs.
#include "comm/init/choice.h"

#include <lockstep/base/error.h>

#include "support/messages.h"

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

using namespace lockstep;

namespace {

using Names = std::vector<std::string>;
constexpr std::array<std::string_view, 3> backends{"shm", "gloo", "hierarchical"};

Names gpus(int count) {
  Names names;
  for (int number = 0; number < count; ++number) names.push_back(std::to_string(number));
  return names;
}

// The hosts and devices of all ranks: `ranks` ranks on each of the hosts a, b, ...
struct Ranks {
  Names hosts;
  std::vector<Names> devices;

  Ranks(int hosts_of_run, int ranks, const Names& seen) {
    for (int host = 0; host < hosts_of_run; ++host)
      for (int rank = 0; rank < ranks; ++rank) {
        hosts.emplace_back(1, static_cast<char>('a' + host));
        devices.push_back(seen);
      }
  }
  [[nodiscard]] Choice choice(int rank, const Wishes& wishes = {},
                              std::string_view device_backend = "nccl") const {
    return choose(rank, {.hosts = hosts, .devices = devices}, wishes, device_backend, backends);
  }
};

struct Case {
  int hosts, ranks, gpus;  // ranks and GPUs of each host
  std::string backend;     // empty: an error, unless ranks may share GPUs
  std::string reason;
};

TEST(Choice, EachRankGetsTheGpuWithItsNumberOnItsHost) {
  const Case cases[] = {
      {1, 1, 1, "nccl", "each rank has a GPU of its own"},
      {1, 2, 2, "nccl", "each rank has a GPU of its own"},
      {1, 2, 8, "nccl", "each rank has a GPU of its own"},
      {1, 8, 8, "nccl", "each rank has a GPU of its own"},
      {2, 8, 8, "nccl", "each rank has a GPU of its own"},
      {2, 1, 1, "nccl", "each rank has a GPU of its own"},
      {1, 2, 0, "shm", "rank 0 has no GPU"},
      {1, 8, 0, "shm", "rank 0 has no GPU"},
      {2, 1, 0, "gloo", "rank 0 has no GPU"},
      {2, 2, 0, "hierarchical:gloo", "rank 0 has no GPU"},
      {1, 2, 1, "", ""},
      {1, 8, 2, "", ""},
      {2, 4, 2, "", ""},
  };
  for (const auto& one : cases) {
    const std::string label = std::to_string(one.hosts) + " hosts, " + std::to_string(one.ranks) +
                              " ranks, " + std::to_string(one.gpus) + " GPUs";
    const Ranks run(one.hosts, one.ranks, gpus(one.gpus));
    for (int rank = 0; rank < one.hosts * one.ranks; ++rank) {
      if (one.backend.empty()) {
        EXPECT_THROW(static_cast<void>(run.choice(rank)), BadInput) << label;
        continue;
      }
      const auto choice = run.choice(rank);
      const auto own = one.gpus == 0 ? std::nullopt : std::optional(rank % one.ranks);
      EXPECT_EQ(choice.device, own) << label;
      EXPECT_EQ(choice.backend, one.backend) << label;
      EXPECT_EQ(choice.reason, one.reason) << label;
    }
  }
}

TEST(Choice, RanksThatMayShareGpusTakeTurnsAndExchangeThroughTheHost) {
  const Ranks one(1, 8, gpus(2));
  for (int rank = 0; rank < 8; ++rank) {
    const auto choice = one.choice(rank, {.shares_gpus = true});
    EXPECT_EQ(choice.device, rank % 2);
    EXPECT_EQ(choice.backend, "shm");
    EXPECT_EQ(choice.reason, "ranks 0 and 2 share a GPU");
  }
  EXPECT_EQ(Ranks(2, 2, gpus(1)).choice(3, {.shares_gpus = true}).backend, "hierarchical:gloo");
  EXPECT_EQ(Ranks(1, 2, gpus(2)).choice(1, {.shares_gpus = true}).backend, "nccl")
      << "there is nothing to share";
}

TEST(Choice, MoreRanksThanGpusIsAnErrorThatSaysWhatToDo) {
  test::expect_words(
      test::message_of<BadInput>([] { static_cast<void>(Ranks(1, 4, gpus(2)).choice(3)); }),
      {"ranks 0 and 2 would share a GPU", "4 ranks and 2 GPUs", "--share-gpus",
       "LOCKSTEP_SHARE_GPUS=1", "LOCKSTEP_DEVICE=cpu"});
}

TEST(Choice, RanksThatSeeDifferentGpusUseTheirFirst) {
  Ranks run(1, 3, {});
  run.devices = {{"GPU-a"}, {"GPU-b"}, {"GPU-c", "GPU-d"}};
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(run.choice(rank).device, 0);
    EXPECT_EQ(run.choice(rank).backend, "nccl");
  }
  run.devices = {{"GPU-a"}, {"GPU-a", "GPU-b"}, {"GPU-c"}};  // the first two would meet at GPU-a
  EXPECT_THROW(static_cast<void>(run.choice(2)), BadInput);
}

TEST(Choice, EqualNamesOnTwoHostsAreTwoGpus) {
  EXPECT_EQ(Ranks(2, 1, {"0"}).choice(1).backend, "nccl");
}

TEST(Choice, ARankWithoutAGpuKeepsTheOthersFromNccl) {
  Ranks run(1, 2, gpus(2));
  run.devices[1].clear();
  EXPECT_EQ(run.choice(0).device, 0);
  EXPECT_EQ(run.choice(1).device, std::nullopt);
  for (int rank : {0, 1}) {
    EXPECT_EQ(run.choice(rank).backend, "shm");
    EXPECT_EQ(run.choice(rank).reason, "rank 1 has no GPU");
  }
}

TEST(Choice, ABackendThatIsAskedForStaysAndADeviceIsChosen) {
  const Ranks run(1, 2, gpus(2));
  EXPECT_EQ(run.choice(1, {.backend = "shm"}).backend, "shm");
  EXPECT_EQ(run.choice(1, {.backend = "shm"}).device, 1);
  EXPECT_EQ(run.choice(1, {.backend = "hierarchical"}).backend, "hierarchical:gloo");
  EXPECT_EQ(run.choice(1, {.backend = "shm"}).reason, "as asked for");
}

TEST(Choice, ABuildWithoutNcclExchangesThroughTheHost) {
  const auto choice = Ranks(1, 2, gpus(2)).choice(1, {}, "");
  EXPECT_EQ(choice.device, 1);
  EXPECT_EQ(choice.backend, "shm");
  EXPECT_EQ(choice.reason, "this build has no backend for GPUs");
}

}  // namespace
