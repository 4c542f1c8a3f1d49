#include <lockstep/data/images.h>

#include "data/refusal.h"

#include <gtest/gtest.h>

namespace lockstep::data {
namespace {

Images four() {
  return Images(at::arange(24, at::kByte).view({4, 2, 3}), at::tensor({3, 1, 4, 1}, at::kByte),
                {0.25}, {0.5});
}

TEST(Images, NormalisesWhatItHandsOut) {
  Images images = four();
  EXPECT_EQ(images.size(), 4u);
  const auto batch = images.get_batch({2, 0, 2});
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{3, 1, 2, 3}));
  EXPECT_TRUE(batch.target.equal(at::tensor({4, 3, 4}, at::kLong)));
  const at::Tensor first = (at::arange(6, at::kFloat) / 255 - 0.25) / 0.5;
  EXPECT_TRUE(batch.data[1].equal(first.view({1, 2, 3})));
  EXPECT_TRUE(batch.data[0].equal(batch.data[2]));
}

TEST(Images, GivesAnEmptyBatch) {
  Images images = four();
  EXPECT_EQ(images.get_batch({}).data.sizes(), (std::vector<std::int64_t>{0, 1, 2, 3}));
}

TEST(Images, RefusesAnIndexBehindTheEnd) {
  Images images = four();
  EXPECT_EQ(test::refusal<InvalidArgument>([&] {
              (void)images.get_batch({0, 4});
            }),
            "Images: expected an index below 4, found 4");
}

TEST(Images, RefusesTensorsThatDoNotFit) {
  EXPECT_EQ(test::refusal<InvalidArgument>([] {
              Images wrong(at::zeros({4, 2, 3}, at::kByte), at::zeros({3}, at::kByte));
            }),
            "Images: expected bytes [count, channels, height, width] or [count, height, width] and "
            "count labels, found Byte [4, 2, 3] and Byte [3]");
  EXPECT_THROW(Images(at::zeros({4, 2, 3}), at::zeros({4}, at::kByte)), InvalidArgument);
  EXPECT_THROW(Images(at::zeros({4, 6}, at::kByte), at::zeros({4}, at::kByte)), InvalidArgument);
  EXPECT_THROW(Images(at::zeros({4, 3, 2, 2}, at::kByte), at::zeros({4}, at::kByte), {0, 0}),
               InvalidArgument);
}

TEST(Images, NormalisesEachChannelByItself) {
  Images images(at::full({1, 3, 1, 2}, 51, at::kByte), at::zeros({1}, at::kByte), {0, 0.2, 0.4},
                {1, 2, 4});
  const at::Tensor found = images.get_batch({0}).data;
  EXPECT_EQ(found.sizes(), (std::vector<std::int64_t>{1, 3, 1, 2}));
  EXPECT_TRUE(
      at::allclose(found.select(3, 0), at::tensor({0.2, 0.0, -0.05}, at::kFloat).view({1, 3, 1})));
}

}  // namespace
}  // namespace lockstep::data
