// The vector kernel is the naive loop bit for bit, for every length and option.
#include "optim/adam_kernel.h"

#include "optim/adam_naive.h"

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
      values->resize(count + 1);  // what lies behind must stay
      for (float& value : *values) value = normal(random);
    }
    for (float& value : square) value = value * value;
    for (float& value : greatest) value = value * value;
  }
  std::vector<float> parameter, gradient, average, square, greatest;
};

NaiveAdamConstants<float> naive(const AdamConstants& c) {
  return {c.factor, c.limit, c.decay, c.kept, c.beta1,    c.new1,
          c.beta2,  c.new2,  c.root,  c.eps,  c.step_size};
}

AdamConstants some_constants() {
  return {.factor = 0.7F,
          .limit = 1.1F,
          .decay = 0.02F,
          .kept = 0.999F,
          .beta1 = 0.9F,
          .new1 = 0.1F,
          .beta2 = 0.99F,
          .new2 = 0.01F,
          .root = 0.4F,
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
  update_adam(constants, {.parameter = fast.parameter.data(),
                          .gradient = fast.gradient.data(),
                          .average = fast.average.data(),
                          .square = fast.square.data(),
                          .greatest_square = amsgrad ? fast.greatest.data() : nullptr,
                          .count = static_cast<std::int64_t>(count)});
  auto whole = [&](std::vector<float>& values) { return std::span(values).first(count); };
  naive_adam<float>(naive(constants), whole(slow.parameter), whole(slow.gradient),
                    whole(slow.average), whole(slow.square),
                    amsgrad ? whole(slow.greatest) : std::span<float>());
  expect_equal(fast, slow, count);
}

TEST(AdamKernel, IsTheNaiveLoopForEveryLength) {
  for (std::size_t count = 0; count <= 70; ++count)
    for (bool amsgrad : {false, true}) run_both(some_constants(), count, amsgrad);
  run_both(some_constants(), 100'003, false);
}

TEST(AdamKernel, DoesNothingToGradientsWithoutTreatment) {
  AdamConstants constants = some_constants();
  constants.factor = 1;
  constants.limit = std::numeric_limits<float>::infinity();
  run_both(constants, 1000, true);
}

TEST(AdamKernel, KeepsWhatIsNoNumber) {
  Memory memory(40);
  memory.gradient[3] = memory.gradient[39] = std::numeric_limits<float>::quiet_NaN();
  update_adam(some_constants(), {.parameter = memory.parameter.data(),
                                 .gradient = memory.gradient.data(),
                                 .average = memory.average.data(),
                                 .square = memory.square.data(),
                                 .count = 40});
  for (std::size_t i = 0; i < 40; ++i)
    EXPECT_EQ(std::isnan(memory.parameter[i]), i == 3 || i == 39) << i;
}

}  // namespace
}  // namespace lockstep::optim
