// Products by oneDNN are as accurate as any order of summation allows, and deterministic.
#include "matmul/chosen.h"
#include "support/processes.h"

#include <gtest/gtest.h>

#include <ATen/ops/abs.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/nn/options/transformerlayer.h>
#include <torch/types.h>

#include <limits>
#include <set>
#include <thread>

using namespace lockstep;
using test::by;
using test::Chosen;
using test::onednn_products_of;
using test::random_matrix;

namespace {

struct Sizes {
  std::int64_t m, k, n;
};

// The error bound of a sum of k products in any order (Higham, Accuracy and Stability of Numerical
// Algorithms, section 3.1), plus one addition for a bias.
void expect_near_truth(const at::Tensor& found, const at::Tensor& a, const at::Tensor& b,
                       const at::Tensor& bias = {}) {
  const at::Tensor a64 = a.to(at::kDouble), b64 = b.to(at::kDouble);
  at::Tensor truth = at::matmul(a64, b64), most = at::matmul(a64.abs(), b64.abs());
  if (bias.defined()) {
    truth += bias.to(at::kDouble);
    most += bias.to(at::kDouble).abs();
  }
  const double unit = std::numeric_limits<float>::epsilon() / 2;
  const auto k = static_cast<double>(a.size(-1) + 1);
  const at::Tensor bound = most * (k * unit / (1 - k * unit));
  EXPECT_TRUE(((found.to(at::kDouble) - truth).abs() <= bound).all().item<bool>())
      << a.sizes() << a.strides() << b.sizes() << b.strides();
}

TEST(Products, OfEveryOrderAreNearTheTruth) {
  LOCKSTEP_NEEDS_ONEDNN();
  torch::manual_seed(1);
  const Chosen chosen(true);
  const Sizes all[] = {{128, 128, 128}, {4, 768, 768},    {97, 131, 257}, {1000, 65, 33},
                       {33, 4001, 17},  {2048, 4, 256},   {512, 1024, 4}, {31, 1024, 99},
                       {64, 512, 512},  {2048, 384, 1152}};
  for (const auto& [m, k, n] : all) {
    for (int order = 0; order < 4; ++order) {
      const at::Tensor a = random_matrix({m, k}, (order & 1) != 0);
      const at::Tensor b = random_matrix({k, n}, (order & 2) != 0);
      at::Tensor found;
      EXPECT_EQ(onednn_products_of([&] { found = at::mm(a, b); }), 1U);
      EXPECT_TRUE(found.is_contiguous());
      expect_near_truth(found, a, b);
      if ((order & 1) != 0) continue;  // the input of a layer is never stored by column
      const at::Tensor bias = at::randn({n});
      EXPECT_EQ(onednn_products_of([&] { found = at::addmm(bias, a, b); }), 1U);
      expect_near_truth(found, a, b, bias);
    }
  }
}

TEST(Products, OfBatchesAreNearTheTruth) {
  LOCKSTEP_NEEDS_ONEDNN();
  torch::manual_seed(2);
  const Chosen chosen(true);
  const Sizes all[] = {{64, 32, 64}, {33, 65, 31}, {128, 16, 128}, {4, 64, 256}};
  for (const auto& [m, k, n] : all) {
    for (const std::int64_t batch : {48, 97}) {
      for (int order = 0; order < 4; ++order) {
        const at::Tensor a = random_matrix({batch, m, k}, (order & 1) != 0);
        const at::Tensor b = random_matrix({batch, k, n}, (order & 2) != 0);
        at::Tensor found;
        EXPECT_EQ(onednn_products_of([&] { found = at::bmm(a, b); }), 1U);
        expect_near_truth(found, a, b);
      }
    }
  }
}

TEST(Products, OfMatricesThatBeginAnywhere) {
  LOCKSTEP_NEEDS_ONEDNN();
  const Chosen chosen(true);
  const at::Tensor memory = at::randn({200 * 300 + 3});
  for (std::int64_t offset = 0; offset < 4; ++offset) {
    const at::Tensor a = memory.narrow(0, offset, 200 * 300).view({200, 300});
    at::Tensor found;
    EXPECT_EQ(onednn_products_of([&] { found = at::mm(a, a.t()); }), 1U);
    expect_near_truth(found, a, a.t());
  }
}

TEST(Products, AreNotANumberWhereOneIsNot) {
  LOCKSTEP_NEEDS_ONEDNN();
  const Chosen chosen(true);
  at::Tensor a = at::randn({200, 200}), b = at::randn({200, 200}), bias = at::randn({200});
  a[3][5] = std::numeric_limits<float>::quiet_NaN();
  bias[7] = std::numeric_limits<float>::infinity();
  const at::Tensor found = at::addmm(bias, a, b);
  EXPECT_TRUE(found[3].isnan().all().item<bool>());
  EXPECT_FALSE(found[4].isnan().any().item<bool>());
  EXPECT_TRUE(found[4][7].isinf().item<bool>());
  EXPECT_EQ(found.isinf().sum().item<std::int64_t>(), 199);
}

// Returns the gradients of a sum of all outputs with different weights.
std::vector<at::Tensor> gradients_of(torch::nn::Module& module,
                                     const std::function<at::Tensor()>& forward) {
  module.zero_grad();
  const at::Tensor outputs = forward();
  (outputs * at::arange(outputs.numel(), outputs.options()).cos().view_as(outputs))
      .sum()
      .backward();
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : module.parameters()) all.push_back(parameter.grad().clone());
  return all;
}

