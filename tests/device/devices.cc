#include "device/devices.h"

#include <lockstep/store/file_store.h>

#include "comm/api/group_state.h"
#include "comm/backend/staged_backend.h"
#include "comm/init/backends.h"
#include "support/processes.h"
#include "support/temporary_folder.h"

#include <ATen/ops/empty.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <torch/cuda.h>

#include <algorithm>
#include <fstream>
#include <memory>

namespace lockstep::test {
namespace {

constexpr std::chrono::seconds device_limit{60};  // each process loads CUDA's kernels first

int counted_devices() {
  TemporaryFolder folder;
  auto result = run_ranks(1, [&](int) {
    std::ofstream(folder / "devices") << static_cast<int>(torch::cuda::device_count());
  });
  int devices = 0;
  std::ifstream(folder / "devices") >> devices;
  return result.front().ok() ? devices : 0;
}

}  // namespace

int cuda_devices() {
  static const int devices = counted_devices();
  return devices;
}

bool has_nccl() {
  auto names = backend_names();
  return std::ranges::find(names, "nccl") != names.end();
}

void DeviceTest::SetUp() {
  if (cuda_devices() < devices_)
    GTEST_SKIP() << "needs " << devices_ << " CUDA devices, found " << cuda_devices();
}

void expect_on_device(BackendKind kind, int size, const GroupBody& body) {
  TemporaryFolder folder;
  expect_ranks(
      size,
      [&](int rank) {
        BackendOptions options{.join_timeout = device_limit, .arena_bytes = 256 << 20};
        auto backend = make_backend(name_of(kind), std::make_shared<FileStore>(folder.path()), rank,
                                    size, options);
        body(recorded_world(staged(std::move(backend)), device_limit));
      },
      device_limit);
}

void OneDevice::run(const GroupBody& body) const {
  const auto [kind, size] = GetParam();
  if (!has(kind)) GTEST_SKIP() << "this build has no backend " << name_of(kind);
  expect_on_device(kind, size, body);
}

DeviceBytes device_bytes() {
  at::empty({1}, first_device);  // initializes the allocator
  auto stats = at::getDeviceAllocator(at::kCUDA)->getDeviceStats(first_device.index());
  constexpr auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {stats.allocated_bytes[all].current, stats.allocated_bytes[all].peak};
}

void reset_device_peak() {
  at::getDeviceAllocator(at::kCUDA)->resetPeakStats(first_device.index());
}

}  // namespace lockstep::test
