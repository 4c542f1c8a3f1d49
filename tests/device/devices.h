// Tests that need a GPU. Ranks are processes that a test forks, and CUDA cannot be used in a
// process that was forked from one that has used it: nothing here touches a device outside a rank.
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

// How many CUDA devices a rank sees: 0 without LibTorch's CUDA, a driver or a GPU.
[[nodiscard]] int cuda_devices();
[[nodiscard]] bool has_nccl();

inline const at::Device first_device(at::kCUDA, 0);

// Skips where there are fewer devices.
class DeviceTest : public testing::Test {
 protected:
  explicit DeviceTest(int devices = 1) : devices_(devices) {}
  void SetUp() override;

 private:
  int devices_;
};

// Ranks that share the first device, on an engine that moves the host's memory.
void expect_on_device(Engine engine, int size, const GroupBody& body);

// Skips where there is no GPU; run() is expect_on_device() for each engine and number of ranks.
class OneDevice : public DeviceTest, public testing::WithParamInterface<std::tuple<Engine, int>> {
 protected:
  void run(const GroupBody& body) const;
};

[[nodiscard]] inline auto sharing_ranks() {
  return testing::Combine(testing::Values(Engine::shm, Engine::gloo), testing::Values(2, 3));
}

[[nodiscard]] inline std::string name_of_sharing(
    const testing::TestParamInfo<std::tuple<Engine, int>>& info) {
  return std::string(name_of(std::get<0>(info.param))) + "_" +
         std::to_string(std::get<1>(info.param));
}

// Bytes that LibTorch's allocator has given out on the first device: now, and the most of it.
struct DeviceBytes {
  std::int64_t now = 0;
  std::int64_t peak = 0;  // since reset_device_peak()
};
[[nodiscard]] DeviceBytes device_bytes();
void reset_device_peak();

}  // namespace lockstep::test
