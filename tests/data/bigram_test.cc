#include "data/bigram.h"

#include "data/refusal.h"
#include "support/data_folder.h"

#include <lockstep/data/text.h>

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::data {
namespace {

TEST(Bigram, FollowsTheFormula) {
  // 01 twice; 10, 11 and 12 once
  const at::Tensor train = at::tensor({0, 1, 0, 1, 1, 2}, at::kByte);
  const at::Tensor validation = at::tensor({0, 1, 2, 0}, at::kByte);  // 01, 12, 20
  const double expected = -(std::log(3.0 / 5) + std::log(2.0 / 6) + std::log(1.0 / 3)) / 3;
  EXPECT_NEAR(bigram_cross_entropy(train, validation, 3), expected, 1e-12);
  const double half = -(std::log(2.5 / 3.5) + std::log(1.5 / 4.5) + std::log(0.5 / 1.5)) / 3;
  EXPECT_NEAR(bigram_cross_entropy(train, validation, 3, 0.5), half, 1e-12);
}

TEST(Bigram, WithoutTrainingEveryTokenIsAsLikely) {
  EXPECT_NEAR(bigram_cross_entropy(at::empty({0}, at::kByte), at::tensor({0, 3, 1}, at::kInt), 7),
              std::log(7.0), 1e-12);
}

TEST(Bigram, RefusesWhatMakesNoSense) {
  const at::Tensor some = at::tensor({0, 1, 2}, at::kByte);
  EXPECT_EQ(test::refusal<InvalidArgument>([&] { (void)bigram_cross_entropy(some, some, 2); }),
            "bigram_cross_entropy: expected tokens below 2, found 2");
  EXPECT_THROW((void)bigram_cross_entropy(some, some.narrow(0, 0, 1), 3), InvalidArgument);
  EXPECT_THROW((void)bigram_cross_entropy(some, some, 3, 0.0), InvalidArgument);
  EXPECT_THROW((void)bigram_cross_entropy(some.to(at::kFloat), some, 3), InvalidArgument);
}

TEST(Bigram, OfTinyShakespeare) {
  const auto file = test::data_file("tinyshakespeare.txt");
  if (!file) GTEST_SKIP() << test::no_data("tinyshakespeare.txt");
  const Text text = load_text(*file);
  ASSERT_EQ(text.vocabulary.size(), 65);
  EXPECT_EQ(text.validation.size(0), 111540);
  EXPECT_NEAR(bigram_cross_entropy(text.train, text.validation, 65), 2.48189, 1e-5);
}

}  // namespace
}  // namespace lockstep::data
