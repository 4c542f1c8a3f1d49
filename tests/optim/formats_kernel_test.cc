// at::Tensor's conversions are the oracle of the 16-bit formats; the formulas of the header are the
// oracle of the blocks.
#include "optim/formats_kernel.h"

#include "optim/support.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace lockstep::optim {
namespace {

using test::bits_of;
using test::infinite;

// Returns values of all magnitudes, and special values.
at::Tensor some_floats(std::int64_t count) {
  torch::manual_seed(1);
  at::Tensor values = torch::randn({count}) * torch::exp(torch::randn({count}) * 6);
  std::vector<float> special{0,     -0.0F, infinite,    -infinite,  std::nanf(""),
                             65504, 65520, 1e-8F,       6e-8F,      3.4e38F,
                             1,     -1,    1.00390625F, 1.01171875F};
  for (std::size_t i = 0; i < special.size() && static_cast<std::int64_t>(i) < count; ++i)
    values[static_cast<std::int64_t>(i)] = special[i];
  return values;
}

TEST(Formats, NarrowAndWidenAsTensorsDo) {
  for (std::int64_t count : {0, 1, 7, 8, 9, 31, 1000}) {
    at::Tensor values = some_floats(count);
    for (at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
      at::Tensor expected = values.to(dtype), found = torch::zeros({count}, dtype);
      const float* from = values.const_data_ptr<float>();
      narrow(dtype, from, bits_of(found), count);
      EXPECT_TRUE(at::allclose(found, expected, 0, 0, /*equal_nan=*/true)) << dtype << count;
      at::Tensor wide = torch::zeros({count});
      float* to = wide.mutable_data_ptr<float>();
      widen(dtype, bits_of(expected), to, count);
      EXPECT_TRUE(at::allclose(wide, expected.to(at::kFloat), 0, 0, true)) << dtype << count;
    }
  }
}

TEST(Formats, MastersFollowWhatWasWrittenFromOutside) {
  for (at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    at::Tensor master = torch::randn({37});
    at::Tensor before = master.clone(), bits = master.to(dtype);
    bits[5] = 2.5;
    bits[36] = -1.25;
    follow(dtype, bits_of(bits), master.mutable_data_ptr<float>(), 37);
    before[5] = 2.5;
    before[36] = -1.25;
    EXPECT_TRUE(at::equal(master, before)) << dtype;
  }
}

TEST(Formats, StochasticRoundingIsUnbiased) {
  constexpr std::int64_t count = 100'000;
  at::Tensor values = torch::full({count}, 1.001F), small = torch::zeros({count}, at::kBFloat16);
  narrow_bfloat16(values.const_data_ptr<float>(), bits_of(small), count, {.key = 9});
  EXPECT_NEAR(small.to(at::kDouble).mean().item<double>(), 1.001, 1e-4);  // neighbours: 1, 1.0078
  EXPECT_EQ(std::get<0>(at::_unique(small)).numel(), 2);
  at::Tensor special = torch::tensor({infinite, -infinite, std::nanf(""), 0.0F});
  at::Tensor kept = torch::zeros({4}, at::kBFloat16);
  narrow_bfloat16(special.const_data_ptr<float>(), bits_of(kept), 4, {.key = 9});
  EXPECT_TRUE(at::allclose(kept.to(at::kFloat), special, 0, 0, true)) << kept;
}

TEST(Formats, StochasticRoundingDependsOnThePlaceAlone) {
  at::Tensor values = torch::randn({100});
  at::Tensor whole = torch::zeros({100}, at::kBFloat16), parts = whole.clone(),
             other = whole.clone();
  const float* from = values.const_data_ptr<float>();
  narrow_bfloat16(from, bits_of(whole), 100, {.key = 3, .first = 50});
  narrow_bfloat16(from, bits_of(parts), 33, {.key = 3, .first = 50});
  narrow_bfloat16(from + 33, bits_of(parts) + 33, 67, {.key = 3, .first = 83});
  EXPECT_TRUE(at::equal(whole, parts));
  narrow_bfloat16(from, bits_of(other), 100, {.key = 4, .first = 50});
  EXPECT_FALSE(at::equal(whole, other));
  narrow_bfloat16(from, bits_of(other), 100, {.key = 3, .first = 50, .stream = 1});
  EXPECT_FALSE(at::equal(whole, other));
}

struct Blocks {
  explicit Blocks(std::int64_t count)
      : codes(static_cast<std::size_t>(count)),
        scales(static_cast<std::size_t>((count + block_elements - 1) / block_elements)) {}
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  std::vector<float> values(Codes kind) const {
    std::vector<float> to(codes.size());
    read_blocks(kind, codes.data(), scales.data(), to.data(), std::ssize(codes));
    return to;
  }
};

TEST(Blocks, StandForSmallFloats) {
  Blocks blocks(256);
  for (int i = 0; i < 256; ++i)
    blocks.codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(i);
  blocks.scales[0] = 4;
  auto with = blocks.values(Codes::with_sign), without = blocks.values(Codes::without_sign);
  for (int i = 0; i < 256; ++i) {
    double fraction = 1 + (i & 7) / 8.0, sign = i < 128 ? 1 : -1;
    double size = (i & 127) == 0 ? 0 : std::ldexp(fraction, (i >> 3 & 15) - 15);
    EXPECT_EQ(with[static_cast<std::size_t>(i)], 4 * sign * size) << i;
    EXPECT_EQ(without[static_cast<std::size_t>(i)],
              i == 0 ? 0 : 4 * std::ldexp(fraction, (i >> 3) - 31))
        << i;
  }
}

TEST(Blocks, ComeBackAsTheyWere) {
  const StochasticRounding rounding{.key = 1};
  for (std::int64_t count : {0, 1, 255, 256, 257, 5000}) {
    at::Tensor values = torch::randn({count}) * torch::exp(torch::randn({count}) * 4);
    at::Tensor squares = values.square() * 1e-6;
    for (Codes kind : {Codes::with_sign, Codes::without_sign}) {
      const at::Tensor& plain = kind == Codes::with_sign ? values : squares;
      Blocks once(count), nearest(count), stochastic(count);
      write_blocks(kind, plain.const_data_ptr<float>(), once.codes.data(), once.scales.data(),
                   count, nullptr);
      std::vector<float> read = once.values(kind);
      write_blocks(kind, read.data(), nearest.codes.data(), nearest.scales.data(), count, nullptr);
      write_blocks(kind, read.data(), stochastic.codes.data(), stochastic.scales.data(), count,
                   &rounding);
      EXPECT_EQ(nearest.values(kind), read) << count;
      EXPECT_EQ(stochastic.values(kind), read) << count;
    }
  }
}

TEST(Blocks, AreTheNearestCode) {
  at::Tensor values = torch::rand({256}).pow(6);
  for (Codes kind : {Codes::with_sign, Codes::without_sign}) {
    Blocks blocks(256);
    write_blocks(kind, values.const_data_ptr<float>(), blocks.codes.data(), blocks.scales.data(),
                 256, nullptr);
    auto read = blocks.values(kind);
    for (std::size_t i = 0; i < 256; ++i) {
      double value = values[static_cast<std::int64_t>(i)].item<double>();
      EXPECT_NEAR(read[i], value, value / 16 + 2e-5) << i;
    }
  }
}

TEST(Blocks, NeverTakeSmallSquaresForNothing) {
  at::Tensor values = torch::ones({256});
  values[0] = 0;
  values[1] = 1e-30;
  values[2] = 1e-9;
  Blocks blocks(256);
  write_blocks(Codes::without_sign, values.const_data_ptr<float>(), blocks.codes.data(),
               blocks.scales.data(), 256, nullptr);
  auto read = blocks.values(Codes::without_sign);
  EXPECT_EQ(read[0], 0);
  EXPECT_GT(read[1], 0);
  EXPECT_NEAR(read[2], 1e-9, 1e-10);
  EXPECT_EQ(read[3], 1);
}

TEST(Blocks, AreUnbiasedByStochasticRounding) {
  for (Codes kind : {Codes::with_sign, Codes::without_sign}) {
    constexpr std::int64_t count = 256 * 400;
    at::Tensor values = torch::full({count}, 0.0123F);  // between two codes
    values.view({-1, 256}).select(1, 0).fill_(1);       // determines each block's scale
    Blocks blocks(count);
    StochasticRounding rounding{.key = 11};
    write_blocks(kind, values.const_data_ptr<float>(), blocks.codes.data(), blocks.scales.data(),
                 count, &rounding);
    auto read = blocks.values(kind);
    at::Tensor found = torch::tensor(read).view({-1, 256}).narrow(1, 1, 255).to(at::kDouble);
    EXPECT_NEAR(found.mean().item<double>(), 0.0123, 0.0123 * 2e-3);
    EXPECT_GT(found.std().item<double>(), 0);
  }
}

}  // namespace
}  // namespace lockstep::optim
