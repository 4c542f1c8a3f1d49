#include <lockstep/checkpoint/training_state.h>

#include <lockstep/base/error.h>

#include "checkpoint/small_disk.h"
#include "support/temporary_folder.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <algorithm>
#include <fstream>

namespace lockstep::checkpoint {
namespace {

TrainingState example(std::int64_t step) {
  return {.step = step,
          .epoch = 3,
          .model = {{"w", torch::full({2}, static_cast<double>(step))}},
          .optimizer = {{"optimizer.w.step", torch::tensor(step)}},
          .random = {torch::arange(4, at::kByte), torch::arange(5, at::kByte)},
          .progress = {{"best", "inf"}},
          .config = {{"lr", "0.1"}}};
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

TEST(TrainingState, ComesBackAsItWas) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(100));
  TrainingState read = load_training_state(out / "step-00000100");
  EXPECT_EQ(read.step, 100);
  EXPECT_EQ(read.epoch, 3);
  EXPECT_TRUE(at::equal(read.model.at("w"), torch::full({2}, 100.0)));
  EXPECT_EQ(read.optimizer.at("optimizer.w.step").item<std::int64_t>(), 100);
  ASSERT_EQ(read.random.size(), 2u);
  EXPECT_TRUE(at::equal(read.random[1], torch::arange(5, at::kByte)));
  EXPECT_EQ(read.progress, (Metadata{{"best", "inf"}}));
  EXPECT_EQ(read.config, (Metadata{{"lr", "0.1"}}));
}

TEST(TrainingState, NewestIsFoundByNumberAndOldOnesGo) {
  test::TemporaryFolder out;
  EXPECT_FALSE(latest_checkpoint(out.path()));
  EXPECT_FALSE(latest_checkpoint(out / "nowhere"));
  for (std::int64_t step : {5, 30, 200}) save_training_state(out.path(), example(step), 2);
  std::filesystem::create_directory(out / "step-latest");
  EXPECT_EQ(latest_checkpoint(out.path()), out / "step-00000200");
  EXPECT_EQ(names_in(out.path()),
            (std::vector<std::string>{"step-00000030", "step-00000200", "step-latest"}));
}

TEST(TrainingState, AStepIsNeverOverwritten) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(5));
  EXPECT_THROW(save_training_state(out.path(), example(5)), BadInput);
  EXPECT_EQ(load_training_state(out / "step-00000005").step, 5);
}

TEST(TrainingState, WhatAKilledRunLeftIsNoCheckpointAndIsInNobodysWay) {
  test::TemporaryFolder out;
  std::filesystem::create_directory(out / ".step-00000005.partial");
  std::ofstream(out / ".step-00000005.partial/model.safetensors") << "half";
  EXPECT_FALSE(latest_checkpoint(out.path()));
  save_training_state(out.path(), example(5));
  EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000005"});
}

TEST(TrainingState, AWriteThatFailsKeepsTheOldCheckpointAndLeavesNothing) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1), 1);
  TrainingState large = example(2);
  large.optimizer["z"] = torch::ones(100'000);
  {
    test::SmallDisk disk(10'000);
    EXPECT_THROW(save_training_state(out.path(), large, 1), SystemError);
  }
  EXPECT_EQ(names_in(out.path()), std::vector<std::string>{"step-00000001"});
  EXPECT_THROW(save_training_state(out / "nowhere", example(2)), SystemError);
}

TEST(TrainingState, AMissingFileIsNamed) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  std::filesystem::remove(out / "step-00000001/random.safetensors");
  try {
    (void)load_training_state(out / "step-00000001");
    FAIL() << "was read";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("random.safetensors"), std::string::npos)
        << error.what();
  }
}

TEST(TrainingState, BrokenJsonIsNamed) {
  test::TemporaryFolder out;
  save_training_state(out.path(), example(1));
  for (const char* text : {"", "{", "{\"format\": 2}", "{\"format\": 1, \"step\": \"x\"}"}) {
    std::ofstream(out / "step-00000001/training.json") << text;
    EXPECT_THROW((void)load_training_state(out / "step-00000001"), BadInput) << text;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
