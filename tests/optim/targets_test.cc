// Kernels for every instruction set of this host: conversions and rounding are equal bit for bit,
// and updates are equal up to the rounding that fused multiply-add saves.
#include "optim/formats_kernel.h"
#include "optim/update_kernel.h"

#include "optim/support.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <limits>
#include <vector>

namespace lockstep::optim {
namespace {

using test::bits_of;

constexpr std::int64_t count = 1003;

// Selects the kernels of one instruction set during its lifetime.
class Chosen {
 public:
  explicit Chosen(std::int64_t target) { choose(target); }
  ~Chosen() { choose(0); }  // 0: the default of the host

 private:
  static void choose(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

std::vector<std::int64_t> targets() {
  std::vector<std::int64_t> found;
  for (std::int64_t target : hwy::SupportedAndGeneratedTargets())
    if ((target & HWY_DISABLED_TARGETS) == 0) found.push_back(target);
  return found;
}

// Returns the tensors of `function` for each instruction set.
template <class Function>
std::vector<std::vector<at::Tensor>> on_each(const Function& function) {
  std::vector<std::vector<at::Tensor>> results;
  for (std::int64_t target : targets()) {
    Chosen chosen(target);
    torch::manual_seed(2);
    results.push_back(function());
  }
  return results;
}

template <class Function>
void expect_same_bits(const Function& function) {
  auto results = on_each(function);
  for (const auto& result : results)
    for (std::size_t i = 0; i < result.size(); ++i)
      EXPECT_TRUE(at::equal(result[i], results[0][i])) << i;
}

TEST(Targets, ConvertTo16BitsAlike) {
  expect_same_bits([] {
    at::Tensor values = torch::randn({count}) * torch::exp(torch::randn({count}) * 5);
    at::Tensor half = torch::zeros({count}, at::kHalf),
               plain = torch::zeros({count}, at::kBFloat16);
    at::Tensor stochastic = plain.clone(), wide = torch::zeros({count}), wide_half = wide.clone();
    const float* from = values.const_data_ptr<float>();
    narrow(at::kHalf, from, bits_of(half), count);
    narrow(at::kBFloat16, from, bits_of(plain), count);
    narrow_bfloat16(from, bits_of(stochastic), count, {.key = 3, .first = 9});
    widen(at::kHalf, bits_of(half), wide_half.mutable_data_ptr<float>(), count);
    widen(at::kBFloat16, bits_of(plain), wide.mutable_data_ptr<float>(), count);
    follow(at::kHalf, bits_of(half), values.mutable_data_ptr<float>(), count);
    return std::vector<at::Tensor>{half.view(at::kShort),
                                   plain.view(at::kShort),
                                   stochastic.view(at::kShort),
                                   wide,
                                   wide_half,
                                   values};
  });
}

TEST(Targets, WriteBlocksAlike) {
  expect_same_bits([] {
    at::Tensor values = torch::randn({count}), squares = values.square();
    at::Tensor with = torch::zeros({count}, at::kByte), without = with.clone();
    at::Tensor scales = torch::zeros({4}), square_scales = scales.clone(),
               read = torch::zeros({count});
    StochasticRounding rounding{.key = 3, .first = 9};
    write_blocks(Codes::with_sign, values.const_data_ptr<float>(), with.data_ptr<std::uint8_t>(),
                 scales.data_ptr<float>(), count, &rounding);
    write_blocks(Codes::without_sign, squares.const_data_ptr<float>(),
                 without.data_ptr<std::uint8_t>(), square_scales.data_ptr<float>(), count, nullptr);
    read_blocks(Codes::with_sign, with.data_ptr<std::uint8_t>(), scales.data_ptr<float>(),
                read.data_ptr<float>(), count);
    return std::vector<at::Tensor>{with, without, scales, square_scales, read};
  });
}

TEST(Targets, UpdateAlikeUpToRounding) {
  auto results = on_each([] {
    at::Tensor w = torch::randn({count}), g = torch::randn({count}), m = torch::randn({count});
    at::Tensor v = torch::rand({count}) + 0.1, b = torch::randn({count});
    AdamConstants adam{.factor = 0.5F,
                       .limit = 1,
                       .decay_factor = 0.99F,
                       .beta1 = 0.9F,
                       .new1 = 0.1F,
                       .beta2 = 0.99F,
                       .new2 = 0.01F,
                       .eps = 1e-8F,
                       .step_size = 0.01F};
    update_adam(adam, AdamSpan{.parameter = w.data_ptr<float>(),
                               .gradient = g.data_ptr<float>(),
                               .average = m.data_ptr<float>(),
                               .square = v.data_ptr<float>(),
                               .count = count});
    SgdConstants sgd{.limit = std::numeric_limits<float>::infinity(), .momentum = 0.9F, .lr = 0.1F};
    update_sgd(sgd, {.parameter = w.data_ptr<float>(),
                     .gradient = g.data_ptr<float>(),
                     .momentum_buffer = b.data_ptr<float>(),
                     .count = count});
    double sum = sum_of_squares(g.data_ptr<float>(), count, 1, 2);
    return std::vector<at::Tensor>{w, m, v, b, torch::tensor(sum)};
  });
  for (const auto& result : results)
    for (std::size_t i = 0; i < result.size(); ++i)
      EXPECT_LE(test::ulps_between(result[i], results[0][i], at::ones_like(result[i])), 2) << i;
}

}  // namespace
}  // namespace lockstep::optim
