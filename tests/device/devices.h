// Tests that need a GPU. A test forks its ranks as processes, and CUDA cannot be used in a fork of
// a process that has used it: so only ranks may touch a device.
#pragma once

#include <lockstep/comm/group.h>

#include "support/torch/ranks.h"

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>

namespace lockstep::test {

// The number of CUDA devices that a rank sees: 0 without LibTorch's CUDA, a driver or a GPU.
[[nodiscard]] int cuda_devices();
[[nodiscard]] bool has_nccl();

inline const at::Device first_device(at::kCUDA, 0);

// Skips the test if there are fewer devices.
class DeviceTest : public testing::Test {
 protected:
  explicit DeviceTest(int devices = 1) : devices_(devices) {}
  void SetUp() override;

 private:
  int devices_;
};

// Runs ranks that share the first device, on a backend that moves host memory.
void expect_on_device(BackendKind kind, int size, const GroupBody& body);

// Skips the test without a GPU; run() calls expect_on_device() for each backend and number of
// ranks.
class OneDevice : public DeviceTest,
                  public testing::WithParamInterface<std::tuple<BackendKind, int>> {
 protected:
  void run(const GroupBody& body) const;
};

[[nodiscard]] inline auto sharing_ranks() {
  return testing::Combine(testing::Values(BackendKind::shm, BackendKind::gloo),
                          testing::Values(2, 3));
}

[[nodiscard]] inline std::string name_of_sharing(
    const testing::TestParamInfo<std::tuple<BackendKind, int>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

// Bytes that LibTorch's allocator has allocated on the first device: now and at the peak.
struct DeviceBytes {
  std::int64_t now = 0;
  std::int64_t peak = 0;  // since reset_device_peak()
};
[[nodiscard]] DeviceBytes device_bytes();
void reset_device_peak();

}  // namespace lockstep::test
