// Tests which device each rank gets and which backend its group gets, on hosts with many GPUs.
#include "comm/init/choice.h"
#include "comm/init/backends.h"
#include "comm/init/starting.h"
#include "support/free_port.h"
#include "support/torch/late_device.h"
#include "support/torch/ranks.h"

#include <lockstep/base/error.h>

#include "support/messages.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/ops/full.h>

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
  [[nodiscard]] Choice choice(int rank, const BackendRequest& request = {},
                              std::string_view device_backend = "nccl") const {
    return choose(rank, {.hosts = hosts, .devices = devices}, request, device_backend, backends);
  }
};

struct Case {
  int hosts, ranks, gpus;  // ranks and GPUs of each host
  std::string backend;     // empty: an error, unless ranks may share GPUs
  std::string reason;
};

TEST(Choice, ByWhereTheRanksAre) {
  const std::vector<std::string_view> all{"shm", "gloo", "mpi"};
  const std::vector<std::string_view> without_gloo{"shm", "mpi"};
  EXPECT_EQ(choose_backend("", Names{"a", "a"}, false, all), "shm");
  EXPECT_EQ(choose_backend("", Names{"a", "b"}, false, all), "gloo");
  EXPECT_EQ(choose_backend("", Names{"a", "b"}, true, all), "mpi");
  EXPECT_EQ(choose_backend("", Names{"a", "b"}, false, without_gloo), "mpi");
  EXPECT_EQ(choose_backend("", Names{"a", "b", "a"}, false, all), "hierarchical:gloo");
  EXPECT_EQ(choose_backend("", Names{"a", "b", "a"}, true, all), "hierarchical:mpi");
  EXPECT_EQ(choose_backend("hierarchical", Names{"a", "a"}, false, all), "hierarchical:gloo");
  EXPECT_EQ(choose_backend("gloo", Names{"a", "a"}, true, all), "gloo");
}

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

using namespace lockstep;

