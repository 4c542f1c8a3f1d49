#include <lockstep/data/tokens.h>

#include "data/refusal.h"
#include "support/python.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <sstream>

namespace lockstep::data {
namespace {

at::Tensor tokens_up_to(std::int64_t count) { return at::arange(count, at::kInt); }

TEST(RandomBlocks, TargetsAreTheTokensBehind) {
  const RandomBlocks blocks(tokens_up_to(50), 8);
  const auto batch = blocks.draw(6, at::detail::createCPUGenerator(1));
  EXPECT_EQ(batch.data.sizes(), (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(batch.data.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.data.is_contiguous() && batch.target.is_contiguous());
  EXPECT_TRUE(batch.target.equal(batch.data + 1));
  EXPECT_TRUE(
      (batch.data - batch.data.narrow(1, 0, 1)).equal(at::arange(8, at::kLong).expand({6, 8})));
}

TEST(RandomBlocks, EveryStartIsDrawn) {
  const RandomBlocks blocks(tokens_up_to(12), 8);  // possible starts: 0 to 3
  const at::Tensor starts = blocks.draw(200, at::detail::createCPUGenerator(2)).data.select(1, 0);
  EXPECT_EQ(starts.min().item<std::int64_t>(), 0);
  EXPECT_EQ(starts.max().item<std::int64_t>(), 3);
}

TEST(RandomBlocks, RanksTogetherDrawOneGlobalBatch) {
  const RandomBlocks blocks(tokens_up_to(100), 5);
  for (int world = 1; world <= 5; ++world) {
    std::vector<at::Tensor> parts;
    at::Tensor state;
    for (int rank = 0; rank < world; ++rank) {
      at::Generator generator = at::detail::createCPUGenerator(3);
      (void)blocks.draw(60 / world, generator, rank, world);
      parts.push_back(blocks.draw(60 / world, generator, rank, world)
                          .data);  // the second batch: all generators advanced equally
    }
    at::Generator one = at::detail::createCPUGenerator(3);
    (void)blocks.draw(60, one);
    EXPECT_TRUE(at::cat(parts).equal(blocks.draw(60, one).data)) << world;
  }
}

TEST(RandomBlocks, DrawsWhatPythonDraws) {
  if (!test::python()) GTEST_SKIP() << test::no_python;
  const auto result = test::run_python(
      "import torch\n"
      "g = torch.Generator().manual_seed(1337)\n"
      "print(*torch.randint(1000 - 8, (20,), generator=g).tolist())");
  const at::Tensor starts = RandomBlocks(tokens_up_to(1000), 8)
                                .draw(20, at::detail::createCPUGenerator(1337))
                                .data.select(1, 0);
  std::ostringstream text;
  for (std::int64_t i = 0; i < 20; ++i)
    text << starts[i].item<std::int64_t>() << (i < 19 ? " " : "\n");
  EXPECT_EQ(text.str(), result.output);
}

TEST(RandomBlocks, RefusesAShortText) {
  EXPECT_EQ(test::refusal([] { RandomBlocks blocks(tokens_up_to(8), 8); }),
            "RandomBlocks: expected a text of more than 8 tokens (the block), found 8");
  EXPECT_NO_THROW(RandomBlocks(tokens_up_to(9), 8));
  EXPECT_THROW(RandomBlocks(at::zeros({9}), 8), InvalidArgument);
  EXPECT_THROW(RandomBlocks(tokens_up_to(9), 0), InvalidArgument);
}

TEST(SequentialBlocks, EveryTokenButTheFirstIsATargetOnce) {
  for (std::int64_t tokens : {2, 3, 8, 9, 10, 16, 17, 33}) {
    SequentialBlocks blocks(tokens_up_to(tokens), 8);
    std::vector<std::int64_t> seen;
    for (std::size_t i = 0; i < *blocks.size(); ++i) {
      const auto block = blocks.get_batch({i});
      for (std::int64_t j = 0; j < 8; ++j) {
        const auto data = block.data[0][j].item<std::int64_t>(),
                   target = block.target[0][j].item<std::int64_t>();
        if (target == SequentialBlocks::no_target) {
          EXPECT_EQ(data, 0);
        } else {
          EXPECT_EQ(target, data + 1);
          seen.push_back(target);
        }
      }
    }
    std::vector<std::int64_t> expected;
    for (std::int64_t token = 1; token < tokens; ++token) expected.push_back(token);
    EXPECT_EQ(seen, expected) << tokens;
    EXPECT_EQ(*blocks.size(), static_cast<std::size_t>((tokens - 1 + 7) / 8));
  }
}

TEST(SequentialBlocks, CountsTargets) {
  SequentialBlocks blocks(tokens_up_to(21), 8);
  EXPECT_EQ(count_targets(blocks.get_batch({0, 1, 2}).target), 20);
  EXPECT_EQ(count_targets(blocks.get_batch({2}).target), 4);
  EXPECT_EQ(count_targets(blocks.get_batch({}).target), 0);
}

TEST(SequentialBlocks, RefusesWhatHasNoTarget) {
  EXPECT_EQ(test::refusal([] { SequentialBlocks blocks(tokens_up_to(1), 8); }),
            "SequentialBlocks: expected a text of two tokens or more, found 1");
  SequentialBlocks blocks(tokens_up_to(9), 8);
  EXPECT_THROW((void)blocks.get_batch({1}), InvalidArgument);
}

}  // namespace
}  // namespace lockstep::data
