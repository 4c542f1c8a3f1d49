#include "comm/kernels/combine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace lockstep::kernels {
namespace {

template <typename T>
using Ranks = std::vector<std::vector<T>>;

template <typename T>
std::vector<T> combined(DType dtype, Op op, const Ranks<T>& values, bool stream = false) {
  std::vector<std::vector<T>> buffers = values;  // in place, as in all_reduce
  std::vector<const std::byte*> inputs;
  std::vector<std::byte*> outputs;
  for (auto& buffer : buffers) {
    inputs.push_back(reinterpret_cast<std::byte*>(buffer.data()));
    outputs.push_back(reinterpret_cast<std::byte*>(buffer.data()));
  }
  combine({dtype, op, inputs, outputs, static_cast<std::int64_t>(values[0].size()), stream});
  for (auto& buffer : buffers)
    EXPECT_EQ(std::memcmp(buffer.data(), buffers[0].data(), buffer.size() * sizeof(T)), 0);
  return buffers[0];
}

template <typename T, typename Operation>
T in_tree(const Ranks<T>& values, std::size_t i, int low, int high, Operation operation) {
  if (high - low == 1) return values[low][i];
  int middle = low + left_branch(high - low);
  return operation(in_tree(values, i, low, middle, operation),
                   in_tree(values, i, middle, high, operation));
}

Ranks<float> random_floats(int ranks, std::size_t count) {
  std::mt19937 random(ranks * 1000 + static_cast<int>(count));
  std::normal_distribution<float> normal(0, 100);
  Ranks<float> values(ranks, std::vector<float>(count));
  for (auto& rank : values) {
    for (auto& value : rank) value = normal(random);
  }
  return values;
}

TEST(Combine, SumsFloatsInTheTreeBitForBit) {
  for (int ranks = 1; ranks <= 17; ++ranks) {
    for (std::size_t count : {1, 7, 16, 1000, 5001}) {
      auto values = random_floats(ranks, count);
      for (bool stream : {false, true}) {
        auto sum = combined(DType::float32, Op::sum, values, stream);
        auto average = combined(DType::float32, Op::average, values, stream);
        for (std::size_t i = 0; i < count; ++i) {
          volatile float expected =
              in_tree(values, i, 0, ranks, [](float a, float b) { return a + b; });
          ASSERT_EQ(std::bit_cast<std::uint32_t>(sum[i]),
                    std::bit_cast<std::uint32_t>(float{expected}))
              << ranks << " ranks, element " << i;
          ASSERT_EQ(average[i], expected / static_cast<float>(ranks));
        }
      }
    }
  }
}

TEST(Combine, KeepsNegativeZero) {
  EXPECT_TRUE(std::signbit(combined<float>(DType::float32, Op::sum, {{-0.0F}, {-0.0F}})[0]));
  EXPECT_TRUE(std::signbit(combined<double>(DType::float64, Op::sum, {{-0.0}})[0]));
}

TEST(Combine, LetsNanWinInMinAndMax) {
  float nan = std::numeric_limits<float>::quiet_NaN();
  for (Op op : {Op::min, Op::max}) {
    auto result = combined<float>(DType::float32, op, {{nan, 1, 2}, {1, nan, 3}, {0, 0, 1}});
    EXPECT_TRUE(std::isnan(result[0]) && std::isnan(result[1]));
    EXPECT_EQ(result[2], op == Op::min ? 1 : 3);
  }
}

template <typename T>
void check_integers(DType dtype) {
  std::mt19937_64 random(3);
  for (int ranks : {1, 2, 3, 5}) {
    Ranks<T> values(ranks, std::vector<T>(4099));
    for (auto& rank : values) {
      for (auto& value : rank) value = static_cast<T>(random());
    }
    auto check = [&](Op op, auto operation) {
      auto result = combined(dtype, op, values);
      for (std::size_t i = 0; i < result.size(); ++i)
        ASSERT_EQ(result[i], in_tree(values, i, 0, ranks, operation))
            << name_of(dtype) << " " << name_of(op);
    };
    check(Op::sum, [](T a, T b) {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    });
    check(Op::product, [](T a, T b) {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    });
    check(Op::min, [](T a, T b) { return std::min(a, b); });
    check(Op::max, [](T a, T b) { return std::max(a, b); });
    check(Op::band, [](T a, T b) { return static_cast<T>(a & b); });
    check(Op::bor, [](T a, T b) { return static_cast<T>(a | b); });
    check(Op::bxor, [](T a, T b) { return static_cast<T>(a ^ b); });
  }
}

TEST(Combine, WrapsIntegersAround) {
  check_integers<std::int64_t>(DType::int64);
  check_integers<std::int32_t>(DType::int32);
  check_integers<std::int16_t>(DType::int16);
  check_integers<std::int8_t>(DType::int8);
  check_integers<std::uint8_t>(DType::uint8);
}

TEST(Combine, TreatsBooleansAsTruth) {
  Ranks<std::uint8_t> values{{0, 0, 1, 1}, {0, 1, 0, 1}};
  using Bytes = std::vector<std::uint8_t>;
  EXPECT_EQ(combined(DType::boolean, Op::sum, values), (Bytes{0, 1, 1, 1}));
  EXPECT_EQ(combined(DType::boolean, Op::product, values), (Bytes{0, 0, 0, 1}));
  EXPECT_EQ(combined(DType::boolean, Op::bxor, values), (Bytes{0, 1, 1, 0}));
}

float from_bfloat16(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

// Finds the nearest value by trying both neighbors of the truncated value.
std::uint16_t nearest_bfloat16(float value) {
  auto low = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16);
  auto high = static_cast<std::uint16_t>(low + 1);
  double below = std::abs(static_cast<double>(value) - from_bfloat16(low));
  double above = std::abs(static_cast<double>(from_bfloat16(high)) - value);
  if (below == above) return low % 2 == 0 ? low : high;
  return below < above ? low : high;
}

TEST(Combine, SumsBfloat16InFloatAndRoundsOnce) {
  std::mt19937 random(5);
  for (int ranks : {1, 2, 3, 5}) {
    Ranks<std::uint16_t> values(ranks, std::vector<std::uint16_t>(3001));
    for (auto& rank : values) {
      for (auto& value : rank)
        value = static_cast<std::uint16_t>((random() & 0x80ff) | 0x3f00);  // magnitudes around 1
    }
    auto sum = combined(DType::bfloat16, Op::sum, values);
    Ranks<float> wide(ranks, std::vector<float>(3001));
    for (int rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < 3001; ++i) wide[rank][i] = from_bfloat16(values[rank][i]);
    }
    for (std::size_t i = 0; i < sum.size(); ++i) {
      float expected = in_tree(wide, i, 0, ranks, [](float a, float b) { return a + b; });
      ASSERT_EQ(sum[i], nearest_bfloat16(expected)) << i;
    }
  }
  EXPECT_TRUE(std::isnan(
      from_bfloat16(combined<std::uint16_t>(DType::bfloat16, Op::sum, {{0x7f81}, {0x3f80}})[0])));
}

