// The vector kernel equals the naive loop bit for bit, for every length and option.
#include "optim/sgd_kernel.h"

#include "optim/sgd_naive.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <vector>

namespace lockstep::optim {
namespace {

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