void expect_near(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& truth) {
  ASSERT_EQ(found.size(), truth.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    const at::Tensor difference = (found[i].to(at::kDouble) - truth[i]).norm();
    EXPECT_LE(difference.item<double>(), 2e-6 * truth[i].norm().item<double>()) << i;
  }
}

TEST(Products, OfALinearLayerAndItsGradients) {
  LOCKSTEP_NEEDS_ONEDNN();
  torch::manual_seed(3);
  const Chosen chosen(true);
  torch::nn::Linear layer(384, 256);
  at::Tensor input = at::randn({8, 64, 384}).requires_grad_();
  std::vector<at::Tensor> found;
  // One product each for forward, the gradient of the input and the gradient of the weight.
  EXPECT_EQ(onednn_products_of([&] { found = gradients_of(*layer, [&] { return layer(input); }); }),
            3U);
  found.push_back(input.grad().clone());
  layer->to(at::kDouble);
  input = input.detach().to(at::kDouble).requires_grad_();
  auto truth = gradients_of(*layer, [&] { return layer(input); });
  truth.push_back(input.grad());
  expect_near(found, truth);
}

TEST(Products, OfATransformerLayerAndItsGradients) {
  LOCKSTEP_NEEDS_ONEDNN();
  torch::manual_seed(4);
  const Chosen chosen(true);
  torch::nn::TransformerEncoderLayer layer(
      torch::nn::TransformerEncoderLayerOptions(128, 4).dim_feedforward(512).dropout(0.0));
  const at::Tensor input = at::randn({64, 8, 128});
  std::vector<at::Tensor> found;
  EXPECT_GE(onednn_products_of([&] { found = gradients_of(*layer, [&] { return layer(input); }); }),
            11U);  // three per layer for four layers, except the gradient of the first input
  layer->to(at::kDouble);
  expect_near(found, gradients_of(*layer, [&] { return layer(input.to(at::kDouble)); }));
}

std::vector<at::Tensor> some_products() {
  torch::manual_seed(5);
  const at::Tensor a = at::randn({192, 384}), b = at::randn({256, 384}), bias = at::randn({256});
  const at::Tensor batch = at::randn({32, 64, 64});
  return {at::addmm(bias, a, b.t()), at::mm(a, b.t()), at::mm(at::mm(a, b.t()).t(), a),
          at::bmm(batch, batch.transpose(1, 2))};
}

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(found[i], expected[i]));
}

TEST(Products, HaveTheSameBitsEachTimeInEveryThreadAndProcess) {
  LOCKSTEP_NEEDS_ONEDNN();
  const Chosen chosen(true);
  const auto expected = some_products();
  expect_equal(some_products(), expected);
  test::expect_ranks(2, [&](int) { expect_equal(some_products(), expected); });
  const at::Tensor a = at::randn({256, 256});
  const at::Tensor product = at::mm(a, a);
  std::vector<int> right(4);
  std::vector<std::thread> threads;
  for (int& count : right)
    threads.emplace_back([&] {
      const at::NoGradGuard no_grad;
      for (int i = 0; i < 20; ++i) count += at::equal(at::mm(a, a), product) ? 1 : 0;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(right, std::vector<int>(4, 20));
}

TEST(Products, AreCutInPiecesOfFiveBits) {
  std::set<std::int64_t> sizes;
  for (std::int64_t count = 1; count <= 4096; ++count) {
    std::int64_t begin = 0, pieces = 0;
    for (; begin < count; ++pieces) {
      const std::int64_t size = matmul::onednn::next_piece(count - begin);
      ASSERT_TRUE(size > 0 && size <= count - begin) << count;
      begin += size;
      sizes.insert(size);
    }
    EXPECT_EQ(begin, count);
    EXPECT_LE(pieces, 3) << count;
    if (count < 32 || count % 256 == 0) EXPECT_EQ(pieces, 1) << count;
  }
  EXPECT_EQ(sizes.size(), 144U);
}

// A row's result does not depend on the number of rows: a batch that is divided among ranks has
// bitwise the same results as the whole batch.
TEST(Products, OfSomeRowsHaveTheBitsOfAll) {
  LOCKSTEP_NEEDS_ONEDNN_BY_DEFAULT();
  const Chosen chosen(true);
  for (const bool by_columns : {false, true}) {
    const at::Tensor a = at::randn({513, 384}), bias = at::randn({256});
    const at::Tensor b = random_matrix({384, 256}, by_columns);
    const at::Tensor whole = at::mm(a, b), with_bias = at::addmm(bias, a, b);
    for (const std::int64_t rows : {32, 171, 256, 400}) {
      const at::Tensor part = a.narrow(0, 513 - rows, rows);
      EXPECT_TRUE(at::equal(at::mm(part, b), whole.narrow(0, 513 - rows, rows))) << rows;
      EXPECT_TRUE(at::equal(at::addmm(bias, part, b), with_bias.narrow(0, 513 - rows, rows)));
    }
  }
}

}  // namespace
