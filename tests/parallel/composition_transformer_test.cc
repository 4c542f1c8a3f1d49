// Gradients of an unchanged torch::nn::Transformer in float32 under each plan: their error relative
// to one process in float64 must be about that of one process in float32.
#include <lockstep/parallel/parallelize.h>

#include "parallel/tensor/support.h"
#include "support/difference.h"
#include "support/torch/backend_test.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/transformer.h>

#include <algorithm>
#include <map>
#include <string>

namespace lockstep {
namespace {

using namespace test;

struct TransformerPlan {
  std::string name;
  std::vector<MeshAxis> axes;
  bool sequence = false;
  bool checkpoints = false;
};

constexpr std::int64_t batch_rows = 4;

torch::nn::Transformer transformer() {
  return torch::nn::Transformer(
      torch::nn::TransformerOptions(24, 12, 2, 2).dim_feedforward(36).dropout(0.0));
}

// Returns the loss of some rows of a batch, which is [tokens, rows, width].
at::Tensor loss_of(torch::nn::Transformer& model, at::ScalarType dtype, std::int64_t first,
                   std::int64_t rows) {
  const auto wave = [&](std::int64_t tokens, double phase) {
    const at::Tensor all = (at::arange(tokens * batch_rows * 24, at::kDouble) * 0.37 + phase).sin();
    return all.view({tokens, batch_rows, 24}).narrow(1, first, rows).to(dtype);
  };
  // The mean of squares would be constant, because the last layer is a norm.
  const double copies = static_cast<double>(batch_rows) / static_cast<double>(rows);
  return (model->forward(wave(7, 0), wave(5, 1)) * wave(5, 2)).sum() * copies;
}

using NamedGradients = std::map<std::string, at::Tensor>;

NamedGradients gradients_of_one(at::ScalarType dtype) {
  auto model = made_alike(transformer, dtype);
  loss_of(model, dtype, 0, batch_rows).backward();
  return gradients_by_name(*model);
}

// The largest error of an element, relative to the largest element of its tensor.
double error_of(const at::Tensor& found, const at::Tensor& truth) {
  if (truth.numel() == 0) return 0;
  const double scale = std::max(truth.abs().max().item<double>(), 1e-30);
  return nan_as_infinity((found.to(at::kDouble) - truth).abs().max().item<double>() / scale);
}

// The gradient of a key's bias is only rounding, because softmax cancels it.
bool is_rounding(const std::string& name) { return name.ends_with("in_proj_bias"); }

class TransformerPlans : public testing::TestWithParam<TransformerPlan> {};

TEST_P(TransformerPlans, GradientsAreAsNearToTheTruthAsThoseOfOneProcess) {
  const TransformerPlan& how = GetParam();
  int ranks = 1;
  for (const MeshAxis& axis : how.axes) ranks *= axis.size;
  const NamedGradients truth = gradients_of_one(at::kDouble), one = gradients_of_one(at::kFloat);
  double usual = 0;
  for (const auto& [name, tensor] : truth)
    if (!is_rounding(name)) usual = std::max(usual, error_of(one.at(name), tensor));
  run_group(BackendKind::local, ranks, [&](Group world) {
    const Mesh mesh(world, how.axes);
    auto model = made_alike(transformer, at::kFloat);
    ParallelOptions options{.tensor = transformer_tensor_plan(12),
                            .sequence_parallel = how.sequence,
                            .sequence_dim = 0,
                            .shard = {.units = {"encoder.layers.*", "decoder.layers.*"}}};
    if (how.checkpoints) options.activation_checkpointing = {"*coder.layers.*"};
    auto handle = parallelize(model, mesh, options);
    const std::int64_t rows = batch_rows / handle.data().size(), own = handle.data().rank();
    loss_of(model, at::kFloat, own * rows, rows).backward();
    double worst = 0;
    for (const Part& part : handle.named_parameters()) {
      ASSERT_TRUE(part.tensor.grad().defined()) << part.name;
      if (is_rounding(part.name)) continue;
      const at::Tensor expected = cut_part(truth.at(part.name), part);
      const at::Tensor found = dispatch::values_of(part.tensor.grad()).reshape({-1});
      if (expected.numel() == 0) continue;
      const double scale = truth.at(part.name).abs().max().item<double>();
      worst = std::max(
          worst,
          nan_as_infinity((found.to(at::kDouble) - expected).abs().max().item<double>() / scale));
    }
    EXPECT_LE(worst, 4 * usual) << "one process: " << usual;
    if (world.is_root())
      std::cout << how.name << ": largest error " << worst << ", of one process " << usual << "\n";
  });
}

INSTANTIATE_TEST_SUITE_P(
    Plans, TransformerPlans,
    testing::Values(TransformerPlan{"tp2", {{"tp", 2}}}, TransformerPlan{"tp3", {{"tp", 3}}},
                    TransformerPlan{"tp4", {{"tp", 4}}},
                    TransformerPlan{"tp2_sequence", {{"tp", 2}}, true},
                    TransformerPlan{"tp3_sequence", {{"tp", 3}}, true},
                    TransformerPlan{"tp2_checkpoints", {{"tp", 2}}, false, true},
                    TransformerPlan{"dp2_tp2", {{"dp", 2}, {"tp", 2}}},
                    TransformerPlan{"fsdp2_tp2", {{"fsdp", 2}, {"tp", 2}}},
                    TransformerPlan{"fsdp2_tp2_checkpoints", {{"fsdp", 2}, {"tp", 2}}, false, true},
                    TransformerPlan{"fsdp2_tp2_sequence", {{"fsdp", 2}, {"tp", 2}}, true}),
    [](const testing::TestParamInfo<TransformerPlan>& info) { return info.param.name; });

}  // namespace
}  // namespace lockstep
