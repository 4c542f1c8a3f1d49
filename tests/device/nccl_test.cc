// NCCL on the GPUs of this host: one rank on one GPU, calls that NCCL refuses, and one rank per GPU
// on several.
#include <lockstep/base/error.h>
#include <lockstep/store/file_store.h>

#include "comm/init/backends.h"
#include "device/calls.h"
#include "device/devices.h"
#include "support/processes.h"
#include "support/temporary_folder.h"
#include "support/torch/values.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <optional>
#include <string>

using namespace lockstep;
using namespace std::chrono_literals;

namespace {

constexpr auto nccl_limit = 60s;

std::shared_ptr<Backend> nccl_backend(const test::TemporaryFolder& folder, int rank, int size,
                                      std::optional<int> gpu) {
  BackendOptions options{.join_timeout = nccl_limit};
  if (gpu) options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(*gpu));
  return make_backend("nccl", std::make_shared<FileStore>(folder.path()), rank, size, options);
}

// Returns the error that rank 0 of two gets if NCCL is not available.
std::string refusal(const test::TemporaryFolder& folder, int rank, std::optional<int> gpu) {
  try {
    static_cast<void>(nccl_backend(folder, rank, 2, gpu));
  } catch (const BadInput& error) {
    return error.what();
  }
  return "nothing was refused";
}

class Nccl : public test::DeviceTest {
 protected:
  explicit Nccl(int devices = 1) : DeviceTest(devices) {}
  void SetUp() override {
    if (!test::has_nccl()) GTEST_SKIP() << "this build has no NCCL";
    DeviceTest::SetUp();
  }
};

class NcclWithoutDevice : public Nccl {
 protected:
  NcclWithoutDevice() : Nccl(0) {}
};

