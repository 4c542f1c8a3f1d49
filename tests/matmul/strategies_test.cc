// Gradients of an unchanged torch::nn::Transformer with products by oneDNN, under each kind of
// strategy: their error relative to one process in float64 must be about that of one process in
// float32.
#include <lockstep/parallel/data/distributed_data_parallel.h>
#include <lockstep/parallel/parallelize.h>
#include <lockstep/parallel/sharded/fully_shard.h>

#include "matmul/matmul.h"
#include "parallel/tensor/support.h"
#include "support/difference.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/transformer.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

namespace lockstep {
namespace {

using namespace test;

constexpr std::int64_t width = 192, tokens = 48, batch_rows = 4;

torch::nn::Transformer wide_transformer() {
  return torch::nn::Transformer(
      torch::nn::TransformerOptions(width, 12, 1, 1).dim_feedforward(2 * width).dropout(0.0));
}

at::Tensor loss_of_rows(torch::nn::Transformer& model, at::ScalarType dtype, std::int64_t first,
                        std::int64_t rows) {
  const auto wave = [&](double phase) {
    const auto count = tokens * batch_rows * width;
    const at::Tensor all = (at::arange(count, at::kDouble) * 0.37 + phase).sin();
    return all.view({tokens, batch_rows, width}).narrow(1, first, rows).to(dtype);
  };
  const double copies = static_cast<double>(batch_rows) / static_cast<double>(rows);
  return (model->forward(wave(0), wave(1)) * wave(2)).sum() * copies;
}

std::map<std::string, at::Tensor> gradients_of_one_process(at::ScalarType dtype) {
  auto model = made_alike(wide_transformer, dtype);
  loss_of_rows(model, dtype, 0, batch_rows).backward();
  return gradients_by_name(*model);
}

using Truth = std::map<std::string, at::Tensor>;

double error_of(const at::Tensor& found, const std::string& name, const Part* part,
                const Truth& truth) {
  const at::Tensor whole = truth.at(name), expected = part ? cut_part(whole, *part) : whole;
  // The gradient of a key's bias is only rounding, because softmax cancels it.
  if (expected.numel() == 0 || name.ends_with("in_proj_bias")) return 0;
  const at::Tensor difference = found.to(at::kDouble).view_as(expected) - expected;
  return nan_as_infinity(difference.abs().max().item<double>() / whole.abs().max().item<double>());
}

class OneDnn : public testing::Test {
 protected:
  void SetUp() override {
    if (!matmul::onednn::missing().empty()) GTEST_SKIP() << matmul::onednn::missing();
    matmul::choose(true);
  }
  void TearDown() override { matmul::choose(false); }

  using Make = std::function<Handle(torch::nn::Transformer&, Group)>;

  // `copies` is the number of model replicas among `ranks`; the replicas divide the batch.
  static void expect_near_truth(int ranks, std::int64_t copies, const Make& make) {
    const Truth truth = gradients_of_one_process(at::kDouble);
    double usual = 0;
    for (const auto& [name, gradient] : gradients_of_one_process(at::kFloat))
      usual = std::max(usual, error_of(gradient, name, nullptr, truth));
    const auto before = matmul::onednn_products();
    run_group(BackendKind::local, ranks, [&](Group world) {
      auto model = made_alike(wide_transformer, at::kFloat);
      Handle handle = make(model, world);
      const std::int64_t rows = batch_rows / copies;
      const std::int64_t own = world.rank() / (world.size() / copies);
      loss_of_rows(model, at::kFloat, own * rows, rows).backward();
      for (const Part& part : handle.named_parameters()) {
        ASSERT_TRUE(part.tensor.grad().defined()) << part.name;
        const at::Tensor found = dispatch::values_of(part.tensor.grad()).reshape({-1});
        EXPECT_LE(error_of(found, part.name, &part, truth), 4 * usual) << part.name;
      }
    });
    EXPECT_GE(matmul::onednn_products() - before, 10U * static_cast<unsigned>(ranks));
  }
};

TEST_F(OneDnn, MultipliesUnderDistributedDataParallel) {
  expect_near_truth(2, 2, [](torch::nn::Transformer& model, Group world) {
    return DistributedDataParallel(model, world);
  });
}

TEST_F(OneDnn, MultipliesUnderShardedParameters) {
  expect_near_truth(2, 2, [](torch::nn::Transformer& model, Group world) {
    return fully_shard(model, world, {.units = {"encoder.layers.*", "decoder.layers.*"}});
  });
}

TEST_F(OneDnn, MultipliesPartsOfTensors) {
  expect_near_truth(3, 1, [](torch::nn::Transformer& model, Group world) {
    return parallelize(model, Mesh(world, {{"tp", 3}}), {.tensor = transformer_tensor_plan(12)});
  });
}

}  // namespace
}  // namespace lockstep
