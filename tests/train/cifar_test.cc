#include "train/tasks/images.h"

#include "support/temporary_folder.h"
#include "train/messages.h"
#include "train/runs.h"

#include <lockstep/comm/local.h>
#include <lockstep/train/saved_model.h>

#include <gtest/gtest.h>

namespace lockstep::train {
namespace {

using test::TemporaryFolder;

class Cifar : public testing::TestWithParam<int> {};

TEST_P(Cifar, IsTrainedSavedAndGoesOnToTheBit) {
  TemporaryFolder folder;
  RunSetup options = tiny_cifar(folder);
  run(GetParam(), options);
  EXPECT_EQ(metrics_of(options.out).size(), 8u);
  RunSetup again = cut_at(options, 4);
  run(GetParam(), again);
  EXPECT_EQ(distance(options.out, again.out), 0);
  expect_same_rows(options, again);
  const SavedModel saved = read_model(options.out);
  EXPECT_EQ(saved.task->name(), "cifar");
  EXPECT_NO_THROW(load_into(*saved.task->make_model(), saved));
}

INSTANTIATE_TEST_SUITE_P(Ranks, Cifar, testing::Values(1, 2));

TEST(CifarTask, Learns) {
  TemporaryFolder folder;
  RunSetup options = tiny_cifar(folder);
  options.epochs = 12;
  options.lr = 0.05;
  run(1, options);
  EXPECT_GT(metrics_of(options.out).back()["accuracy"].get<double>(), 0.5);
}

// The global batch is the same for any number of ranks, including the random numbers for its
// images.
TEST(CifarTask, RanksSeeTheSameImages) {
  TemporaryFolder folder;
  const RunSetup options = tiny_cifar(folder);
  auto batch_of = [&](const Group& group, std::int64_t step) {
    std::unique_ptr<Task> task = options.make();
    task->load(options, group);
    return task->batch(step);
  };
  for (std::int64_t step : {0, 3, 6}) {
    const Batch whole = batch_of(Group(), step);
    for (const Group& group : local_groups(2, std::chrono::seconds(20))) {
      const Batch own = batch_of(group, step);
      for (std::int64_t row = 0; row < own.data.size(0); ++row)
        EXPECT_TRUE(own.data[row].equal(whole.data[2 * row + group.rank()])) << step;
    }
    EXPECT_FALSE(whole.data.equal(batch_of(Group(), step + 1).data));
  }
}

// A shifted pixel comes from the image or from the margin; without --augment, images do not change.
TEST(CifarTask, ImagesAreMovedAndMirrored) {
  TemporaryFolder folder;
  RunSetup options = tiny_cifar(folder);
  std::unique_ptr<Task> task = options.make();
  task->load(options, Group());
  const Batch moved = task->batch(0);
  Settings settings("cifar");
  std::unique_ptr<Task> plain_task = options.make();
  plain_task->declare(settings);
  settings.set("augment", "false");
  plain_task->load(options, Group());
  const Batch plain = plain_task->batch(0);
  ASSERT_TRUE(moved.target.equal(plain.target));
  int same = 0, found = 0;
  for (std::int64_t row = 0; row < plain.data.size(0); ++row) {
    const at::Tensor image = plain.data[row];
    if (moved.data[row].equal(image)) ++same;
    const at::Tensor padded = at::constant_pad_nd(image, {4, 4, 4, 4});
    bool is_there = false;
    for (std::int64_t y = 0; y < 9; ++y)
      for (std::int64_t x = 0; x < 9; ++x) {
        const at::Tensor cut = padded.narrow(1, y, 32).narrow(2, x, 32);
        is_there = is_there || moved.data[row].equal(cut) || moved.data[row].equal(cut.flip({2}));
      }
    if (is_there) ++found;
  }
  EXPECT_EQ(found, plain.data.size(0));
  EXPECT_LT(same, plain.data.size(0) / 2);
}

TEST(CifarTask, AModelOfAnotherWidthIsRefused) {
  TemporaryFolder folder;
  RunSetup options = tiny_cifar(folder);
  run(1, options);
  options.resume = true;
  options.epochs = 3;
  options.width = 8;
  std::string text = test::message_of([&] { (void)train(options, Group()); });
  EXPECT_NE(text.find("width is 8, the checkpoint's is 4"), std::string::npos) << text;
}

}  // namespace
}  // namespace lockstep::train