TEST_F(NcclWithoutDevice, SaysOnEveryRankWhichOnesHaveNoGpu) {
  if (test::cuda_devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  test::TemporaryFolder folder;
  test::expect_ranks(2, [&](int rank) {
    EXPECT_EQ(refusal(folder, rank, std::nullopt),
              "the backend nccl: expected a GPU in every rank's process, found none in ranks 0, 1 "
              "of 2: is there an NVIDIA driver, and what does CUDA_VISIBLE_DEVICES say?");
  });
}

TEST_F(Nccl, RefusesTwoRanksOnOneGpu) {
  test::TemporaryFolder folder;
  test::expect_ranks(2, [&](int rank) {
    const auto text = refusal(folder, rank, 0);
    EXPECT_NE(text.find("expected a GPU for each rank, found ranks 0 and 1 on one"),
              std::string::npos)
        << text;
  });
}

// A group of one rank uses no backend, so these tests call the backend directly.
class OneNcclRank : public Nccl {
 protected:
  static void run(const std::function<void(Backend&)>& body) {
    test::TemporaryFolder folder;
    test::expect_ranks(
        1, [&](int) { body(*nccl_backend(folder, 0, 1, 0)); }, nccl_limit);
  }
  static void perform(Backend& backend, Call call) {
    call.elements = call.input.defined() ? call.input.numel() : 0;
    call.timeout = 30s;
    call.where = std::source_location::current();
    static std::uint64_t posted = 0;  // each test's rank is a process of its own
    call.id = {.number = ++posted};
    backend.post(call);
    backend.wait(call.id);
  }
};

TEST_F(OneNcclRank, CarriesOutEveryCollective) {
  run([](Backend& backend) {
    const auto input = at::arange(12, test::first_device).to(at::kFloat);
    for (auto collective : {Collective::all_gather, Collective::reduce_scatter,
                            Collective::all_to_all, Collective::gather, Collective::scatter}) {
      auto output = at::zeros_like(input);
      perform(backend, {{.collective = collective, .root = 0}, input, output});
      EXPECT_TRUE(test::same_bits(output.cpu(), input.cpu())) << name_of(collective);
    }
    for (auto collective : {Collective::all_reduce, Collective::reduce, Collective::broadcast}) {
      auto tensor = input.clone();
      perform(backend, {{.collective = collective, .root = 0}, tensor, tensor});
      EXPECT_TRUE(test::same_bits(tensor.cpu(), input.cpu())) << name_of(collective);
    }
    perform(backend, {{.collective = Collective::barrier}});
  });
}

TEST_F(OneNcclRank, CopiesTensorsOfTheHostToItsGpuAndBack) {
  run([](Backend& backend) {
    auto tensor = at::arange(5, at::kFloat);
    perform(backend, {{.collective = Collective::all_reduce}, tensor, tensor});
    EXPECT_TRUE(tensor.is_cpu());
    EXPECT_EQ(tensor[4].item<float>(), 4);
  });
}

TEST_F(OneNcclRank, ReadsWhatTheStreamWasGivenBeforeThePost) {
  run([](Backend& backend) {
    const c10::impl::VirtualGuardImpl streams(at::kCUDA);
    const c10::StreamGuard on(streams.getStreamFromGlobalPool(test::first_device));
    auto input = at::zeros({1 << 20}, test::first_device);
    auto output = at::zeros_like(input);
    auto matrix = at::rand({2048, 2048}, test::first_device);
    for (int i = 0; i < 20; ++i) matrix = matrix.matmul(matrix).clamp(-1, 1);
    input.fill_(7);
    perform(backend, {{.collective = Collective::all_gather}, input, output});
    EXPECT_EQ(output.min().item<float>(), 7);
  });
}

class SeveralNcclRanks : public Nccl {
 protected:
  SeveralNcclRanks() : Nccl(2) {}
  [[nodiscard]] static int ranks() { return std::min(test::cuda_devices(), 4); }
};

TEST_F(SeveralNcclRanks, GiveTheNumbersThatTensorsOfTheHostGet) {
  test::TemporaryFolder folder, of_host;
  const int size = ranks();
  test::expect_ranks(
      size,
      [&](int rank) {
        Group group(nccl_backend(folder, rank, size, rank), "world", nccl_limit);
        Group on_host(make_backend("shm", std::make_shared<FileStore>(of_host.path()), rank, size,
                                   {.join_timeout = nccl_limit, .arena_bytes = 64 << 20}),
                      "host", nccl_limit);
        const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
        auto check = [&](const test::DeviceCall& call, at::ScalarType dtype, auto same) {
          const auto input = test::values(rank, 12 * size, dtype);
          const auto expected = call.run(on_host, input);
          const auto found = call.run(group, input.to(device));
          ASSERT_EQ(expected.defined(), found.defined()) << call.name;
          if (found.defined()) EXPECT_TRUE(same(found.cpu(), expected)) << call.name << dtype;
        };
        for (auto dtype : {at::kFloat, at::kBFloat16, at::kLong, at::kByte}) {
          for (const auto& call : test::reductions()) check(call, dtype, test::close);
          for (const auto& call : test::moves()) check(call, dtype, test::same_bits);
        }
      },
      nccl_limit);
}

TEST_F(SeveralNcclRanks, AKilledRankIsLostToTheOthersLongBeforeTheDeadline) {
  test::TemporaryFolder folder;
  test::RankProcesses processes(2, [&](int rank) {
    Group group(nccl_backend(folder, rank, 2, rank), "world", nccl_limit);
    auto tensor =
        at::full({1 << 20}, 1.0f, at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank)));
    group.all_reduce(tensor).wait();
    if (rank == 1) std::raise(SIGKILL);
    const auto begin = Clock::now();
    EXPECT_THROW(group.all_reduce(tensor).wait(), PeerLost);
    EXPECT_LT(Clock::now() - begin, 10s);
    EXPECT_THROW(group.barrier().wait(), PeerLost);
  });
  EXPECT_TRUE(processes.wait(0, nccl_limit).ok());
}

}  // namespace
