// The vector kernels equal the naive loops bit for bit, for every length and option.
#include "optim/update_kernel.h"

#include "optim/adam_naive.h"
#include "optim/sgd_naive.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace lockstep::optim {
namespace {

struct Memory {
  explicit Memory(std::size_t count) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    for (auto* values : {&parameter, &gradient, &average, &square, &greatest}) {
      values->resize(count + 1);  // the element after the end must not change
      for (float& value : *values) value = normal(random);
    }
    for (float& value : square) value = value * value;
    for (float& value : greatest) value = value * value;
  }
  std::vector<float> parameter, gradient, average, square, greatest;
};

AdamConstants some_constants() {
  return {.factor = 0.7F,
          .limit = 1.1F,
          .decay = 0.02F,
          .decay_factor = 0.999F,
          .beta1 = 0.9F,
          .new1 = 0.1F,
          .beta2 = 0.99F,
          .new2 = 0.01F,
          .unbias = 2.5F,
          .eps = 1e-8F,
          .step_size = 0.01F};
}

void expect_equal(const Memory& fast, const Memory& slow, std::size_t count) {
  EXPECT_EQ(fast.parameter, slow.parameter) << count;
  EXPECT_EQ(fast.average, slow.average) << count;
  EXPECT_EQ(fast.square, slow.square) << count;
  EXPECT_EQ(fast.greatest, slow.greatest) << count;
}

void run_both(const AdamConstants& constants, std::size_t count, bool amsgrad) {
  Memory fast(count), slow(count);
  update_adam(constants, AdamSpan{.parameter = fast.parameter.data(),
                                  .gradient = fast.gradient.data(),
                                  .average = fast.average.data(),
                                  .square = fast.square.data(),
                                  .greatest_square = amsgrad ? fast.greatest.data() : nullptr,
                                  .count = static_cast<std::int64_t>(count)});
  auto whole = [&](std::vector<float>& values) { return std::span(values).first(count); };
  naive_adam<float>(constants, whole(slow.parameter), whole(slow.gradient), whole(slow.average),
                    whole(slow.square), amsgrad ? whole(slow.greatest) : std::span<float>());
  expect_equal(fast, slow, count);
}

TEST(AdamKernel, IsTheNaiveLoopForEveryLength) {
  for (std::size_t count = 0; count <= 70; ++count)
    for (bool amsgrad : {false, true}) run_both(some_constants(), count, amsgrad);
  run_both(some_constants(), 100'003, false);
}

TEST(AdamKernel, DoesNothingToGradientsWithoutTransform) {
  AdamConstants constants = some_constants();
  constants.factor = 1;
  constants.limit = std::numeric_limits<float>::infinity();
  run_both(constants, 1000, true);
}

TEST(AdamKernel, KeepsWhatIsNoNumber) {
  Memory memory(40);
  memory.gradient[3] = memory.gradient[39] = std::numeric_limits<float>::quiet_NaN();
  update_adam(some_constants(), AdamSpan{.parameter = memory.parameter.data(),
                                         .gradient = memory.gradient.data(),
                                         .average = memory.average.data(),
                                         .square = memory.square.data(),
                                         .count = 40});
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(std::isnan(memory.parameter[i]), i == 3 || i == 39) << i;
}

// The result equals widening, the naive loop, and rounding with the same random bits.
TEST(AdamKernel, KeepsBFloat16AsItsPartsWould) {
  for (std::size_t count : {1, 7, 8, 29, 1000}) {
    Memory fast(count), slow(count);
    auto n = static_cast<std::int64_t>(count);
    std::vector<std::uint16_t> average(count), square(count), expected_average(count),
        expected_square(count);
    narrow(at::kBFloat16, fast.average.data(), average.data(), n);
    narrow(at::kBFloat16, fast.square.data(), square.data(), n);
    widen(at::kBFloat16, average.data(), slow.average.data(), n);
    widen(at::kBFloat16, square.data(), slow.square.data(), n);
    StochasticRounding rounding{.key = 5, .first = 77};
    update_adam(some_constants(),
                SmallAdamSpan{.parameter = fast.parameter.data(),
                              .gradient = fast.gradient.data(),
                              .average = average.data(),
                              .square = square.data(),
                              .count = n},
                rounding);
    auto whole = [&](std::vector<float>& values) { return std::span(values).first(count); };
    naive_adam<float>(some_constants(), whole(slow.parameter), whole(slow.gradient),
                      whole(slow.average), whole(slow.square), {});
    narrow_bfloat16(slow.average.data(), expected_average.data(), n, rounding);
    rounding.stream = 1;
    narrow_bfloat16(slow.square.data(), expected_square.data(), n, rounding);
    EXPECT_EQ(fast.parameter, slow.parameter) << count;
    EXPECT_EQ(average, expected_average) << count;
    EXPECT_EQ(square, expected_square) << count;
  }
}

std::vector<float> random_values(std::size_t count, int seed) {
  std::mt19937 random(static_cast<unsigned>(seed));
  std::normal_distribution<float> normal;
  std::vector<float> values(count + 1);  // the element after the end must not change
  for (float& value : values) value = normal(random);
  return values;
}

void run_both(const SgdConstants& c, std::size_t count, bool buffered) {
  auto parameter = random_values(count, 1), buffer = random_values(count, 2);
  const auto gradient = random_values(count, 3);
  auto slow_parameter = parameter, slow_buffer = buffer;
  update_sgd(c, {.parameter = parameter.data(),
                 .gradient = gradient.data(),
                 .momentum_buffer = buffered ? buffer.data() : nullptr,
                 .count = static_cast<std::int64_t>(count)});
  naive_sgd<float>(c, std::span(slow_parameter).first(count), std::span(gradient).first(count),
                   buffered ? std::span(slow_buffer).first(count) : std::span<float>());
  EXPECT_EQ(parameter, slow_parameter) << count;
  EXPECT_EQ(buffer, slow_buffer) << count;
}

TEST(SgdKernel, IsTheNaiveLoopForEveryLengthAndOption) {
  for (bool buffered : {false, true})
    for (bool nesterov : {false, true})
      for (bool first : {false, true}) {
        SgdConstants constants{.factor = 0.7F,
                               .limit = 1.1F,
                               .decay = 0.02F,
                               .momentum = 0.9F,
                               .undamped = 0.8F,
                               .lr = 0.1F,
                               .nesterov = nesterov,
                               .first = first};
        for (std::size_t count = 0; count <= 70; ++count) run_both(constants, count, buffered);
      }
}

TEST(SgdKernel, InfiniteParametersStaySoWithoutDecay) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (float sign : {1.0F, -1.0F}) {
    std::vector<float> parameter(19, sign * infinity), buffer(19, 0.5F);
    const std::vector<float> gradient(19, 1.0F);
    for (float* momentum : {static_cast<float*>(nullptr), buffer.data()}) {
      update_sgd({.factor = 1, .limit = infinity, .momentum = 0.9F, .lr = 0.1F},
                 {.parameter = parameter.data(),
                  .gradient = gradient.data(),
                  .momentum_buffer = momentum,
                  .count = 19});
      EXPECT_EQ(parameter, std::vector<float>(19, sign * infinity));
    }
  }
}

}  // namespace
}  // namespace lockstep::optim