namespace {

using Names = std::vector<std::string>;

Devices cuda_devices(int count) {
  Devices devices{.type = c10::kCUDA, .indices = {}, .names = {}};
  for (int index = 0; index < count; ++index) {
    devices.indices.push_back(static_cast<c10::DeviceIndex>(index));
    devices.names.push_back("GPU-" + std::to_string(index));
  }
  return devices;
}

Names usable(int count, std::string_view wanted) {
  return usable_devices(cuda_devices(count), wanted, "LOCKSTEP_DEVICE").names;
}

TEST(Devices, ARankMayUseAllThatItSeesUnlessOneIsNamed) {
  EXPECT_EQ(usable(2, ""), (Names{"GPU-0", "GPU-1"}));
  EXPECT_EQ(usable(2, "cuda"), (Names{"GPU-0", "GPU-1"}));
  EXPECT_EQ(usable(8, "cuda:5"), Names{"GPU-5"});
  EXPECT_EQ(usable(2, "cpu"), Names{});
  EXPECT_EQ(usable(2, "cpu:0"), Names{});
  EXPECT_EQ(usable(0, ""), Names{});
  EXPECT_EQ(usable(0, "cpu"), Names{});
}

TEST(Devices, ADeviceThatIsNotThereIsNamed) {
  const auto message = [](int count, std::string_view wanted) {
    return test::message_of<BadInput>([&] { static_cast<void>(usable(count, wanted)); });
  };
  EXPECT_EQ(message(2, "cuda:2"),
            "LOCKSTEP_DEVICE: expected cpu, cuda or cuda:0 to cuda:1; found 'cuda:2'");
  EXPECT_EQ(message(0, "cuda"),
            "LOCKSTEP_DEVICE: expected cpu, because this process sees no GPU; found 'cuda'");
  for (const char* wanted :
       {"gpu", "1", "cpu:1", "xpu:0", "cuda:", "cuda:x", "cuda:200", "cuda:255", "cuda:256"})
    test::expect_words(message(2, wanted), {"LOCKSTEP_DEVICE", wanted});
}

TEST(Devices, NamesAreThoseOfTheListOfVisibleOnes) {
  EXPECT_EQ(device_names(2, ""), (Names{"0", "1"}));
  EXPECT_EQ(device_names(2, "5,7"), (Names{"5", "7"}));
  EXPECT_EQ(device_names(1, "GPU-a,GPU-b"), Names{"GPU-a"}) << "CUDA saw no more of them";
}

TEST(Devices, NcclAloneRunsOnStreamsOfADevice) {
  EXPECT_TRUE(has_streams("nccl"));
  for (const char* name : {"shm", "gloo", "mpi", "hierarchical", "one"})
    EXPECT_FALSE(has_streams(name)) << name;
  EXPECT_FALSE(has_streams(Group()));
}

TEST(Devices, ARankHasTheCpuWhereThereIsNoGpu) {
  test::expect_ranks(1, [](int) {
    auto group = init();
    EXPECT_EQ(device(), c10::Device(c10::kCPU));
  });
}

// Ranks of one host that see `count` devices; `variables` are set on each.
void on_ranks(int size, int count, const std::function<void(int)>& body) {
  const auto port = std::to_string(test::free_port());
  test::expect_ranks(size, [&](int rank) {
    ::setenv("RANK", std::to_string(rank).c_str(), 1);
    ::setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
    ::setenv("MASTER_ADDR", "127.0.0.1", 1);
    ::setenv("MASTER_PORT", port.c_str(), 1);
    ::setenv("LOCKSTEP_ARENA", "64MiB", 1);
    test::count_late_devices(count);
    body(rank);
  });
}

void expect_device(int index) {
  EXPECT_EQ(device(),
            c10::Device(c10::DeviceType::PrivateUse1, static_cast<c10::DeviceIndex>(index)));
  EXPECT_EQ(at::accelerator::getDeviceIndex(), index) << "the current device";
}

TEST(InitDevice, EachRankGetsOneOfItsOwn) {
  on_ranks(2, 2, [](int rank) {
    auto group = init(test::quick());
    expect_device(rank);
    EXPECT_EQ(group.backend(), "shm") << "it is no GPU that NCCL works on";
    EXPECT_FALSE(has_streams(group)) << "its tensors are staged";
    test::expect_sum(group);
  });
}

TEST(InitDevice, AloneItIsTheFirst) {
  on_ranks(1, 2, [](int) {
    auto group = init(test::quick());
    expect_device(0);
  });
}

TEST(InitDevice, TooManyRanksAreAnErrorOnEachUnlessTheyMayShare) {
  on_ranks(2, 1, [](int) {
    test::expect_words(
        test::message_of<BadInput>([] { static_cast<void>(init(test::quick())); }),
        {"ranks 0 and 1 would share a GPU", "2 ranks and 1 GPU for them", "--share-gpus"});
    ::setenv("LOCKSTEP_SHARE_GPUS", "1", 1);
    auto group = init(test::quick());
    expect_device(0);
    auto tensor = test::on_late_device(at::full({3}, group.rank() + 1.0f));
    group.all_reduce(tensor).wait();
    EXPECT_EQ(test::late_value(tensor, 2), 3) << "staged through the host's memory";
    auto options = test::quick();
    options.share_gpus = false;
    EXPECT_THROW(static_cast<void>(init(options)), BadInput);
  });
}

TEST(InitDevice, TheVariableAndTheOptionNameOne) {
  on_ranks(2, 4, [](int rank) {
    ::setenv("LOCKSTEP_DEVICE", rank == 0 ? "late:3" : "late:2", 1);
    expect_device((static_cast<void>(init(test::quick())), 3 - rank));
    auto options = test::quick();
    options.device = "cpu";
    auto group = init(options);
    EXPECT_EQ(device(), c10::Device(c10::kCPU)) << "the option goes before the variable";
    test::expect_sum(group);
  });
}

}  // namespace
