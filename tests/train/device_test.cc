// --device on a host without a GPU. Runs on a device are in tests/accelerator/trainer_test.cc.
#include "train/device.h"

#include <lockstep/base/error.h>

#include "train/messages.h"
#include "train/runs.h"

#include <ATen/DeviceAccelerator.h>
#include <gtest/gtest.h>

#include <string>

namespace lockstep::train {
namespace {

TEST(Device, IsTheCpuForOptionsThatComputeThere) {
  RunSetup setup("mlp");
  EXPECT_EQ(device_for_init(setup), "");  // init() chooses
  setup.device = "cuda:1";
  EXPECT_EQ(device_for_init(setup), "cuda:1");
  setup.strategy = StrategyKind::ps;
  EXPECT_EQ(device_for_init(setup), "cpu");
  EXPECT_EQ(device_of(setup), c10::Device(c10::kCPU));
  EXPECT_EQ(test::message_of([&] { check_device(setup); }),
            "--strategy ps computes on the CPU: expected --device cpu, found --device cuda:1");
  for (const char* cpu : {"cpu", "cpu:0"}) {
    setup.device = cpu;
    EXPECT_EQ(test::message_of([&] { check_device(setup); }), "nothing was thrown");
  }
}

TEST(Device, OfHostMemoryHasNoActivationsToOffload) {
  RunSetup setup("gpt");
  setup.activation_offload = true;
  setup.device = "cpu";
  EXPECT_EQ(
      test::message_of([&] { check_device(setup); }),
      "--activation-offload moves activations from a device to host memory: expected ranks on "
      "a device, found --device cpu");
}

TEST(Device, TheCpuHasTwoNames) {
  RunSetup setup("mlp");
  setup.device = "cpu:0";
  check_device(setup);
  EXPECT_EQ(device_of(setup), c10::Device(c10::kCPU));
  setup.device = "cpu:1";
  EXPECT_NE(test::message_of([&] { check_device(setup); }).find("found 'cpu:1'"),
            std::string::npos);
}

TEST(Device, ThatThisHostDoesNotHaveIsOneLine) {
  if (at::accelerator::deviceCount() > 0) GTEST_SKIP() << "this host has a GPU";
  RunSetup setup("mlp");
  setup.out = "x";
  for (const char* device : {"cuda", "cuda:0", "gpu", "cuda:256"}) {
    set_option(setup, "device", device);
    EXPECT_EQ(test::message_of([&] { check_run(setup, 1); }),
              std::string("--device: expected cpu, because this process sees no GPU; found '") +
                  device + "'");
  }
}

TEST(Device, OfARunIsInItsConfiguration) {
  test::TemporaryFolder folder;
  RunSetup setup = tiny_mlp(folder);
  set_option(setup, "device", "cpu");
  run(2, setup);
  RunSetup plain = setup;
  plain.device.clear();
  plain.out += "-plain";
  run(2, plain);
  EXPECT_EQ(distance(setup.out, plain.out), 0);
  Configured read{RunSetup("mlp")};
  apply_config(read.all, read_config(setup.out + "/config.toml"));
  EXPECT_EQ(read.all.options.device, "cpu");
  EXPECT_FALSE(metrics_of(setup.out).back().contains("device_allocated_bytes"));
  EXPECT_FALSE(metrics_of(setup.out).back().contains("mfu"));
}

TEST(Mfu, IsTheShareOfThePeak) {
  test::TemporaryFolder folder;
  RunSetup setup = tiny_gpt(folder);
  setup.peak_tflops = 1e-3;
  run(2, setup);
  auto task = setup.make();
  task->load(setup, Group());
  // 6 operations per parameter and token, and 12 per layer, feature and pair of tokens.
  EXPECT_EQ(task->flops_per_sample(), 8 * (6 * task->parameters() + 12. * 2 * 16 * 8));
  for (const auto& row : metrics_of(setup.out)) {
    const double expected =
        row["samples_per_second"].get<double>() * task->flops_per_sample() / (2 * 1e9);
    EXPECT_NEAR(row["mfu"].get<double>(), expected, 1e-9 * expected);
  }
}

}  // namespace
}  // namespace lockstep::train