TEST(Combine, GivesEveryFloat16BackUnchanged) {
  // Widening, the average of one rank (a division by one) and rounding must be the identity on all
  // numbers.
  Ranks<std::uint16_t> values(1, std::vector<std::uint16_t>(65536));
  for (std::size_t i = 0; i < 65536; ++i) values[0][i] = static_cast<std::uint16_t>(i);
  auto result = combined(DType::float16, Op::average, values);
  for (std::size_t i = 0; i < 65536; ++i) {
    bool is_nan = (i & 0x7c00) == 0x7c00 && (i & 0x3ff) != 0;
    if (is_nan)
      ASSERT_TRUE((result[i] & 0x7c00) == 0x7c00 && (result[i] & 0x3ff) != 0);
    else
      ASSERT_EQ(result[i], i);
  }
}

TEST(Combine, RoundsFloat16ToNearestEven) {
  // 2048 + 1 lies between 2048 and 2050: the even mantissa is 2048. 2050 + 1 goes to 2052. 65504 +
  // 65504 overflows.
  Ranks<std::uint16_t> values{{0x6800, 0x6801, 0x7bff}, {0x3c00, 0x3c00, 0x7bff}};
  EXPECT_EQ(combined(DType::float16, Op::sum, values),
            (std::vector<std::uint16_t>{0x6800, 0x6802, 0x7c00}));
}

TEST(Combine, KnowsWhichPairsMakeSense) {
  EXPECT_TRUE(can_combine(DType::bfloat16, Op::average));
  EXPECT_FALSE(can_combine(DType::int32, Op::average));
  EXPECT_FALSE(can_combine(DType::float32, Op::band));
  EXPECT_FALSE(can_combine(DType::complex64, Op::sum)) << "groups view them as real numbers";
  EXPECT_FALSE(can_combine(DType::opaque2, Op::sum));
  EXPECT_TRUE(can_combine(DType::boolean, Op::bxor));
}

TEST(CopyBytes, CopiesAnyLengthFromAndToAnywhere) {
  constexpr std::byte untouched{0xa5};
  std::vector<std::byte> from(5000);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 37 + i / 256);
  for (std::size_t offset = 0; offset <= 65; ++offset) {
    for (std::size_t bytes : {0, 1, 15, 33, 63, 64, 65, 127, 128, 200, 1000, 4097}) {
      for (bool stream : {false, true}) {
        std::vector<std::byte> to(5000, untouched);
        copy_bytes(to.data() + offset, from.data() + 3, bytes, stream);
        ASSERT_EQ(std::memcmp(to.data() + offset, from.data() + 3, bytes), 0);
        const auto after = std::span(to).subspan(offset + bytes);
        ASSERT_EQ(std::ranges::count(std::span(to).first(offset), untouched),
                  std::ssize(to) - std::ssize(after) - static_cast<std::ptrdiff_t>(bytes));
        ASSERT_EQ(std::ranges::count(after, untouched), std::ssize(after));
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::kernels
